"""One lease: a batch of events that a client has for a time, and what has become of them (SEM H).

It is where a seat at the durable sends its events. Whatever is settled under it is remembered, so
that a request whose answer was lost may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import pyarrow as pa
from msgspec import Struct

from penstock_core.api.consuming import How, LeasedEvents
from penstock_core.columns.events.batch import EventBatch, ids_of, within
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.errors import IllegalState, LeaseEnded, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import Clock
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch

BYTES_MAX: Final = 32 << 20
"""Bytes after which a batch ends; a single event may be larger."""
_DONE: Final[dict[How, str]] = {
    "ack": "acknowledged",
    "roll_back": "rolled back",
    "reject": "rejected",
}


class LeaseTerms(Struct, frozen=True):
    """What a client asked for."""

    owner: str
    """Whose it is; empty where the realm does not know its users."""
    channel: ChannelId
    durable: str
    count: int
    lease_ms: int


class Gathering:
    """What comes for one answer, from one durable or from several."""

    def __init__(self) -> None:
        self.came = asyncio.Event()
        """Set when there is something to see to: events, the end of a seat, or of the realm."""
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the answer is as large as one may be."""
        return self.bytes >= BYTES_MAX


class EventLease:
    """The outlet of a seat, and the memory of what was settled: a lease of its own, or the part
    of one channel in a lease over a pattern."""

    def __init__(
        self,
        name: str,
        terms: LeaseTerms,
        session: str,
        selector: Selector | None,
        clock: Clock,
        recalled: Callable[[EventLease], None],
        ended: Callable[[EventLease], None],
        *,
        gathering: Gathering | None = None,
        of_channel: str = "",
    ) -> None:
        """``recalled`` and ``ended`` are called when the realm takes events back, or the seat.
        A part has its ``gathering`` from the lease, and is ``of_channel`` in refusals."""
        self.name = name
        self.terms = terms
        self.session = session
        self.selector = selector
        self.subscription = 0
        """The realm's number of its seat; 0: it has none yet, or none any more."""
        self.lease_ms = terms.lease_ms
        self.gathering = Gathering() if gathering is None else gathering
        self.of_channel = of_channel
        """The name of its channel; empty: it is the only one of its lease."""
        self.error: PenstockError | None = None
        """Why there is nothing more to wait for."""
        self.is_answered = False
        """Whether its client is told of it, so that what it holds is settled or goes back."""
        self.ids = IdSet()
        """All that its client was given."""
        self.lost = IdSet()
        """What has gone back by itself."""
        self.done: dict[How, IdSet] = {"ack": IdSet(), "roll_back": IdSet(), "reject": IdSet()}
        self.began_us = 0
        """When the first of its events were handed to it."""
        self.count = 0
        self._extended: list[tuple[int, IdSet]] = []
        self._batches: list[EventBatch] = []
        self._surplus = IdSet()
        self._clock = clock
        self._recalled = recalled
        self._ended = ended

    @property
    def parts(self) -> tuple[EventLease, ...]:
        """The seats that it has events from."""
        return (self,)

    @property
    def came(self) -> asyncio.Event:
        """Set when there is something to see to."""
        return self.gathering.came

    @property
    def is_full(self) -> bool:
        return self.gathering.is_full

    # --- what the seat gets --------------------------------------------------------------

    @property
    def writable(self) -> bool:
        return True

    def deliver(self, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        """Keep a delivery; what is too much for an answer is only noted, and goes back untried."""
        if not self.began_us:
            self.began_us = self._clock.now_us()
        if self.is_full:
            self._surplus.add_all(IdSet(rows.spans))
            return
        batch = rows.batch
        known = IdSet(rows.spans)
        counts = {
            event_id: count
            for count, spans in redeliveries
            for event_id in known.overlap(IdSet(spans))
        }
        self._batches.append(EventBatch(batch, counts, publishers=rows.publishers))
        self.count += batch.num_rows
        self.gathering.bytes += batch.nbytes
        self.came.set()

    def recall(self, spans: Spans) -> None:
        """Events went back: their time was over, or an earlier one has to come first."""
        self.lost.add_all(IdSet(spans))
        self._recalled(self)

    def finished(self) -> None:
        self.came.set()

    def closed(self, reason: PenstockError) -> None:
        """The seat was ended: its durable is gone, or an administrator has unbound it."""
        self.fail(reason)
        self._ended(self)

    def fail(self, reason: PenstockError) -> None:
        """Note why there is nothing more to wait for, or to settle."""
        self.error = reason
        self.came.set()

    def surplus(self, held: IdSet) -> IdSet:
        """The part of what the seat holds that its client is not told of."""
        return held.overlap(self._surplus)

    def seal(self, held: IdSet) -> None:
        """From now on it has ``held``, and gets nothing more."""
        self.ids = held

    def take_batches(self) -> list[EventBatch]:
        """The events it was given, once, in the order in which they came, without what was taken
        back before."""
        batches, self._batches = self._batches, []
        kept = []
        for each in batches:
            batch = each.to_arrow()
            mask = within(ids_of(batch), self.ids.spans)
            if not mask.all():
                batch = batch.filter(pa.array(mask))
            if batch.num_rows:
                counts = dict(each.redeliveries)
                kept.append(EventBatch(batch, counts, publishers=each.publishers))
        return kept

    # --- time ----------------------------------------------------------------------------

    @property
    def ends_us(self) -> int:
        """When what it was given goes back, if it is not extended."""
        return self.began_us + self.lease_ms * 1_000

    def extend(self, ids: IdSet, until_us: int) -> None:
        """Have these until then; none gets less than it had."""
        self._extended = [*self._extended[-1_000:], (until_us, ids.copy())]

    def until_us(self, ids: IdSet) -> int:
        """When the last of ``ids`` goes back."""
        later = [until for until, own in self._extended if own.overlap(ids)]
        return max([self.ends_us, *later])

    def late(self, ids: IdSet, now_us: int) -> IdSet:
        """The part of ``ids`` whose time is over."""
        if now_us < self.ends_us:
            return IdSet()
        found = ids.copy()
        for until_us, own in self._extended:
            if until_us > now_us:
                found.discard_all(own)
        return found

    # --- what is settled -----------------------------------------------------------------

    def meant(self, chosen: LeasedEvents, how: How | None) -> IdSet:
        """The events that a request means. Raises ``IllegalState`` for one that was never here, or
        was settled in another way."""
        if chosen.spans is not None:
            named = IdSet(chosen.spans)
            if strange := without(named, self.ids):
                raise IllegalState(
                    f"{self._event(strange)} was not fetched under lease {self.name}; it holds "
                    "what its fetch was answered with"
                )
        else:
            end = (1 << 62) if chosen.up_to is None else chosen.up_to + 1
            named = self.ids.within(Span(0, end))
        for other, ids in self.done.items():
            settled = named.overlap(ids) if other != how else None
            if not settled:
                continue
            if chosen.spans is not None:
                raise IllegalState(
                    f"{self._event(settled)} was {_DONE[other]} under this lease before"
                )
            named.discard_all(settled)
        if how == "roll_back":
            self.done[how].add_all(named.overlap(self.lost))  # these are back
        return named

    def refuse_late(self, ids: IdSet) -> None:
        """Raises ``LeaseEnded`` where some of ``ids`` have gone back by themselves."""
        if not ids:
            return
        if isinstance(self.error, PenstockError) and not isinstance(self.error, LeaseEnded):
            raise self.error
        raise LeaseEnded(
            f"{self._event(ids)} is not held any more under lease {self.name}: what is not settled "
            f"within its time ({self.lease_ms / 1_000:g} s), or has to come after an event that "
            "was rolled back, goes back and comes again"
        )

    def _event(self, ids: IdSet) -> str:
        where = f" of {self.of_channel}" if self.of_channel else ""
        return f"event {ids.lowest}{where}"


def without(ids: IdSet, others: IdSet) -> IdSet:
    """The ids that are not among others."""
    left = ids.copy()
    left.discard_all(others)
    return left
