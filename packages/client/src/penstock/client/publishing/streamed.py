"""Publishes what comes from an iterator in one step, holding only a part of it at a time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import TypeAlias

import pyarrow as pa

from penstock.client.connection.threads import LoopThread
from penstock.client.publishing.publishing import Publisher, bodies_of_events
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import PenstockError

CHUNK_EVENTS_MAX = 16_384
CHUNK_BYTES_MAX = 4 << 20
"""Bytes taken from an iterator before they are sent, at most, plus one event."""

Many: TypeAlias = Iterable[Event] | AsyncIterable[Event]


class EventChunk:
    """Collects events until there are enough."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._size = 0

    def add(self, event: Event) -> bool:
        """Whether it is time to send them."""
        self.events.append(event)
        self._size += _size_of(event)
        return len(self.events) >= CHUNK_EVENTS_MAX or self._size >= CHUNK_BYTES_MAX


def _size_of(event: Event) -> int:
    """The size of an event in memory, roughly: nested properties are not examined."""
    values = event.properties.values() if event.properties else ()
    return len(event.data) + sum(len(v) if isinstance(v, str | bytes) else 8 for v in values)


def chunks(events: Iterable[Event]) -> Iterator[list[Event]]:
    """All events, in lists of bounded size; one empty list if there are none."""
    chunk, was_full = EventChunk(), False
    for event in events:
        if chunk.add(event):
            yield chunk.events
            chunk, was_full = EventChunk(), True
    if chunk.events or not was_full:
        yield chunk.events


async def all_chunks(events: Many) -> AsyncIterator[list[Event]]:
    """All events in lists of bounded size, also from asynchronous iterators."""
    if isinstance(events, Iterable):
        for ready in chunks(events):
            yield ready
        return
    chunk, was_full = EventChunk(), False
    async for event in events:
        if chunk.add(event):
            yield chunk.events
            chunk, was_full = EventChunk(), True
    if chunk.events or not was_full:
        yield chunk.events


async def bodies_of_all(events: Many) -> list[pa.RecordBatch]:
    """All events as batches, in order. Raises ``InvalidEvent``."""
    return [body async for chunk in all_chunks(events) for body in bodies_of_events(chunk)]


class Streamed:
    """Events of one publish, added chunk by chunk: the realm keeps them aside until the last."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._held: list[pa.RecordBatch] = []
        """Batches not sent yet; if they are all there is, they need not be staged."""
        self._stages: list[str] = []

    async def add(self, events: list[Event]) -> None:
        """Raises ``InvalidEvent``, ``EventTooLarge``."""
        bodies = bodies_of_events(events)
        await self._stage()
        self._held = bodies

    async def _stage(self) -> None:
        held, self._held = self._held, []
        if held:
            self._stages += await self._publisher.stage(held)

    async def commit(self) -> range:
        """Publish them; gives their ids. Raises what a publish raises, and ``NoSuchStage`` when
        the realm was restarted meanwhile."""
        if not self._stages:
            return await self._publisher.publish(self._held)
        await self._stage()
        return await self._publisher.commit(self._stages)

    async def abandon(self) -> None:
        """Give up: nothing of it is published."""
        if self._stages:
            with contextlib.suppress(PenstockError):  # the realm drops it by itself later
                await self._publisher.drop(self._stages)


async def publish_streamed(publisher: Publisher, events: Many) -> range:
    """Publish all events in one step; gives their ids."""
    streamed = Streamed(publisher)
    try:
        async for chunk in all_chunks(events):
            await streamed.add(chunk)
        return await streamed.commit()
    except BaseException:
        await streamed.abandon()
        raise


def publish_streamed_from(loop: LoopThread, publisher: Publisher, events: Iterable[Event]) -> range:
    """Publish for a blocking caller, in whose thread the iterator runs."""
    streamed = Streamed(publisher)
    try:
        for chunk in chunks(events):
            loop.call(streamed.add(chunk))
        return loop.call(streamed.commit())
    except BaseException:
        with contextlib.suppress(PenstockError):
            loop.call(streamed.abandon())
        raise
