"""A lease: a batch of events that a client has for a time, and what has become of them (SEM H).

It has a part for each channel that its events are of. A part is where a seat at the durable sends
its events. It remembers what is settled under it, so that a client whose answer was lost may repeat
the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
from msgspec import Struct

from penstock_core.api.channels import ChannelOpened
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
    """The terms that a client fetches events on."""

    owner: str
    """The user that the lease belongs to; empty where the realm does not know its users."""
    source: ChannelId | str
    """One channel, or the pattern of a durable over a pattern in canonical form."""
    durable: str
    count: int
    lease_ms: int


class EventLease:
    """The events of one fetch, in a part for each channel. A lease of one channel has one part,
    whose name is ""."""

    def __init__(
        self,
        name: str,
        terms: LeaseTerms,
        session: str,
        selector: Selector | None,
        clock: Clock,
        recalled: Callable[[EventLease], None],
    ) -> None:
        """``recalled`` is called when the realm has taken events back."""
        self.name = name
        self.terms = terms
        self.session = session
        self.selector = selector
        self.clock = clock
        self.recalled = recalled
        self.is_answered = False
        """Whether its client knows the lease, so that its events are settled or go back."""
        self.error: PenstockError | None = None
        """Why nothing more can be waited for, or settled."""
        self.came = asyncio.Event()
        """Set by events, by the end of a seat or of the realm, and by new channels."""
        self.bytes = 0
        """Bytes of the events that have come."""
        self._parts: dict[ChannelId, LeasePart] = {}

    @property
    def parts(self) -> tuple[LeasePart, ...]:
        """The parts with a seat now or before, in the order in which they took it."""
        return tuple(self._parts.values())

    @property
    def count(self) -> int:
        """How many events have come."""
        return sum([part.count for part in self._parts.values()])

    @property
    def is_full(self) -> bool:
        """Whether the answer is as large as one may be."""
        return self.bytes >= BYTES_MAX

    def has(self, channel: ChannelId) -> bool:
        """Whether the lease has a part of this channel."""
        return channel in self._parts

    def add(self, part: LeasePart) -> None:
        """Add a part that has taken its seat."""
        self._parts[part.channel] = part

    def drop(self, part: LeasePart) -> None:
        """Forget a part without events."""
        self._parts.pop(part.channel, None)

    def fail(self, reason: PenstockError) -> None:
        """Note why nothing more can be waited for, or settled."""
        self.error = reason
        for part in self._parts.values():
            part.fail(reason)
        self.came.set()

    def meant(
        self, chosen: Mapping[str, LeasedEvents] | None, how: How | None
    ) -> list[tuple[LeasePart, IdSet]]:
        """The events that a request means, by part; None: all events of all parts. Raises
        ``IllegalState`` for a channel that the lease has no events of, and as
        :meth:`LeasePart.meant` does."""
        if chosen is None:
            return [(part, part.meant(LeasedEvents(), how)) for part in self._parts.values()]
        by_name = {part.channel_name: part for part in self._parts.values()}
        if unknown := sorted(chosen.keys() - by_name.keys()):
            raise IllegalState(
                f"no event of {unknown[0]} was fetched under lease {self.name}; it holds what its "
                "fetch was answered with"
            )
        return [(by_name[name], by_name[name].meant(own, how)) for name, own in chosen.items()]


class LeasePart:
    """The outlet of a seat, and the record of what its client has settled."""

    def __init__(
        self,
        lease: EventLease,
        channel: ChannelId,
        ended: Callable[[LeasePart], None],
        opened: ChannelOpened | None = None,
    ) -> None:
        """``ended`` is called when the realm ends the seat. In a lease over a pattern ``opened``
        describes the channel."""
        self._lease = lease
        self.channel = channel
        self.opened = opened
        self.durable = lease.terms.durable
        self.session = lease.session
        self.selector = lease.selector
        self.subscription = 0
        """The realm's number of its seat; 0: it has none yet."""
        self.lease_ms = lease.terms.lease_ms
        self.error: PenstockError | None = None
        """Why nothing more can be waited for, or settled."""
        self.ids = IdSet()
        """The ids of all events that its client was given."""
        self.lost = IdSet()
        """The ids of events that have gone back by themselves."""
        self.done: dict[How, IdSet] = {"ack": IdSet(), "roll_back": IdSet(), "reject": IdSet()}
        self.began_us = 0
        """When the first of its events came."""
        self.count = 0
        self._extended: list[tuple[int, IdSet]] = []
        self._batches: list[EventBatch] = []
        self._surplus = IdSet()
        self._ended = ended

    @property
    def lease_name(self) -> str:
        """The name of its lease."""
        return self._lease.name

    @property
    def channel_name(self) -> str:
        """The name of its channel in a lease over a pattern; empty: the lease is of one channel."""
        return "" if self.opened is None else self.opened.name

    # --- events of the seat --------------------------------------------------------------

    @property
    def writable(self) -> bool:
        return True

    def deliver(self, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        """Keep a delivery; what is too much for an answer is only noted, and goes back untried."""
        if not self.began_us:
            self.began_us = self._lease.clock.now_us()
        if self._lease.is_full:
            self._surplus.add_all(IdSet(rows.spans))
            return
        batch = rows.batch
        ids = IdSet(rows.spans)
        counts = {
            event_id: count
            for count, spans in redeliveries
            for event_id in ids.overlap(IdSet(spans))
        }
        self._batches.append(EventBatch(batch, counts, publishers=rows.publishers))
        self.count += batch.num_rows
        self._lease.bytes += batch.nbytes
        self._lease.came.set()

    def recall(self, spans: Spans) -> None:
        """Note events that went back: their time was over, or an earlier one has to come first."""
        self.lost.add_all(IdSet(spans))
        self._lease.recalled(self._lease)

    def finished(self) -> None:
        self._lease.came.set()

    def closed(self, reason: PenstockError) -> None:
        """End the part: its durable is gone, or an administrator has unbound it."""
        self.fail(reason)
        self._ended(self)

    def fail(self, reason: PenstockError) -> None:
        """Note why nothing more can be waited for, or settled."""
        self.error = reason
        self._lease.came.set()

    def surplus(self, held: IdSet) -> IdSet:
        """The part of what the seat holds that is too much for the answer."""
        return held.overlap(self._surplus)

    def seal(self, held: IdSet) -> None:
        """Hold ``held`` from now on; the seat gets nothing more."""
        self.ids = held

    def take_batches(self) -> list[EventBatch]:
        """Take its events in the order in which they came, without those that went back before."""
        batches, self._batches = self._batches, []
        kept = []
        for events in batches:
            batch = events.to_arrow()
            mask = within(ids_of(batch), self.ids.spans)
            if not mask.all():
                batch = batch.filter(pa.array(mask))
            if batch.num_rows:
                counts = dict(events.redeliveries)
                kept.append(EventBatch(batch, counts, publishers=events.publishers))
        return kept

    # --- time ----------------------------------------------------------------------------

    @property
    def ends_us(self) -> int:
        """When its events go back if they are not extended."""
        return self.began_us + self.lease_ms * 1_000

    def extend(self, ids: IdSet, until_us: int) -> None:
        """Have these events until then; none gets less time than it had."""
        self._extended = [*self._extended[-1_000:], (until_us, ids.copy())]

    def until_us(self, ids: IdSet) -> int:
        """When the last of ``ids`` goes back."""
        later = [until for until, own in self._extended if own.overlap(ids)]
        return max([self.ends_us, *later])

    def late(self, ids: IdSet, now_us: int) -> IdSet:
        """The part of ``ids`` whose time is over."""
        if now_us < self.ends_us:
            return IdSet()
        late = ids.copy()
        for until_us, own in self._extended:
            if until_us > now_us:
                late.discard_all(own)
        return late

    # --- settling ------------------------------------------------------------------------

    def meant(self, chosen: LeasedEvents, how: How | None) -> IdSet:
        """The events that a request means. Raises ``IllegalState`` for one that was never here, or
        was settled in another way."""
        if chosen.spans is not None:
            named = IdSet(chosen.spans)
            if unknown := without(named, self.ids):
                raise IllegalState(
                    f"{self._event(unknown)} was not fetched under lease {self._lease.name}; it "
                    "holds what its fetch was answered with"
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
        """Raise ``LeaseEnded`` where some of ``ids`` have gone back by themselves."""
        if not ids:
            return
        if isinstance(self.error, PenstockError) and not isinstance(self.error, LeaseEnded):
            raise self.error
        raise LeaseEnded(
            f"{self._event(ids)} is not held any more under lease {self._lease.name}: what is not "
            f"settled within its time ({self.lease_ms / 1_000:g} s), or has to come after an event "
            "that was rolled back, goes back and comes again"
        )

    def _event(self, ids: IdSet) -> str:
        where = f" of {self.channel_name}" if self.channel_name else ""
        return f"event {ids.lowest}{where}"


def without(ids: IdSet, others: IdSet) -> IdSet:
    """The ids that are not among others."""
    rest = ids.copy()
    rest.discard_all(others)
    return rest
