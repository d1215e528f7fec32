"""Transactions: publishes that become visible in one step, or not at all (SEM X)."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self, Unpack, runtime_checkable

import msgspec
import pyarrow as pa

from penstock.client.connection import tracing
from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.tracing import OperationSource
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
from penstock_core.display import safe_repr
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
"""The ids of a transaction's events, by number of the channel or queue."""

SINGLES_MAX = 1_024
"""Events published one by one are converted into columns in runs of this length."""


@runtime_checkable
class Named(Protocol):
    """A channel or queue, of either client."""

    @property
    def name(self) -> str: ...

    @property
    def number(self) -> ChannelId: ...


class StorePublishes:
    """The events that a transaction publishes to one store, in order."""

    def __init__(self) -> None:
        self._singles: list[Event] = []
        self._bodies: list[pa.RecordBatch] = []

    @property
    def count(self) -> int:
        """Number of events."""
        rows: int = sum(body.num_rows for body in list(self._bodies))
        return len(self._singles) + rows

    def add(self, event: Event) -> None:
        """Add an event. Raises ``InvalidEvent`` here, not at the commit."""
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
        """Convert the single events since the last batch to a batch."""
        if self._singles:
            self._bodies.append(body_of(self._singles))
            self._singles.clear()

    @property
    def bodies(self) -> list[pa.RecordBatch]:
        """The events as batches of any size."""
        self._end_run()
        return self._bodies

    @bodies.setter
    def bodies(self, bodies: list[pa.RecordBatch]) -> None:
        self._bodies = bodies

    def parts(self, event_bytes_max: int) -> list[pa.RecordBatch]:
        """Return the events as batches that fit into a frame. Raises ``EventTooLarge``."""
        return [part for body in self.bodies for part in parts_of(body, event_bytes_max)]


def _check(body: pa.RecordBatch) -> None:
    if DELIVERY_TIME in body.schema.names:
        raise InvalidEvent(
            f"{DELIVERY_TIME} cannot be used in a transaction, which publishes at its commit; "
            f"leave it out"
        )


