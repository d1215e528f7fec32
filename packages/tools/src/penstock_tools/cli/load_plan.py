"""The arithmetic of ``penstock load``: due times, rollbacks, percentiles of latencies, and counts
of events that were lost or delivered twice.

This module does not wait, read a clock or talk to a realm. Times are microseconds since the start.
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
"""Numbers or ids of events, or times in microseconds."""
Mask = npt.NDArray[np.bool_]
"""One truth value for each event."""

EVENTS_MAX: Final = 20_000_000
"""Maximum number of events of one run; each needs 17 bytes of memory until the end."""
BATCH_EVENTS_MAX: Final = 10_000
"""Maximum number of events in one publish."""
BATCH_BYTES_MAX: Final = 4 << 20
"""Maximum number of bytes of data in one publish, unless a single event is larger."""
_SECOND_US: Final = 1_000_000


# ``dict=True`` gives the struct the dict that ``cached_property`` writes to.
class LoadPlan(Struct, frozen=True, kw_only=True, dict=True):
    """The events of a run. They are numbered from 0 in the order of their due times, and every
    attribute of an event follows from its number."""

    rates: tuple[float, ...]
    """Events per second of each step, one step after the other."""
    step_s: float
    """Seconds of each step."""
    sizes: tuple[int, ...] = (100,)
    """Bytes of data; events take them in turn."""
    keys: int = 0
    """Number of values of the property ``key``, used in turn; 0 means that events do not have
    the property."""
    rollback: float = 0.0
    """Share of the events that are rolled back at their first delivery."""

    def __post_init__(self) -> None:
        if self.count > EVENTS_MAX:
            raise InvalidArgument(
                f"the run has {self.count:,} events; allowed are {EVENTS_MAX:,}; use a lower rate "
                "or a shorter duration"
            )
        if not self.count:
            raise InvalidArgument(
                "no event is due within the duration; use a higher rate or a longer duration"
            )

    @cached_property
    def _first_numbers(self) -> list[int]:
        """Number of the first event of each step; the last item is the number of events."""
        counts = [round(rate * self.step_s) for rate in self.rates]
        return [0, *np.cumsum(counts).tolist()]

    @property
    def count(self) -> int:
        """Number of events."""
        return self._first_numbers[-1]

    @property
    def batch_events(self) -> int:
        """Maximum number of events in one publish."""
        return max(1, min(BATCH_EVENTS_MAX, BATCH_BYTES_MAX // max(1, *self.sizes)))

    def steps_of(self, numbers: Int64s) -> Int64s:
        """Return the step of each event."""
        steps: Int64s = np.searchsorted(np.array(self._first_numbers[1:]), numbers, side="right")
        return steps

    def due_us(self, numbers: Int64s) -> Int64s:
        """Return the due time of each event."""
        steps = self.steps_of(numbers)
        offsets_us = (
            (numbers - np.array(self._first_numbers)[steps])
            * _SECOND_US
            / np.array(self.rates)[steps]
        )
        due: Int64s = (steps * self.step_s * _SECOND_US + offsets_us).astype(np.int64)
        return due

    def due_by(self, at_us: int) -> int:
        """Return the number of events that are due at ``at_us`` or earlier."""
        step = int(at_us // (self.step_s * _SECOND_US))
        if at_us < 0:
            return 0
        if step >= len(self.rates):
            return self.count
        elapsed_us = at_us - step * self.step_s * _SECOND_US
        # The first event of a step is due at its very start, hence one more than the quotient.
        due = self._first_numbers[step] + int(elapsed_us * self.rates[step] / _SECOND_US) + 1
        return min(due, self._first_numbers[step + 1])

    def sizes_of(self, numbers: Int64s) -> Int64s:
        """Return the bytes of data of each event."""
        sizes: Int64s = np.array(self.sizes, dtype=np.int64)[numbers % len(self.sizes)]
        return sizes

    def rolls_back(self, numbers: Int64s) -> Mask:
        """Return which events are rolled back at their first delivery; they are spread evenly."""
        # An event is selected when it makes the whole part of count times share grow by one.
        is_rolled_back: Mask = np.floor((numbers + 1) * self.rollback) > np.floor(
            numbers * self.rollback
        )
        return is_rolled_back


_FINE_BITS: Final = 7
"""The histogram has 2**7 buckets for each power of two, which is a precision of 1/128."""
_BUCKETS_PER_OCTAVE: Final = 1 << _FINE_BITS
"""Number of buckets of equal width between a power of two and the next."""


class Latencies:
    """A histogram of latencies. Its size does not depend on their number, and its percentiles are
    exact to one percent."""

    def __init__(self) -> None:
        self.count = 0
        self.max_us = 0
        self._counts = np.zeros(
            (64 - _FINE_BITS) * _BUCKETS_PER_OCTAVE + _BUCKETS_PER_OCTAVE, dtype=np.int64
        )

    def add(self, latencies_us: Int64s) -> None:
        """Add latencies; a negative one counts as 0."""
        if not len(latencies_us):
            return
        values = np.maximum(latencies_us, 0)
        self.count += len(values)
        self.max_us = max(self.max_us, int(values.max()))
        # The exponent of a float is the number of bits of the integer. Each octave drops one more
        # of the low bits, so that a value keeps its _FINE_BITS + 1 highest bits as its bucket.
        _, bits = np.frexp(values.astype(np.float64))
        shifts = np.maximum(bits - (_FINE_BITS + 1), 0)
        np.add.at(self._counts, shifts * _BUCKETS_PER_OCTAVE + (values >> shifts), 1)

    def percentile(self, percent: float) -> int:
        """Return the latency in microseconds that ``percent`` of all do not exceed; 0 if the
        histogram is empty."""
        if not self.count:
            return 0
        rank = max(1, int(np.ceil(self.count * percent / 100)))
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank))
        shift = max(0, bucket // _BUCKETS_PER_OCTAVE - 1)
        # The highest latency of the bucket is returned, so that no percentile is too low.
        top = ((bucket - shift * _BUCKETS_PER_OCTAVE + 1) << shift) - 1
        return min(top, self.max_us)


_UNKNOWN: Final = -1
"""Id of an event that was not acknowledged to its publisher, or not delivered."""
_DELIVERED: Final = 1
"""Progress of an event that was delivered; the progress of other events is 0."""
_CONFIRMED: Final = 2
"""Progress of an event whose acknowledgement by the consumer is confirmed."""


class LoadLedger:
    """The progress of each event. It checks that every event acknowledged to its publisher is
    delivered, and that it is not delivered again after its consumer has acknowledged it."""

    def __init__(self, count: int) -> None:
        self.acknowledged = 0
        """Events acknowledged to their publisher."""
        self.delivered = 0
        """Events delivered at least once."""
        self.redelivered = 0
        """Further deliveries of events that were not acknowledged yet."""
        self.confirmed = 0
        """Events whose acknowledgement by the consumer the realm has confirmed."""
        self._duplicates = 0
        """Deliveries under a second id, or after the acknowledgement."""
        # All arrays are indexed by the number of the event.
        self._ids = np.full(count, _UNKNOWN, dtype=np.int64)
        """Id in the acknowledgement to the publisher."""
        self._delivered_as = np.full(count, _UNKNOWN, dtype=np.int64)
        """Id at the first delivery."""
        self._progress = np.zeros(count, dtype=np.uint8)
        self._is_redelivery_due = np.zeros(count, dtype=np.bool_)
        """Whether the event was rolled back and has not been delivered since."""

    def record_published(self, first: int, ids: range) -> None:
        """Record the acknowledgement of a publish: events from number ``first`` on have these
        ids."""
        self._ids[first : first + len(ids)] = np.arange(ids.start, ids.stop)
        self.acknowledged += len(ids)

    def record_delivery(self, numbers: Int64s, ids: Int64s) -> Mask:
        """Record a delivery, and return which of its events are delivered for the first time."""
        is_new = self._progress[numbers] == 0
        self._delivered_as[numbers[is_new]] = ids[is_new]
        is_other = self._delivered_as[numbers] != ids  # a second id, also within this delivery
        is_late = self._progress[numbers] == _CONFIRMED
        self._duplicates += int((is_other | is_late).sum())
        is_first: Mask = is_new & ~is_other
        self.redelivered += int((~is_new & ~is_other & ~is_late).sum())
        self._progress[numbers[is_first]] = _DELIVERED
        self._is_redelivery_due[numbers] = False
        self.delivered += int(is_first.sum())
        return is_first

    def record_rollback(self, numbers: Int64s) -> None:
        """Record events that are about to be rolled back and must be delivered again."""
        self._is_redelivery_due[numbers] = True

    def record_confirmation(self, numbers: Int64s) -> None:
        """Record that the realm has confirmed the acknowledgement of these events."""
        self.confirmed += int((self._progress[numbers] != _CONFIRMED).sum())
        self._progress[numbers] = _CONFIRMED

    @property
    def is_complete(self) -> bool:
        """Whether every event that was acknowledged to its publisher is acknowledged by its
        consumer."""
        # The counts are compared first, because the arrays of a long run have millions of items. An
        # event may be confirmed before its publisher gets an answer, so the counts do not suffice.
        if self.confirmed < self.acknowledged:
            return False
        return not ((self._ids != _UNKNOWN) & (self._progress != _CONFIRMED)).any()

    @property
    def twice(self) -> int:
        """Deliveries of events that had been acknowledged, and events stored twice."""
        # The publisher may learn the id after the delivery, so the ids are compared here.
        is_known = (self._ids != _UNKNOWN) & (self._delivered_as != _UNKNOWN)
        return self._duplicates + int((self._ids != self._delivered_as)[is_known].sum())

    def undelivered(self) -> Int64s:
        """Return the ids of events that were acknowledged to their publisher but never delivered,
        or not delivered again after a rollback."""
        is_missing = (self._progress == 0) | self._is_redelivery_due
        ids: Int64s = self._ids[(self._ids != _UNKNOWN) & is_missing]
        return ids

    def lost(self, outstanding: IdSet) -> int:
        """Return the number of undelivered events that are not ``outstanding`` at the durable."""
        ids = np.sort(self.undelivered())
        still_outstanding = 0
        for first, end in outstanding.spans:
            still_outstanding += int(np.searchsorted(ids, end) - np.searchsorted(ids, first))
        return len(ids) - still_outstanding
