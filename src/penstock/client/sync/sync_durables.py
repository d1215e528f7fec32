"""Durables of a channel, for blocking callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Never

from penstock.api.durables import DurableInfo, Outstanding
from penstock.client.connection.threads import LoopThread
from penstock.client.handles import durables as aio_durables
from penstock.client.handles.attributes import DurableType
from penstock.client.reading.delivered import DeliveredBatch as AioDeliveredBatch
from penstock.client.reading.delivered import DeliveredEvent as AioDeliveredEvent
from penstock.client.reading.durable_subscription import (
    DurableSubscription as AioDurableSubscription,
)
from penstock.client.reading.durable_subscription import Handler as AioHandler
from penstock.client.reading.inbox import Begun
from penstock.client.reading.start_positions import StartLike
from penstock.client.reading.subscription import BUFFER_BYTES_MAX
from penstock.client.sync.sync_delivered import DeliveredBatch, DeliveredEvent
from penstock.client.sync.sync_holding import DurableHold
from penstock.client.sync.sync_subscription import Subscription

Handler = Callable[[DeliveredEvent], object]


class Durables:
    def __init__(self, inner: aio_durables.Durables, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def create(
        self,
        name: str,
        *,
        type: DurableType = "shared",
        start: StartLike = "earliest",
        selector: str = "",
        persistent: bool | None = None,
        max_deliveries: int = 0,
        cluster_wide: bool = False,
        strict_order: bool = False,
        order_by: str = "",
        **attributes: Never,
    ) -> Durable:
        """Make a durable (SEM D2, D3); see :meth:`penstock.aio.Durables.create`."""
        return Durable(
            self._loop.call(
                self._inner.create(
                    name,
                    type=type,
                    start=start,
                    selector=selector,
                    persistent=persistent,
                    max_deliveries=max_deliveries,
                    cluster_wide=cluster_wide,
                    strict_order=strict_order,
                    order_by=order_by,
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
        buffer_bytes: int = BUFFER_BYTES_MAX,
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
            buffer_bytes=buffer_bytes,
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

    def purge(self, *, start: int | None = None, end: int | None = None, selector: str = "") -> int:
        """Take events from ``start`` up to and including ``end`` off what is outstanding here;
        other durables keep them. Gives how many. Raises ``IllegalState`` for types that keep a
        position only (SEM D)."""
        return self._loop.call(self._inner.purge(start=start, end=end, selector=selector))

    def outstanding(self, start: int = 0, end: int | None = None) -> Outstanding:
        """Which events from ``start`` up to and including ``end`` are outstanding, by id, and how
        often they were delivered again; changes nothing (SEM D16)."""
        return self._loop.call(self._inner.outstanding(start, end))

    def hold(self) -> DurableHold:
        """Have the durable for yourself, and take its events by id instead of receiving them."""
        return DurableHold(self._inner.hold(), self._loop)

    def unbind(self) -> int:
        """End all subscriptions of this durable, whoever has them (SEM D14); gives how many.

        What they hold goes back as if their clients had gone (SEM D13); these get
        ``DurableUnbound`` and may subscribe again.
        """
        return self._loop.call(self._inner.unbind())

    def close(self) -> None:
        """Leave the seat :meth:`fetch` has taken."""
        self._loop.call(self._inner.close())


class DurableSubscription:
    """A seat at a durable; see :class:`penstock.aio.DurableSubscription`."""

    def __init__(self, inner: AioDurableSubscription, loop: LoopThread, *, auto_ack: bool) -> None:
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
        return self._inner.loops.add(self._batches)

    def _batches(self, begun: Begun[AioDeliveredBatch]) -> Iterator[DeliveredBatch]:
        self._inner.loops.begins(begun, opens=not self._inner.is_open)
        try:
            while (batch := self.next_batch()) is not None:
                if self._auto_ack:
                    batch.begin(begun)
                yield batch
                if not self._inner.is_open:
                    return
                if self._auto_ack:
                    begun.forget()
                    batch.ack()
        finally:
            if self._inner.loops.ends(begun):
                self.close()

    def __iter__(self) -> Iterator[DeliveredEvent]:
        return self._inner.loops.add(self._events)

    def _events(self, begun: Begun[AioDeliveredBatch]) -> Iterator[DeliveredEvent]:
        self._inner.loops.begins(begun, opens=not self._inner.is_open)
        try:
            while (batch := self.next_batch()) is not None:
                batch.begin(begun)
                for event in batch:
                    if self._inner.may_recall and self._loop.call(self._inner.is_recalled(event)):
                        begun.count += 1
                        continue
                    if batch.is_stale or self._inner.has_ended:
                        break  # the realm has taken the rest back, and delivers it again
                    begun.count += not self._auto_ack
                    yield event
                    if not self._inner.is_open:  # closed meanwhile: all of it has gone back
                        return
                    if self._auto_ack:  # until here it is not done with, and would come again
                        event.ack()
                        begun.count += 1
        finally:
            if self._inner.loops.ends(begun):
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _in_thread(handler: Handler, loop: LoopThread) -> AioHandler:
    async def handle(event: AioDeliveredEvent) -> None:
        await asyncio.to_thread(handler, DeliveredEvent.of(event, loop))

    return handle
