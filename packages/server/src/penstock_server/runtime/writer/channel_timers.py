"""Timers that wake a channel when its next timed action is due.

``penstock_core.channel.state.ChannelState.next_due_us`` is the time of that action: events expire,
are redelivered after a delay, are taken back after a deadline, or are published as scheduled. The
next group of the writer sweeps a woken channel
(``penstock_server.runtime.writer.group.Group.sweep_if_due``).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from penstock_core.channel.channel import ChannelMachine
from penstock_core.channel.retention import NEVER_US
from penstock_core.channel.state import ChannelState
from penstock_core.vocabulary.ports import Clock
from penstock_server.runtime.access.incidents import RETRY_FIRST_S, Incidents
from penstock_server.runtime.writer.group import SWEEP_EVERY_US

EXPIRY: Final = "expiry"
"""Name of the task that runs the timers, and of the incidents that it reports."""
SLEEP_S_MIN: Final = 0.001
"""Shortest sleep in seconds."""
SLEEP_S_MAX: Final = 1.0
"""Longest sleep in seconds. The wall clock may be set during a sleep, so the task reads the clock
again after this time."""
REPLACED_MAX: Final = 64
"""The heap is rebuilt when it has more entries than two for each channel plus this number."""
RETRY_US: Final = 100_000
"""Microseconds before a failed sweep is tried again; sweeps fail, for example, on a full disk."""


class ChannelTimers:
    """Wakes each channel when it is due.

    Delays, deadlines and schedules are kept exactly. Everything else waits for the next multiple of
    the sweep interval (``storage.sweep_interval_ms``): a sweep costs more than an event, so events
    that expire one after the other are removed together (SEM T1).

    A channel has at most one wake-up time. It may be too early, but never too late: reading the
    time again after a needless wake-up is cheaper than tracking every change. Idle channels cost
    nothing.
    """

    def __init__(
        self,
        channels: Mapping[int, ChannelMachine],
        wake: Callable[[int], None],
        clock: Clock,
        incidents: Incidents,
        *,
        sweep_interval_s: float,
    ) -> None:
        """``wake`` is called with the id of a channel that is due, so that the writer sweeps it.
        The writer then calls :meth:`touch`."""
        self._channels = channels
        self._wake = wake
        self._clock = clock
        self._incidents = incidents
        self._interval_us = max(1, round(sweep_interval_s * 1_000_000))
        self._heap: list[tuple[int, int]] = []
        """Wake-up times with the ids of their channels. Replaced times stay in it until they are
        due, because removing them from a heap is slow."""
        self._wake_up_us: dict[int, int] = {}
        """The valid wake-up time, by channel."""
        self._sleeps_until_us = 0
        self._is_earlier = asyncio.Event()
        """Set when a channel is due before the end of the task's sleep."""

    @property
    def next_us(self) -> int:
        """The earliest wake-up time in microseconds; ``NEVER_US`` if no channel has one."""
        return self._heap[0][0] if self._heap else NEVER_US

    def touch(self, channel_ids: Iterable[int], now_us: int) -> None:
        """Set the wake-up times of these channels again, after a group that began at ``now_us``
        has changed the channels."""
        for channel_id in channel_ids:
            channel = self._channels.get(channel_id)
            if channel is None:
                self._wake_up_us.pop(channel_id, None)
                continue
            state = channel.state
            try:
                # Consumed events have no time: the next sweep removes them.
                due_us = 0 if state.has_consumed else state.next_due_us
                if due_us == NEVER_US:
                    continue
                at_us = self._wake_up_for(state, due_us, now_us)
            except Exception as failure:  # noqa: BLE001  must not stop the timers of other channels
                self._incidents.report(EXPIRY, failure, channel_id)
                at_us = now_us + int(RETRY_FIRST_S * 1_000_000)
            if at_us < self._wake_up_us.get(channel_id, NEVER_US):
                self._wake_up_us[channel_id] = at_us
                heapq.heappush(self._heap, (at_us, channel_id))
                if at_us < self._sleeps_until_us:
                    self._is_earlier.set()
        if len(self._heap) > 2 * len(self._wake_up_us) + REPLACED_MAX:
            self._heap = [(at_us, channel_id) for channel_id, at_us in self._wake_up_us.items()]
            heapq.heapify(self._heap)

    async def run(self) -> None:
        """Wake channels at their times until cancelled."""
        self.touch(self._channels, now_us=0)
        while True:
            now_us = self._clock.now_us()
            self._wake_due(now_us)
            self._is_earlier.clear()
            self._sleeps_until_us = self.next_us
            sleep_s = (self._sleeps_until_us - now_us) / 1_000_000
            with suppress(TimeoutError):
                async with asyncio.timeout(min(max(sleep_s, SLEEP_S_MIN), SLEEP_S_MAX)):
                    await self._is_earlier.wait()

    def _wake_due(self, now_us: int) -> None:
        """Wake the channels whose time has come and which need a sweep."""
        while self.next_us <= now_us:
            at_us, channel_id = heapq.heappop(self._heap)
            if self._wake_up_us.get(channel_id) != at_us:
                continue  # replaced: the valid time of this channel is another entry of the heap
            del self._wake_up_us[channel_id]
            channel = self._channels.get(channel_id)
            if channel is None:
                continue
            with self._incidents.barrier(EXPIRY, channel_id):
                if channel.needs_sweep(now_us):
                    self._wake(channel_id)
                    continue
            self.touch((channel_id,), now_us)

    def _wake_up_for(self, state: ChannelState, due_us: int, now_us: int) -> int:
        """Return when to wake a channel that is due at ``due_us``, after a group at ``now_us`` that
        may have postponed its sweep."""
        exact_us = state.alarm_us
        if exact_us <= now_us:
            next_sweep_us = state.swept_us + SWEEP_EVERY_US
            exact_us = next_sweep_us if next_sweep_us > now_us else now_us + RETRY_US
        # Rounded up to the next multiple of the sweep interval, and never to the present: the sweep
        # of this group has run already.
        intervals = -(-max(due_us, now_us + 1) // self._interval_us)
        return min(exact_us, intervals * self._interval_us)
