"""What waits at the shard's door, and the group in which it is answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa
from msgspec import Struct

from penstock.columns.digest import spans_of
from penstock.columns.selectors import Selector
from penstock.core.channel import Channel
from penstock.core.errors import NameDoesNotExist
from penstock.core.ids import IdSet, Span
from penstock.core.messages import (
    Acked,
    Appended,
    Command,
    Decided,
    Digest,
    Publish,
    Removed,
    Spans,
    Sweep,
)
from penstock.core.ports import Buffer
from penstock.runtime.channel_store import Piece
from penstock.runtime.records import AnyFact, BodyRef, Record, SchemaSeen
from penstock.runtime.state import RealmState

Reply = Callable[[Any, BaseException | None], None]
"""Called once, after what the work led to is stored: with an answer, or with an error."""


class Body(Struct):
    """A validated batch on its way in."""

    buffer: Buffer
    batch: pa.RecordBatch
    schema_bytes: bytes


class Work(Protocol):
    """One thing to be done in a group."""

    reply: Reply | None

    @property
    def bodies(self) -> Sequence[Body]:
        """The events it brings."""
        ...

    def run(self, group: Group) -> Any:
        """Decide and apply; the answer. Raises ``PenstockError`` and changes nothing."""
        ...


class Group:
    """Everything decided between two appends: one block, one sync, then all the answers."""

    def __init__(self, state: RealmState, now_us: int, memory_bytes_max: int) -> None:
        self.state = state
        self.now_us = now_us
        self.memory_bytes_max = memory_bytes_max
        self.records: list[Record] = []
        self.bodies: list[Buffer] = []
        self.touched: dict[int, None] = {}
        """Channels, in order, that may have something to offer now."""
        self.must_sync = False
        self.began: dict[int, int] = {}
        """Next id of each touched channel before this group."""
        self._waits: set[int] = set()
        """Channels that offer nothing before the block is stored."""

    def channel(self, number: int) -> Channel:
        try:
            channel = self.state.channels[number]
        except KeyError:
            raise NameDoesNotExist(
                f"channel number {number} does not exist any more; open the channel again"
            ) from None
        self.touched[number] = None
        self.began.setdefault(number, channel.state.next_id)
        return channel

    def offers_early(self) -> list[tuple[int, int]]:
        """Channels that may deliver before this group's block is stored, and below which id.

        An acknowledgement makes room in a window; what fills it was stored long ago, so nothing
        is seen that a power cut could unsay. Other facts (redelivery counts, new durables) show
        in deliveries, and have to be stored first.
        """
        if not self.records:
            return []
        return [(n, below) for n, below in self.began.items() if n not in self._waits]

    def do(self, number: int, command: Command) -> Decided:
        """Decide ``command``, apply what it leads to, follow it in soft state."""
        channel = self.channel(number)
        decided = channel.decide(command, self.now_us)
        for fact in decided.facts:
            recorded = channel.recorded(fact)
            if recorded is not None:
                self.record(number, recorded)
            if not isinstance(fact, Acked | Removed):
                self._waits.add(number)
            self.state.apply(number, fact)
        channel.attend(command, self.now_us)
        return decided

    def record(
        self, number: int, fact: AnyFact, refs: tuple[BodyRef, ...] = (), *, sync: bool = True
    ) -> None:
        self.records.append(Record(number, fact, refs))
        if sync and (not number or self.channel(number).state.definition.storage.sync != "none"):
            self.must_sync = True

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

    def sweep(self, number: int) -> None:
        if self.state.channels[number].needs_sweep(self.now_us):
            self.do(number, Sweep())


class Do(Struct):
    """Any command that carries no events."""

    number: int
    command: Command
    reply: Reply | None = None

    @property
    def bodies(self) -> Sequence[Body]:
        return ()

    def run(self, group: Group) -> Any:
        group.channel(self.number)
        group.sweep(self.number)
        return group.do(self.number, self.command).answer


class PublishBatches(Struct):
    """Events of one publish, in one or more batches."""

    number: int
    digest: Digest
    bodies: Sequence[Body]
    producer: str = ""
    sequence: int = 0
    overshoot: bool = False
    reply: Reply | None = None
    publisher: str = ""
    """``user@host`` it comes from (SEM E3)."""

    def run(self, group: Group) -> Any:
        channel = group.channel(self.number)
        group.sweep(self.number)
        command = Publish(
            self._digest_for(channel),
            self.producer,
            self.sequence,
            self.overshoot,
            group.memory_bytes_max - group.state.meter.memory_bytes,
        )
        decided = channel.decide(command, group.now_us)
        for fact in decided.facts:
            recorded = channel.recorded(fact)
            if isinstance(fact, Appended):
                self._append(group, channel, fact, recorded)
                continue
            if recorded is not None:
                group.record(self.number, recorded)
            group.state.apply(self.number, fact)
        return decided.answer

    def _digest_for(self, channel: Channel) -> Digest:
        """With what the selectors of the channel's durables match (SEM F5)."""
        texts = {d.selector for d in channel.state.durables.values() if d.selector}
        if not texts:
            return self.digest
        matched = {}
        for text in texts:
            selector, found, first = Selector(text), IdSet(), 0
            for body in self.bodies:
                for span in spans_of(selector.mask(body.batch)):
                    found.add(Span(*span).shifted(first))
                first += body.batch.num_rows
            matched[text] = found.spans
        digest = self.digest
        return Digest(
            digest.count,
            digest.size,
            digest.largest,
            digest.volatile,
            digest.transient,
            digest.ttls,
            matched,
        )

    def _append(
        self, group: Group, channel: Channel, fact: Appended, recorded: AnyFact | None
    ) -> None:
        pieces = self._pieces(group, fact)
        if isinstance(recorded, Appended):
            refs = []
            for piece in pieces:
                body, rows = _on_disk(piece, recorded.absent)
                if rows:
                    refs.append(BodyRef(piece.number, len(body), rows, self.publisher))
                    group.bodies.append(body)
            group.record(self.number, recorded, tuple(refs))
        group.state.apply(self.number, fact, pieces)

    def _pieces(self, group: Group, fact: Appended) -> list[Piece]:
        pieces = []
        first = fact.span.first
        volatile = IdSet(fact.volatile)
        for body in self.bodies:
            number = group.schema_number(body.schema_bytes)
            span = Span(first, first + body.batch.num_rows)
            pieces.append(
                Piece(
                    span,
                    fact.at_us,
                    number,
                    body.batch.schema,
                    body.buffer,
                    body.batch,
                    in_memory=bool(volatile.within(span)),
                    publisher=self.publisher,
                )
            )
            first = span.end
        return pieces


def _on_disk(piece: Piece, absent: Spans) -> tuple[Buffer, int]:
    """The body the journal gets: without the rows that live in memory only."""
    ids = IdSet([Span(piece.first, piece.end)])
    for span in absent:
        ids.remove(span)
    if len(ids) == piece.end - piece.first:
        return piece.body, len(ids)
    return (piece.body_of(ids), len(ids)) if ids else (b"", 0)


class Act(Struct):
    """Something the runtime wants done at its place in the order: creation, look-ups, sealing."""

    action: Callable[[Group], Any]
    reply: Reply | None = None

    @property
    def bodies(self) -> Sequence[Body]:
        return ()

    def run(self, group: Group) -> Any:
        return self.action(group)
