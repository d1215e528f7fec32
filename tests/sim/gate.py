"""Whether publishing is paused, as far as anybody was told (SEM X5)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock_core.vocabulary.errors import PublishingPaused

if TYPE_CHECKING:
    from tests.sim.world import World

T = TypeVar("T")


class Known(NamedTuple):
    is_paused: bool | None
    """None: a change was asked for, and not answered."""
    changes: int
    """Asked for so far."""


class Gate:
    """It outlives every power cut: what was answered holds in the next life."""

    def __init__(self) -> None:
        self.known = Known(is_paused=False, changes=0)

    async def turn(self, world: World, *, paused: bool) -> None:
        """Pause publishing, or resume it."""
        changes = self.known.changes + 1
        self.known = Known(paused if paused == self.known.is_paused else None, changes)
        await world.realm.pause(paused)
        self.known = Known(paused, changes)
        world.note(f"paused {paused}")

    def found(self, *, paused: bool) -> None:
        """At the start of a life."""
        assert self.known.is_paused in (None, paused), f"a restart made paused {paused}"
        self.known = Known(paused, self.known.changes)

    def accepted(self, before: Known) -> None:
        """Something new was stored that was sent when ``before`` was known."""
        shut = self.known == before and before.is_paused
        assert not shut, "publishing is paused, and something was published"

    def refused(self, before: Known) -> None:
        is_open = self.known == before and before.is_paused is False
        assert not is_open, "publishing is not paused, and was refused as if it were"

    async def published(self, publish: Awaitable[T], *, is_retry: bool = False) -> T:
        """What a client's publish or commit is answered with, be it refused or not.

        ``is_retry``: it may be stored already, and then is known again while paused (SEM X3).
        """
        before = self.known
        try:
            answered = await publish
        except PublishingPaused:
            self.refused(before)
            raise
        if not is_retry:
            self.accepted(before)
        return answered
