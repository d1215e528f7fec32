"""Transactions, for blocking callers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from penstock.client.connection.threads import LoopThread
from penstock.client.publishing import transaction as aio_transaction
from penstock.client.publishing.transaction import Named
from penstock.columns.events.event import Event, Moment


class Unit:
    """A unit of work: begun, filled, and ended once, by a commit or by an abort."""

    def __init__(self, inner: aio_transaction.Unit, loop: LoopThread) -> None:
        self._unit = inner
        self._loop = loop

    @property
    def id(self) -> str:
        """Ask :meth:`Session.is_committed` with it, in this session or another one."""
        return self._unit.id

    def abort(self) -> None:
        """Publish nothing of it. Raises ``AlreadyCommitted``, ``AlreadyAborted``."""
        self._loop.call(self._unit.abort())

    def is_committed(self) -> bool:
        """Whether the realm has stored it; it knows for 24 hours (SEM X2)."""
        return self._loop.call(self._unit.is_committed())

    def __enter__(self) -> Self:
        self._loop.call(self._unit.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call(self._unit.__aexit__(kind, error, traceback))


class Transaction(Unit):
    """Publishes to one channel or queue in one step: ``channel.transaction()`` (SEM X1).

    Nothing is seen before the commit; then all of it is, with consecutive ids.
    """

    def __init__(self, inner: aio_transaction.Transaction, loop: LoopThread) -> None:
        super().__init__(inner, loop)
        self._inner = inner

    def publish(
        self,
        data: bytes = b"",
        *,
        tag: str | None = None,
        properties: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        ttl: int = 0,
        persistent: bool | None = None,
        priority: int | None = None,
        transient: bool = False,
        deliver_at: Moment | None = None,
    ) -> None:
        """Add one event. Raises ``InvalidEvent``, ``AlreadyCommitted``, ``AlreadyAborted``."""
        self._loop.call(
            self._inner.publish(
                data,
                tag=tag,
                properties=properties,
                headers=headers,
                ttl=ttl,
                persistent=persistent,
                priority=priority,
                transient=transient,
                deliver_at=deliver_at,
            )
        )

    def publish_many(self, events: Iterable[Event]) -> None:
        """Add events, in their order; from any iterable."""
        events = events if isinstance(events, Sequence) else list(events)
        self._loop.call(self._inner.publish_many(events))

    def publish_table(self, table: Any) -> None:
        """Add the rows of an Arrow, pandas or polars table."""
        self._loop.call(self._inner.publish_table(table))

    def commit(self) -> range:
        """Publish all of it in one step; see :meth:`penstock.aio.Transaction.commit`."""
        return self._loop.call(self._inner.commit())

    @property
    def ids(self) -> range:
        """The ids of its events, once it is committed. Raises ``IllegalState`` before."""
        return self._inner.ids


class JointTransaction(Unit):
    """Publishes to several channels and queues of a realm in one step:
    ``session.transaction()`` (SEM X4)."""

    def __init__(self, inner: aio_transaction.JointTransaction, loop: LoopThread) -> None:
        super().__init__(inner, loop)
        self._inner = inner

    def publish(
        self,
        store: Named,
        data: bytes = b"",
        *,
        tag: str | None = None,
        properties: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        ttl: int = 0,
        persistent: bool | None = None,
        priority: int | None = None,
        transient: bool = False,
        deliver_at: Moment | None = None,
    ) -> None:
        """Add one event for a channel or queue."""
        self._loop.call(
            self._inner.publish(
                store,
                data,
                tag=tag,
                properties=properties,
                headers=headers,
                ttl=ttl,
                persistent=persistent,
                priority=priority,
                transient=transient,
                deliver_at=deliver_at,
            )
        )

    def publish_many(self, store: Named, events: Iterable[Event]) -> None:
        """Add events for a channel or queue, in their order; from any iterable."""
        events = events if isinstance(events, Sequence) else list(events)
        self._loop.call(self._inner.publish_many(store, events))

    def publish_table(self, store: Named, table: Any) -> None:
        """Add the rows of an Arrow, pandas or polars table for a channel or queue."""
        self._loop.call(self._inner.publish_table(store, table))

    def publish_bodies(self, store: Named, bodies: Sequence[pa.RecordBatch]) -> None:
        """Add batches as they are stored; see
        :meth:`penstock.aio.JointTransaction.publish_bodies`."""
        self._loop.call(self._inner.publish_bodies(store, bodies))

    def redrive(self, store: Named, ids: Iterable[int]) -> None:
        """Take dead events off their store in the same step, as published again (SEM T10); see
        :meth:`penstock.aio.JointTransaction.redrive`."""
        self._loop.call(self._inner.redrive(store, ids))

    def purge(self, store: Named, ids: Iterable[int]) -> None:
        """As :meth:`redrive`, for events that nobody wants any more (SEM T9)."""
        self._loop.call(self._inner.purge(store, ids))

    def commit(self) -> dict[str, range]:
        """Publish all of it in one step; gives the ids by name of the store, once they are safe.

        Raises as :meth:`Transaction.commit` does.
        """
        return self._loop.call(self._inner.commit())

    @property
    def ids(self) -> dict[str, range]:
        """The ids of its events by name of the store, once it is committed. Raises
        ``IllegalState`` before."""
        return self._inner.ids
