"""Deprecated types (SEM C, SEM D). They are listed here for the command line, which avoids loading
the modules of all types (a tenth of a second)."""

from __future__ import annotations

from typing import Final

DEPRECATED_CHANNELS: Final = frozenset(("simple", "paged", "off_heap"))
"""Deprecated types of channels and queues."""
DEPRECATED_DURABLES: Final = frozenset(("priority", "shared_queued"))
"""Deprecated types of durables."""
