"""The state of a realm, which is changed only by applying facts.

The same functions apply facts after each decision and at recovery, when the facts come from the
snapshot and the journal. So recovery leads to the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec
from msgspec import Struct

from penstock_core.api.channels import ChannelOpened
from penstock_core.channel.channel import ChannelMachine
from penstock_core.channel.producers import JointProducers
from penstock_core.channel.state import RealmRules
from penstock_core.columns.files.segments import SegmentBatch, SegmentIndex
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.id_lists import ids_in
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.definitions import ChannelCreated, ChannelDeleted, Edited
from penstock_core.messages.durables import DurableCreated, DurableDeleted
from penstock_core.messages.joins import Join, JoinCreated, JoinDeleted
from penstock_core.messages.kinds import Fact
from penstock_core.messages.packing import unpacked
from penstock_core.messages.pattern_durables import PatternDurableCreated, PatternDurableDeleted
from penstock_core.messages.publishing import Appended, PublishingPauseSet
from penstock_core.messages.retention import PersistedLate, Removed, Replaced
from penstock_core.messages.segments import (
    BodiesApart,
    Extended,
    Rewritten,
    SchemaSeen,
    Sealed,
    SegmentDropped,
)
from penstock_core.messages.snapshots import CommitsKept, Kept, KeptStates, RealmFacts, Restored
from penstock_core.messages.transactions import StagesCommitted, TransactionEnded
from penstock_core.messages.unions import AnyFact, PackedIds, StoredFact
from penstock_core.realm.directory import Directory
from penstock_core.realm.transactions import TransactionTable
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.errors import Damaged
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import BlobSum, Buffer, Pages, PageSlot
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.file_names import FileNames
from penstock_server.runtime.store.merge_store import MergeStore
from penstock_server.runtime.store.merging import kept_states, restore_states
from penstock_server.runtime.store.newer_facts import AgreedFormat, NewestFormat
from penstock_server.runtime.store.recent_deltas import RealmsRecent
from penstock_server.runtime.store.records import BodyRef, FactRecord
from penstock_server.runtime.store.schemas import Schemas
from penstock_server.runtime.store.sealed_file import SealedFile
from penstock_server.runtime.store.tail_batch import Meter, TailBatch

_index_decoder = msgspec.msgpack.Decoder(SegmentIndex)
_batches_decoder = msgspec.msgpack.Decoder(tuple[SegmentBatch, ...])


class Copied(Struct):
    """Counters of a join since the realm started."""

    copied: int = 0
    dropped: int = 0
    """Events not copied because of a loop or too many hops (SEM L2)."""


class RealmState:
    """All channels of a realm with their stores, and the state of the realm itself."""

    agreed: AgreedFormat = NewestFormat()
    """Soft state: the format to write, which every node can read."""
    contradictions: Mapping[int, str] = MappingProxyType({})
    """Ids that the journal gives to two channels, each with a description. This happens if a start
    could not read all data of the realm and used the id again. Facts of the second channel are left
    out."""
    unsealable: Mapping[int, int] = MappingProxyType({})
    """Soft state: bytes in memory of the channels that accept no events, because their events
    cannot be sealed, by channel id."""
    copied_out: Callable[[], object] = int
    """Called when an outbox has new events; does nothing until a listener is set."""

    def __init__(self, rules: RealmRules) -> None:
        self.directory = Directory(rules)
        self.channels: Mapping[int, ChannelMachine] = self.directory.channels
        self.stores: dict[int, ChannelStore] = {}
        self.schemas = Schemas()
        self.meter = Meter()
        self.transactions = TransactionTable()
        self.producers = JointProducers()
        """Producers that have published to several stores in one step (SEM X3)."""
        self.to_open: set[int] = set()
        """Soft state: channels whose dead events have to move to another store, which waits until
        the channels' files are open."""
        self.dropped: list[int] = []
        """Soft state: deleted channels with pages that are not dropped yet."""
        self.freed: set[int] = set()
        """Soft state: channels with page slots to free."""
        self.moved: set[int] = set()
        """Soft state: channels changed since the history last took this set. It inspects only
        these."""
        self.to_maintain: set[int] = set()
        """Soft state: channels to be checked by the maintainer, because their files or the events
        in them have changed."""
        self.freed_bytes = 0
        """Soft state: estimated bytes in the journal of events that were purged, or whose channel
        was deleted."""
        self.skipped: list[str] = []
        """Descriptions of facts that could not be applied, because an earlier block is damaged."""
        self.unreadable: list[tuple[int, PageSlot]] = []
        """Bodies that could not be read from their page slots, by channel."""
        self._with_durable: dict[str, dict[int, None]] = {}
        """The ids of the stores that have a durable of a name, by that name. The built-in readers
        of queues are not included."""
        self._joined: dict[tuple[int, int], Copied] = {}
        self._recent = RealmsRecent()
        self._file_sums: dict[str, BlobSum] = {}
        self.file_names = FileNames()
        """The names of the files of this realm."""
        self.run = ""
        """Soft state: identifies this run of the realm; different after each start."""

    def opened(self, channel_id: int) -> ChannelOpened:
        """Return the answer to a client that opens a channel."""
        state = self.channels[channel_id].state
        # Ids that do not survive a restart begin again with each run.
        run = "" if state.type.ids_survive else self.run
        return ChannelOpened(ChannelId(channel_id), state.name, state.definition, run=run)

    def joined(self, join: Join) -> Copied:
        """Return the counters of a join since the realm started."""
        return self._joined.setdefault((join.source, join.destination), Copied())

    def waiting_bytes(self, channel_id: int) -> int:
        """Return the estimated bytes of the events on a store."""
        state = self.channels[channel_id].state
        return int(len(state.stored) * state.event_bytes)

    def apply_stored(
        self, record: FactRecord, bodies: Iterator[memoryview], pages: Pages | None = None
    ) -> None:
        """Apply a record read back from the journal or a snapshot."""
        fact, channel_id, refs = record.fact, record.channel, record.bodies
        if isinstance(fact, BodiesApart):  # used by the reader of the block, which got the bodies
            return
        # Read from the iterator even if the fact is left out below, because the bodies of the next
        # fact follow these.
        own_bodies = (
            [self._read_body(channel_id, ref, bodies, pages=pages) for ref in refs] if refs else ()
        )
        if self.contradictions and channel_id in self.contradictions:
            return
        if channel_id and channel_id not in self.channels:
            self.skipped.append(f"{type(fact).__name__} of channel {channel_id}")
            return
        if isinstance(fact, PackedIds):
            fact = unpacked(fact)
        if not refs:
            if isinstance(fact, ChannelCreated) and fact.number in self.channels:
                self._record_contradiction(fact)
                return
            self.apply(channel_id, fact)
            return
        missing = [ref.schema for ref in refs if not self.schemas.has(ref.schema)]
        # The bodies of these two facts are not events: one is the schema itself, and states are
        # Arrow streams, which have their own schema.
        if missing and not isinstance(fact, SchemaSeen | KeptStates):
            self.skipped.append(f"events of channel {channel_id} in schema {missing[0]}")
            return
        self.apply(channel_id, fact, self._tail_batches_of(record, own_bodies), bodies=own_bodies)

    def _record_contradiction(self, fact: ChannelCreated) -> None:
        existing = self.channels[fact.number].state.name
        self.contradictions = {
            **self.contradictions,
            fact.number: f"the journal creates channel {fact.number} ({fact.name!r}), but "
            f"{existing!r} has this number: a start that could not read all data of this realm "
            f"has used it again. {existing!r} is kept, and the facts of the other channel are "
            f"left out",
        }

    def _read_body(
        self, channel_id: int, ref: BodyRef, bodies: Iterator[memoryview], pages: Pages | None
    ) -> memoryview:
        if ref.place is None:
            return next(bodies)
        try:
            if pages is not None:
                return pages.view(channel_id, ref.place)
        except Damaged:  # the events of the body are quarantined at the end of recovery
            self.unreadable.append((channel_id, ref.place))
        return memoryview(b"")

    def _tail_batches_of(self, record: FactRecord, bodies: Sequence[memoryview]) -> list[TailBatch]:
        """Return the batches that a stored record adds to the memory of its channel."""
        match record.fact:
            case Kept(first, end, at_us, ()) if [ref.rows for ref in record.bodies] == [
                end - first
            ]:
                ref, span = record.bodies[0], Span(first, end)
                return [
                    self._batch_of_span(
                        record.channel, ref, bodies[0], at_us=at_us, span=span, ids=None
                    )
                ]
            case Appended(span, at_us, absent=absent):
                ids = IdSet([Span(*span)])
                for absent_span in absent:
                    ids.remove(Span(*absent_span))
            case PersistedLate(spans, at_us):
                ids = IdSet(Span(*s) for s in spans)
            case Kept(first, end, at_us, spans):
                ids = IdSet(Span(*s) for s in spans) if spans else IdSet([Span(first, end)])
            case _:
                return []
        return [
            self._batch_of_body(record.channel, ref, body, at_us=at_us, ids=ids)
            for ref, body in zip(record.bodies, bodies, strict=True)
        ]

    def _batch_of_body(
        self, channel_id: int, ref: BodyRef, body: memoryview, at_us: int, ids: IdSet
    ) -> TailBatch:
        """Return the batch of one body. Removes the ids of its rows from ``ids``."""
        spans: list[Span] = []
        rows = ref.rows
        while rows and (span := ids.take(rows)) is not None:
            spans.append(span)
            rows -= span.size
        span = Span(spans[0].first, spans[-1].end)
        dense = span.size == ref.rows
        return self._batch_of_span(
            channel_id, ref, body, at_us=at_us, span=span, ids=None if dense else IdSet(spans)
        )

    def _batch_of_span(
        self,
        channel_id: int,
        ref: BodyRef,
        body: memoryview,
        at_us: int,
        span: Span,
        ids: IdSet | None,
    ) -> TailBatch:
        """Return the batch of a body whose rows have all ids of ``span``, or only ``ids``."""
        return TailBatch(
            span,
            at_us,
            ref.schema,
            schema=self.schemas.schema(ref.schema),
            body=body,
            ids=ids,
            home=self.channels[channel_id].state.type.home,
            publisher=ref.publisher,
            place=ref.place,
            schema_weight=self.schemas.take_weight(ref.schema),
        )

    def apply(
        self,
        channel_id: int,
        fact: AnyFact,
        tail_batches: Sequence[TailBatch] = (),
        bodies: Sequence[Buffer] = (),
    ) -> None:
        """Apply ``fact`` to the core and to the store."""
        if isinstance(fact, Restored):
            self._apply_restored(channel_id, fact)
        elif isinstance(fact, Fact):
            self._apply_to_channel(channel_id, fact, tail_batches)
        else:
            self._apply_to_realm(channel_id, fact, tail_batches, bodies=bodies)

    def _apply_to_realm(
        self,
        channel_id: int,
        fact: AnyFact,
        tail_batches: Sequence[TailBatch],
        bodies: Sequence[Buffer],
    ) -> None:
        """Apply a fact that concerns the realm, or the store of a channel and not only the
        channel's rules. The kinds that are most frequent in a snapshot come first."""
        match fact:
            case ChannelCreated() | ChannelDeleted():
                self._create_or_delete(fact)
            case Kept() | KeptStates():
                self._apply_kept(channel_id, fact, tail_batches, bodies=bodies)
            case Sealed() | Extended() | Rewritten() | SegmentDropped():
                self._apply_to_files(channel_id, fact)
            case (
                JoinCreated()
                | JoinDeleted()
                | PublishingPauseSet()
                | PatternDurableCreated()
                | PatternDurableDeleted()
            ):
                self.directory.apply(fact)
            case TransactionEnded(ended):
                self.transactions.apply(ended)
            case StagesCommitted(producer, sequence, at_us, spans):
                self.producers.stored(producer, sequence, spans, at_us=at_us)
            case CommitsKept(producer, forgotten, at_us, recent):
                self.producers.restore_entry(producer, forgotten, at_us, recent=list(recent))
            case SchemaSeen(schema):
                self.schemas.record(schema, bytes(bodies[0]))
            case RealmFacts(next_number):
                self.directory.next_channel_id = next_number
            case _:
                self._apply_to_channel(channel_id, fact, tail_batches)

    def appended(self, channel_id: int, fact: Appended, tail_batches: Sequence[TailBatch]) -> None:
        """Apply a publish that was just decided. This hot path skips the dispatch of
        :meth:`apply`."""
        self.channels[channel_id].apply(fact)
        store = self.stores[channel_id]
        for tail_batch in tail_batches:
            store.add(tail_batch)

    def _create_or_delete(self, fact: ChannelCreated | ChannelDeleted) -> None:
        if isinstance(fact, ChannelCreated):
            self._apply_created(fact)
        else:
            self._apply_deleted(fact)

    def _apply_to_channel(
        self, channel_id: int, fact: StoredFact, tail_batches: Sequence[TailBatch]
    ) -> None:
        channel, store = self.channels[channel_id], self.stores[channel_id]
        # Before the fact is applied, because the estimate needs the sizes of the purged events.
        if isinstance(fact, Removed) and fact.cause is Cause.PURGED:
            self._count_freed(channel, sum([end - first for first, end in fact.spans]))
        channel.apply(fact)
        self._note_durables(channel_id, channel, fact)
        for tail_batch in tail_batches:
            if isinstance(fact, PersistedLate):
                store.came_back(tail_batch)
            else:
                store.add(tail_batch)
        if isinstance(fact, PersistedLate):
            store.record_persistence(IdSet(fact.spans))
        elif isinstance(fact, Removed):
            _remove_events(store, channel, fact)
        elif isinstance(fact, Replaced):
            store.record_scattered_removal(ids_in(fact.ids), channel.state.stored)
        elif isinstance(fact, Edited):
            self._files_changed(channel_id)
            self.directory.note_topics(channel_id)
        if store.files and isinstance(fact, Removed | Replaced):
            self.to_maintain.add(channel_id)
        if store.freed:
            self.freed.add(channel_id)

    def _apply_restored(self, channel_id: int, fact: Restored) -> None:
        """Apply a channel's whole state from a snapshot. Its files and events follow in other
        facts."""
        channel = self.channels[channel_id]
        channel.apply(fact)
        if fact.durables:
            self._note_durables(channel_id, channel, fact)
        if self.stores[channel_id].files:
            self._files_changed(channel_id)
        self.directory.note_topics(channel_id)

    def with_durable(self, name: str) -> list[int]:
        """Return the stores that have a durable of this name, ascending."""
        return sorted(self._with_durable.get(name, ()))

    def _note_durables(self, channel_id: int, channel: ChannelMachine, fact: StoredFact) -> None:
        """Record the stores that have a durable of a name, after ``fact`` has changed durables."""
        match fact:
            case DurableCreated(name) | DurableDeleted(name):
                names: Iterable[str] = (name,)
            case Restored(durables=durables):
                names = [durable.name for durable in durables]
            case _:
                return
        existing = channel.state.durables
        for name in names:
            if name and name in existing:
                self._with_durable.setdefault(name, {})[channel_id] = None
            else:
                self._forget_durable(name, channel_id)

    def _forget_durable(self, name: str, channel_id: int) -> None:
        channel_ids = self._with_durable.get(name, {})
        channel_ids.pop(channel_id, None)
        if not channel_ids:
            self._with_durable.pop(name, None)

    def _apply_kept(
        self,
        channel_id: int,
        fact: Kept | KeptStates,
        tail_batches: Sequence[TailBatch],
        bodies: Sequence[Buffer],
    ) -> None:
        """Add the events and states of a channel that a snapshot has kept."""
        if isinstance(fact, KeptStates):
            restore_states(self.stores[channel_id], fact, bodies)
        for tail_batch in tail_batches:
            self.stores[channel_id].add_restored(tail_batch)

    def _apply_created(self, fact: ChannelCreated) -> None:
        self.directory.apply(fact)
        keys = fact.definition.keys
        if (state := self.channels[fact.number].state).engine.merges:
            self.stores[fact.number] = MergeStore(
                self.meter, keys, state.type.home, recent=self._recent
            )
        else:
            self.stores[fact.number] = ChannelStore(self.meter, keys)

    def forget_freed(self) -> None:
        """Drop the page slots that recovered facts have freed. They were released before the
        restart, and may be in use again."""
        for channel_id in self.freed:
            self.stores[channel_id].freed.clear()
        self.freed.clear()

    def _count_freed(self, channel: ChannelMachine, events: int) -> None:
        """Estimate the bytes of the journal that a removal of ``events`` events makes useless."""
        if channel.state.type.home == "journal":
            self.freed_bytes += int(events * channel.state.event_bytes)

    def _apply_deleted(self, fact: ChannelDeleted) -> None:
        if (channel := self.channels.get(fact.number)) is not None:
            self._count_freed(channel, channel.state.counters.published)
            for name in channel.state.durables:
                self._forget_durable(name, fact.number)
        # The durables are needed above, and the directory forgets them here.
        self.directory.apply(fact)
        self.to_open.discard(fact.number)
        self._joined = {
            stores: copied for stores, copied in self._joined.items() if fact.number not in stores
        }
        if store := self.stores.pop(fact.number, None):
            store.discard()
            self.freed.discard(fact.number)
            self.dropped.append(fact.number)

    def _files_changed(self, channel_id: int) -> None:
        """Record that a channel's files have changed. If its dead events move to another store,
        steps of the writer read the files, so the files must be opened before (SEM T7)."""
        self.to_maintain.add(channel_id)
        if self.channels[channel_id].state.moves_dead:
            self.to_open.add(channel_id)

    def _apply_to_files(
        self, channel_id: int, fact: Sealed | Extended | Rewritten | SegmentDropped
    ) -> None:
        """Apply a fact that adds, replaces or drops a file of a channel."""
        if isinstance(fact, Sealed) and not (fact.through or fact.name):
            return  # nothing was sealed: the usual case on realms with many channels
        if not isinstance(fact, Sealed) or fact.name or self.stores[channel_id].files:
            self._files_changed(channel_id)
        match fact:
            case Sealed():
                self._apply_sealed(channel_id, fact)
            case Extended():
                self._apply_extended(channel_id, fact)
            case Rewritten(names):
                file = self._sealed_file(channel_id, fact) if fact.name else None
                self.stores[channel_id].replace_files(names, file)
            case SegmentDropped(name):
                self.stores[channel_id].forget_file(name)

    def _apply_sealed(self, channel_id: int, fact: Sealed) -> None:
        channel, store = self.channels[channel_id], self.stores[channel_id]
        channel.mark_ids_used(fact.through)
        file = self._sealed_file(channel_id, fact) if fact.name else None
        store.record_sealing(fact.through, file, channel.state.volatile)

    def _apply_extended(self, channel_id: int, fact: Extended) -> None:
        channel, store = self.channels[channel_id], self.stores[channel_id]
        channel.mark_ids_used(fact.through)
        file = next((file for file in store.files if file.name == fact.name), None)
        if file is None:
            self.skipped.append(f"events of channel {channel_id} added to {fact.name}")
            return
        file.record_appended(
            _batches_decoder.decode(fact.batches),
            size=fact.size,
            checksum=fact.checksum,
            publishers=fact.publishers,
        )
        file.is_stale = True
        store.record_growth(fact.through, channel.state.volatile)

    def _sealed_file(self, channel_id: int, fact: Sealed | Rewritten) -> SealedFile:
        """Return the file that a fact describes, and add its columns to those of the store."""
        index = _index_decoder.decode(fact.index)
        file = SealedFile(fact.name, index, fact.publishers, grows=fact.grows)
        store = self.stores[channel_id]
        schema = ChannelSchema.of_file(index.schema).arrow
        store.columns = store.columns.grown(schema)
        store.names.add(schema)
        file.live = len(self.channels[channel_id].state.stored.within(file.span))
        return file

    def file_sum(self, name: str) -> BlobSum | None:
        """Return the size and checksum that a segment file must have; None if no fact names the
        file, or if it grows."""
        # Built from all files at once, because callers ask for one file after the other.
        if name not in self._file_sums:
            self._file_sums = {
                file.name: BlobSum(file.index.size, file.index.checksum)
                for store in self.stores.values()
                for file in store.files
                if not file.grows
            }
        return self._file_sums.get(name)

    def snapshot(self) -> tuple[Generator[None, None, list[FactRecord]], list[Buffer]]:
        """Return the shortest list of records that leads to this state after a restart, and their
        bodies.

        The records come from a generator that holds a frozen image of the state. It can run later,
        in steps, on any thread: most of the work is in it.
        """
        records = [FactRecord(0, RealmFacts(self.directory.next_channel_id))]
        bodies: list[Buffer] = []
        channel_records: list[FactRecord | _Frozen] = []
        kept_bodies: list[Buffer] = []
        for channel_id, channel in self.channels.items():
            store = self.stores[channel_id]
            state = channel.state
            channel_records.append(
                FactRecord(0, ChannelCreated(channel_id, state.name, state.definition))
            )
            frozen = channel.frozen()
            if isinstance(frozen, Restored):
                channel_records.append(FactRecord(channel_id, frozen))
            else:
                channel_records.append((channel_id, frozen))
            channel_records += [FactRecord(channel_id, fact) for fact in channel.failover_facts()]
            for file in store.files:
                through = file.index.end_id
                index = msgspec.msgpack.encode(file.index)
                sealed = Sealed(
                    through, file.name, index, publishers=file.publishers, grows=file.grows
                )
                channel_records.append(FactRecord(channel_id, sealed))
            # Sealing ids without stored events makes no file, so this may be above the newest file.
            channel_records.append(FactRecord(channel_id, Sealed(store.sealed_end)))
            if not channel.state.type.survives_restart:
                continue  # its events end with this process
            for states, body in kept_states(store, channel.state.stored):
                channel_records.append(FactRecord(channel_id, states, (BodyRef(0, len(body), 0),)))
                kept_bodies.append(body)
            for tail_batch, kept_rows in _rows_to_keep(store, channel.state.volatile):
                fact, rows, body = kept_rows
                place = tail_batch.place
                ref = BodyRef(
                    tail_batch.schema_id,
                    len(body),
                    rows,
                    publisher=tail_batch.publisher,
                    place=place,
                )
                channel_records.append(FactRecord(channel_id, fact, (ref,)))
                if place is None:  # a body in pages is read from there after a restart
                    kept_bodies.append(body)
        # After the records of all channels, because a join refers to two channels.
        channel_records += [FactRecord(0, JoinCreated(join)) for join in self.directory.joins]
        channel_records += [
            FactRecord(0, PatternDurableCreated(m)) for m in self.directory.patterns
        ]
        channel_records += [
            FactRecord(0, TransactionEnded(end)) for end in self.transactions.state()
        ]
        channel_records += [
            FactRecord(0, CommitsKept(*kept_rows)) for kept_rows in self.producers.remembered()
        ]
        if self.directory.publishing_paused:
            channel_records.append(FactRecord(0, PublishingPauseSet(paused=True)))
        # Also schemas that no event uses, because blocks after this snapshot may refer to them.
        for schema, encoded in self.schemas.in_journal():
            records.append(FactRecord(0, SchemaSeen(schema), (BodyRef(schema, len(encoded), 0),)))
            bodies.append(encoded)
        return _collect_records(records, channel_records), bodies + kept_bodies


