"""Rates, outstanding events and delivery times of the last 24 hours.

Every two minutes the realm takes a sample of its own figures, and of each channel, queue and
durable with activity since the last sample. Idle channels cost nothing: their samples are filled in
when they are read. The samples are in memory only and begin when the realm starts. Monitoring
systems, which store figures for longer, read them from
:mod:`penstock_server.frontends.http.metrics`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Generator
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from penstock_core.api.realm import HistoryInfo
from penstock_core.channel.state import ChannelState
from penstock_core.durable.durable import Durable
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_core.vocabulary.ports import Clock
from penstock_core.vocabulary.timings import BOUNDS_US, DELIVERY_BOUNDS_US, Timings, quantile_us
from penstock_server.runtime.access.incidents import Incidents
from penstock_server.runtime.delivery.latencies import DeliveryLatencies
from penstock_server.runtime.store.state import RealmState

STEP_US: Final = 120_000_000
"""Microseconds between two samples."""
STEPS: Final = 720
"""Number of samples that are kept: 24 hours."""
TRACKS_MAX: Final = 1_000
"""Largest number of channels, queues and durables with samples; the realm's samples do not
count."""
SAMPLED_A_TURN: Final = 50
"""Number of channels, queues and durables sampled in one turn of the loop, which takes about
1 ms."""
LATE_SHARE: Final = 0.99
"""Quantile that is reported for the times of deliveries and syncs."""

_RATES: Final = 3
"""Number of rates at the beginning of a sample: published, delivered and acknowledged."""
_OUTSTANDING: Final = 3
"""Index of the outstanding events in a sample."""
_FIGURES: Final = 6
"""Number of figures in a sample: rates, outstanding events, delivery time and sync time."""
_UNKNOWN: Final = math.nan
"""The value of a figure that was not measured."""

NumberT = TypeVar("NumberT", int, float)
Floats = npt.NDArray[np.float32]
Counted = tuple[int, int, int]
"""Published, delivered and acknowledged."""


class Track:
    """The samples of a channel, queue, durable or the realm, in a ring buffer."""

    __slots__ = ("_newest", "_noted", "_rows", "store")

    def __init__(self, newest: int, store: int = 0) -> None:
        """Create a track that is idle and has no outstanding events up to the step ``newest``."""
        self.store = store
        """The channel or queue of the samples; 0 for the realm."""
        self._rows = np.zeros((_FIGURES, STEPS), dtype=np.float32)
        self._rows[_OUTSTANDING + 1 :] = _UNKNOWN
        self._newest = self._noted = newest
        """``_newest`` is the last recorded step; ``_noted`` is the last step that was not idle."""

    @property
    def outstanding(self) -> float:
        """Number of outstanding events in the newest sample."""
        return float(self._rows[_OUTSTANDING, self._newest % STEPS])

    def note(self, steps: range, sample: tuple[float, ...]) -> None:
        """Record a sample for past steps. Steps between these and the last recorded ones count as
        idle."""
        self._fill(steps.start)
        self._rows[:, np.array(steps) % STEPS] = np.array(sample, dtype=np.float32)[:, None]
        self._newest = steps.stop - 1
        if any(sample[: _OUTSTANDING + 1]):
            self._noted = self._newest

    def is_forgettable(self, step: int) -> bool:
        """Whether all samples of the track are idle, so that it need not be kept."""
        return self._noted < step - STEPS and not self.outstanding

    def between(self, first: int, end: int) -> Floats:
        """Return the samples of the steps from ``first`` until before ``end``."""
        self._fill(end)
        samples: Floats = self._rows[:, np.arange(first, end) % STEPS]
        return samples

    def _fill(self, end: int) -> None:
        """Fill idle steps before ``end``: rates are 0, outstanding events stay the same."""
        idle = np.arange(max(self._newest + 1, end - STEPS), end)
        if len(idle):
            sample = (*(0.0,) * _RATES, self.outstanding, _UNKNOWN, _UNKNOWN)
            self._rows[:, idle % STEPS] = np.array(sample, dtype=np.float32)[:, None]
            self._newest = end - 1


class FlowHistory:
    """The samples of one realm. :meth:`take_in_turns` is called regularly and takes at most one
    sample in each step of two minutes."""

    def __init__(
        self,
        state: RealmState,
        latencies: DeliveryLatencies,
        syncs: Callable[[], Timings | None],
        clock: Clock,
        incidents: Incidents,
    ) -> None:
        self.tracks_max = TRACKS_MAX
        self._incidents = incidents
        self._state = state
        self._latencies = latencies
        self._syncs = syncs
        self.clock = clock
        self.begun_us = clock.now_us()
        self._first = self._step = self._complete = self.begun_us // STEP_US
        """Numbers of three steps: the first one, the current one, and the one before which all
        samples are complete. The third is below the current one while a sample is being taken."""
        self._sampling: Generator[None, None, None] | None = None
        """The sample being taken: a generator that pauses after each channel or queue."""
        self._taken_us = clock.steady_us()
        self._is_known = np.zeros(STEPS, dtype=np.bool_)
        """Whether each step was sampled, by the number of the step modulo ``STEPS``."""
        self._realm = Track(self._step - 1)
        self._stores: dict[int, Track] = {}
        self._durables: WeakKeyDictionary[Durable, Track] = WeakKeyDictionary()
        self._counted: dict[int, Counted] = {
            number: (channel.state.counters.published, 0, 0)
            for number, channel in state.channels.items()
        }
        """The counts at the last sample, by channel or queue."""
        self._durables_counted: WeakKeyDictionary[Durable, tuple[int, int]] = WeakKeyDictionary()
        self._waits: WeakKeyDictionary[Durable, list[int]] = WeakKeyDictionary()
        self._sync_waits = [0] * (len(BOUNDS_US) + 1)
        self._outstanding: dict[int, int] = {}
        """Outstanding events of a channel's durables; channels without any are left out."""
        self._sampled_again: set[int] = set()
        """Channels to be sampled in the next step, too, because deliveries may follow later than
        the publishes that caused them."""
        # The first sample has to count the outstanding events of all durables. Channels without
        # durables are left out: they have had no activity since the start.
        state.moved = {
            number for number, channel in state.channels.items() if channel.state.durables
        }

    # --- taking samples ------------------------------------------------------------------

    async def take_in_turns(self, sampled_a_turn: int = SAMPLED_A_TURN) -> None:
        """Take a sample if a step has ended, in several turns of the loop, because 10,000 busy
        channels take a quarter of a second together. After a cancellation the next call continues
        the sample."""
        self._begin()
        is_more = self._continue(sampled_a_turn)
        while is_more:
            await asyncio.sleep(0)
            is_more = self._continue(sampled_a_turn)

    def take(self) -> None:
        """Take a sample if a step has ended, in a single turn of the loop."""
        self._begin()
        while self._continue(SAMPLED_A_TURN):
            pass

    def _begin(self) -> None:
        """Begin a sample if a step has ended and no sample is being taken."""
        step = self.clock.now_us() // STEP_US
        if self._sampling is None and step > self._step:
            self._sampling = self._sample(step)

    def _continue(self, count: int) -> bool:
        """Sample ``count`` more channels and queues; return whether others remain."""
        for _ in range(count):
            if self._sampling is None:
                return False
            if next(self._sampling, self) is self:  # `self` marks the end of the generator
                self._sampling = None
        return self._sampling is not None

    def _sample(self, step: int) -> Generator[None, None, None]:
        """Take the sample that ends before ``step``, and pause after each channel or queue."""
        steady_us = self.clock.steady_us()
        elapsed_s = max((steady_us - self._taken_us) / 1_000_000, 0.001)
        self._taken_us = steady_us
        steps = self._covered(step, elapsed_s)
        self._step = step
        active = self._state.moved | self._sampled_again
        self._sampled_again, self._state.moved = self._state.moved, set()
        yield from self._note_all(sorted(active), steps, elapsed_s)
        self._forget_idle(step)
        self._complete = step

    def _covered(self, step: int, elapsed_s: float) -> range:
        """Return the steps before ``step`` that a sample covers; more than one if the last sample
        was taken several steps ago. Steps that were skipped because the clock was set forward are
        unknown."""
        missed = step - self._step
        count = max(1, min(missed, STEPS, round(elapsed_s * 1_000_000 / STEP_US)))
        self._is_known[np.arange(step - min(missed, STEPS), step) % STEPS] = False
        self._is_known[np.arange(step - count, step) % STEPS] = True
        return range(step - count, step)

    def _note_all(
        self, numbers: list[int], steps: range, elapsed_s: float
    ) -> Generator[None, None, None]:
        """Record the samples of these channels and queues, and then that of the realm."""
        directory = self._state.directory
        total = [0.0] * _RATES
        waits = [0] * (len(DELIVERY_BOUNDS_US) + 1)
        for number in numbers:
            channel = self._state.channels.get(number)
            if channel is None:
                self._forget(number)
            elif directory.is_shown(number) or number in directory.temporary:
                with self._incidents.barrier("history", number):
                    store_sample = yield from self._note_store(
                        number, channel.state, steps, elapsed_s=elapsed_s
                    )
                    total, waits = _sum(total, store_sample[0]), _sum(waits, store_sample[1])
            yield
        syncs = self._syncs()
        counts = self._sync_waits if syncs is None else list(syncs.counts)
        sync_ms = _late_ms(BOUNDS_US, _difference(counts, self._sync_waits))
        self._sync_waits = counts
        outstanding_count = float(sum(self._outstanding.values()))  # also of idle channels
        late_ms = _late_ms(DELIVERY_BOUNDS_US, waits)
        self._realm.note(steps, (*total, outstanding_count, late_ms, sync_ms))

    def _note_store(
        self, number: int, state: ChannelState, steps: range, elapsed_s: float
    ) -> Generator[None, None, tuple[list[float], list[int]]]:
        """Record a channel or queue; return its rates and the histogram of its delivery times."""
        outstanding_count = 0
        waits = [0] * (len(DELIVERY_BOUNDS_US) + 1)
        for durable in list(state.durables.values()):  # others may come and go between two turns
            outstanding, durable_waits = self._note_durable(
                number, durable, state, steps=steps, elapsed_s=elapsed_s
            )
            outstanding_count += outstanding
            waits = _sum(waits, durable_waits)
            yield
        if self._state.channels.get(number) is None:  # it was deleted between two turns
            self._forget(number)
            return [0.0] * _RATES, waits
        now = (state.counters.published, *state.delivered_and_acknowledged)
        rates = _rates(now, self._counted.get(number, (0, 0, 0)), elapsed_s)
        self._counted[number] = now
        self._outstanding[number] = outstanding_count
        if not outstanding_count:
            del self._outstanding[number]
        track = self._stores.get(number)
        if track is None and (outstanding_count or any(rates)) and self.has_room:
            track = self._stores[number] = Track(steps.start - 1, number)
        if track is not None:
            late_ms = _late_ms(DELIVERY_BOUNDS_US, waits)
            track.note(steps, (*rates, float(outstanding_count), late_ms, _UNKNOWN))
        return rates, waits

    def _note_durable(
        self, number: int, durable: Durable, state: ChannelState, steps: range, elapsed_s: float
    ) -> tuple[int, list[int]]:
        """Record a durable; return its outstanding events and the histogram of its delivery
        times."""
        outstanding = durable.outstanding_count(state.stored)
        now = (durable.delivered, durable.acknowledged)
        rates = _rates(now, self._durables_counted.get(durable, (0, 0)), elapsed_s)
        self._durables_counted[durable] = now
        timings = self._latencies.histogram_of(durable)
        waits = [0] * (len(DELIVERY_BOUNDS_US) + 1) if timings is None else list(timings.counts)
        new_waits = _difference(waits, self._waits.get(durable, [0] * len(waits)))
        if timings is not None:
            self._waits[durable] = waits
        track = self._durables.get(durable)
        if track is None and (outstanding or any(rates)) and self.has_room:
            track = self._durables[durable] = Track(steps.start - 1, number)
        if track is not None:
            late_ms = _late_ms(DELIVERY_BOUNDS_US, new_waits)
            track.note(steps, (0.0, *rates, float(outstanding), late_ms, _UNKNOWN))
        return outstanding, new_waits

    @property
    def has_room(self) -> bool:
        """Whether another channel, queue or durable may have samples."""
        return self.track_count < self.tracks_max

    @property
    def track_count(self) -> int:
        """Number of channels, queues and durables with samples."""
        return len(self._stores) + len(self._durables)

    def _forget(self, number: int) -> None:
        """Forget a deleted channel with its durables."""
        self._stores.pop(number, None)
        self._counted.pop(number, None)
        self._outstanding.pop(number, None)
        tracks = self._durables.items()
        for durable in [durable for durable, track in tracks if track.store == number]:
            del self._durables[durable]

    def _forget_idle(self, step: int) -> None:
        stores, durables = self._stores.items(), self._durables.items()
        for number in [number for number, track in stores if track.is_forgettable(step)]:
            del self._stores[number]
        for durable in [durable for durable, track in durables if track.is_forgettable(step)]:
            del self._durables[durable]

    # --- reading -------------------------------------------------------------------------

    def read(self, channel: str | None = None, durable: str | None = None) -> HistoryInfo:
        """Return the complete samples of the realm, of a channel or queue, or of one of its
        durables. Raises ``NameDoesNotExist``."""
        track, is_kept = self._track(channel, durable)
        # A sample being taken has replaced the oldest one in some rings, so both are left out.
        first, end = max(self._first, self._step - STEPS), self._complete
        is_known = self._is_known[np.arange(first, end) % STEPS]
        rows = (track or Track(first - 1)).between(first, end)
        columns = [_known_values(row, is_known) for row in rows]
        return HistoryInfo(
            begun_us=self.begun_us,
            first_us=(first + 1) * STEP_US,
            step_ms=STEP_US // 1_000,
            is_kept=is_kept,
            published=columns[0] if durable is None else [],
            delivered=columns[1],
            acknowledged=columns[2],
            outstanding=[None if value is None else int(value) for value in columns[_OUTSTANDING]],
            delivery_ms=columns[4],
            sync_ms=columns[5] if channel is None else [],
        )

    def _track(self, channel: str | None, durable: str | None) -> tuple[Track | None, bool]:
        """Return the track of the realm, a channel or a durable, and whether its samples are kept.
        The track is None if it was always idle, or if too many tracks exist to keep its samples."""
        if channel is None:
            return self._realm, True
        number = self._state.directory.channel_id_of(channel, None)
        if durable is None:
            track = self._stores.get(number)
        else:
            existing = self._state.channels[number].state.durables.get(durable)
            if existing is None:
                raise NameDoesNotExist(f"{channel} has no durable {durable}; list its durables")
            track = self._durables.get(existing)
        return track, track is not None or self.has_room


def _rates(now: tuple[int, ...], before: tuple[int, ...], elapsed_s: float) -> list[float]:
    """Return the rates per second between two counts."""
    # Never below 0: the counts of a deleted durable leave the sum of its channel.
    return [max(0, new - old) / elapsed_s for new, old in zip(now, before, strict=True)]


def _difference(now: list[int], before: list[int]) -> list[int]:
    return [new - old for new, old in zip(now, before, strict=True)]


def _sum(first: list[NumberT], second: list[NumberT]) -> list[NumberT]:
    return [a + b for a, b in zip(first, second, strict=True)]


def _late_ms(bounds_us: tuple[int, ...], counts: list[int]) -> float:
    """Return the quantile ``LATE_SHARE`` of a histogram in milliseconds; ``_UNKNOWN`` without
    values."""
    late_us = quantile_us(bounds_us, counts, LATE_SHARE)
    return _UNKNOWN if late_us is None else late_us / 1_000


def _known_values(row: Floats, is_known: npt.NDArray[np.bool_]) -> list[float | None]:
    """Return the values of a row; None for unknown ones."""
    return [
        round(value, 4) if has_sample and not math.isnan(value) else None
        for value, has_sample in zip(row.tolist(), is_known.tolist(), strict=True)
    ]
