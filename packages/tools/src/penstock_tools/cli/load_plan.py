"""The arithmetic of ``penstock load``: when each event is due, which events are rolled back, the
percentiles of latencies, and whether an event was lost or came twice.

Nothing here waits, reads a clock or talks to a realm. Times are microseconds since the start.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.errors import InvalidArgument

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

EVENTS_MAX: Final = 20_000_000
"""Most events of one run: each takes 17 bytes here until the end."""
BATCH_EVENTS_MAX: Final = 10_000
BATCH_BYTES_MAX: Final = 4 << 20
"""Most data of the events that are published together, unless a single one is larger."""
_SECOND_US: Final = 1_000_000


class LoadPlan(Struct, frozen=True, kw_only=True, dict=True):
    """What is to be published. Events are numbered from 0 on, in the order in which they are due,
    and everything about an event follows from its number."""

    rates: tuple[float, ...]
    """Events per second of each step, one step after the other."""
    step_s: float
    """How long each step takes."""
    sizes: tuple[int, ...] = (100,)
    """Bytes of data; events take them in turn."""
    keys: int = 0
    """How many values the property ``key`` has, in turn; 0: there is no such property."""
    rollback: float = 0.0
    """The share of events that are rolled back when they come for the first time."""

    def __post_init__(self) -> None:
        if self.count > EVENTS_MAX:
            raise InvalidArgument(
                f"{self.count:,} events are more than the {EVENTS_MAX:,} of one run; give a lower "
                "rate or a shorter duration"
            )
        if not self.count:
            raise InvalidArgument(
                "no event is due in that time; give a higher rate or a longer duration"
            )

    @cached_property
    def _firsts(self) -> list[int]:
        """The first number of each step, and the one after the last step."""
        counts = [round(rate * self.step_s) for rate in self.rates]
        return [0, *np.cumsum(counts).tolist()]

    @property
    def count(self) -> int:
        """How many events there are."""
        return self._firsts[-1]

    @property
    def batch_events(self) -> int:
        """How many events may be published together."""
        return max(1, min(BATCH_EVENTS_MAX, BATCH_BYTES_MAX // max(1, *self.sizes)))

    def steps_of(self, numbers: Int64s) -> Int64s:
        """The step of each event."""
        steps: Int64s = np.searchsorted(np.array(self._firsts[1:]), numbers, side="right")
        return steps

    def due_us(self, numbers: Int64s) -> Int64s:
        """When each event is due."""
        steps = self.steps_of(numbers)
        within = (
            (numbers - np.array(self._firsts)[steps]) * _SECOND_US / np.array(self.rates)[steps]
        )
        due: Int64s = (steps * self.step_s * _SECOND_US + within).astype(np.int64)
        return due

    def due_by(self, at_us: int) -> int:
        """How many events are due at that moment, those before included."""
        step = int(at_us // (self.step_s * _SECOND_US))
        if at_us < 0:
            return 0
        if step >= len(self.rates):
            return self.count
        within_us = at_us - step * self.step_s * _SECOND_US
        due = self._firsts[step] + int(within_us * self.rates[step] / _SECOND_US) + 1
        return min(due, self._firsts[step + 1])

    def sizes_of(self, numbers: Int64s) -> Int64s:
        """The bytes of data of each event."""
        sizes: Int64s = np.array(self.sizes, dtype=np.int64)[numbers % len(self.sizes)]
        return sizes

    def rolls_back(self, numbers: Int64s) -> Mask:
        """Which events are rolled back when they come for the first time: spread evenly."""
        chosen: Mask = np.floor((numbers + 1) * self.rollback) > np.floor(numbers * self.rollback)
        return chosen


_FINE_BITS: Final = 7
"""A latency is known to one part in 128."""
_FINE: Final = 1 << _FINE_BITS


class Latencies:
    """A histogram of latencies: it takes the same room however many there are, and tells
    percentiles to within one percent."""

    def __init__(self) -> None:
        self.count = 0
        self.max_us = 0
        self._counts = np.zeros((64 - _FINE_BITS) * _FINE + _FINE, dtype=np.int64)

    def add(self, latencies_us: Int64s) -> None:
        """Count some more; what is below 0 counts as 0."""
        if not len(latencies_us):
            return
        values = np.maximum(latencies_us, 0)
        self.count += len(values)
        self.max_us = max(self.max_us, int(values.max()))
        _, bits = np.frexp(values.astype(np.float64))
        shifts = np.maximum(bits - (_FINE_BITS + 1), 0)
        np.add.at(self._counts, shifts * _FINE + (values >> shifts), 1)

    def percentile(self, percent: float) -> int:
        """The latency that so many percent of all do not exceed, in microseconds; 0 without any."""
        if not self.count:
            return 0
        rank = max(1, int(np.ceil(self.count * percent / 100)))
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank))
        shift = max(0, bucket // _FINE - 1)
        top = ((bucket - shift * _FINE + 1) << shift) - 1
        return min(top, self.max_us)


_UNKNOWN: Final = -1
_DELIVERED: Final = 1
_CONFIRMED: Final = 2


class LoadLedger:
    """What became of each event: an event that was acknowledged to its publisher comes, and after
    its own acknowledgement it does not come again."""

    def __init__(self, count: int) -> None:
        self.acknowledged = 0
        """How many were acknowledged to their publisher."""
        self.delivered = 0
        """How many have come, each counted once."""
        self.redelivered = 0
        """How often one came again that was not acknowledged yet."""
        self.confirmed = 0
        """How many are acknowledged by their consumer for certain."""
        self._again = 0
        """How often one came under a second id, or after its acknowledgement."""
        self._ids = np.full(count, _UNKNOWN, dtype=np.int64)
        self._came_as = np.full(count, _UNKNOWN, dtype=np.int64)
        self._progress = np.zeros(count, dtype=np.uint8)
        self._is_due_again = np.zeros(count, dtype=np.bool_)

    def published(self, first: int, ids: range) -> None:
        """Events from number ``first`` on were acknowledged to their publisher, with these ids."""
        self._ids[first : first + len(ids)] = np.arange(ids.start, ids.stop)
        self.acknowledged += len(ids)

    def came(self, numbers: Int64s, ids: Int64s) -> Mask:
        """Events came to a consumer; says which of them for the first time."""
        is_new = self._progress[numbers] == 0
        self._came_as[numbers[is_new]] = ids[is_new]
        is_other = self._came_as[numbers] != ids  # a second id, also within this delivery
        is_late = self._progress[numbers] == _CONFIRMED
        self._again += int((is_other | is_late).sum())
        is_first: Mask = is_new & ~is_other
        self.redelivered += int((~is_new & ~is_other & ~is_late).sum())
        self._progress[numbers[is_first]] = _DELIVERED
        self._is_due_again[numbers] = False
        self.delivered += int(is_first.sum())
        return is_first

    def goes_back(self, numbers: Int64s) -> None:
        """Note events that are about to be rolled back and have to come again."""
        self._is_due_again[numbers] = True

    def settled(self, numbers: Int64s) -> None:
        """The realm has confirmed the acknowledgement of these."""
        self.confirmed += int((self._progress[numbers] != _CONFIRMED).sum())
        self._progress[numbers] = _CONFIRMED

    @property
    def is_complete(self) -> bool:
        """Whether every event that was acknowledged to its publisher is acknowledged by its
        consumer."""
        if self.confirmed < self.acknowledged:
            return False
        return not ((self._ids != _UNKNOWN) & (self._progress != _CONFIRMED)).any()

    @property
    def twice(self) -> int:
        """How often an event came that should not have come any more, or was kept twice."""
        is_known = (self._ids != _UNKNOWN) & (self._came_as != _UNKNOWN)
        return self._again + int((self._ids != self._came_as)[is_known].sum())

    def undelivered(self) -> Int64s:
        """The ids of events that were acknowledged to their publisher and never came, or never
        again after they were rolled back."""
        is_missing = (self._progress == 0) | self._is_due_again
        ids: Int64s = self._ids[(self._ids != _UNKNOWN) & is_missing]
        return ids

    def lost(self, outstanding: IdSet) -> int:
        """How many never came, and are not ``outstanding`` at the durable either."""
        ids = np.sort(self.undelivered())
        still_outstanding = 0
        for first, end in outstanding.spans:
            still_outstanding += int(np.searchsorted(ids, end) - np.searchsorted(ids, first))
        return len(ids) - still_outstanding
