"""What flowed, how far readers were behind and how long deliveries took in the last 24 hours.

Every two minutes one sample is taken of the realm, and of each channel, queue and durable on which
something was done since the last one. Where nothing is done nothing is looked at and nothing is
written: what stood still is filled in when somebody asks. It is soft state, which begins with the
realm's start; :mod:`penstock_server.frontends.http.metrics` is for those who keep figures for
longer.
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
"""From one sample to the next."""
STEPS: Final = 720
"""Samples that are kept: those of 24 hours."""
TRACKS_MAX: Final = 1_000
"""Most channels, queues and durables of which samples are kept; the realm has its own besides."""
LOOKED_A_TURN: Final = 50
"""Channels, queues and durables that are looked at in one turn of the loop: about 1 ms of it."""
LATE_SHARE: Final = 0.99
"""The share of deliveries and syncs that took at most the time that is told."""

_RATES: Final = 3
_OWED: Final = 3
"""Where the outstanding events are in a sample, behind published, delivered and acknowledged."""
_FIGURES: Final = 6
_UNKNOWN: Final = math.nan

NumberT = TypeVar("NumberT", int, float)
Floats = npt.NDArray[np.float32]
Counted = tuple[int, int, int]
"""Published, delivered and acknowledged."""


class Track:
    """The samples of one channel, queue or durable, or of the realm, in a ring."""

    __slots__ = ("_newest", "_noted", "_rows", "store")

    def __init__(self, newest: int, store: int = 0) -> None:
        """Nothing flowed, and nothing was outstanding, up to the step ``newest``."""
        self.store = store
        """The channel or queue that it is about; 0: it is about the realm."""
        self._rows = np.zeros((_FIGURES, STEPS), dtype=np.float32)
        self._rows[_OWED + 1 :] = _UNKNOWN
        self._newest = self._noted = newest

    @property
    def outstanding(self) -> float:
        """How many events were outstanding last."""
        return float(self._rows[_OWED, self._newest % STEPS])

    def note(self, steps: range, sample: tuple[float, ...]) -> None:
        """The sample of steps that are over; nothing happened between them and those before."""
        self._fill(steps.start)
        self._rows[:, np.array(steps) % STEPS] = np.array(sample, dtype=np.float32)[:, None]
        self._newest = steps.stop - 1
        if any(sample[: _OWED + 1]):
            self._noted = self._newest

    def is_forgettable(self, step: int) -> bool:
        """Whether nothing is told of it that another one would not tell."""
        return self._noted < step - STEPS and not self.outstanding

    def between(self, first: int, end: int) -> Floats:
        """The samples of the steps from ``first`` until before ``end``."""
        self._fill(end)
        found: Floats = self._rows[:, np.arange(first, end) % STEPS]
        return found

    def _fill(self, end: int) -> None:
        """What stood still flowed at no rate, and owes what it has owed."""
        quiet = np.arange(max(self._newest + 1, end - STEPS), end)
        if len(quiet):
            sample = (*(0.0,) * _RATES, self.outstanding, _UNKNOWN, _UNKNOWN)
            self._rows[:, quiet % STEPS] = np.array(sample, dtype=np.float32)[:, None]
            self._newest = end - 1


class FlowHistory:
    """The samples of one realm. ``take_in_turns`` is called from time to time and works once a
    step."""

    def __init__(
        self,
        state: RealmState,
        latencies: DeliveryLatencies,
        syncs: Callable[[], Timings | None],
        clock: Clock,
        incidents: Incidents,
    ) -> None:
        self._incidents = incidents
        self._state = state
        self._latencies = latencies
        self._syncs = syncs
        self._clock = clock
        self.begun_us = clock.now_us()
        self._first = self._step = self._taken = self.begun_us // STEP_US
        """The step in which it began, the one that is going on, and the one before which the
        samples are whole: it is behind while one is taken."""
        self._going: Generator[None, None, None] | None = None
        """The sample that is taken: it stops after each that it has looked at."""
        self._taken_us = clock.steady_us()
        self._is_known = np.zeros(STEPS, dtype=np.bool_)
        self._realm = Track(self._step - 1)
        self._stores: dict[int, Track] = {}
        self._durables: WeakKeyDictionary[Durable, Track] = WeakKeyDictionary()
        self._counted: dict[int, Counted] = {
            number: (each.state.counters.published, 0, 0) for number, each in state.channels.items()
        }
        self._durables_counted: WeakKeyDictionary[Durable, tuple[int, int]] = WeakKeyDictionary()
        self._waits: WeakKeyDictionary[Durable, list[int]] = WeakKeyDictionary()
        self._sync_waits = [0] * (len(BOUNDS_US) + 1)
        self._owed: dict[int, int] = {}
        """Outstanding events at the durables of a channel, where there are any."""
        self._again: set[int] = set()
        """Looked at once more: deliveries follow what was done, and may not have been over."""
        state.moved = {
            number for number, each in state.channels.items() if each.state.durables
        }  # what their durables owe; where there are none, nothing has flowed yet

    # --- taking samples ------------------------------------------------------------------

    async def take_in_turns(self) -> None:
        """Take the sample of the step that is over, if one is. Others have their turn in between:
        with 10,000 busy channels it takes a quarter of a second of the loop in all. Whoever is
        cancelled meanwhile leaves a sample that the next call goes on with."""
        self._begin()
        is_more = self._look(LOOKED_A_TURN)
        while is_more:
            await asyncio.sleep(0)
            is_more = self._look(LOOKED_A_TURN)

    def take(self) -> None:
        """As :meth:`take_in_turns`, in one piece."""
        self._begin()
        while self._look(LOOKED_A_TURN):
            pass

    def _begin(self) -> None:
        step = self._clock.now_us() // STEP_US
        if self._going is None and step > self._step:
            self._going = self._sample(step)

    def _look(self, most: int) -> bool:
        """Look at so many more; gives whether there are others."""
        for _ in range(most):
            if self._going is None:
                return False
            if next(self._going, self) is self:
                self._going = None
        return self._going is not None

    def _sample(self, step: int) -> Generator[None, None, None]:
        steady_us = self._clock.steady_us()
        elapsed_s = max((steady_us - self._taken_us) / 1_000_000, 0.001)
        self._taken_us = steady_us
        steps = self._covered(step, elapsed_s)
        self._step = step
        looked = self._state.moved | self._again
        self._again, self._state.moved = self._state.moved, set()
        yield from self._note_all(sorted(looked), steps, elapsed_s)
        self._forget_idle(step)
        self._taken = step

    def _covered(self, step: int, elapsed_s: float) -> range:
        """The steps before ``step`` that a sample is of: more than one if a realm looks more
        rarely. Where the clock was set forward, nothing is known of what it left out."""
        missed = step - self._step
        count = max(1, min(missed, STEPS, round(elapsed_s * 1_000_000 / STEP_US)))
        self._is_known[np.arange(step - min(missed, STEPS), step) % STEPS] = False
        self._is_known[np.arange(step - count, step) % STEPS] = True
        return range(step - count, step)

    def _note_all(
        self, numbers: list[int], steps: range, elapsed_s: float
    ) -> Generator[None, None, None]:
        directory = self._state.directory
        total = [0.0] * _RATES
        waits = [0] * (len(DELIVERY_BOUNDS_US) + 1)
        for number in numbers:
            channel = self._state.channels.get(number)
            if channel is None:
                self._forget(number)
            elif directory.is_shown(number) or number in directory.temporary:
                with self._incidents.barrier("history", number):
                    kept = yield from self._note_store(
                        number, channel.state, steps, elapsed_s=elapsed_s
                    )
                    total, waits = _sum(total, kept[0]), _sum(waits, kept[1])
            yield
        syncs = self._syncs()
        counts = self._sync_waits if syncs is None else list(syncs.counts)
        sync_ms = _late_ms(BOUNDS_US, _difference(counts, self._sync_waits))
        self._sync_waits = counts
        owed = float(sum(self._owed.values()))
        late_ms = _late_ms(DELIVERY_BOUNDS_US, waits)
        self._realm.note(steps, (*total, owed, late_ms, sync_ms))

    def _note_store(
        self, number: int, state: ChannelState, steps: range, elapsed_s: float
    ) -> Generator[None, None, tuple[list[float], list[int]]]:
        """The rates of a channel or queue, and how many of its deliveries took how long."""
        owed = 0
        waits = [0] * (len(DELIVERY_BOUNDS_US) + 1)
        for durable in list(state.durables.values()):  # others may come and go between two turns
            outstanding, own = self._note_durable(
                number, durable, state, steps=steps, elapsed_s=elapsed_s
            )
            owed += outstanding
            waits = _sum(waits, own)
            yield
        if self._state.channels.get(number) is None:  # it was deleted between two turns
            self._forget(number)
            return [0.0] * _RATES, waits
        now = (state.counters.published, *state.flow)
        rates = _rates(now, self._counted.get(number, (0, 0, 0)), elapsed_s)
        self._counted[number] = now
        self._owed[number] = owed
        if not owed:
            del self._owed[number]
        track = self._stores.get(number)
        if track is None and (owed or any(rates)) and self.has_room:
            track = self._stores[number] = Track(steps.start - 1, number)
        if track is not None:
            late_ms = _late_ms(DELIVERY_BOUNDS_US, waits)
            track.note(steps, (*rates, float(owed), late_ms, _UNKNOWN))
        return rates, waits

    def _note_durable(
        self, number: int, durable: Durable, state: ChannelState, steps: range, elapsed_s: float
    ) -> tuple[int, list[int]]:
        """What a durable owes, and how many of its deliveries took how long."""
        outstanding = durable.outstanding_count(state.stored)
        now = (durable.delivered, durable.acknowledged)
        rates = _rates(now, self._durables_counted.get(durable, (0, 0)), elapsed_s)
        self._durables_counted[durable] = now
        timings = self._latencies.histogram_of(durable)
        waits = [0] * (len(DELIVERY_BOUNDS_US) + 1) if timings is None else list(timings.counts)
        own = _difference(waits, self._waits.get(durable, [0] * len(waits)))
        if timings is not None:
            self._waits[durable] = waits
        track = self._durables.get(durable)
        if track is None and (outstanding or any(rates)) and self.has_room:
            track = self._durables[durable] = Track(steps.start - 1, number)
        if track is not None:
            late_ms = _late_ms(DELIVERY_BOUNDS_US, own)
            track.note(steps, (0.0, *rates, float(outstanding), late_ms, _UNKNOWN))
        return outstanding, own

    @property
    def has_room(self) -> bool:
        """Whether there is room for one more channel, queue or durable."""
        return len(self._stores) + len(self._durables) < TRACKS_MAX

    def _forget(self, number: int) -> None:
        """A channel is gone with its durables."""
        self._stores.pop(number, None)
        self._counted.pop(number, None)
        self._owed.pop(number, None)
        for durable in [each for each, it in self._durables.items() if it.store == number]:
            del self._durables[durable]

    def _forget_idle(self, step: int) -> None:
        for number in [each for each, it in self._stores.items() if it.is_forgettable(step)]:
            del self._stores[number]
        for durable in [each for each, it in self._durables.items() if it.is_forgettable(step)]:
            del self._durables[durable]

    # --- telling -------------------------------------------------------------------------

    def told(self, channel: str | None = None, durable: str | None = None) -> HistoryInfo:
        """The samples of the realm, of a channel or queue, or of one of its durables, without one
        that is being taken. Raises ``NameDoesNotExist``."""
        track, is_kept = self._track(channel, durable)
        # A sample that is being taken is in the place of the oldest of some rings
        first, end = max(self._first, self._step - STEPS), self._taken
        known = self._is_known[np.arange(first, end) % STEPS]
        rows = (track or Track(first - 1)).between(first, end)
        columns = [_told(row, known) for row in rows]
        return HistoryInfo(
            begun_us=self.begun_us,
            first_us=(first + 1) * STEP_US,
            step_ms=STEP_US // 1_000,
            is_kept=is_kept,
            published=columns[0] if durable is None else [],
            delivered=columns[1],
            acknowledged=columns[2],
            outstanding=[None if each is None else int(each) for each in columns[_OWED]],
            delivery_ms=columns[4],
            sync_ms=columns[5] if channel is None else [],
        )

    def _track(self, channel: str | None, durable: str | None) -> tuple[Track | None, bool]:
        """None: nothing has happened; or, where it is not kept, there was no room."""
        if channel is None:
            return self._realm, True
        number = self._state.directory.channel_id_of(channel, None)
        if durable is None:
            found = self._stores.get(number)
            return found, found is not None or self.has_room
        named = self._state.channels[number].state.durables.get(durable)
        if named is None:
            raise NameDoesNotExist(f"{channel} has no durable {durable}")
        own = self._durables.get(named)
        return own, own is not None or self.has_room


def _rates(now: tuple[int, ...], before: tuple[int, ...], elapsed_s: float) -> list[float]:
    # A durable that was deleted took its figures along
    return [max(0, to - since) / elapsed_s for to, since in zip(now, before, strict=True)]


def _difference(now: list[int], before: list[int]) -> list[int]:
    return [to - since for to, since in zip(now, before, strict=True)]


def _sum(one: list[NumberT], other: list[NumberT]) -> list[NumberT]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _late_ms(bounds_us: tuple[int, ...], counts: list[int]) -> float:
    found = quantile_us(bounds_us, counts, LATE_SHARE)
    return _UNKNOWN if found is None else found / 1_000


def _told(row: Floats, known: npt.NDArray[np.bool_]) -> list[float | None]:
    return [
        round(value, 4) if is_known and not math.isnan(value) else None
        for value, is_known in zip(row.tolist(), known.tolist(), strict=True)
    ]
