"""Everything a realm knows, and the one way it comes to know it: applying records.

Used live (right after a decision) and at recovery (from the snapshot and the journal) alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from penstock.columns.ipc import schema_from
from penstock.columns.segments import SegmentIndex
from penstock.core.channel import Channel
from penstock.core.directory import ChannelCreated, ChannelDeleted, Directory
from penstock.core.ids import IdSet, Span
from penstock.core.messages import Appended, Removed
from penstock.core.ports import Buffer
from penstock.core.state import Rules
from penstock.runtime.channel_store import ChannelStore, Meter, Piece, SealedFile
from penstock.runtime.records import (
    AnyFact,
    BodyRef,
    Kept,
    RealmFacts,
    Record,
    SchemaSeen,
    Sealed,
    SegmentDropped,
)
from penstock.runtime.schemas import Schemas

_index_decoder = msgspec.msgpack.Decoder(SegmentIndex)


class RealmState:
    def __init__(self, rules: Rules) -> None:
        self.directory = Directory(rules)
        self.stores: dict[int, ChannelStore] = {}
        self.schemas = Schemas()
        self.meter = Meter()
        self.skipped: list[str] = []
        """Facts that could not be applied because an earlier block is damaged."""

    @property
    def channels(self) -> dict[int, Channel]:
        return self.directory.channels

    def apply_stored(self, record: Record, bodies: Iterator[memoryview]) -> None:
        """Apply a record read back from the journal or a snapshot."""
        own = [next(bodies) for _ in record.bodies]
        if record.channel and record.channel not in self.channels:
            self.skipped.append(f"{type(record.fact).__name__} of channel {record.channel}")
            return
        missing = [ref.schema for ref in record.bodies if not self.schemas.has(ref.schema)]
        if missing and not isinstance(record.fact, SchemaSeen):
            self.skipped.append(f"events of channel {record.channel} in schema {missing[0]}")
            return
        self.apply(record.channel, record.fact, self._pieces(record, own), own)

    def _pieces(self, record: Record, bodies: Sequence[memoryview]) -> list[Piece]:
        match record.fact:
            case Appended(span, at_us, absent=absent):
                ids = IdSet([Span(*span)])
                for gone in absent:
                    ids.remove(Span(*gone))
            case Kept(first, end, at_us, spans):
                ids = IdSet(Span(*s) for s in spans) if spans else IdSet([Span(first, end)])
            case _:
                return []
        return [
            self._piece(ref, body, at_us, ids)
            for ref, body in zip(record.bodies, bodies, strict=True)
        ]

    def _piece(self, ref: BodyRef, body: memoryview, at_us: int, ids: IdSet) -> Piece:
        """The piece of one body; takes its rows' ids off ``ids``."""
        taken: list[Span] = []
        rows = ref.rows
        while rows and (span := ids.take(rows)) is not None:
            taken.append(span)
            rows -= span.size
        span = Span(taken[0].first, taken[-1].end)
        dense = span.size == ref.rows
        return Piece(
            span,
            at_us,
            ref.schema,
            self.schemas.schema(ref.schema),
            body,
            ids=None if dense else IdSet(taken),
            publisher=ref.publisher,
        )

    def apply(  # noqa: C901  one case a fact
        self,
        number: int,
        fact: AnyFact,
        pieces: Sequence[Piece] = (),
        bodies: Sequence[Buffer] = (),
    ) -> None:
        """Make ``fact`` true in the core and in the store."""
        match fact:
            case ChannelCreated():
                self.directory.apply(fact)
                self.stores[fact.number] = ChannelStore(self.meter)
            case ChannelDeleted():
                self.directory.apply(fact)
                if store := self.stores.pop(fact.number, None):
                    store.discard()
            case SchemaSeen(schema):
                self.schemas.record(schema, bytes(bodies[0]))
            case RealmFacts(next_number):
                self.directory.next_number = next_number
            case Sealed():
                self._sealed(number, fact)
            case SegmentDropped(name):
                self.stores[number].dropped(name)
            case Kept():
                for piece in pieces:
                    self.stores[number].add(piece)
            case _:
                channel = self.channels[number]
                channel.apply(fact)
                for piece in pieces:
                    self.stores[number].add(piece)
                if isinstance(fact, Removed):
                    self.stores[number].removed(fact.spans, channel.state.stored)

    def _sealed(self, number: int, fact: Sealed) -> None:
        file = (
            SealedFile(fact.name, _index_decoder.decode(fact.index), fact.publishers)
            if fact.name
            else None
        )
        channel, store = self.channels[number], self.stores[number]
        channel.given(fact.through)
        if file is not None:
            store.columns = store.columns.grown(schema_from(file.index.schema))
            file.live = len(channel.state.stored.within(file.span))
        store.sealed(fact.through, file, channel.state.volatile)

    def snapshot(self) -> tuple[list[Record], list[Buffer]]:
        """The shortest records that lead to this state after a restart, and their bodies."""
        records = [Record(0, RealmFacts(self.directory.next_number))]
        bodies: list[Buffer] = []
        of_channels: list[Record] = []
        kept_bodies: list[Buffer] = []
        for number, channel in self.channels.items():
            store = self.stores[number]
            state = channel.state
            of_channels.append(Record(0, ChannelCreated(number, state.name, state.definition)))
            of_channels.append(Record(number, channel.snapshot()))
            for file in store.files:
                through = file.index.end_id
                index = msgspec.msgpack.encode(file.index)
                of_channels.append(
                    Record(number, Sealed(through, file.name, index, file.publishers))
                )
            of_channels.append(Record(number, Sealed(store.sealed_through)))
            if not channel.state.type.survives_restart:
                continue
            for piece in store.all_unsealed():
                kept = _kept(piece, channel)
                if kept is not None:
                    fact, rows, body = kept
                    ref = BodyRef(piece.number, len(body), rows, piece.publisher)
                    of_channels.append(Record(number, fact, (ref,)))
                    kept_bodies.append(body)
        # All of them: blocks after this snapshot name schemas that were recorded before it.
        for schema in self.schemas.recorded:
            encoded = self.schemas.bytes_of(schema)
            records.append(Record(0, SchemaSeen(schema), (BodyRef(schema, len(encoded), 0),)))
            bodies.append(encoded)
        return records + of_channels, bodies + kept_bodies


def _kept(piece: Piece, channel: Channel) -> tuple[Kept, int, Buffer] | None:
    """What a snapshot keeps of a tail piece: its rows on disk, or nothing."""
    volatile = channel.state.volatile.within(Span(piece.first, piece.end))
    ids = IdSet([Span(piece.first, piece.end)]) if piece.ids is None else piece.ids.copy()
    if not volatile:
        spans = () if piece.ids is None else ids.spans
        return Kept(piece.first, piece.end, piece.at_us, spans), len(ids), piece.body
    ids.remove_all(volatile)
    if not ids:
        return None
    body = piece.body_of(ids)
    return Kept(piece.first, piece.end, piece.at_us, ids.spans), len(ids), body