class Inline:
    """The batches sent in the frame of the commit; batches that do not fit are staged."""

    def __init__(self) -> None:
        self.buffers: list[memoryview] = []
        self.schemas: list[int] = []
        self._size = 0

    def take(
        self, connection: RealmConnection, number: ChannelId, bodies: Sequence[pa.RecordBatch]
    ) -> TransactionPart | None:
        """Add all batches of a store; return None if they have several schemas or do not fit."""
        if not bodies:
            return TransactionPart(number, 0, ())
        schema = bodies[0].schema
        if not all(body.schema.equals(schema, check_metadata=True) for body in bodies):
            return None
        # This is checked before the batches are serialized, which copies them.
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
    """A unit of work, ended once by a commit or an abort."""

    id: str
    """Identity of the transaction, for :meth:`Session.is_committed` in this or another session."""

    def __init__(self, connection: RealmConnection) -> None:
        self.id = uuid.uuid4().hex
        self._connection = connection
        self._publishes: dict[ChannelId, StorePublishes] = {}
        self._names: dict[int, str] = {}
        self._ids: dict[int, range] = {}
        self._state: Literal["open", "committed", "aborted"] = "open"
        self._has_begun = False
        self._begun_on = 0
        """Number of reconnects before the connection on which the stores were last named to the
        realm."""

    @safe_repr
    def __repr__(self) -> str:
        state: str = self._state
        if state == "open":
            count = sum(publishes.count for publishes in list(self._publishes.values()))
            state = f"open, {count} events"
        return f"<{type(self).__name__} {self.id} {self._connection.standing}, {state}>"

    async def __aenter__(self) -> Self:
        return self

    # --- its events ----------------------------------------------------------------------

    async def _publishes_of(self, number: ChannelId, name: str) -> StorePublishes:
        """Return the events of the transaction for a store; name the store to the realm first."""
        self._refuse_if_ended()
        publishes = self._publishes.get(number)
        if publishes is None:
            await self._begin((*self._unnamed, number))
            self._names[number] = name
            # Another task may have named the store during the request.
            publishes = self._publishes.setdefault(number, StorePublishes())
        return publishes

    @property
    def _unnamed(self) -> tuple[ChannelId, ...]:
        """The stores not named to the realm on the present connection. After a reconnect the realm
        may be served by another node, which does not know the transaction yet."""
        is_begun = self._begun_on == self._connection.reconnects
        return () if is_begun else tuple(self._publishes)

    async def _begin(self, numbers: tuple[ChannelId, ...]) -> None:
        """Begin the transaction at the realm, or name further stores."""
        while True:
            self._begun_on = self._connection.reconnects
            await self._connection.request(BeginTransaction(self.id, numbers))
            self._has_begun = True
            if not (unnamed := self._unnamed):
                return
            # The session has reconnected during the request.
            numbers = tuple(dict.fromkeys((*unnamed, *numbers)))

    def _refuse_if_ended(self) -> None:
        if self._state == "committed":
            raise AlreadyCommitted(f"transaction {self.id} is already committed; begin a new one")
        if self._state == "aborted":
            raise AlreadyAborted(f"transaction {self.id} is already aborted; begin a new one")

    # --- ends ----------------------------------------------------------------------------

    async def _commit_once(self) -> Spans:
        """Commit, and return the ids as spans, by number of the store.

        The events are published once, even if the connection is lost or the realm restarts: a
        repeated commit is answered with ``AlreadyCommitted``, and the client then requests the ids
        of the first one. A refusal leaves the transaction open.
        """
        self._refuse_if_ended()
        with contextlib.ExitStack() as operations:
            if tracing.tracer is not None:
                for number, publishes in self._publishes.items():
                    source = OperationSource(self._connection, self._names[number])
                    publishing = tracing.publishing(source, publishes.bodies)
                    publishes.bodies = list(operations.enter_context(publishing))
            return await self._commit_until_answered()

    async def _commit_until_answered(self) -> Spans:
        is_begun, attempts = self._has_begun, 0
        while True:
            try:
                if not is_begun or self._unnamed:
                    await self._begin(tuple(self._publishes))
                return (await self._send_commit()).spans
            except AlreadyCommitted:  # the answer was lost, and the request was repeated
                return (await describe(self._connection, self.id)).spans
            except (NoSuchTransaction, NoSuchStage) as forgotten:
                # The realm has restarted, or another node serves it. The client still has the
                # events, so it begins and sends them again.
                attempts += 1
                if attempts == STAGINGS_MAX:
                    raise
                is_begun = not isinstance(forgotten, NoSuchTransaction)

    def _removals(self) -> tuple[Leaving, ...]:
        """Return the events that the commit removes from stores."""
        return ()

    def _keep(self, spans: Spans) -> None:
        """Record that the transaction is committed, with the ids of its events."""
        self._state = "committed"
        self._ids = {number: range(first, end) for number, (first, end) in spans}
        self._publishes.clear()

    def _ids_by_number(self) -> dict[int, range]:
        if self._state != "committed":
            raise IllegalState(
                f"transaction {self.id} is {self._state}; its events get ids when it commits"
            )
        return self._ids

    async def _send_commit(self) -> TransactionInfo:
        """Send the commit, with the batches in its frame or in stages. Raises ``Refused``."""
        inline = Inline()
        stages: list[str] = []
        parts = []
        for number, publishes in self._publishes.items():
            bodies = publishes.parts(self._connection.event_bytes_max)
            if (part := inline.take(self._connection, number, bodies)) is None:
                buffers = [memoryview(batch_bytes(body)) for body in bodies]
                names = await stage(self._connection, number, bodies, buffers=buffers)
                stages += names
                part = TransactionPart(number, 0, (), stages=tuple(names))
            parts.append(part)
        message = CommitTransaction(self.id, tuple(parts), self._removals())
        try:
            answer = await self._connection.request(
                message, inline.buffers, schemas=tuple(inline.schemas)
            )
        except Refused:
            # A repeated commit stages its events again. The realm drops stages that are forgotten
            # here.
            if stages:
                self._connection.request(DropStages(tuple(stages)))
            raise
        return msgspec.convert(answer, TransactionInfo)

    async def abort(self) -> None:
        """End the transaction without publishing anything. Raises ``AlreadyCommitted``,
        ``AlreadyAborted``."""
        self._refuse_if_ended()
        if self._has_begun:
            # The realm has forgotten the transaction in a restart, or the answer to the first
            # request was lost and this is the repeated one.
            with contextlib.suppress(NoSuchTransaction, AlreadyAborted):
                await self._connection.request(AbortTransaction(self.id))
        self._state = "aborted"
        self._publishes.clear()

    async def is_committed(self) -> bool:
        """Return whether the realm has committed the transaction. The realm remembers the outcome
        for 24 hours (SEM X2)."""
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
            await self._abort_after(error)
        elif self._state == "open":
            try:
                self._keep(await self._commit_once())
            except Refused as refusal:
                await self._abort_after(refusal)
                raise

    async def _abort_after(self, error: BaseException) -> None:
        """Abort because the block has raised ``error``, which gets a note if that fails."""
        if self._state != "open":
            return
        try:
            await self.abort()
        except PenstockError as failure:
            error.add_note(f"the transaction could not be aborted: {failure}")


