"""By what a plain subscription is known that may lose its connection and come back (SEM J5)."""

from __future__ import annotations

from collections.abc import Callable


class Places:
    """The newest subscription of each place; a place is a channel and a name the client gives."""

    def __init__(self) -> None:
        self._taken: dict[tuple[int, str], int] = {}

    def take(self, number: int, place: str, subscription: int) -> int | None:
        """The subscription whose place on channel ``number`` ``subscription`` takes."""
        former = self._taken.get((number, place))
        self._taken[number, place] = subscription
        return former

    def __contains__(self, subscription: int) -> bool:
        return subscription in self._taken.values()

    def forget(self, is_over: Callable[[int, int], bool]) -> None:
        """Drop those for which ``is_over(channel, subscription)``."""
        over = [key for key, subscription in self._taken.items() if is_over(key[0], subscription)]
        for key in over:
            del self._taken[key]
