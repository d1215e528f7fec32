"""When the time alone makes something happen on which channel: no channel is looked at before."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping

from penstock_core.channel.channel import ChannelMachine


def _raise(_: int, failure: Exception) -> None:
    raise failure


class SweepTimes:
    """The channels on which something has happened since the last look, and those on which time
    alone makes something due."""

    def __init__(self, channels: Mapping[int, ChannelMachine]) -> None:
        self._channels = channels
        self.on_failed: Callable[[int, Exception], None] = _raise
        """Called for a channel of which it is impossible to say whether something is due."""
        self._touched: set[int] = set()
        self._times: list[tuple[int, int]] = []
        """A heap of times in microseconds, each with its channel; others than the one below are
        out of date."""
        self._time_of: dict[int, int] = {}

    def touch(self, numbers: Iterable[int]) -> None:
        """Something has happened on these channels."""
        self._touched.update(numbers)

    def due(self, now_us: int) -> Iterator[int]:
        """The channels that need a sweep now, in the order of their numbers. One that cannot be
        asked is reported, and asked again with the next call."""
        while self._times and self._times[0][0] <= now_us:
            at_us, number = heapq.heappop(self._times)
            if self._time_of.get(number) == at_us:
                del self._time_of[number]
                self._touched.add(number)
        touched, self._touched = self._touched, set()
        for number in sorted(touched):
            channel = self._channels.get(number)
            if channel is None:
                self._time_of.pop(number, None)
                continue
            try:
                is_due = channel.needs_sweep(now_us)
                if not is_due:
                    self._note_time(number, channel.due_us)
            except Exception as failure:  # noqa: BLE001  it costs this channel alone
                self._touched.add(number)
                self.on_failed(number, failure)
                continue
            if is_due:
                self._touched.add(number)  # until there is nothing more
                yield number

    def _note_time(self, number: int, at_us: int | None) -> None:
        if at_us is not None and at_us < self._time_of.get(number, at_us + 1):
            self._time_of[number] = at_us
            heapq.heappush(self._times, (at_us, number))


class WakeTimes:
    """When events come again that wait after a rollback (SEM D18), and where, the next ones first.

    A channel has one entry that counts, however many of its events wait; channels on which none do
    have none.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        """Time and number of channel; some of these times are not a channel's next any more."""
        self._noted: dict[int, int] = {}
        """The time that counts, by channel."""

    def note(self, number: int, wakes_us: int) -> bool:
        """Note when a channel is to be woken next; gives whether that is earlier than all so far
        (0: not at all)."""
        if self._noted.get(number, 0) == wakes_us:
            return False
        if not wakes_us:
            del self._noted[number]
            return False
        self._noted[number] = wakes_us
        heapq.heappush(self._heap, (wakes_us, number))
        return self._heap[0] == (wakes_us, number)

    def next(self, channels: Mapping[int, ChannelMachine]) -> tuple[int, int] | None:
        """The next time, and the number of the channel; None: nothing waits."""
        while self._heap:
            wakes_us, number = self._heap[0]
            channel = channels.get(number)
            if channel is None:
                self._noted.pop(number, None)
            elif channel.state.wakes_us == wakes_us == self._noted.get(number):
                return wakes_us, number
            heapq.heappop(self._heap)
            if channel is not None:
                self.note(number, channel.state.wakes_us)
        return None
