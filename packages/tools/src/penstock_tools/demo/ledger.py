"""What was acknowledged to the demonstration's publisher, and what came to its consumer.

Nothing may be missing and nothing may come twice, whichever processes are killed meanwhile.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from typing import Final

SECOND_US: Final = 1_000_000
_UNKNOWN: Final = -1
_DELIVERED: Final = 1
_CONFIRMED: Final = 2


class Ledger:
    """Events by the numbers that their publisher has given them, one after the other."""

    def __init__(self) -> None:
        self.published = 0
        """How many were acknowledged to the publisher."""
        self.delivered = 0
        """How many have come to the consumer, each counted once."""
        self.twice = 0
        """How many were stored under a second id, or came again after their acknowledgement was
        confirmed."""
        self.outstanding = 0
        """How many were acknowledged to the publisher, and have not come to the consumer yet."""
        self._ids = array("q")
        """The id that each number was acknowledged with."""
        self._came_as = array("q")
        self._progress = bytearray()
        self._newest = -1
        self._settled = 0
        """Nothing is missing below this number."""

    def begun(self) -> int:
        """A new number, for an event that is published now."""
        self._ids.append(_UNKNOWN)
        self._came_as.append(_UNKNOWN)
        self._progress.append(0)
        return len(self._ids) - 1

    def acknowledged(self, number: int, id: int) -> None:
        """The publisher was told that the event is kept under ``id``."""
        self._ids[number] = id
        self.published += 1
        if not self._progress[number]:
            self.outstanding += 1
        elif self._came_as[number] != id:
            self.twice += 1

    def came(self, number: int, id: int) -> None:
        """The event came to the consumer. It may come again until the consumer's acknowledgement
        is confirmed."""
        progress, stored_id = self._progress[number], self._ids[number]
        if not progress:
            self._progress[number] = _DELIVERED
            self._came_as[number] = id
            self.delivered += 1
            self._newest = max(self._newest, number)
            if stored_id != _UNKNOWN:
                self.outstanding -= 1
                self.twice += stored_id != id
        elif progress == _CONFIRMED or self._came_as[number] != id:
            self.twice += 1

    def confirmed(self, numbers: Iterable[int]) -> None:
        """The consumer was told that its acknowledgement is kept."""
        for number in numbers:
            self._progress[number] = _CONFIRMED

    @property
    def lost(self) -> int:
        """How many were acknowledged to the publisher, and left out: later ones came. What is
        published by one publisher comes in its order."""
        while self._settled < self._newest and not self._is_missing(self._settled):
            self._settled += 1
        return sum(map(self._is_missing, range(self._settled, self._newest)))

    def _is_missing(self, number: int) -> bool:
        return not self._progress[number] and self._ids[number] != _UNKNOWN


class Acknowledgements:
    """When the publisher was told that an event is kept, and how long it waited for that."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        """Times of the last second, in microseconds of a steady clock."""
        self._last_us: int | None = None
        self._since_us = 0
        self._longest_us = 0
        """The longest wait since a moment, as far as it is over."""

    def note(self, now_us: int) -> None:
        """One has come."""
        self._longest_us = self.longest_us(now_us)
        self._last_us = now_us
        self._latest.append(now_us)
        self._forget(now_us)

    def begin_anew(self, now_us: int) -> None:
        """Something is done to the cluster: the longest wait counts from here."""
        self._since_us = now_us
        self._longest_us = 0

    def a_second(self, now_us: int) -> int:
        """How many came in the last second."""
        self._forget(now_us)
        return len(self._latest)

    def waiting_us(self, now_us: int) -> int:
        """How long none has come; 0 before the first one."""
        return 0 if self._last_us is None else now_us - self._last_us

    def longest_us(self, now_us: int) -> int:
        """The longest time without any since :meth:`begin_anew`, this moment included."""
        if self._last_us is None:
            return 0
        return max(self._longest_us, now_us - max(self._last_us, self._since_us))

    def _forget(self, now_us: int) -> None:
        while self._latest and self._latest[0] <= now_us - SECOND_US:
            self._latest.popleft()
