"""Remembered seeks of a durable (SEM D20)."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

SEEKS_KEPT = 8
"""Maximum number of seeks that a durable remembers to recognize repetitions."""


class LastSeek(Struct, frozen=True, array_like=True):
    """The last seek of a durable, and some earlier ones.

    A client that repeats a seek because the answer was lost gets the same answer, and the durable
    is not moved again. Earlier seeks are remembered because a request of an abandoned connection
    may arrive after newer seeks were performed.
    """

    key: str = ""
    """The client's name for the seek; empty if the client never repeats it."""
    start_id: int = 0
    """The id that the durable continued from."""
    again: int = 0
    """Events that became outstanding."""
    skipped: int = 0
    """Events that are not outstanding any more."""
    taken_back: int = 0
    """Events that were taken back from clients."""
    earlier: tuple[LastSeek, ...] = ()
    """Earlier seeks that have a key, newest first; their ``earlier`` is empty."""

    def find(self, key: str) -> LastSeek | None:
        """Return the remembered seek with this key, or None."""
        if not key:
            return None
        return next((seek for seek in (self, *self.earlier) if seek.key == key), None)

    def followed_by(self, seek: LastSeek) -> LastSeek:
        """Return ``seek`` with the earlier seeks that stay remembered."""
        # Flat, not nested: otherwise each seek would contain all seeks before it.
        last = (replace(self, earlier=()),) if self.key else ()
        earlier = (*last, *self.earlier)[: SEEKS_KEPT - bool(seek.key)]
        return replace(seek, earlier=earlier)
