"""The blocking client: the async client's methods, over one private loop thread.

A test compares the two surfaces, so neither can forget a method.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

import pyarrow as pa

from penstock.client import channels as aio_channels
from penstock.client import durables as aio_durables
from penstock.client import subscription as aio_subscription
from penstock.client.delivered import DeliveredEvent as AioDeliveredEvent
from penstock.client.durables import Handler as AioHandler
from penstock.client.producer import ProducerErrorListener
from penstock.client.session import RECONNECT_TIMEOUT_S, ErrorListener
from penstock.client.session import Session as AioSession
from penstock.client.starts import StartLike
from penstock.client.sync_delivered import DeliveredBatch, DeliveredEvent
from penstock.client.sync_producer import Producer
from penstock.client.threads import LoopThread
from penstock.client.urls import parse_url
from penstock.columns.batch import EventBatch
from penstock.columns.event import Event
from penstock.core.errors import InvalidArgument
from penstock.wire.native.answers import ChannelInfo, DurableInfo, Location, RealmInfo

Handler = Callable[[DeliveredEvent], object]


class Session:
    """A session with a realm. May be used from several threads; close it, or use ``with``."""

    def __init__(
        self, inner: AioSession, loop: LoopThread, on_close: Callable[[], None] | None = None
    ) -> None:
        self._inner = inner
        self._loop = loop
        self._on_close = on_close
        self.channels = Channels(inner.channels, loop)

    @property
    def session_id(self) -> str:
        return self._inner.session_id

    @property
    def queues(self) -> NoReturn:
        """Not in this version."""
        raise InvalidArgument("queues are not in this version; use a channel with a shared durable")

    @property
    def joins(self) -> NoReturn:
        """Not in this version."""
        raise InvalidArgument("joins are not in this version; subscribe and publish instead")

    @property
    def realm_id(self) -> str:
        """Identity of the realm; the same over restarts."""
        return self._inner.realm_id

    def info(self) -> RealmInfo:
        """What the realm says of itself."""
        return self._loop.call(self._inner.info())

    def on_error(self, listener: ErrorListener) -> None:
        """Hear of errors that belong to no call; called on the client's own thread."""
        self._inner.on_error(listener)

    def close(self) -> None:
        """End the session: what was settled is settled, what was not goes back.

        Closing again, or in a forked child, does nothing.
        """
        if not self._loop.is_usable:
            return
        try:
            self._loop.call(self._inner.close())
        finally:
            if self._on_close is not None:
                self._on_close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Channels:
    def __init__(self, inner: aio_channels.Channels, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def create(self, name: str, **attributes: Any) -> Channel:
        """Make a channel (SEM C3); see :meth:`penstock.aio.Channels.create`."""
        return Channel(self._loop.call(self._inner.create(name, **attributes)), self._loop)

    def get(self, name: str) -> Channel:
        """Raises ``NameDoesNotExist``."""
        return Channel(self._loop.call(self._inner.get(name)), self._loop)

    def list(self) -> list[str]:
        """The names of all channels, sorted."""
        return self._loop.call(self._inner.list())

    def delete(self, name: str) -> None:
        """Remove a channel with its events and durables. Raises ``NameDoesNotExist``."""
        self._loop.call(self._inner.delete(name))


class Channel:
    """One channel; state lives in the realm, this is a handle."""

    def __init__(self, inner: aio_channels.Channel, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop
        self.name = inner.name
        self.number = inner.number
        self.durables = Durables(inner.durables, loop)

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
    ) -> int:
        """Publish one event; returns its id once it is safe."""
        return self._loop.call(
            self._inner.publish(
                data,
                tag=tag,
                properties=properties,
                headers=headers,
                ttl=ttl,
                persistent=persistent,
                priority=priority,
                transient=transient,
            )
        )

    def publish_many(self, events: Sequence[Event]) -> range:
        """Publish events in one step: consecutive ids, all or none."""
        return self._loop.call(self._inner.publish_many(events))

    def publish_table(self, table: Any) -> range:
        """Publish the rows of an Arrow, pandas or polars table in one step."""
        return self._loop.call(self._inner.publish_table(table))

    def stage(self, table: Any) -> list[str]:
        """Put rows aside on the realm; see :meth:`penstock.aio.Channel.stage`."""
        return self._loop.call(self._inner.stage(table))

    def commit_stages(self, stages: Sequence[str], *, producer: str, sequence: int) -> range:
        """Publish what was staged, in one step and once (SEM X1, X3)."""
        return self._loop.call(
            self._inner.commit_stages(stages, producer=producer, sequence=sequence)
        )

    def drop_stages(self, stages: Sequence[str]) -> None:
        """Forget what was staged; what was committed stays."""
        self._loop.call(self._inner.drop_stages(stages))

    def producer(
        self,
        *,
        batch_events: int = 1_024,
        batch_bytes: int = 1 << 20,
        linger_ms: float = 1.0,
        on_error: ProducerErrorListener | None = None,
    ) -> Producer:
        """A pipelined producer: sends without waiting for each event."""
        return Producer(
            self._inner.producer(
                batch_events=batch_events,
                batch_bytes=batch_bytes,
                linger_ms=linger_ms,
                on_error=on_error,
            ),
            self._loop,
            batch_events=batch_events,
            batch_bytes=batch_bytes,
            linger_ms=linger_ms,
        )

    def subscribe(
        self, *, start: StartLike = "latest", selector: str = "", timeout: float | None = None
    ) -> Subscription:
        """Read stored events from ``start`` on, then live ones (SEM E6)."""
        return Subscription(
            self._inner.subscribe(start=start, selector=selector, timeout=timeout), self._loop
        )

    def browse(self, *, start: int = 0, end: int | None = None, selector: str = "") -> Subscription:
        """Stored events from ``start`` up to and including ``end``, then the end."""
        return Subscription(self._inner.browse(start=start, end=end, selector=selector), self._loop)

    def read(
        self,
        *,
        start: int = 0,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        selector: str = "",
    ) -> pa.Table:
        """Stored events as one Arrow table."""
        return self._loop.call(
            self._inner.read(start=start, end=end, columns=columns, selector=selector)
        )

    def purge(self, *, start: int | None = None, end: int | None = None, selector: str = "") -> int:
        """Remove events from ``start`` up to and including ``end``; gives how many (SEM T9)."""
        return self._loop.call(self._inner.purge(start=start, end=end, selector=selector))

    def columns(self) -> pa.Schema:
        """The columns that all events of the channel fit, as they are stored (SEM E2)."""
        return self._loop.call(self._inner.columns())

    def locate(self, first_id: int, end_id: int) -> Location:
        """Where the stored events of an id range can be read."""
        return self._loop.call(self._inner.locate(first_id, end_id))

    def info(self) -> ChannelInfo:
        return self._loop.call(self._inner.info())

    def edit(self, **attributes: Any) -> None:
        """Change attributes in place; they apply at once (SEM C3)."""
        self._loop.call(self._inner.edit(**attributes))


class Subscription:
    """Events of a channel, in id order, each once; see :class:`penstock.aio.Subscription`."""

    def __init__(self, inner: aio_subscription.Subscription, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def open(self) -> Subscription:
        """Begin. Raises what the realm refuses it with. Iterating opens it, too."""
        self._loop.call(self._inner.open())
        return self

    def next_batch(self, timeout: float | None = None) -> EventBatch | None:
        """The next events; None at the end of a browse, or when none come for ``timeout`` s."""
        return self._loop.call(self._inner.next_batch(timeout))

    @property
    def first_id(self) -> int:
        """Where ``start`` has led, once open: no event below this id is delivered."""
        return self._inner.first_id

    def batches(self) -> Iterator[EventBatch]:
        """Columns as they come; iterating to the end closes what iterating opened."""
        opened_here = not self._inner.is_open
        try:
            while (batch := self.next_batch()) is not None:
                yield batch
        finally:
            if opened_here:
                self.close()

    def __iter__(self) -> Iterator[Event]:
        for batch in self.batches():
            yield from batch

    def close(self) -> None:
        """Stop reading."""
        self._loop.call(self._inner.close())

    def __enter__(self) -> Subscription:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()


class Durables:
    def __init__(self, inner: aio_durables.Durables, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def create(
        self,
        name: str,
        *,
        type: str = "shared",
        start: StartLike = "earliest",
        selector: str = "",
        persistent: bool | None = None,
        **attributes: Any,
    ) -> Durable:
        """Make a durable (SEM D2, D3)."""
        return Durable(
            self._loop.call(
                self._inner.create(
                    name,
                    type=type,
                    start=start,
                    selector=selector,
                    persistent=persistent,
                    **attributes,
                )
            ),
            self._loop,
        )

    def get(self, name: str) -> Durable:
        """Raises ``NameDoesNotExist``."""
        return Durable(self._loop.call(self._inner.get(name)), self._loop)

    def list(self) -> list[DurableInfo]:
        """Every durable of the channel as it stands, by name."""
        return self._loop.call(self._inner.list())

    def delete(self, name: str) -> None:
        """End a durable for good. Raises ``NameDoesNotExist``."""
        self._loop.call(self._inner.delete(name))


class Durable:
    """One durable; state lives in the realm, this is a name to ask by."""

    def __init__(self, inner: aio_durables.Durable, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop
        self.name = inner.name

    def info(self) -> DurableInfo:
        """Counts, position, clients (SEM D17)."""
        return self._loop.call(self._inner.info())

    def subscribe(
        self,
        handler: Handler | None = None,
        *,
        window: int | None = None,
        auto_ack: bool = False,
        selector: str = "",
        timeout: float | None = None,
    ) -> DurableSubscription:
        """Receive events to be acknowledged; see :meth:`penstock.aio.Durable.subscribe`.

        A ``handler`` gets one event after the other, in a thread of its own: it may use the
        session like any other thread.
        """
        inner = self._inner.subscribe(
            None if handler is None else _in_thread(handler, self._loop),
            window=window,
            auto_ack=auto_ack,
            selector=selector,
            timeout=timeout,
        )
        return DurableSubscription(inner, self._loop, auto_ack=auto_ack)

    def fetch(self, count: int, timeout: float = 0.0) -> list[DeliveredEvent]:
        """Up to ``count`` events, as many as come within ``timeout`` seconds (SEM D5)."""
        return [event for batch in self.fetch_batches(count, timeout) for event in batch]

    def fetch_batches(self, count: int, timeout: float = 0.0) -> list[DeliveredBatch]:
        """As :meth:`fetch`, in columns."""
        found = self._loop.call(self._inner.fetch_batches(count, timeout))
        return [DeliveredBatch(batch, self._loop) for batch in found]

    def flush(self) -> None:
        """Wait until what was settled of fetched events is on disk."""
        self._loop.call(self._inner.flush())

    def browse(self) -> Subscription:
        """What is outstanding, in order, then the end; changes nothing (SEM D16)."""
        return Subscription(self._inner.browse(), self._loop)

    def close(self) -> None:
        """Leave the seat :meth:`fetch` has taken."""
        self._loop.call(self._inner.close())


class DurableSubscription:
    """A seat at a durable; see :class:`penstock.aio.DurableSubscription`."""

    def __init__(
        self, inner: aio_durables.DurableSubscription, loop: LoopThread, *, auto_ack: bool
    ) -> None:
        self._inner = inner
        self._loop = loop
        self._auto_ack = auto_ack

    def open(self) -> DurableSubscription:
        """Take the seat. Raises ``DurableInUse``, ``InvalidArgument``."""
        self._loop.call(self._inner.open())
        return self

    def next_batch(self, timeout: float | None = None) -> DeliveredBatch | None:
        """The next events; None when none come for ``timeout`` seconds."""
        batch = self._loop.call(self._inner.next_batch(timeout))
        return None if batch is None else DeliveredBatch(batch, self._loop)

    def batches(self) -> Iterator[DeliveredBatch]:
        """Columns as they come; iterating to the end closes what iterating opened."""
        opened_here = not self._inner.is_open
        try:
            while (batch := self.next_batch()) is not None:
                yield batch
                if self._auto_ack:
                    batch.ack()
        finally:
            if opened_here:
                self.close()

    def __iter__(self) -> Iterator[DeliveredEvent]:
        opened_here = not self._inner.is_open
        try:
            while (batch := self.next_batch()) is not None:
                for event in batch:
                    if batch.is_stale:
                        break  # the realm has taken the rest back, and delivers it again
                    yield event
                    if self._auto_ack:
                        event.ack()
        finally:
            if opened_here:
                self.close()

    def ack(self, event_ids: Iterable[int], *, previous: bool = False) -> None:
        """Acknowledge by id; returns when that is on disk. Raises ``IllegalState`` (SEM D15)."""
        self._loop.call(self._inner.ack(event_ids, previous=previous))

    def rollback(self, event_ids: Iterable[int]) -> None:
        """Give back by id; returns when that is on disk. Raises ``IllegalState`` (SEM D15)."""
        self._loop.call(self._inner.rollback(event_ids))

    def flush(self) -> None:
        """Wait until everything settled so far is on disk. Raises the first refusal."""
        self._loop.call(self._inner.flush())

    def close(self) -> None:
        """Confirm what was settled, give back the rest, leave the seat."""
        self._loop.call(self._inner.close())

    def __enter__(self) -> DurableSubscription:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()


def _in_thread(handler: Handler, loop: LoopThread) -> AioHandler:
    async def handle(event: AioDeliveredEvent) -> None:
        await asyncio.to_thread(handler, DeliveredEvent.of(event, loop))

    return handle


def connect(url: str, *, reconnect_timeout: float = RECONNECT_TIMEOUT_S) -> Session:
    """Open a session with the realm at ``url``, e.g. ``penstock://localhost:9000``.

    Several addresses mean fail-over. A connection that is lost is made again; when that does not
    succeed for ``reconnect_timeout`` seconds, whoever waits gets ``CannotConnect``.
    Raises ``CannotConnect``, ``InvalidArgument``.
    """
    inner = AioSession(parse_url(url), reconnect_timeout=reconnect_timeout)
    loop = LoopThread()
    try:
        loop.call(inner.open())
    except BaseException:
        loop.close()
        raise
    return Session(inner, loop, loop.close)
