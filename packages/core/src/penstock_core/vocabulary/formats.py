"""The format of what the nodes of a cluster write, which is also what a realm on its own writes."""

from __future__ import annotations

from typing import Final

FORMAT: Final = 1
"""The newest format that this version of Penstock knows."""
