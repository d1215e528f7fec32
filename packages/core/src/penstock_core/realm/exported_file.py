"""A file of an export, as clients and realms describe it.

It has a module of its own, so that a client that exports nothing does not load the code of
channels.
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
    first_id: int = -1
    last_id: int = -1
    """Inclusive; ids between may be left out."""
    in_memory: bool = False
    """Whether its events live in memory only (SEM C1)."""
