"""Transactions: publishes that become visible together, or not at all (SEM X)."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self, Unpack, runtime_checkable

import msgspec
import pyarrow as pa

from penstock.client.connection.connection import RealmConnection
from penstock.client.publishing.event_attributes import (
    PUBLISHED,
    EventAttributes,
    spelled_out,
    unknown_attribute,
)
from penstock.client.publishing.publishing import FRAME_BODIES_MAX, STAGINGS_MAX, parts_of, stage
from penstock.client.publishing.streamed import Many, bodies_of_all
from penstock_core.api.publishing import DropStages
from penstock_core.api.transactions import (
    AbortTransaction,
    BeginTransaction,
    CommitTransaction,
    DescribeTransaction,
    Leaving,
    TransactionInfo,
    TransactionPart,
)
from penstock_core.bounds import SPANS_MAX
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.columns.files.tables import bodies_of_table
from penstock_core.columns.schema.ipc import batch_bytes
from penstock_core.columns.schema.layout import DELIVERY_TIME
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.errors import (
    AlreadyAborted,
    AlreadyCommitted,
    IllegalState,
    InvalidArgument,
    InvalidEvent,
    NoSuchStage,
    NoSuchTransaction,
    PenstockError,
    Refused,
)
from penstock_core.vocabulary.identities import ChannelId

Spans = tuple[tuple[int, Span], ...]
"""The ids that its events got, by number of the store."""

SINGLES_MAX = 1_024
"""Events published one by one are turned into columns in runs of this many."""


@runtime_checkable
class Named(Protocol):
    """A channel or queue, of either client."""

    @property
    def name(self) -> str: ...

    @property
    def number(self) -> ChannelId: ...


class StorePublishes:
    """What a transaction publishes to one store, in order."""

    def __init__(self) -> None:
        self._singles: list[Event] = []
        self._bodies: list[pa.RecordBatch] = []

    def add(self, event: Event) -> None:
        """Raises ``InvalidEvent`` here, not at the commit."""
        _check(body_of([event]))
        self._singles.append(event)
        if len(self._singles) == SINGLES_MAX:
            self._end_run()

    def add_bodies(self, bodies: Sequence[pa.RecordBatch]) -> None:
        for body in bodies:
            _check(body)
        self._end_run()
        self._bodies += bodies

    def _end_run(self) -> None:
        if self._singles:
            self._bodies.append(body_of(self._singles))
            self._singles.clear()

    def parts(self, event_bytes_max: int) -> list[pa.RecordBatch]:
        """The events in pieces that fit a frame. Raises ``EventTooLarge``."""
        self._end_run()
        return [part for body in self._bodies for part in parts_of(body, event_bytes_max)]


def _check(body: pa.RecordBatch) -> None:
    if DELIVERY_TIME in body.schema.names:
        raise InvalidEvent(f"a transaction publishes when it commits; leave out {DELIVERY_TIME}")


class Inline:
    """The batches that travel with the commit itself."""

    def __init__(self) -> None:
        self.buffers: list[memoryview] = []
        self.schemas: list[int] = []
        self._size = 0

    def take(
        self, connection: RealmConnection, number: ChannelId, bodies: Sequence[pa.RecordBatch]
    ) -> TransactionPart | None:
        """All of a store's batches, if they are of one schema and still fit in; else None."""
        if not bodies:
            return TransactionPart(number, 0, ())
        schema = bodies[0].schema
        if not all(body.schema.equals(schema, check_metadata=True) for body in bodies):
            return None
        if self._size + sum(body.nbytes for body in bodies) > FRAME_BODIES_MAX:
            return None
        buffers = [memoryview(batch_bytes(body)) for body in bodies]
        if self._size + sum(map(len, buffers)) > FRAME_BODIES_MAX:
            return None
        self._size += sum(map(len, buffers))
        self.buffers += buffers
        self.schemas.append(connection.schema_number(schema))
        return TransactionPart(number, self.schemas[-1], tuple(map(len, buffers)))


