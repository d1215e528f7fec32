"""Getting events out: bodies to frames, frames to the realm, exactly once each."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.pending import Body
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
from penstock_core.columns.merge.states import is_packed
from penstock_core.columns.schema.ipc import batch_bytes, packed_bytes
from penstock_core.vocabulary.errors import EventTooLarge, NoSuchStage
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.wire.native.frames import FRAME_BYTES_MAX

BODY_EVENTS_MAX = 65_536
"""Most events in one batch."""
BODY_BYTES_MAX = 8 << 20
"""A larger batch is cut in halves."""
FRAME_BODIES_MAX = 32 << 20
"""A publish above this is staged in parts, then committed in one step."""
STAGINGS_MAX = 10
"""How often the parts of one publish are staged, should the realm restart in between."""
UNANSWERED_MAX = 128
"""Publishes of one channel under way at a time; fewer than the realm remembers (SEM X3)."""


class _Ids:
    """Waits for the answer of a publish, even if nobody waits for the ids any more: it is in
    progress until then."""

    __slots__ = ("_is_done", "_unanswered", "ids")

    def __init__(self, unanswered: asyncio.Semaphore) -> None:
        self.ids: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        self._unanswered = unanswered
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def give_up(self) -> None:
        """Give up a publish that was not sent."""
        if not self._is_done:
            self._is_done = True
            self._unanswered.release()

    def set_result(self, answer: Any) -> None:
        self._is_done = True
        self._unanswered.release()
        if not self.ids.done():
            self.ids.set_result(ids_of_answer(answer))

    def set_exception(self, error: BaseException) -> None:
        self.give_up()
        if not self.ids.done():
            self.ids.set_exception(error)

    def exception(self) -> object:
        """A fire-and-forget caller reports it its own way."""
        return None if self.ids.cancelled() else self.ids.exception()

    def heard(self, answer: asyncio.Future[Any]) -> None:
        """Take the answer from a future."""
        if answer.cancelled():
            self.give_up()
            self.ids.cancel()
        elif (error := answer.exception()) is not None:
            self.set_exception(error)
            self.exception()
        else:
            self.set_result(answer.result())


class Publisher:
    """The producer identity of one channel in one session (SEM X3)."""

    def __init__(
        self,
        connection: RealmConnection,
        channel: ChannelId,
        producer: str = "",
        published: int = 0,
    ) -> None:
        """A new identity, or a known one that has made so many publishes before."""
        self._connection = connection
        self._channel = channel
        self._producer = producer or uuid.uuid4().hex
        self._sequence = published
        self._unanswered = asyncio.Semaphore(UNANSWERED_MAX)

    async def publish(self, bodies: Sequence[pa.RecordBatch]) -> range:
        """Store the events of ``bodies`` in one step; gives their ids once they are safe."""
        return await (await self.begin(bodies))

    async def publish_one(self, event: Event) -> int:
        """Store an event; gives its id once it is safe."""
        row = encode_event(event)
        if row is None:
            return (await self.publish([body_of([event])]))[0]
        form, message = row
        await self._unanswered.acquire()
        answer = _Ids(self._unanswered)
        try:
            await self._connection.drained()
            self._sequence += 1
            number = self._connection.row_number(form)
            sizes = (len(message),)
            asked = PublishEvents(
                self._channel, self._producer, self._sequence, schema=number, sizes=sizes
            )
            self._connection.request_for(answer, asked, (message,), schemas=(number,))
            self._connection.hurry()
        except BaseException:
            answer.give_up()
            raise
        return (await answer.ids)[0]

    async def begin(self, bodies: Sequence[pa.RecordBatch]) -> asyncio.Future[range]:
        """Send a publish; the future has the ids. Publishes begun in order are stored in order."""
        parts = [part for body in bodies for part in self._parts(body)]
        await self._unanswered.acquire()
        answer = _Ids(self._unanswered)
        try:
            await self._connection.drained()
            self._sequence += 1
            sequence = self._sequence
            buffers = [memoryview(_bytes_of(part)) for part in parts]
            schema = parts[0].schema
            same = all(part.schema.equals(schema, check_metadata=True) for part in parts[1:])
            if same and sum(map(len, buffers)) <= FRAME_BODIES_MAX:
                self._send(answer, self._connection.schema_number(schema), buffers, sequence)
            else:
                staged = await self._stage(parts, buffers, sequence)
                staged.add_done_callback(answer.heard)
        except BaseException:
            answer.give_up()
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
        attempts = 0
        while True:
            stages = await stage(self._connection, self._channel, parts, buffers=buffers)
            message = CommitStages(self._channel, self._producer, sequence, stages=tuple(stages))
            answer = self._connection.request(message)
            await asyncio.wait([answer])
            attempts += 1
            lost = not answer.cancelled() and isinstance(answer.exception(), NoSuchStage)
            if not lost or attempts == STAGINGS_MAX:
                return answer  # lost: the realm was restarted, and has no stages

    async def stage(self, bodies: Sequence[pa.RecordBatch]) -> list[str]:
        """Put batches aside on the realm; gives the names :meth:`commit` has them by."""
        parts = [part for body in bodies for part in self._parts(body)]
        buffers = [memoryview(_bytes_of(part)) for part in parts]
        return await stage(self._connection, self._channel, parts, buffers=buffers)

    async def commit(self, stages: Sequence[str]) -> range:
        """Publish stages in one step; gives the ids once they are safe."""
        await self._unanswered.acquire()
        answer = _Ids(self._unanswered)
        self._sequence += 1
        message = CommitStages(self._channel, self._producer, self._sequence, stages=tuple(stages))
        self._connection.request_for(answer, message)
        return await answer.ids

    async def drop(self, stages: Sequence[str]) -> None:
        """Drop stages that are not to be committed."""
        await self._connection.request(DropStages(tuple(stages)))

    def _parts(self, body: pa.RecordBatch) -> list[pa.RecordBatch]:
        return parts_of(body, self._connection.event_bytes_max)


def _bytes_of(part: pa.RecordBatch) -> pa.Buffer:
    return packed_bytes(part) if is_packed(part) else batch_bytes(part)


async def stage(
    connection: RealmConnection,
    channel: ChannelId,
    parts: Sequence[pa.RecordBatch],
    buffers: Sequence[memoryview],
    group: str = "",
) -> list[str]:
    """Put batches aside on the server; gives the names to commit them by, in order. A commit of
    some of a ``group`` drops the others of it."""
    names, answers = [], []
    for part, buffer in zip(parts, buffers, strict=True):
        names.append(f"{group}/{uuid.uuid4().hex}" if group else uuid.uuid4().hex)
        number = connection.schema_number(part.schema)
        message = StageEvents(channel, names[-1], number, sizes=(len(buffer),))
        await connection.drained()
        answers.append(connection.request(message, [buffer], schemas=(number,)))
        if len(answers) > 4:
            await answers.pop(0)
    for answer in answers:
        await answer
    return names


def bodies_of_events(events: Sequence[Event]) -> list[pa.RecordBatch]:
    """Events as batches, in their order. Raises ``InvalidEvent``, also when there are none."""
    return [
        body_of(events[first : first + BODY_EVENTS_MAX])
        for first in range(0, max(len(events), 1), BODY_EVENTS_MAX)
    ]


def parts_of(body: pa.RecordBatch, event_bytes_max: int) -> list[pa.RecordBatch]:
    """``body`` in pieces that fit a frame. Raises ``EventTooLarge`` when one event does not."""
    if body.nbytes <= BODY_BYTES_MAX:
        return [body]
    if body.num_rows == 1:
        if body.nbytes > FRAME_BYTES_MAX - (1 << 20):
            raise EventTooLarge(
                f"an event has {body.nbytes} bytes; this realm takes {event_bytes_max} at most"
            )
        return [body]
    half = body.num_rows // 2
    first, second = body.slice(0, half), body.slice(half)
    return parts_of(first, event_bytes_max) + parts_of(second, event_bytes_max)


def ids_of_answer(answer: Any) -> range:
    published = msgspec.convert(answer, Published)
    return range(published.first_id, published.first_id + published.count)
