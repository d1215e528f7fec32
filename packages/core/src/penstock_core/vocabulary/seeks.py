"""What a durable remembers of its seeks (SEM D20)."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

SEEKS_KEPT = 8
"""Seeks that a durable remembers, so that each can be asked for again."""


class LastSeek(Struct, frozen=True, array_like=True):
    """What a durable remembers of the last seek, and of some before it: whoever asks for one again,
    because the answer was lost, gets the same answer, and nothing is moved twice. What an abandoned
    connection has asked for may arrive when others have been asked for, and done, since."""

    key: str = ""
    """What the client called it; empty: there was none that could be asked for again."""
    start_id: int = 0
    """The id from which the durable went on."""
    again: int = 0
    """Events that are outstanding because of it."""
    skipped: int = 0
    """Events that are not outstanding any more because of it."""
    taken_back: int = 0
    """Events that were in clients' hands."""
    earlier: tuple[LastSeek, ...] = ()
    """The seeks before it that have a key, newest first; they have no earlier ones of their own."""

    def under(self, key: str) -> LastSeek | None:
        """The seek that was done under ``key``, if it is remembered."""
        if not key:
            return None
        return next((each for each in (self, *self.earlier) if each.key == key), None)

    def followed_by(self, seek: LastSeek) -> LastSeek:
        """``seek`` with the seeks before it that are remembered."""
        own = (replace(self, earlier=()),) if self.key else ()
        earlier = (*own, *self.earlier)[: SEEKS_KEPT - bool(seek.key)]
        return replace(seek, earlier=earlier)
