"""Everything decided between two appends: one block, one sync, then all the answers.

What a decision on one channel leads to on others (dead events, copies of joins, what was
scheduled) is decided here too, so it lies in the same block: all of it or nothing (SEM T7, X1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence

import pyarrow as pa
from msgspec.structs import replace

from penstock.columns.events.batch import stamp
from penstock.columns.events.digest import spans_of
from penstock.columns.selectors import EventFrame, selector_of
from penstock.core.channel.channel import Channel
from penstock.core.channel.channel_type import Home
from penstock.core.channel.publish import plain_publish
from penstock.core.ids.id_lists import listed
from penstock.core.ids.ids import IdSet, Span
from penstock.core.vocabulary.errors import NameDoesNotExist, PublishingPaused
from penstock.core.vocabulary.messages import (
    Ack,
    Acked,
    AckPrevious,
    Appended,
    Buried,
    Command,
    Decided,
    Digest,
    Publish,
    Removed,
    Replaced,
    Secured,
    StoredFact,
    Sweep,
)
from penstock.core.vocabulary.ports import Buffer
from penstock.runtime.store import merging
from penstock.runtime.store.bodies import Body, as_keyed, prepared, stores_as_it_comes
from penstock.runtime.store.message_fields import messages_of
from penstock.runtime.store.records import AnyFact, BodyRef, Record, SchemaSeen
from penstock.runtime.store.state import RealmState
from penstock.runtime.store.tail_batch import Piece
from penstock.runtime.writer import dead_events, join_copies, persisting
from penstock.runtime.writer.asked import work_where_dead
from penstock.runtime.writer.placement import MemoryLimits, Placing, room_for

DECIDED_MIN = 64
"""Requests a group takes in, if they wait, before its time may end it."""
SWEEP_EVERY_US = 50_000
"""How long what is due may stay where nobody looks."""


class Group:
    def __init__(
        self, state: RealmState, now_us: int, limits: MemoryLimits, placing: Placing
    ) -> None:
        self.state = state
        self._channels = state.channels
        self.now_us = now_us
        self.limits = limits
        self.placing = placing
        self.records: list[Record] = []
        self.bodies: list[Buffer] = []
        self.touched: dict[int, None] = {}
        """Channels, in order, that may have something to offer now."""
        self.must_sync = False
        self.must_close = False
        """A channel wants what it has just stored to be on disk before anything else (SEM S)."""
        self.began: dict[int, int] = {}
        """Next id of each touched channel before this group."""
        self.has_room = True
        """Whether the disk takes events that move; if not, they stay where they are, unseen."""
        self.may_move = True
        """Whether it is their turn; if not, they stay as well."""
        self._changes = 0
        """Counts what was made true, here and in the block."""
        self._stands = (0, 0)
        """How many of these, and of the bodies, stand by themselves, whatever becomes of the work
        at hand."""
        self._settled: dict[tuple[int, str], IdSet] = {}
        """Acknowledged, by channel and durable, and not applied yet."""
        self._waits: set[int] = set()
        """Channels that offer nothing before the block is stored."""
        self._asked: set[int] = set()
        """Channels on which somebody has settled something, or asked for it otherwise."""
        self.has_moved = False
        """Whether it was the turn of some of them in this group."""
        self._moved: set[int] = set()
        """Channels whose dead events have been moved, as many as one group may."""
        self._size = 0
        self._size_max = 1 << 62
        self._closes_us = 1 << 62

    # --- the group itself ----------------------------------------------------------------

    def channel(self, number: int) -> Channel:
        try:
            channel = self._channels[number]
        except KeyError:
            raise NameDoesNotExist(
                f"channel number {number} no longer exists; open the channel again"
            ) from None
        self.touched[number] = None
        self.began.setdefault(number, channel.state.next_id)
        return channel

    def is_full(self, decided: int, now_us: int) -> bool:
        """Whether what waits still goes into the next group (SEM S, group commit).

        Time ends a group once it has ``decided`` some (or at once, where it is set to 0): a
        group that begins with many dead events to move would else take in one publish after the
        other, a sync for each.
        """
        if self.must_close or self._size >= self._size_max:
            return True
        enough = decided >= DECIDED_MIN or self._closes_us == self.now_us
        return enough and now_us >= self._closes_us

    def offers_early(self) -> list[tuple[int, int]]:
        """Channels that may deliver before this group's block is stored, and below which id.

        An acknowledgement makes room in a window; what fills it was stored long ago, so nothing
        is seen that a power cut could unsay. Events of this group wait, for their ids are not
        below; other facts (redelivery counts, new durables) show in deliveries, and have to be
        stored first.
        """
        if not self.records:
            return []
        early = self._asked - self._waits
        return [(n, below) for n, below in self.began.items() if n in early]

    def refuse_while_paused(self) -> None:
        """Raises ``PublishingPaused`` (SEM X5)."""
        if self.state.directory.publishing_paused:
            raise PublishingPaused(
                "publishing is paused on this realm; try again once an administrator resumes it"
            )

    # --- work that fails -----------------------------------------------------------------

    def begin_work(self) -> None:
        """What is done from now on belongs together, until this is called again."""
        self._stands = self._changes, len(self.bodies)

    @property
    def is_half_done(self) -> bool:
        """Whether the work at hand has made anything true: then it has to be done as a whole."""
        return (self._changes, len(self.bodies)) != self._stands

    def _by_itself(self, step: Callable[[], None]) -> None:
        """Do what comes before the work at hand, and stands whatever becomes of that."""
        is_first = not self.is_half_done
        step()
        if is_first:
            self.begin_work()

    # --- deciding ------------------------------------------------------------------------

    def do(self, number: int, command: Command, *, reason: str | None = None) -> Decided:
        """Decide ``command``, apply what it leads to, follow it in soft state. ``reason``: why
        somebody buries events."""
        channel = self.channel(number)
        self._asked.add(number)
        decided = channel.decide(command, self.now_us)
        for fact in decided.facts:
            self._store(number, channel, fact, reason)
        channel.attend(command, self.now_us)
        return decided

    def acknowledge(self, number: int, command: Ack | AckPrevious) -> None:
        """Decide ``command``; acknowledgements that follow each other become one fact, which is
        what a million that come one by one and in no order can be afforded with."""
        channel = self.channel(number)
        if channel.state.is_due(self.now_us):
            self.settle()
            self.sweep(number)
        self._asked.add(number)
        durable, ids = channel.acknowledged(command)
        if ids:
            self._changes += 1
            self._settled.setdefault((number, durable), IdSet()).add_all(ids)
        channel.attend(command, self.now_us)

    def settle(self) -> None:
        """Apply what was acknowledged: before anything else is decided."""
        if self._settled:
            self._by_itself(self._settle)

    def _settle(self) -> None:
        self._changes += 1  # others are to be answered that these are stored
        settled, self._settled = self._settled, {}
        for (number, durable), ids in settled.items():
            self._store(number, self.channel(number), Acked(durable, ids.spans))

    def sweep(self, number: int) -> None:
        """Remove what is due. Dead events move in small steps: one a group.

        Raises ``NameDoesNotExist``.
        """
        channel = self.state.channels.get(number) or self.channel(number)
        if not channel.needs_sweep(self.now_us):
            return
        if channel.state.overdue and (number in self._moved or not self.may_move):
            return
        if channel.state.moves_dead and not (self.has_room and self.may_move):
            channel.hold_back(self.now_us)
            if not self.has_room or channel.state.overdue or channel.state.excess:
                return
        if channel.state.moves_dead:
            self._moved.add(number)
            channel.state.dead_work = work_where_dead(self.state, number)
        self._by_itself(lambda: self._sweep(number))

    def _sweep(self, number: int) -> None:
        decided = self.do(number, Sweep(may_write=self.has_room))
        if any(isinstance(fact, Removed) and fact.dead for fact in decided.facts):
            self.has_moved = True

    def sweep_in_time(self, number: int) -> None:
        """Remove what is due if somebody might see it, or it is in the way; else some of it
        together, a little later: a sweep costs more than an event (SEM T1)."""
        state = self._channels[number].state
        if not state.needs_sweep(self.now_us):
            return
        soon = state.swept_us + SWEEP_EVERY_US <= self.now_us
        if soon or state.overdue or state.subscribers or state.seats or state.is_full:
            self.sweep(number)

    def publish(
        self,
        number: int,
        bodies: Sequence[Body],
        digest: Digest,
        *,
        producer: str = "",
        sequence: int = 0,
        overshoot: bool = False,
        forced: bool = False,
        in_journal: bool = False,
        publisher: str = "",
        way: join_copies.Way | None = None,
    ) -> Span:
        """Store events on a channel and do what follows from it. Raises ``Refused``.

        ``in_journal``: no room was made for them in the pages of a paged channel, for they come
        by themselves (a dead event, a join's copy); they lie in the journal.
        """
        channel = self.channel(number)
        state, store = channel.state, self.state.stores[number]
        if state.engine.merges:
            self.sweep(number)  # a delta of what is due is not merged any more
        else:
            self.sweep_in_time(number)
        if producer and (known := state.producers.stored_as(producer, sequence)) is not None:
            return known
        first = state.next_id
        came, storage = bodies, state.definition.storage
        bodies = prepared(came, storage, first, self.now_us, publisher)
        if bodies is not came and not all(map(_has_room, came, bodies)):
            in_journal = True  # a long publisher in every event, say
        if not forced:
            store.names.check(state.name, bodies, self.limits.property_names_max)
            merging.refuse(state, store, bodies, digest)
        bodies, digest = merging.admitted(state, store, bodies, digest)
        joins = self.state.directory.joins.of(number)
        seen: Sequence[Body] = bodies
        texts = state.selectors
        if texts or joins:
            seen = merging.whole(store, bodies, first, self.now_us)
            digest = self._completed(channel, digest, seen)
        digest, keyed = self._replacing(number, digest, bodies)
        left = self._memory_left(channel, digest)
        command = Publish(digest, producer, sequence, overshoot, left, forced)
        decided = channel.decide(command, self.now_us)
        for fact in decided.facts:
            if isinstance(fact, Appended):
                self._append(number, channel, fact, bodies, publisher, in_journal=in_journal)
            else:
                self._store(number, channel, fact)
        if store.keys is not None and keyed:
            store.keys.append(keyed, first)
        channel.attend(command, self.now_us)
        span = Span(first, first + digest.count)
        if joins:
            join_copies.copy(self, number, joins, span, seen, publisher, way)
        return span

    def publish_plainly(
        self,
        number: int,
        bodies: Sequence[Body],
        digest: Digest,
        producer: str,
        sequence: int,
        publisher: str,
    ) -> Span | None:
        """The same, for what most publishes are: they lead to nothing but themselves. None for
        one of another sort: nothing was done."""
        state = self.channel(number).state
        if merging.has_deltas(bodies) or not stores_as_it_comes(state.definition.storage):
            return None
        if self.state.directory.joins.of(number):
            return None
        if producer and (known := state.producers.stored_as(producer, sequence)) is not None:
            return known
        store = self.state.stores[number]
        store.names.check(state.name, bodies, self.limits.property_names_max)
        fact = plain_publish(state, digest, producer, sequence, self.now_us)
        if fact is None:
            return None
        schemas = [self.schema_number(body.schema_bytes) for body in bodies]
        pieces, refs, first = [], [], fact.span.first
        for schema, body in zip(schemas, bodies, strict=True):
            span, size = Span(first, first + body.rows), len(body.buffer)
            piece = Piece(span, self.now_us, schema, body.schema, body.buffer, body.parsed)
            piece.publisher = publisher
            pieces.append(piece)
            refs.append(BodyRef(schema, size, body.rows, publisher))
            self.bodies.append(body.buffer)
            self._size += size
            first = span.end
        self.record(number, fact, tuple(refs))
        self.state.appended(number, fact, pieces)
        return fact.span

    def check(
        self,
        publishes: Mapping[int, tuple[Sequence[Body], Digest]],
        overshoot: Container[int] = frozenset(),
        *,
        evicts: bool = True,
    ) -> None:
        """Raises what one of these publishes, by channel number, would be refused with: they
        happen together or not at all. Those of ``overshoot`` may pass the capacity (SEM T4);
        unless one ``evicts``, all capacities are honoured."""
        claimed: Counter[Home] = Counter()
        for number, (bodies, digest) in publishes.items():
            self.sweep(number)
            channel = self.channel(number)
            kind = channel.state.type
            if channel.state.engine.needs_interest:  # what nobody wants takes no room
                digest = self._completed(channel, digest, bodies)
            store = self.state.stores[number]
            store.names.check(channel.state.name, bodies, self.limits.property_names_max)
            merging.refuse(channel.state, store, bodies, digest)
            digest, _ = self._replacing(number, digest, bodies)
            left = self._memory_left(channel, digest)
            limited = kind.home if kind.home in ("off_heap", "pages") else "heap"
            asked = Publish(
                digest,
                overshoot=number in overshoot,
                memory_left=left - claimed[limited],
                evicts=evicts,
            )
            channel.decide(asked, self.now_us)
            fleeting = kind.volatile(digest) or channel.state.engine.needs_interest
            if limited != "heap" or fleeting:
                claimed[limited] += digest.size

    def _memory_left(self, channel: Channel, digest: Digest) -> int:
        """Bytes free for events of a channel (SEM C6); some may pass through the heap (SEM J4)."""
        state, meter = channel.state, self.state.meter
        left = self.limits.left(state.type.home, digest, meter)
        if state.engine.needs_interest and state.type.home == "pages":
            left = min(left, self.limits.left("heap", digest, meter))
        return left

    def _replacing(
        self, number: int, digest: Digest, bodies: Sequence[Body]
    ) -> tuple[Digest, list[pa.RecordBatch]]:
        """With what newer values of a publish key replace (SEM K1); and what the index of keys
        has to be told once they are stored."""
        state, store = self.channel(number).state, self.state.stores[number]
        if store.keys is None or state.type.relays:
            return digest, []
        keyed = as_keyed(bodies, digest)
        gone = store.keys.superseded(keyed, state.next_id, state.stored)
        return replace(digest, superseded=listed(gone)), keyed

    def _completed(self, channel: Channel, digest: Digest, bodies: Sequence[Body]) -> Digest:
        """With what the selectors in use on the channel match (SEM F5)."""
        texts = channel.state.selectors
        if not texts:
            return digest
        masks: dict[str, list[pa.BooleanArray]] = {text: [] for text in texts}
        messages = messages_of(channel)
        first = channel.state.next_id
        for body in bodies:
            stamped = stamp(body.batch, Span(first, first + body.batch.num_rows), self.now_us)
            frame = EventFrame(stamped, self.now_us, messages, outcomes=body.outcomes)
            for text, found in masks.items():
                found.append(selector_of(text).mask_in(frame))
            first += body.batch.num_rows
        matched = {text: spans_of(pa.concat_arrays(found)) for text, found in masks.items()}
        return replace(digest, matched=matched)

    # --- storing -------------------------------------------------------------------------

    def _store(
        self, number: int, channel: Channel, fact: StoredFact, reason: str | None = None
    ) -> None:
        """Make a fact true, here and in the block; dead events move on first (SEM T7)."""
        self._changes += 1
        if isinstance(fact, Buried) or (isinstance(fact, Removed) and fact.dead):
            dead_events.move(self, number, channel, fact, reason)
        elif isinstance(fact, Secured):
            self._waits.add(number)
            persisting.secure(self, number, channel, fact)
        else:
            self.apply(number, channel, fact)

    def apply(self, number: int, channel: Channel, fact: StoredFact) -> None:
        """Make a fact true, here and in the block."""
        self._changes += 1
        recorded = channel.recorded(fact)
        if recorded is not None:
            self.record(number, recorded)
        if not isinstance(fact, Acked | Removed | Replaced):
            self._waits.add(number)
        self.state.apply(number, fact)

    def record(
        self, number: int, fact: AnyFact, refs: tuple[BodyRef, ...] = (), *, sync: bool = True
    ) -> None:
        self._changes += 1
        self.records.append(Record(number, fact, refs))
        storage = self.channel(number).state.definition.storage if number else None
        if storage is None:
            self.must_sync = self.must_sync or sync
        elif sync and storage.sync != "none":
            self.must_sync = True
            self.must_close = self.must_close or storage.sync_each_write
            self._size_max = min(self._size_max, storage.sync_max_batch_size)
            closes_us = self.now_us + storage.sync_batch_time * 1_000
            self._closes_us = min(self._closes_us, closes_us)

    def realm_fact(self, number: int, fact: AnyFact, body: Buffer | None = None) -> None:
        """Record and apply something that is no channel's own decision."""
        refs = () if body is None else (BodyRef(0, len(body), 0),)
        bodies = [] if body is None else [body]
        self.record(number, fact, refs)
        self.bodies += bodies
        self.state.apply(number, fact, bodies=bodies)

    def schema_number(self, schema: bytes) -> int:
        known = self.state.schemas.known(schema)
        if known is None:
            known = self.state.schemas.next_number()
            self.realm_fact(0, SchemaSeen(known), schema)
        return known

    def _append(
        self,
        number: int,
        channel: Channel,
        fact: Appended,
        bodies: Sequence[Body],
        publisher: str,
        *,
        in_journal: bool,
    ) -> None:
        self._changes += 1
        recorded = channel.recorded(fact)
        pieces = self._pieces(channel, fact, bodies, publisher)
        in_journal = in_journal or channel.state.engine.merges  # its states are in memory
        self._size += sum([len(piece.body) for piece in pieces])
        if isinstance(recorded, Appended):
            absent = IdSet(recorded.absent) if recorded.absent else None
            # Pages take whole bodies: what only goes by is read from this one meanwhile (SEM E8),
            # and may have to join the rest (SEM J7).
            in_journal = in_journal or absent is not None
            refs = []
            for piece in pieces:
                body, rows = _on_disk(piece, absent)
                if not rows:
                    continue
                place = None
                if channel.state.type.home == "pages" and not in_journal:
                    place = self.placing.place(number, piece, body)
                refs.append(BodyRef(piece.number, len(body), rows, publisher, place))
                if place is None:
                    self.bodies.append(body)
            self.record(number, recorded, tuple(refs))
        engine = channel.state.engine
        if engine.merges or engine.needs_interest or fact.relayed:  # others see what is new only
            self._waits.add(number)
        self.state.apply(number, fact, pieces)

    def _pieces(
        self, channel: Channel, fact: Appended, bodies: Sequence[Body], publisher: str
    ) -> list[Piece]:
        pieces = []
        first = fact.span.first
        fleeting = IdSet((*fact.volatile, *fact.passing)) if fact.volatile or fact.passing else None
        gone = IdSet(fact.dropped) if fact.dropped else None
        for body in bodies:
            number = self.schema_number(body.schema_bytes)
            span = Span(first, first + body.rows)
            first = span.end
            if gone is not None and gone.count(span) == span.size:  # nobody waits for it
                continue
            home = channel.state.type.home
            if fleeting is not None and fleeting.within(span):
                home = home if home == "off_heap" else "heap"
            buffer, batch = body.buffer, body.parsed
            if home == "off_heap":
                buffer, batch = self.placing.outside(buffer), None
            pieces.append(
                Piece(
                    span,
                    fact.at_us,
                    number,
                    body.schema,
                    buffer,
                    batch,
                    home=home,
                    publisher=publisher,
                )
            )
        return pieces


def _on_disk(piece: Piece, absent: IdSet | None) -> tuple[Buffer, int]:
    """The body the journal gets: without the rows that live in memory only."""
    if absent is None:
        return piece.body, piece.end - piece.first
    ids = IdSet([Span(piece.first, piece.end)])
    ids.remove_all(absent)
    if len(ids) == piece.end - piece.first:
        return piece.body, len(ids)
    return (piece.body_of(ids), len(ids)) if ids else (b"", 0)


def _has_room(came: Body, stored: Body) -> bool:
    """Whether what a body has become fits in the room made for it."""
    return stored is came or len(stored.buffer) <= room_for(came)
