"""The events that a demonstration's publisher and consumer have seen.

No event may be lost or delivered twice, whichever processes are killed.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from typing import Final

SECOND_US: Final = 1_000_000
_UNKNOWN: Final = -1
"""Id of an event that was not acknowledged to the publisher, or not delivered."""
_DELIVERED: Final = 1
"""Progress of an event that was delivered; the progress of other events is 0."""
_CONFIRMED: Final = 2
"""Progress of an event whose acknowledgement by the consumer is confirmed."""


class Ledger:
    """The progress of each event. The publisher numbers events from 0."""

    def __init__(self) -> None:
        self.published = 0
        """Events acknowledged to the publisher."""
        self.delivered = 0
        """Events delivered to the consumer at least once."""
        self.twice = 0
        """Events stored under a second id, or delivered again after the consumer's acknowledgement
        was confirmed."""
        self.outstanding = 0
        """Events acknowledged to the publisher but not delivered to the consumer yet."""
        self._ids = array("q")
        """Event id in the acknowledgement to the publisher, by number."""
        self._delivered_as = array("q")
        """Event id at the first delivery, by number."""
        self._progress = bytearray()
        self._newest = -1
        """Highest number of a delivered event."""
        self._checked_up_to = 0
        """No event below this number is missing; :attr:`lost` does not check these again."""

    def next_number(self) -> int:
        """Return the number of the next event to publish."""
        self._ids.append(_UNKNOWN)
        self._delivered_as.append(_UNKNOWN)
        self._progress.append(0)
        return len(self._ids) - 1

    def record_acknowledgement(self, number: int, id: int) -> None:
        """Record that the publisher received the acknowledgement of an event, with its id."""
        self._ids[number] = id
        self.published += 1
        # The delivery may come before the answer to the publisher, so both methods compare the ids.
        if not self._progress[number]:
            self.outstanding += 1
        elif self._delivered_as[number] != id:
            self.twice += 1

    def record_delivery(self, number: int, id: int) -> None:
        """Record a delivery to the consumer. Until the consumer's acknowledgement is confirmed,
        another delivery of the event is correct."""
        progress, stored_id = self._progress[number], self._ids[number]
        if not progress:
            self._progress[number] = _DELIVERED
            self._delivered_as[number] = id
            self.delivered += 1
            self._newest = max(self._newest, number)
            if stored_id != _UNKNOWN:
                self.outstanding -= 1
                self.twice += stored_id != id
        elif progress == _CONFIRMED or self._delivered_as[number] != id:
            self.twice += 1

    def record_confirmation(self, numbers: Iterable[int]) -> None:
        """Record that the realm confirmed the consumer's acknowledgement of these events."""
        for number in numbers:
            self._progress[number] = _CONFIRMED

    @property
    def lost(self) -> int:
        """Events that were acknowledged to the publisher but skipped by the consumer. Events of one
        publisher are delivered in order, so an event is lost once a later one is delivered."""
        while self._checked_up_to < self._newest and not self._is_missing(self._checked_up_to):
            self._checked_up_to += 1
        return sum(map(self._is_missing, range(self._checked_up_to, self._newest)))

    def _is_missing(self, number: int) -> bool:
        """Return whether an event was acknowledged to the publisher but not delivered."""
        return not self._progress[number] and self._ids[number] != _UNKNOWN


class Acknowledgements:
    """Times of the acknowledgements to the publisher, and the pauses between them."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        """Times within the last second, in microseconds of a steady clock."""
        self._last_us: int | None = None
        """Time of the last acknowledgement."""
        self._since_us = 0
        """Time of the last :meth:`restart`."""
        self._longest_us = 0
        """The longest finished pause since ``_since_us``."""

    def record(self, now_us: int) -> None:
        """Record an acknowledgement."""
        self._longest_us = self.longest_us(now_us)
        self._last_us = now_us
        self._latest.append(now_us)
        self._forget(now_us)

    def restart(self, now_us: int) -> None:
        """Measure the longest pause from now on; called at each action on the cluster."""
        self._since_us = now_us
        self._longest_us = 0

    def count_last_second(self, now_us: int) -> int:
        """Return the number of acknowledgements in the last second."""
        self._forget(now_us)
        return len(self._latest)

    def waiting_us(self, now_us: int) -> int:
        """Return the time since the last acknowledgement; 0 before the first one."""
        return 0 if self._last_us is None else now_us - self._last_us

    def longest_us(self, now_us: int) -> int:
        """Return the longest pause since :meth:`restart`, including the current one."""
        if self._last_us is None:
            return 0
        return max(self._longest_us, now_us - max(self._last_us, self._since_us))

    def _forget(self, now_us: int) -> None:
        """Remove the times that are older than a second."""
        while self._latest and self._latest[0] <= now_us - SECOND_US:
            self._latest.popleft()
