"""Types that work, but should not be used for anything new (SEM C, SEM D). The command line knows
them without the types' modules, which take a tenth of a second to load."""

from __future__ import annotations

from typing import Final

DEPRECATED_CHANNELS: Final = frozenset(("simple", "paged", "off_heap"))
"""Types of channels and queues."""
DEPRECATED_DURABLES: Final = frozenset(("priority", "shared_queued"))
"""Types of durables."""