class Transaction(Unit):
    """Publishes to one channel or queue in one step: ``channel.transaction()`` (SEM X1).

    No event is visible before the commit. After it all events are visible, with consecutive ids.
    The end of the ``async with`` block commits; an exception in the block aborts.
    """

    def __init__(self, connection: RealmConnection, number: ChannelId, name: str) -> None:
        super().__init__(connection)
        self._number = number
        self._name = name

    async def __aenter__(self) -> Self:
        await self._publishes_of(self._number, self._name)
        return self

    @spelled_out
    async def publish(
        self,
        data: bytes = b"",
        **attributes: Unpack[EventAttributes],
    ) -> None:
        """Add one event to the transaction. Raises ``InvalidEvent``, ``AlreadyCommitted``,
        ``AlreadyAborted``."""
        if not attributes.keys() <= PUBLISHED:
            raise unknown_attribute(attributes, PUBLISHED, "publish")
        event = Event(data, **attributes)
        (await self._publishes_of(self._number, self._name)).add(event)

    async def publish_many(self, events: Many) -> None:
        """Add events from any iterable to the transaction, in order. Raises the errors of
        :meth:`publish`."""
        bodies = await bodies_of_all(events)
        (await self._publishes_of(self._number, self._name)).add_bodies(bodies)

    async def publish_table(self, table: Any) -> None:
        """Add the rows of an Arrow, pandas or polars table to the transaction. Columns are those of
        :meth:`Channel.publish_table`."""
        (await self._publishes_of(self._number, self._name)).add_bodies(bodies_of_table(table))

    async def commit(self) -> range:
        """Publish all events of the transaction in one step. Return their ids once they are stored
        safely.

        Raises ``AlreadyCommitted``, ``AlreadyAborted``, and ``CapacityReached``, ``MemoryLimit`` or
        ``PublishingPaused``. After one of these three the transaction is still open: commit it
        again, or abort it.
        """
        self._keep(await self._commit_once())
        return self.ids

    @property
    def ids(self) -> range:
        """The ids of the published events. Raises ``IllegalState`` before the commit."""
        return self._ids_by_number().get(self._number, range(0))


