"""The description of a file of an export.

It is a separate module, so that a client that does not export does not load the code of channels.
"""

from __future__ import annotations

from msgspec import Struct


class ExportedFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file of an export, as its manifest lists it."""

    name: str
    size: int
    checksum: str
    """xxh3_64 of the file, in hexadecimal."""
    rows: int = 0
    """Number of events in the file."""
    first_id: int = -1
    """Lowest id of the events in the file; -1 if it contains no events."""
    last_id: int = -1
    """Highest id of the events in the file; the file need not contain all ids in between."""
    in_memory: bool = False
    """Whether the file's events are in memory only (SEM C1)."""