class Unit:
    """A unit of work: begun, filled, and ended once, by a commit or by an abort."""

    id: str
    """Ask :meth:`Session.is_committed` with it, in this session or another one."""

    def __init__(self, connection: RealmConnection) -> None:
        self.id = uuid.uuid4().hex
        self._connection = connection
        self._gathered: dict[ChannelId, StorePublishes] = {}
        self._names: dict[int, str] = {}
        self._ids: dict[int, range] = {}
        self._state: Literal["open", "committed", "aborted"] = "open"
        self._has_begun = False
        self._begun_on = 0
        """The connection on which the realm was told last, by how many there were before it."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} at {self._connection.place}>"

    async def __aenter__(self) -> Self:
        return self

    # --- what it holds -------------------------------------------------------------------

    async def _on(self, number: ChannelId, name: str) -> StorePublishes:
        """The place to gather what is published to a store; the realm is told of the store."""
        self._refuse_if_ended()
        found = self._gathered.get(number)
        if found is None:
            await self._begin((*self._untold, number))
            self._names[number] = name
            found = self._gathered.setdefault(number, StorePublishes())
        return found

    @property
    def _untold(self) -> tuple[ChannelId, ...]:
        """The stores that are named again, because the connection is another one: it may be another
        node that serves, which knows of none of them."""
        is_told = self._begun_on == self._connection.reconnects
        return () if is_told else tuple(self._gathered)

    async def _begin(self, numbers: tuple[ChannelId, ...]) -> None:
        while True:
            self._begun_on = self._connection.reconnects
            await self._connection.request(BeginTransaction(self.id, numbers))
            self._has_begun = True
            if not (untold := self._untold):
                return
            # The connection was lost while this was under way.
            numbers = tuple(dict.fromkeys((*untold, *numbers)))

    def _refuse_if_ended(self) -> None:
        if self._state == "committed":
            raise AlreadyCommitted(f"transaction {self.id} is already committed; begin a new one")
        if self._state == "aborted":
            raise AlreadyAborted(f"transaction {self.id} is already aborted; begin a new one")

    # --- ends ----------------------------------------------------------------------------

    async def _committed(self) -> Spans:
        """Commit; gives the spans of the ids, by number of the store. Once, whatever becomes of
        the connection and the realm: a repeated commit is told of the first one, which is then
        asked for its ids. A refusal leaves the transaction open."""
        self._refuse_if_ended()
        is_begun, attempts = self._has_begun, 0
        while True:
            try:
                if not is_begun or self._untold:
                    await self._begin(tuple(self._gathered))
                return (await self._send_commit()).spans
            except AlreadyCommitted:  # the answer was lost, and the request was repeated
                return (await describe(self._connection, self.id)).spans
            except (NoSuchTransaction, NoSuchStage) as forgotten:
                # The realm has restarted, or another node serves; its events are still here.
                attempts += 1
                if attempts == STAGINGS_MAX:
                    raise
                is_begun = not isinstance(forgotten, NoSuchTransaction)

    def _leaving(self) -> tuple[Leaving, ...]:
        """The events that leave stores with it."""
        return ()

    def _keep(self, spans: Spans) -> None:
        self._state = "committed"
        self._ids = {number: range(first, end) for number, (first, end) in spans}
        self._gathered.clear()

    def _ids_by_number(self) -> dict[int, range]:
        if self._state != "committed":
            raise IllegalState(f"transaction {self.id} is {self._state}; ids come with its commit")
        return self._ids

    async def _send_commit(self) -> TransactionInfo:
        inline = Inline()
        stages: list[str] = []
        parts = []
        for number, gathered in self._gathered.items():
            bodies = gathered.parts(self._connection.event_bytes_max)
            if (part := inline.take(self._connection, number, bodies)) is None:
                buffers = [memoryview(batch_bytes(body)) for body in bodies]
                names = await stage(self._connection, number, bodies, buffers=buffers)
                stages += names
                part = TransactionPart(number, 0, (), stages=tuple(names))
            parts.append(part)
        message = CommitTransaction(self.id, tuple(parts), self._leaving())
        try:
            answer = await self._connection.request(
                message, inline.buffers, schemas=tuple(inline.schemas)
            )
        except Refused:
            if stages:
                self._connection.request(DropStages(tuple(stages)))
            raise
        return msgspec.convert(answer, TransactionInfo)

    async def abort(self) -> None:
        """Publish nothing of it. Raises ``AlreadyCommitted``, ``AlreadyAborted``."""
        self._refuse_if_ended()
        if self._has_begun:
            # A restart has forgotten it, or the answer was lost and this is the second request.
            with contextlib.suppress(NoSuchTransaction, AlreadyAborted):
                await self._connection.request(AbortTransaction(self.id))
        self._state = "aborted"
        self._gathered.clear()

    async def is_committed(self) -> bool:
        """Whether the realm has stored it; it knows for 24 hours (SEM X2)."""
        if not self._has_begun:
            return False
        return (await describe(self._connection, self.id)).state == "committed"

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            await self._give_up(error)
        elif self._state == "open":
            try:
                self._keep(await self._committed())
            except Refused as refusal:
                await self._give_up(refusal)
                raise

    async def _give_up(self, error: BaseException) -> None:
        """End without publishing anything, because an exception leaves the block."""
        if self._state != "open":
            return
        try:
            await self.abort()
        except PenstockError as failure:
            error.add_note(f"the transaction could not be aborted: {failure}")


class Transaction(Unit):
    """Publishes to one channel or queue in one step: ``channel.transaction()`` (SEM X1).

    Nothing is seen before the commit; then all of it is, with consecutive ids.
    """

    def __init__(self, connection: RealmConnection, number: ChannelId, name: str) -> None:
        super().__init__(connection)
        self._number = number
        self._name = name

    async def __aenter__(self) -> Self:
        await self._on(self._number, self._name)
        return self

    @spelled_out
    async def publish(
        self,
        data: bytes = b"",
        **attributes: Unpack[EventAttributes],
    ) -> None:
        """Add one event. Raises ``InvalidEvent``, ``AlreadyCommitted``, ``AlreadyAborted``."""
        if not attributes.keys() <= PUBLISHED:
            raise unknown_attribute(attributes, PUBLISHED, "publish")
        event = Event(data, **attributes)
        (await self._on(self._number, self._name)).add(event)

    async def publish_many(self, events: Many) -> None:
        """Add events, in their order; from any iterable."""
        bodies = await bodies_of_all(events)
        (await self._on(self._number, self._name)).add_bodies(bodies)

    async def publish_table(self, table: Any) -> None:
        """Add the rows of an Arrow, pandas or polars table."""
        (await self._on(self._number, self._name)).add_bodies(bodies_of_table(table))

    async def commit(self) -> range:
        """Publish all of it in one step; gives the ids once they are safe.

        Raises ``CapacityReached``, ``MemoryLimit``, ``PublishingPaused`` (it stays open then, and
        may be committed again or aborted), ``AlreadyCommitted``, ``AlreadyAborted``.
        """
        self._keep(await self._committed())
        return self.ids

    @property
    def ids(self) -> range:
        """The ids of its events, once it is committed. Raises ``IllegalState`` before."""
        return self._ids_by_number().get(self._number, range(0))


class JointTransaction(Unit):
    """Publishes to several channels and queues of a realm in one step:
    ``session.transaction()`` (SEM X4)."""

    def __init__(self, connection: RealmConnection) -> None:
        super().__init__(connection)
        self._redriven: dict[ChannelId, IdSet] = {}
        self._purged: dict[ChannelId, IdSet] = {}

    @spelled_out
    async def publish(
        self,
        store: Named,
        data: bytes = b"",
        **attributes: Unpack[EventAttributes],
    ) -> None:
        """Add one event for a channel or queue."""
        if not attributes.keys() <= PUBLISHED:
            raise unknown_attribute(attributes, PUBLISHED, "publish")
        event = Event(data, **attributes)
        (await self._in(store)).add(event)

    async def publish_many(self, store: Named, events: Many) -> None:
        """Add events for a channel or queue, in their order; from any iterable."""
        bodies = await bodies_of_all(events)
        (await self._in(store)).add_bodies(bodies)

    async def publish_table(self, store: Named, table: Any) -> None:
        """Add the rows of an Arrow, pandas or polars table for a channel or queue."""
        (await self._in(store)).add_bodies(bodies_of_table(table))

    async def publish_bodies(self, store: Named, bodies: Sequence[pa.RecordBatch]) -> None:
        """Add batches as :mod:`penstock_core.columns.schema.layout` describes them, for a channel
        or queue."""
        (await self._in(store)).add_bodies(bodies)

    async def redrive(self, store: Named, ids: Iterable[int]) -> None:
        """Remove dead events from their store in the same step, as published again by this
        transaction, changed or not (SEM T10).

        Nothing is evicted for what it publishes. If one of them is gone, or a reader holds it, the
        commit raises ``IllegalState`` and changes nothing.
        """
        await self._in(store)
        self._redriven.setdefault(store.number, IdSet()).add_all(IdSet.from_ids(ids))

    async def purge(self, store: Named, ids: Iterable[int]) -> None:
        """Remove unwanted events in the same step, as :meth:`redrive` does (SEM T9)."""
        await self._in(store)
        self._purged.setdefault(store.number, IdSet()).add_all(IdSet.from_ids(ids))

    def _leaving(self) -> tuple[Leaving, ...]:
        none = IdSet()
        leaving = tuple(
            Leaving(
                number,
                self._redriven.get(number, none).spans,
                self._purged.get(number, none).spans,
            )
            for number in sorted({*self._redriven, *self._purged})
        )
        ranges = sum(len(each.redriven) + len(each.purged) for each in leaving)
        if ranges > SPANS_MAX:
            raise InvalidArgument(
                f"this transaction takes {ranges} ranges of ids off their stores; {SPANS_MAX} may "
                "be in one: commit more often"
            )
        return leaving

    async def _in(self, store: Named) -> StorePublishes:
        if not isinstance(store, Named):
            raise InvalidArgument(
                f"{type(store).__name__} is not a channel or queue; the first argument is where "
                f"to publish"
            )
        return await self._on(store.number, store.name)

    async def commit(self) -> dict[str, range]:
        """Publish all of it in one step; gives the ids by name of the store, once they are safe.

        Raises as :meth:`Transaction.commit` does.
        """
        self._keep(await self._committed())
        return self.ids

    @property
    def ids(self) -> dict[str, range]:
        """The ids of its events by name of the store, once it is committed. Raises
        ``IllegalState`` before."""
        return {self._names[number]: ids for number, ids in self._ids_by_number().items()}


async def describe(connection: RealmConnection, transaction: str) -> TransactionInfo:
    """The outcome of a transaction. Raises ``NoSuchTransaction``."""
    return await connection.ask(DescribeTransaction(transaction), TransactionInfo)
