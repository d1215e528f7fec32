"""Which channels take topics of MQTT, and who is told when that changes (SEM M12)."""

from __future__ import annotations

from collections.abc import Callable


def _nobody() -> None:
    """Nobody is told."""


class TopicTable:
    """Kept up to date as channels are made, edited and deleted; it costs nothing else."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with each change."""
        self.since: dict[int, int] = {}
        """By channel with topics: the id of the first event that was published since it has
        them."""
        self.on_changed: Callable[[], None] = _nobody

    def note(self, number: int, since: int, *, has_topics: bool) -> None:
        """A channel was made or edited."""
        if has_topics:
            self.since[number] = since
            self._changed()
        else:
            self.forget(number)

    def forget(self, number: int) -> None:
        """A channel has no topics any more, or is gone."""
        if self.since.pop(number, None) is not None:
            self._changed()

    def _changed(self) -> None:
        self.version += 1
        self.on_changed()