_Frozen = tuple[int, Generator[None, None, Restored]]
"""A channel, and the generator that makes its record."""


def _collect_records(
    records: list[FactRecord], channel_records: Iterable[FactRecord | _Frozen]
) -> Generator[None, None, list[FactRecord]]:
    """Add the records of all channels to ``records`` in steps, and return the list."""
    for record in channel_records:
        if isinstance(record, FactRecord):
            records.append(record)
        else:
            channel_id, frozen = record
            records.append(FactRecord(channel_id, (yield from frozen)))
    return records


def _remove_events(store: ChannelStore, channel: ChannelMachine, fact: Removed) -> None:
    """Drop the batches that a removal has emptied; keep copies of events in damaged files."""
    if fact.cause is Cause.QUARANTINED:
        # Volatile events are in no file, so damage of a file does not concern them.
        persistent = channel.state.stored.copy()
        persistent.discard_all(channel.state.volatile)
        store.keep_beside_damage(persistent)
    store.drop_empty_batches(fact.spans, channel.state.readable)


def _rows_to_keep(
    store: ChannelStore, volatile: IdSet
) -> Iterator[tuple[TailBatch, tuple[Kept, int, Buffer]]]:
    """Yield the rows of the tail that a snapshot must contain: rows that are not sealed yet, and
    late ones, which no file will contain."""
    if store.late:
        for tail_batch in store.tail:
            if late := tail_batch.overlap(store.late):
                fact = Kept(tail_batch.first, tail_batch.end, tail_batch.at_us, ids=late.spans)
                yield tail_batch, (fact, len(late), tail_batch.body_of(late))
        # This is a copy, because the set belongs to the state of the channel.
        volatile = volatile.copy()
        volatile.add_all(store.late)
    for tail_batch in store.all_unsealed():
        kept_rows = _kept(tail_batch, volatile)
        if kept_rows is not None:
            yield tail_batch, kept_rows


def _kept(tail_batch: TailBatch, left_out: IdSet) -> tuple[Kept, int, Buffer] | None:
    """Return the rows of a batch that a snapshot must contain: the fact, the number of rows and
    the body. Ids in ``left_out`` are excluded; None if no row remains."""
    if not left_out and tail_batch.ids is None:
        return (
            Kept(tail_batch.first, tail_batch.end, tail_batch.at_us),
            tail_batch.end - tail_batch.first,
            tail_batch.body,
        )
    left_out = left_out.within(Span(tail_batch.first, tail_batch.end))
    ids = (
        IdSet([Span(tail_batch.first, tail_batch.end)])
        if tail_batch.ids is None
        else tail_batch.ids.copy()
    )
    if not left_out:
        spans = () if tail_batch.ids is None else ids.spans
        return (
            Kept(tail_batch.first, tail_batch.end, tail_batch.at_us, ids=spans),
            len(ids),
            tail_batch.body,
        )
    ids.remove_all(left_out)
    if not ids:
        return None
    body = tail_batch.body_of(ids)
    return Kept(tail_batch.first, tail_batch.end, tail_batch.at_us, ids=ids.spans), len(ids), body
