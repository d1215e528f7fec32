"""Publishes the events of an iterator in one step while only part of them is in memory."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import TypeAlias

import pyarrow as pa

from penstock.client.connection.threads import LoopThread
from penstock.client.connection.tracing import TracedOperation
from penstock.client.publishing.publishing import Publisher, bodies_of_events
from penstock_core.columns.events.event import Event
from penstock_core.columns.events.trace_context import with_context
from penstock_core.vocabulary.errors import PenstockError

CHUNK_EVENTS_MAX = 16_384
"""Number of events after which a chunk is sent."""
CHUNK_BYTES_MAX = 4 << 20
"""Bytes of events after which a chunk is sent; the last event may exceed the limit."""

Many: TypeAlias = Iterable[Event] | AsyncIterable[Event]


class EventChunk:
    """Collects events until a chunk is full."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._size = 0

    def add(self, event: Event) -> bool:
        """Add an event. Return whether the chunk is full."""
        self.events.append(event)
        self._size += _size_of(event)
        return len(self.events) >= CHUNK_EVENTS_MAX or self._size >= CHUNK_BYTES_MAX


def _size_of(event: Event) -> int:
    """Return the approximate size of an event in bytes; nested properties are not examined."""
    values = event.properties.values() if event.properties else ()
    return len(event.data) + sum(len(v) if isinstance(v, str | bytes) else 8 for v in values)


def chunks(events: Iterable[Event]) -> Iterator[list[Event]]:
    """Yield all events in lists of bounded size; one empty list if ``events`` is empty."""
    chunk, was_full = EventChunk(), False
    for event in events:
        if chunk.add(event):
            yield chunk.events
            chunk, was_full = EventChunk(), True
    if chunk.events or not was_full:
        yield chunk.events


async def all_chunks(events: Many) -> AsyncIterator[list[Event]]:
    """Yield all events in lists of bounded size, as :func:`chunks` does, also from asynchronous
    iterators."""
    if isinstance(events, Iterable):
        for part in chunks(events):
            yield part
        return
    chunk, was_full = EventChunk(), False
    async for event in events:
        if chunk.add(event):
            yield chunk.events
            chunk, was_full = EventChunk(), True
    if chunk.events or not was_full:
        yield chunk.events


async def bodies_of_all(events: Many) -> list[pa.RecordBatch]:
    """Return all events as record batches, in order. Raises ``InvalidEvent``."""
    return [body async for chunk in all_chunks(events) for body in bodies_of_events(chunk)]


class Streamed:
    """A publish whose events are added in chunks. The realm stages them until the commit."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._held: list[pa.RecordBatch] = []
        """Batches of the last chunk, not sent yet: a publish of one chunk needs no stages."""
        self._stages: list[str] = []
        self._operation: TracedOperation | None = None
        """The publish as a tracer records it, once it has stages."""

    async def add(self, events: list[Event]) -> None:
        """Add a chunk of events. Raises ``InvalidEvent``, ``EventTooLarge``."""
        bodies = bodies_of_events(events)
        await self._stage()
        self._held = bodies

    async def _stage(self) -> None:
        held, self._held = self._held, []
        if held and not self._stages:
            self._operation = self._publisher.trace_staged()
        if held and self._operation is not None:
            held = [with_context(body, self._operation.context) for body in held]
        if held:
            self._stages += await self._publisher.stage(held)

    async def commit(self) -> range:
        """Publish all chunks in one step and return the ids. Raises the errors of publishing, and
        ``NoSuchStage`` if the realm was restarted since the first chunk."""
        if not self._stages:
            return await self._publisher.publish(self._held)
        await self._stage()
        ids = await self._publisher.commit(self._stages)
        if self._operation is not None:
            self._operation.end(count=len(ids))
        return ids

    async def abandon(self, error: BaseException) -> None:
        """End the publish without publishing anything, because ``error`` was raised."""
        if self._operation is not None:
            self._operation.end(error)
        if self._stages:
            with contextlib.suppress(PenstockError):  # the realm drops stages after an hour anyway
                await self._publisher.drop(self._stages)


async def publish_streamed(publisher: Publisher, events: Many) -> range:
    """Publish all events in one step. Return their ids."""
    streamed = Streamed(publisher)
    try:
        async for chunk in all_chunks(events):
            await streamed.add(chunk)
        return await streamed.commit()
    except BaseException as error:
        await streamed.abandon(error)
        raise


def publish_streamed_from(loop: LoopThread, publisher: Publisher, events: Iterable[Event]) -> range:
    """Publish all events in one step for a blocking caller. The iterator runs in the caller's
    thread, as it may block."""
    streamed = Streamed(publisher)
    try:
        for chunk in chunks(events):
            loop.call(streamed.add(chunk))
        return loop.call(streamed.commit())
    except BaseException as error:
        with contextlib.suppress(PenstockError):
            loop.call(streamed.abandon(error))
        raise
