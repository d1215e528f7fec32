"""Whether publishing is paused, as far as clients know (SEM X5)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock_core.vocabulary.errors import PublishingPaused

if TYPE_CHECKING:
    from tests.sim.world import World

T = TypeVar("T")


class Known(NamedTuple):
    is_paused: bool | None
    """Whether publishing is paused; None: a change was requested and not answered."""
    changes: int
    """Number of requested changes."""


class Gate:
    """The known state of publishing. It survives power cuts: an answered change holds in the next
    life."""

    def __init__(self) -> None:
        self.last_known = Known(is_paused=False, changes=0)

    async def turn(self, world: World, *, paused: bool) -> None:
        """Pause publishing, or resume it."""
        changes = self.last_known.changes + 1
        self.last_known = Known(paused if paused == self.last_known.is_paused else None, changes)
        await world.realm.pause(paused)
        self.last_known = Known(paused, changes)
        world.note(f"paused {paused}")

    def recovered(self, *, paused: bool) -> None:
        """Check the state that a restart recovered."""
        assert self.last_known.is_paused in (None, paused), f"a restart made paused {paused}"
        self.last_known = Known(paused, self.last_known.changes)

    def accepted(self, before: Known) -> None:
        """Check that publishing was not paused when a new event was accepted; ``before`` is the
        state known when it was sent."""
        was_paused = self.last_known == before and before.is_paused
        assert not was_paused, "publishing is paused, and something was published"

    def refused(self, before: Known) -> None:
        was_open = self.last_known == before and before.is_paused is False
        assert not was_open, "publishing is not paused, and was refused as if it were"

    async def published(self, publish: Awaitable[T], *, is_retry: bool = False) -> T:
        """Return the answer to a publish or commit, and check it against the state of publishing.

        ``is_retry``: it may be stored already; then it is recognized even while publishing is
        paused (SEM X3).
        """
        before = self.last_known
        try:
            answered = await publish
        except PublishingPaused:
            self.refused(before)
            raise
        if not is_retry:
            self.accepted(before)
        return answered
