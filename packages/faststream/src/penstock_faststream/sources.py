"""Opens what a subscriber reads: subscriptions, durables and readers of queues."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Protocol

from faststream.exceptions import SetupError

from penstock import AccessDenied
from penstock.aio import Channel, Queue, ReceivedBatch, ReceivedEvent, Session
from penstock_core.api.durables import DurableInfo
from penstock_core.api.patterns import PatternDurableInfo
from penstock_faststream.arrivals import Arrival, DurableArrival, QueueArrival
from penstock_faststream.configs import SubscriberSource
from penstock_faststream.declared import (
    durable_of,
    pattern_durable_of,
    stands_for_several,
    store_of,
)

CUMULATIVE_TYPES = ("exclusive", "priority")
"""Types of durables whose acknowledgements cover all earlier events."""
WINDOW_DEFAULT = 10
BATCH_WINDOW_DEFAULT = 1_000
"""Windows of readers of queues, without and with batches."""


class EventReading(Protocol):
    """A subscription of the client, or a reader."""

    def __aiter__(self) -> AsyncIterator[ReceivedEvent]: ...

    def batches(self) -> AsyncIterator[ReceivedBatch]: ...

    async def open(self) -> Any: ...

    async def close(self) -> None: ...


class OpenSource:
    """An open subscription or reader, whose events become deliveries."""

    def __init__(
        self,
        reading: EventReading,
        deliver: Callable[[ReceivedEvent | ReceivedBatch], Arrival],
        *,
        is_batch: bool,
    ) -> None:
        self._reading = reading
        self._deliver = deliver
        self._is_batch = is_batch

    async def arrivals(self) -> AsyncIterator[Arrival]:
        """Iterate over events, or over batches. Raises ``PenstockError`` when the subscription
        ends, for example because its durable was deleted."""
        if self._is_batch:
            async for batch in self._reading.batches():
                yield self._deliver(batch)
        else:
            async for event in self._reading:
                yield self._deliver(event)

    async def close(self) -> None:
        """Wait until settlements are stored, and return unsettled events."""
        await self._reading.close()


async def open_source(session: Session, name: str, source: SubscriberSource) -> OpenSource:
    """Open a source; ``name`` is its name or pattern, with the prefix of its router.

    Raises ``SetupError`` for options that contradict each other, and the errors of the client such
    as ``NameDoesNotExist`` and ``AccessDenied``.
    """
    if source.durable is not None:
        reading, deliver = await _of_durable(session, name, source)
    elif stands_for_several(name):
        reading, deliver = _of_pattern(session, name, source)
    else:
        store = await store_of(session, name, creates=source.creates)
        if isinstance(store, Channel):
            reading, deliver = _of_channel(store, source)
        else:
            reading, deliver = await _of_queue(store, source)
    await reading.open()
    return OpenSource(reading, deliver, is_batch=source.is_batch)


Parts = tuple[EventReading, Callable[[ReceivedEvent | ReceivedBatch], Arrival]]


async def _of_durable(session: Session, name: str, source: SubscriberSource) -> Parts:
    durable = source.durable
    assert durable is not None, "only called for a durable"
    _refuse(source, "a durable", start=source.start, ack_timeout=source.ack_timeout)
    reading: EventReading
    info: DurableInfo | PatternDurableInfo | None
    if stands_for_several(name):
        info = await pattern_durable_of(session, name, durable, creates=source.creates)
        reading = session.subscribe(
            name, durable=durable.name, window=source.window, selector=source.selector
        )
    else:
        handle = await durable_of(session, name, durable, creates=source.creates)
        info = await handle.info()
        reading = handle.subscribe(window=source.window, selector=source.selector)
    durable_type = durable.type if info is None else info.type
    _refuse_workers(durable_type, source)
    # Rolled-back events of the cumulative types come with the next subscription only.
    needs_delay = info is not None and info.backoff is None and durable_type not in CUMULATIVE_TYPES
    return reading, lambda received: DurableArrival(received, name, needs_delay=needs_delay)


def _of_pattern(session: Session, name: str, source: SubscriberSource) -> Parts:
    _refuse(source, "a subscription without a durable", window=source.window)
    subscription = session.subscribe(name, start=source.start or "latest", selector=source.selector)
    return subscription, lambda received: Arrival(received, name)


def _of_channel(channel: Channel, source: SubscriberSource) -> Parts:
    _refuse(
        source,
        "a subscription without a durable",
        window=source.window,
        ack_timeout=source.ack_timeout,
    )
    start = "latest" if source.start is None else source.start
    subscription = channel.subscribe(start=start, selector=source.selector)
    return subscription, lambda received: Arrival(received, channel.name)


async def _of_queue(queue: Queue, source: SubscriberSource) -> Parts:
    _refuse(source, "a queue", start=source.start)
    default = BATCH_WINDOW_DEFAULT if source.is_batch else WINDOW_DEFAULT
    reader = queue.reader(
        transactional=True,
        window=source.window or max(default, 2 * source.max_workers),
        selector=source.selector,
        ack_timeout=source.ack_timeout,
    )
    needs_delay = False
    with suppress(AccessDenied):
        needs_delay = (await queue.info()).definition.backoff is None
    unsettled: set[QueueArrival] = set()
    return reader, lambda received: QueueArrival(
        received, queue.name, needs_delay=needs_delay, reader=reader, unsettled=unsettled
    )


def _refuse(source: SubscriberSource, kind: str, **options: object) -> None:
    """Raise ``SetupError`` if an option is given that has no meaning for this kind of source."""
    meaningless = [name for name, value in options.items() if value is not None]
    if meaningless:
        raise SetupError(
            f"subscriber {source.address.template!r}: {meaningless[0]} does not apply to {kind}; "
            "leave it out, or set it for the durable with DurableSub"
        )


def _refuse_workers(durable_type: str, source: SubscriberSource) -> None:
    """Raise ``SetupError`` if several workers would acknowledge each other's events."""
    if source.max_workers > 1 and durable_type in CUMULATIVE_TYPES:
        raise SetupError(
            f"subscriber {source.address.template!r}: an acknowledgement of a durable of type "
            f"{durable_type} covers all earlier events, so max_workers has to be 1; use a shared "
            "durable for several workers"
        )