class JointTransaction(Unit):
    """Publishes to several channels and queues of a realm in one step:
    ``session.transaction()`` (SEM X4).

    No event is visible before the commit. The end of the ``async with`` block commits; an exception
    in the block aborts.
    """

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
        """Add one event for the channel or queue ``store``. Raises ``InvalidEvent``,
        ``NameDoesNotExist``, ``AlreadyCommitted``, ``AlreadyAborted``."""
        if not attributes.keys() <= PUBLISHED:
            raise unknown_attribute(attributes, PUBLISHED, "publish")
        event = Event(data, **attributes)
        (await self._in(store)).add(event)

    async def publish_many(self, store: Named, events: Many) -> None:
        """Add events from any iterable for the channel or queue ``store``, in order. Raises the
        errors of :meth:`publish`."""
        bodies = await bodies_of_all(events)
        (await self._in(store)).add_bodies(bodies)

    async def publish_table(self, store: Named, table: Any) -> None:
        """Add the rows of an Arrow, pandas or polars table for the channel or queue ``store``.
        Columns are those of :meth:`Channel.publish_table`."""
        (await self._in(store)).add_bodies(bodies_of_table(table))

    async def publish_bodies(self, store: Named, bodies: Sequence[pa.RecordBatch]) -> None:
        """Add record batches in the layout of :mod:`penstock_core.columns.schema.layout` for the
        channel or queue ``store``."""
        (await self._in(store)).add_bodies(bodies)

    async def redrive(self, store: Named, ids: Iterable[int]) -> None:
        """Remove the dead events ``ids`` from the dead event store ``store`` in the same step,
        because this transaction publishes them again, changed or not (SEM T10).

        Such a transaction evicts no events to make room for those it publishes. If one of the dead
        events no longer exists, or a reader holds it, the commit raises ``IllegalState`` and
        changes nothing.
        """
        await self._in(store)
        self._redriven.setdefault(store.number, IdSet()).add_all(IdSet.from_ids(ids))

    async def purge(self, store: Named, ids: Iterable[int]) -> None:
        """Remove the events ``ids`` from ``store`` in the same step, as :meth:`redrive` does, but
        counted as purged (SEM T9)."""
        await self._in(store)
        self._purged.setdefault(store.number, IdSet()).add_all(IdSet.from_ids(ids))

    def _removals(self) -> tuple[Leaving, ...]:
        """Return the events that the commit removes from stores. Raises ``InvalidArgument`` if
        their ids have too many ranges."""
        empty = IdSet()
        leaving = tuple(
            Leaving(
                number,
                self._redriven.get(number, empty).spans,
                self._purged.get(number, empty).spans,
            )
            for number in sorted({*self._redriven, *self._purged})
        )
        ranges = sum(len(store.redriven) + len(store.purged) for store in leaving)
        if ranges > SPANS_MAX:
            raise InvalidArgument(
                f"this transaction removes {ranges} ranges of ids from their stores; allowed are "
                f"{SPANS_MAX} in one transaction; commit more often"
            )
        return leaving

    async def _in(self, store: Named) -> StorePublishes:
        """Return the part of the transaction for a channel or queue. Raises ``InvalidArgument`` for
        other objects."""
        if not isinstance(store, Named):
            raise InvalidArgument(
                f"the first argument has type {type(store).__name__}; give the channel or queue to "
                f"publish on"
            )
        return await self._publishes_of(store.number, store.name)

    async def commit(self) -> dict[str, range]:
        """Publish all events of the transaction in one step. Return their ids by name of the
        channel or queue, once they are stored safely. Raises the errors of
        :meth:`Transaction.commit`.
        """
        self._keep(await self._commit_once())
        return self.ids

    @property
    def ids(self) -> dict[str, range]:
        """The ids of the published events by name of the channel or queue. Raises ``IllegalState``
        before the commit."""
        return {self._names[number]: ids for number, ids in self._ids_by_number().items()}


async def describe(connection: RealmConnection, transaction: str) -> TransactionInfo:
    """Return the outcome of a transaction. Raises ``NoSuchTransaction``."""
    return await connection.ask(DescribeTransaction(transaction), TransactionInfo)
