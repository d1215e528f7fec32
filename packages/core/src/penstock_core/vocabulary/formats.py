"""The stored format, which is the same for a cluster and a realm on one machine."""

from __future__ import annotations

from typing import Final

FORMAT: Final = 1
"""The newest format that this version of Penstock knows."""
