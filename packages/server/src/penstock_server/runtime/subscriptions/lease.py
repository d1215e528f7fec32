"""A lease: a batch of events that a client has for a time, and how they were settled (SEM H).

A lease has a part for each channel of its events. A part is the outlet of a seat at the durable. It
remembers the events settled under it, so that a client whose answer was lost may repeat the
request.
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
"""Limit on the bytes of a batch; a single larger event also makes a batch."""
EXTENSIONS_MAX: Final = 1_000
"""Limit on the different end times that a part remembers for its extended events; the oldest are
forgotten."""
_DONE: Final[dict[How, str]] = {
    "ack": "acknowledged",
    "roll_back": "rolled back",
    "reject": "rejected",
}


class LeaseTerms(Struct, frozen=True):
    """The terms of a fetch: who may settle the events, their source, their number and their
    time."""

    owner: str
    """The user that the lease belongs to; empty if the realm does not authenticate users."""
    source: ChannelId | str
    """A channel, or the canonical pattern of a durable over a pattern."""
    durable: str
    """Name of the durable; empty for the readers of a queue."""
    count: int
    """Largest number of events to fetch."""
    lease_ms: int
    """Time to settle the events in milliseconds."""


class EventLease:
    """The events of one fetch, in a part for each channel. A lease of a single channel has one
    part, named ""."""

    def __init__(
        self,
        name: str,
        terms: LeaseTerms,
        session: str,
        selector: Selector | None,
        clock: Clock,
        recalled: Callable[[EventLease], None],
    ) -> None:
        """Create a lease without parts. ``recalled`` is called with the lease when the realm has
        taken events back from the client."""
        self.name = name
        self.terms = terms
        self.session = session
        self.selector = selector
        self.clock = clock
        self.recalled = recalled
        self.is_answered = False
        """Whether the client has the answer of its fetch, and so the name of the lease."""
        self.error: PenstockError | None = None
        """The reason why the lease gets no more events and cannot be settled; None if it can."""
        self.changed = asyncio.Event()
        """Set by deliveries, by the end of a seat or of the realm, and by new channels."""
        self.bytes = 0
        """Bytes of the delivered events."""
        self._parts: dict[ChannelId, LeasePart] = {}

    @property
    def parts(self) -> tuple[LeasePart, ...]:
        """The parts that have or had a seat, in the order of taking it."""
        return tuple(self._parts.values())

    @property
    def count(self) -> int:
        """Number of delivered events."""
        return sum([part.count for part in self._parts.values()])

    @property
    def is_full(self) -> bool:
        """Whether the answer has reached its size limit."""
        return self.bytes >= BYTES_MAX

    @property
    def size(self) -> int:
        """Approximate memory: one unit for each part, one for each range or bitmap of its ids."""
        return sum([part.size for part in self._parts.values()])

    def has(self, channel: ChannelId) -> bool:
        """Whether the lease has a part for this channel."""
        return channel in self._parts

    def add(self, part: LeasePart) -> None:
        """Add a part that has taken its seat."""
        self._parts[part.channel] = part

    def drop(self, part: LeasePart) -> None:
        """Remove a part without events."""
        self._parts.pop(part.channel, None)

    def fail(self, reason: PenstockError) -> None:
        """Set the reason why the lease gets no more events and cannot be settled."""
        self.error = reason
        for part in self._parts.values():
            part.fail(reason)
        self.changed.set()

    def selected_events(
        self, selected: Mapping[str, LeasedEvents] | None, how: How | None
    ) -> list[tuple[LeasePart, IdSet]]:
        """Return the ids of the events that a request selects, by part. ``selected`` has the
        selection by the name of the channel; None selects all events of all parts. Raises
        ``IllegalState`` for a channel without events in the lease, and the errors of
        :meth:`LeasePart.selected_events`."""
        if selected is None:
            return [
                (part, part.selected_events(LeasedEvents(), how)) for part in self._parts.values()
            ]
        by_name = {part.channel_name: part for part in self._parts.values()}
        if unknown := sorted(selected.keys() - by_name.keys()):
            raise IllegalState(
                f"no event of {unknown[0]} was fetched under lease {self.name}; it holds only the "
                "events that its fetch returned"
            )
        return [
            (by_name[name], by_name[name].selected_events(events, how))
            for name, events in selected.items()
        ]


class LeasePart:
    """The events of a lease from one channel, and how the client has settled them. It is the outlet
    of a seat: the realm delivers events to it."""

    def __init__(
        self,
        lease: EventLease,
        channel: ChannelId,
        ended: Callable[[LeasePart], None],
        opened: ChannelOpened | None = None,
    ) -> None:
        """Create a part without a seat. ``ended`` is called when the realm ends the seat. In a
        lease over a pattern ``opened`` describes the channel."""
        self._lease = lease
        self.channel = channel
        self.opened = opened
        self.durable = lease.terms.durable
        self.session = lease.session
        self.selector = lease.selector
        self.subscription = 0
        """The subscription id of the part's seat; 0 until the part has a seat."""
        self.lease_ms = lease.terms.lease_ms
        self.error: PenstockError | None = None
        """The reason why the part gets no more events and cannot be settled; None if it can."""
        self.ids = IdSet()
        """Ids of all events that the answer of the fetch has."""
        self.lost = IdSet()
        """Ids of events that the realm has taken back from the client."""
        self.done: dict[How, IdSet] = {"ack": IdSet(), "roll_back": IdSet(), "reject": IdSet()}
        """Ids of settled events, by the way of settling."""
        self.began_us = 0
        """Time of the first delivery in microseconds, at which the lease time starts."""
        self.count = 0
        """Number of delivered events."""
        self._extended: list[tuple[int, IdSet]] = []
        """End times in microseconds, each with the events that were extended to it."""
        self._batches: list[EventBatch] = []
        self._surplus = IdSet()
        """Ids of delivered events that do not fit into the answer."""
        self._ended = ended

    @property
    def lease_name(self) -> str:
        """The name of the lease that the part belongs to."""
        return self._lease.name

    @property
    def channel_name(self) -> str:
        """The channel's name in a lease over a pattern; empty in a lease of a single channel."""
        return "" if self.opened is None else self.opened.name

    # --- events of the seat --------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        return True

    def deliver(self, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        """Add a delivery to the answer. If the answer is full, only record the ids of the events,
        which go back without counting as delivered."""
        if not self.began_us:
            self.began_us = self._lease.clock.now_us()
        # The demand counts events and not bytes, so more may be in flight than fits an answer.
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
        self._lease.changed.set()

    def recall(self, spans: Spans) -> None:
        """Record events that the realm has taken back, because their time was over or an earlier
        event has to be delivered first."""
        self.lost.add_all(IdSet(spans))
        self._lease.recalled(self._lease)

    def finished(self) -> None:
        """Wake the fetch, because no more events are available."""
        self._lease.changed.set()

    def closed(self, reason: PenstockError) -> None:
        """End the part after its durable was deleted or unbound by an administrator."""
        self.fail(reason)
        self._ended(self)

    def fail(self, reason: PenstockError) -> None:
        """Set the reason why the part gets no more events and cannot be settled."""
        self.error = reason
        self._lease.changed.set()

    def surplus(self, seat_ids: IdSet) -> IdSet:
        """Return the events of ``seat_ids`` that exceed the answer's size."""
        return seat_ids.overlap(self._surplus)

    def seal(self, seat_ids: IdSet) -> None:
        """Set the events of the part to ``seat_ids``, after the deliveries to the seat have
        stopped."""
        self.ids = seat_ids

    def take_batches(self) -> list[EventBatch]:
        """Return the delivered batches in order and drop them here. Events that the realm has taken
        back are left out."""
        batches, self._batches = self._batches, []
        remaining = []
        for events in batches:
            batch = events.to_arrow()
            # Events may have gone back between their delivery and the answer.
            mask = within(ids_of(batch), self.ids.spans)
            if not mask.all():
                batch = batch.filter(pa.array(mask))
            if batch.num_rows:
                counts = dict(events.redeliveries)
                remaining.append(EventBatch(batch, counts, publishers=events.publishers))
        return remaining

    # --- time ----------------------------------------------------------------------------

    @property
    def ends_us(self) -> int:
        """Time in microseconds at which the events go back, if their time is not extended."""
        return self.began_us + self.lease_ms * 1_000

    def extend(self, ids: IdSet, until_us: int) -> None:
        """Extend the time of these events to ``until_us``, unless they have more time already. Each
        event is in at most one entry of the list, so that repeated requests use no more memory.
        """
        ids = ids.copy()
        extensions = []
        for end_us, extended_ids in self._extended[-EXTENSIONS_MAX:]:
            if end_us > until_us:
                ids.discard_all(extended_ids)
            else:
                extended_ids.discard_all(ids)
            if extended_ids:
                extensions.append((end_us, extended_ids))
        self._extended = [*extensions, (until_us, ids)] if ids else extensions

    @property
    def size(self) -> int:
        """Approximate memory: one unit for the part, one for each range or bitmap of its ids."""
        extended_sets = (extended_ids for _, extended_ids in self._extended)
        sets = (self.ids, self.lost, *self.done.values(), *extended_sets)
        return 1 + sum([ids.pieces for ids in sets])

    def until_us(self, ids: IdSet) -> int:
        """Return the time in microseconds at which the last of ``ids`` goes back."""
        extensions = [until_us for until_us, extended in self._extended if extended.overlap(ids)]
        return max([self.ends_us, *extensions])

    def late(self, ids: IdSet, now_us: int) -> IdSet:
        """Return the subset of ``ids`` whose time is over."""
        if now_us < self.ends_us:
            return IdSet()
        late = ids.copy()
        for until_us, extended in self._extended:
            if until_us > now_us:
                late.discard_all(extended)
        return late

    # --- settling ------------------------------------------------------------------------

    def selected_events(self, selected: LeasedEvents, how: How | None) -> IdSet:
        """Return the ids of the events that a request selects, in order to settle them as ``how``.
        Raises ``IllegalState`` for an event that was not in the lease, or was settled in another
        way."""
        if selected.spans is not None:
            event_ids = IdSet(selected.spans)
            if unknown := without(event_ids, self.ids):
                raise IllegalState(
                    f"{self._event(unknown)} was not fetched under lease {self._lease.name}; it "
                    "holds only the events that its fetch returned"
                )
        else:
            end = (1 << 62) if selected.up_to is None else selected.up_to + 1
            event_ids = self.ids.within(Span(0, end))
        for done_how, ids in self.done.items():
            settled = event_ids.overlap(ids) if done_how != how else None
            if not settled:
                continue
            if selected.spans is not None:
                raise IllegalState(
                    f"{self._event(settled)} was {_DONE[done_how]} under this lease before"
                )
            # "All" and "up to" select only events that were not settled in another way.
            event_ids.discard_all(settled)
        if how == "roll_back":
            # Events that the realm has taken back count as rolled back, which is the same outcome.
            self.done[how].add_all(event_ids.overlap(self.lost))
        return event_ids

    def refuse_late(self, ids: IdSet) -> None:
        """Raise an error if ``ids`` is not empty. ``ids`` are events that the realm has taken back.
        The error is the reason why the part has ended, otherwise ``LeaseEnded``."""
        if not ids:
            return
        if isinstance(self.error, PenstockError) and not isinstance(self.error, LeaseEnded):
            raise self.error
        raise LeaseEnded(
            f"{self._event(ids)} is no longer held under lease {self._lease.name}: events that are "
            f"not settled within their time ({self.lease_ms / 1_000:g} s), or have to follow an "
            "event that was rolled back, go back and are delivered again"
        )

    def _event(self, ids: IdSet) -> str:
        origin = f" of {self.channel_name}" if self.channel_name else ""
        return f"event {ids.lowest}{origin}"


def without(ids: IdSet, excluded: IdSet) -> IdSet:
    """Return a copy of ``ids`` without those in ``excluded``."""
    difference = ids.copy()
    difference.discard_all(excluded)
    return difference
