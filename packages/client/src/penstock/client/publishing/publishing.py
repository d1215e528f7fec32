"""Publishing: splits batches into frames and sends them so that each event is stored exactly
once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.client.connection import tracing
from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.pending import Body
from penstock.client.connection.tracing import OperationSource, TracedOperation
from penstock_core.api.publishing import (
    CommitStages,
    DropStages,
    Published,
    PublishEvents,
    StageEvents,
)
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.columns.events.single_event import encode_event
from penstock_core.columns.events.trace_context import with_context
from penstock_core.columns.merge.states import is_worth_packing
from penstock_core.columns.schema.ipc import batch_bytes, packed_bytes
from penstock_core.vocabulary.errors import EventTooLarge, NoSuchStage
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.wire.native.frames import FRAME_BYTES_MAX

BODY_EVENTS_MAX = 65_536
"""Maximum number of events in one batch."""
BODY_BYTES_MAX = 8 << 20
"""Maximum number of bytes in one batch; a larger one is halved."""
FRAME_BODIES_MAX = 32 << 20
"""Maximum number of bytes of a publish in one frame; a larger publish is staged in parts and
committed in one step."""
STAGINGS_MAX = 10
"""Largest number of attempts to stage the parts of one publish, as a restart of the realm loses the
stages."""
UNANSWERED_MAX = 128
"""Largest number of unanswered publishes of one channel; fewer than the realm remembers (SEM X3),
so that it recognizes every publish that is repeated after a lost connection."""


class _Ids:
    """Receives the answer of a publish. It holds a place among the unanswered publishes until the
    answer arrives, even if the caller was cancelled."""

    __slots__ = ("_is_done", "_unanswered", "ids")

    def __init__(self, unanswered: asyncio.Semaphore) -> None:
        self.ids: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        self._unanswered = unanswered
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def abandon(self) -> None:
        """Free the place of a publish that was not sent or has failed."""
        if not self._is_done:
            self._is_done = True
            self._unanswered.release()

    def set_result(self, answer: Any) -> None:
        self._is_done = True
        self._unanswered.release()
        if not self.ids.done():
            self.ids.set_result(ids_of_answer(answer))

    def set_exception(self, error: BaseException) -> None:
        self.abandon()
        if not self.ids.done():
            self.ids.set_exception(error)

    def exception(self) -> object:
        """Mark the error as retrieved, so that asyncio does not log it: callers that do not await
        the ids report it themselves."""
        return None if self.ids.cancelled() else self.ids.exception()

    def copy_from(self, answer: asyncio.Future[Any]) -> None:
        """Take over the outcome of a future that is done."""
        if answer.cancelled():
            self.abandon()
            self.ids.cancel()
        elif (error := answer.exception()) is not None:
            self.set_exception(error)
            self.exception()
        else:
            self.set_result(answer.result())


class Publisher:
    """Publishes on one channel or queue under one producer identity (SEM X3): the realm stores a
    publish that is repeated after a lost connection once."""

    def __init__(
        self,
        connection: RealmConnection,
        channel: ChannelId,
        producer: str = "",
        published: int = 0,
        name: str = "",
    ) -> None:
        """``producer`` continues an identity that has made ``published`` publishes; empty means a
        new identity. ``name`` is the name of the channel or queue, for a tracer."""
        self._source = OperationSource(connection, name)
        self._connection = connection
        self._channel = channel
        self._producer = producer or uuid.uuid4().hex
        self._sequence = published
        self._unanswered = asyncio.Semaphore(UNANSWERED_MAX)

    async def publish(self, bodies: Sequence[pa.RecordBatch]) -> range:
        """Publish the events of ``bodies`` in one step. Return their ids once they are stored
        safely."""
        return await (await self.begin(bodies))

    async def publish_one(self, event: Event) -> int:
        """Publish an event. Return its id once it is stored safely."""
        # Cheaper than a record batch; None if the event needs one, as with a trace context.
        row = encode_event(event) if tracing.tracer is None else None
        if row is None:
            return (await self.publish([body_of([event])]))[0]
        form, message, _ = row
        await self._unanswered.acquire()
        answer = _Ids(self._unanswered)
        try:
            await self._connection.drain()
            # From here to the request nothing waits, so that publishes are sent in the order of
            # their numbers.
            self._sequence += 1
            number = self._connection.row_number(form)
            sizes = (len(message),)
            request = PublishEvents(
                self._channel, self._producer, self._sequence, schema=number, sizes=sizes
            )
            self._connection.request_for(answer, request, (message,), schemas=(number,))
            self._connection.hurry()
        except BaseException:
            answer.abandon()
            raise
        return (await answer.ids)[0]

    async def begin(self, bodies: Sequence[pa.RecordBatch]) -> asyncio.Future[range]:
        """Send a publish and return a future of its ids. Publishes are stored in the order of these
        calls."""
        if tracing.tracer is None:
            return await self._begin(bodies)
        operation = tracing.tracer.publish(self._source, bodies)
        try:
            ids = await self._begin([with_context(body, operation.context) for body in bodies])
        except BaseException as error:
            operation.end(error)
            raise
        tracing.end_with(operation, ids)
        return ids

    async def _begin(self, bodies: Sequence[pa.RecordBatch]) -> asyncio.Future[range]:
        """Send a publish without recording it."""
        parts = [part for body in bodies for part in self._parts(body)]
        await self._unanswered.acquire()
        answer = _Ids(self._unanswered)
        try:
            await self._connection.drain()
            self._sequence += 1
            sequence = self._sequence
            buffers = [memoryview(_bytes_of(part)) for part in parts]
            schema = parts[0].schema
            # One frame has one schema and a bounded size; anything else is staged.
            one_schema = all(part.schema.equals(schema, check_metadata=True) for part in parts[1:])
            if one_schema and sum(map(len, buffers)) <= FRAME_BODIES_MAX:
                self._send(answer, self._connection.schema_number(schema), buffers, sequence)
            else:
                staged = await self._stage(parts, buffers, sequence)
                staged.add_done_callback(answer.copy_from)
        except BaseException:
            answer.abandon()
            raise
        return answer.ids

    def _send(self, answer: _Ids, number: int, buffers: Sequence[Body], sequence: int) -> None:
        message = PublishEvents(
            self._channel, self._producer, sequence, schema=number, sizes=tuple(map(len, buffers))
        )
        self._connection.request_for(answer, message, buffers, schemas=(number,))

    async def _stage(
        self, parts: list[pa.RecordBatch], buffers: list[memoryview], sequence: int
    ) -> asyncio.Future[Any]:
        """Stage the parts of a large publish and commit them; return a future of the answer."""
        attempts = 0
        while True:
            stages = await stage(self._connection, self._channel, parts, buffers=buffers)
            message = CommitStages(self._channel, self._producer, sequence, stages=tuple(stages))
            answer = self._connection.request(message)
            await asyncio.wait([answer])
            attempts += 1
            # A restart of the realm, or another node, loses the stages: stage again.
            are_lost = not answer.cancelled() and isinstance(answer.exception(), NoSuchStage)
            if not are_lost or attempts == STAGINGS_MAX:
                return answer

    def trace_staged(self) -> TracedOperation | None:
        """Begin to record a publish by stages, whose events are not known yet; None without a
        tracer."""
        return None if tracing.tracer is None else tracing.tracer.publish(self._source, ())

    async def stage(self, bodies: Sequence[pa.RecordBatch]) -> list[str]:
        """Store batches in the realm without publishing them. Return the names of the stages, for
        :meth:`commit`."""
        parts = [part for body in bodies for part in self._parts(body)]
        buffers = [memoryview(_bytes_of(part)) for part in parts]
        return await stage(self._connection, self._channel, parts, buffers=buffers)

    async def commit(self, stages: Sequence[str]) -> range:
        """Publish stages in one step. Return the ids once the events are stored safely."""
        await self._unanswered.acquire()
        answer = _Ids(self._unanswered)
        self._sequence += 1
        message = CommitStages(self._channel, self._producer, self._sequence, stages=tuple(stages))
        self._connection.request_for(answer, message)
        return await answer.ids

    async def drop(self, stages: Sequence[str]) -> None:
        """Drop stages without publishing them."""
        await self._connection.request(DropStages(tuple(stages)))

    def _parts(self, body: pa.RecordBatch) -> list[pa.RecordBatch]:
        return parts_of(body, self._connection.event_bytes_max)


def _bytes_of(part: pa.RecordBatch) -> pa.Buffer:
    return packed_bytes(part) if is_worth_packing(part) else batch_bytes(part)


async def stage(
    connection: RealmConnection,
    channel: ChannelId,
    parts: Sequence[pa.RecordBatch],
    buffers: Sequence[memoryview],
    group: str = "",
) -> list[str]:
    """Store batches in the realm without publishing them. Return the names of the stages, in order.
    A commit of stages of a ``group`` drops all other stages of the group."""
    names, answers = [], []
    for part, buffer in zip(parts, buffers, strict=True):
        names.append(f"{group}/{uuid.uuid4().hex}" if group else uuid.uuid4().hex)
        number = connection.schema_number(part.schema)
        message = StageEvents(channel, names[-1], number, sizes=(len(buffer),))
        await connection.drain()
        answers.append(connection.request(message, [buffer], schemas=(number,)))
        if len(answers) > 4:  # bounds the bytes in transit, and raises a refusal early
            await answers.pop(0)
    for answer in answers:
        await answer
    return names


def bodies_of_events(events: Sequence[Event]) -> list[pa.RecordBatch]:
    """Return events as record batches, in order. Raises ``InvalidEvent``, also for an empty
    sequence."""
    return [
        body_of(events[first : first + BODY_EVENTS_MAX])
        for first in range(0, max(len(events), 1), BODY_EVENTS_MAX)
    ]


def parts_of(body: pa.RecordBatch, event_bytes_max: int) -> list[pa.RecordBatch]:
    """Return ``body`` in pieces that fit into a frame. Raises ``EventTooLarge`` if a single event
    does not."""
    if body.nbytes <= BODY_BYTES_MAX:
        return [body]
    if body.num_rows == 1:
        # The frame also has the header of the request and the batch's metadata.
        if body.nbytes > FRAME_BYTES_MAX - (1 << 20):
            raise EventTooLarge(
                f"an event has {body.nbytes} bytes; this realm accepts at most {event_bytes_max}"
            )
        return [body]
    half = body.num_rows // 2
    first, second = body.slice(0, half), body.slice(half)
    return parts_of(first, event_bytes_max) + parts_of(second, event_bytes_max)


def ids_of_answer(answer: Any) -> range:
    """Return the ids in the answer to a publish."""
    published = msgspec.convert(answer, Published)
    return range(published.first_id, published.first_id + published.count)
