"""A file of an export, as clients and realms tell each other of it. By itself, so that a client
which exports nothing loads nothing of what a channel is."""

from __future__ import annotations

from msgspec import Struct


class ExportedFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file of an export, as its manifest knows it."""

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
