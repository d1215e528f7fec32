"""Transactions: events for one or several stores, all of them or none (SEM X1, X2, X4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from penstock_core.api.transactions import TransactionInfo
from penstock_core.columns.schema.layout import DELIVERY_TIME
from penstock_core.ids.ids import Span
from penstock_core.messages.transactions import Ended, StagesCommitted, TransactionEnded
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import InvalidArgument, PenstockError
from penstock_server.runtime.store.bodies import Body, digest_of
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.publish_stops import refuse_stopped
from penstock_server.runtime.writer.removals import Removal, check_available, is_redrive, leave
from penstock_server.runtime.writer.requests import Reply, ShardRequest
from penstock_server.runtime.writer.schedules import waits
from penstock_server.runtime.writer.shard import Shard
from penstock_server.runtime.writer.stages import Stages
from penstock_server.runtime.writer.unit_of_work import Acknowledged, UnitOfWork, by_store

Spans = tuple[tuple[int, Span], ...]
"""The ids of the published events, by store."""


class StorePart(Struct, frozen=True):
    """Events of a transaction for one store: batches, and stages that are already uploaded."""

    channel_id: int
    bodies: Sequence[Body] = ()
    stages: Sequence[str] = ()


class PublishTransaction(ShardRequest):
    """Commit a transaction: publish its events, and remove the events in ``leaving``."""

    transaction: str
    parts: Sequence[StorePart]
    stages: Stages
    event_bytes_max: int
    publisher: str = ""
    leaving: Sequence[Removal] = ()

    @property
    def offered(self) -> Sequence[tuple[int, Sequence[Body]]]:
        return [
            (part.channel_id, [*part.bodies, *self.stages.remaining_bodies(part.stages)])
            for part in self.parts
        ]

    def is_decided(self, state: RealmState) -> bool:
        """Whether the answer is known, because the transaction has ended. Serving the request then
        writes nothing."""
        try:
            state.transactions.begun(self.transaction)
        except PenstockError:
            return True
        return False

    def run(self, group: Group) -> Spans:
        """Publish and return the ids of each store's events. Raises ``Refused`` before anything is
        stored."""
        group.settle()
        begun = group.state.transactions.begun(self.transaction)
        publishes = self._publishes()
        refuse_stopped(group, publishes)
        # All checks come before the first publish, so that a refusal leaves nothing stored.
        check_available(group, self.leaving)
        # Redriven events must not evict others (SEM T10).
        if is_redrive(self.leaving):
            group.check(publishes, evicts=False)
        else:
            group.check(publishes, begun.below_capacity)
        # The checks have admitted all events, so nothing refuses a part of them here.
        spans = tuple(
            (
                channel_id,
                group.publish(channel_id, bodies, digest, forced=True, publisher=self.publisher),
            )
            for channel_id, (bodies, digest) in publishes.items()
        )
        leave(group, self.leaving)
        group.realm_fact(
            0, TransactionEnded(Ended(self.transaction, group.now_us, committed=True, spans=spans))
        )
        return spans

    def _publishes(self) -> dict[int, tuple[list[Body], Digest]]:
        """Return the events by store, in the order of the parts."""
        by_store: dict[int, list[Body]] = {}
        for part in self.parts:
            staged = self.stages.bodies_of(part.stages, part.channel_id)
            by_store.setdefault(part.channel_id, []).extend([*part.bodies, *staged])
        for bodies in by_store.values():
            if waits(bodies):
                raise InvalidArgument(
                    f"an event in a transaction cannot have {DELIVERY_TIME}; publish it outside "
                    "the transaction"
                )
        return {
            channel_id: (bodies, digest_of(bodies, self.event_bytes_max))
            for channel_id, bodies in by_store.items()
            if bodies
        }


class PublishStagedParts(ShardRequest):
    """Publish stages for several stores in one step, exactly once in the realm (SEM X3)."""

    parts: Sequence[tuple[int, Sequence[str]]]
    """Stages in order, by store. A store may be named more than once."""
    stages: Stages
    producer: str
    sequence: int
    event_bytes_max: int
    publisher: str = ""

    @property
    def offered(self) -> Sequence[tuple[int, Sequence[Body]]]:
        return [
            (channel_id, self.stages.remaining_bodies(names)) for channel_id, names in self.parts
        ]

    def is_decided(self, state: RealmState) -> bool:
        """Whether the answer is known, because the same commit was stored earlier or its sequence
        is too old. Serving the request then writes nothing."""
        try:
            return self._committed_before(state) is not None
        except PenstockError:
            return True

    def run(self, group: Group) -> Spans:
        """Publish and return the ids of each store's events. Raises ``Refused`` before anything is
        stored."""
        group.settle()
        stored_spans = self._committed_before(group.state)
        if stored_spans is not None:
            return stored_spans
        publishes = self._publishes(group)
        refuse_stopped(group, publishes)
        # The commit is one unit: stores that were not full may overshoot (SEM T4).
        below_capacity = {
            channel_id for channel_id in publishes if not group.channel(channel_id).state.is_full
        }
        group.check(publishes, below_capacity)
        spans = tuple(
            (channel_id, self._publish(group, channel_id, bodies, digest=digest))
            for channel_id, (bodies, digest) in publishes.items()
        )
        fact = StagesCommitted(self.producer, self.sequence, group.now_us, spans=spans)
        group.realm_fact(0, fact)
        return spans

    def _committed_before(self, state: RealmState) -> Spans | None:
        """Return the answer to a repeated commit; None if the commit is new. A channel remembers a
        commit also if it was the only store of that commit or was imported from another realm."""
        stored_spans = state.producers.stored_as(self.producer, self.sequence)
        if stored_spans is not None:
            return stored_spans
        # A channel may have been deleted since the first commit.
        spans_by_channel = []
        for channel_id, _ in self.parts:
            if (channel := state.channels.get(channel_id)) is not None:
                span = channel.state.producers.stored_as(self.producer, self.sequence)
                spans_by_channel += [] if span is None else [(channel_id, span)]
        return tuple(spans_by_channel) or None

    def _publishes(self, group: Group) -> dict[int, tuple[list[Body], Digest]]:
        """Return the events by store, in the order of the parts. Scheduled events are under the
        store where they wait."""
        by_time: dict[tuple[int, bool], list[Body]] = {}
        for channel_id, names in self.parts:
            group.channel(channel_id)  # raises NameDoesNotExist if the channel was deleted
            for name in names:
                bodies = self.stages.bodies_of((name,), channel_id)
                by_time.setdefault((channel_id, waits(bodies)), []).extend(bodies)
        return by_store(group, by_time, self.event_bytes_max)

    def _publish(self, group: Group, channel_id: int, bodies: list[Body], digest: Digest) -> Span:
        return group.publish(
            channel_id,
            bodies,
            digest,
            producer=self.producer,
            sequence=self.sequence,
            forced=True,
            publisher=self.publisher,
        )


class TransactionOperations:
    """The realm's operations on transactions."""

    def __init__(self, shard: Shard, stages: Stages, event_bytes_max: int) -> None:
        self._shard = shard
        self._stages = stages
        self._event_bytes_max = event_bytes_max

    async def begin(self, transaction: str, channels: Sequence[int]) -> None:
        """Open a transaction for these stores. Raises ``AlreadyCommitted``, ``AlreadyAborted``, and
        ``InvalidArgument`` for an empty id."""
        if not transaction:
            raise InvalidArgument("a transaction has an id of at least one character")

        def begin(group: Group) -> None:
            # Stores that are not full now may overshoot at the commit (SEM T4).
            below_capacity = []
            for channel_id in channels:
                state = group.channel(channel_id).state
                group.sweep(channel_id)
                if not state.is_full:
                    below_capacity.append(channel_id)
            group.state.transactions.begin(transaction, group.now_us, below_capacity)

        await self._shard.act(begin)

    def commit(
        self,
        transaction: str,
        parts: Sequence[StorePart],
        reply: Reply,
        publisher: str = "",
        *,
        leaving: Sequence[Removal] = (),
    ) -> None:
        """Publish the events of a transaction and remove those in ``leaving``, in one step.
        ``reply`` is called with the ids by store."""
        limit = self._event_bytes_max
        self._shard.submit(
            PublishTransaction(
                transaction,
                parts,
                self._stages,
                event_bytes_max=limit,
                publisher=publisher,
                reply=reply,
                leaving=leaving,
            )
        )

    def commit_staged(
        self,
        parts: Sequence[tuple[int, Sequence[str]]],
        producer: str,
        sequence: int,
        reply: Reply,
        publisher: str = "",
    ) -> None:
        """Publish stages for several stores in one step. ``reply`` is called with the ids by store.
        A repeated commit with the same ``producer`` and ``sequence`` publishes nothing and gets the
        ids of the first one."""
        limit = self._event_bytes_max
        work = PublishStagedParts(
            parts,
            self._stages,
            producer,
            sequence=sequence,
            event_bytes_max=limit,
            publisher=publisher,
            reply=reply,
        )
        self._shard.submit(work)

    def publish_together(
        self,
        publishes: Sequence[tuple[int, Sequence[Body]]],
        reply: Reply,
        publisher: str = "",
    ) -> None:
        """Publish events to several stores in one step; ``reply`` is called with the ids by
        store."""
        self._shard.submit(
            UnitOfWork(publishes, (), self._event_bytes_max, publisher=publisher, reply=reply)
        )

    async def publish_and_acknowledge(
        self,
        publishes: Sequence[tuple[int, Sequence[Body]]],
        acknowledged: Sequence[Acknowledged],
        publisher: str,
    ) -> None:
        """Publish events to several stores and acknowledge other events, in one step."""
        work = UnitOfWork(publishes, acknowledged, self._event_bytes_max, publisher=publisher)
        await self._shard.ask(work)

    async def abort(self, transaction: str) -> None:
        """End a transaction without publishing. Raises ``NoSuchTransaction``,
        ``AlreadyCommitted``, ``AlreadyAborted``."""

        def abort(group: Group) -> None:
            group.state.transactions.begun(transaction)
            group.realm_fact(0, TransactionEnded(Ended(transaction, group.now_us, committed=False)))

        await self._shard.act(abort)

    async def describe(self, transaction: str) -> TransactionInfo:
        """Return the outcome of a transaction. Raises ``NoSuchTransaction``."""

        def find_outcome(group: Group) -> TransactionInfo:
            ended = group.state.transactions.ended(transaction)
            if ended is None:
                return TransactionInfo("open")
            return TransactionInfo("committed" if ended.committed else "aborted", ended.spans)

        info: Any = await self._shard.act(find_outcome)
        assert isinstance(info, TransactionInfo), "find_outcome returns it"
        return info
