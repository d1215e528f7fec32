"""Getting events out: bodies to frames, frames to the realm, exactly once each."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.client.conversation import Conversation
from penstock.columns.body import body_of
from penstock.columns.event import Event
from penstock.columns.ipc import batch_bytes, packed_bytes
from penstock.columns.states import is_packed
from penstock.core.errors import EventTooLarge, NoSuchStage
from penstock.wire.native import messages as wire
from penstock.wire.native.answers import Published
from penstock.wire.native.frames import FRAME_BYTES_MAX

BODY_EVENTS_MAX = 65_536
"""More events than this become several batches."""
BODY_BYTES_MAX = 8 << 20
"""A larger batch is cut in halves."""
FRAME_BODIES_MAX = 32 << 20
"""A publish above this is staged in parts, then committed in one step."""
STAGINGS_MAX = 10
"""How often the parts of one publish are staged, should the realm restart in between."""
UNANSWERED_MAX = 128
"""Publishes of one channel under way at a time; fewer than the realm remembers (SEM X3)."""


class Publisher:
    """The producer identity of one channel in one session (SEM X3)."""

    def __init__(
        self, conversation: Conversation, channel: int, producer: str = "", published: int = 0
    ) -> None:
        """A new identity, or a known one that has made so many publishes before."""
        self._conversation = conversation
        self._channel = channel
        self._producer = producer or uuid.uuid4().hex
        self._sequence = published
        self._unanswered = asyncio.Semaphore(UNANSWERED_MAX)

    async def publish(self, bodies: Sequence[pa.RecordBatch]) -> range:
        """Store the events of ``bodies`` in one step; gives their ids once they are safe."""
        return await (await self.begin(bodies))

    async def begin(self, bodies: Sequence[pa.RecordBatch]) -> asyncio.Future[range]:
        """Send a publish; the future has the ids. Publishes begun in order are stored in order."""
        parts = [part for body in bodies for part in self._parts(body)]
        await self._unanswered.acquire()
        try:
            await self._conversation.drained()
            self._sequence += 1
            sequence = self._sequence
            buffers = [memoryview(_bytes_of(part)) for part in parts]
            same = all(part.schema.equals(parts[0].schema, check_metadata=True) for part in parts)
            if same and sum(map(len, buffers)) <= FRAME_BODIES_MAX:
                answer = self._send(parts[0].schema, buffers, sequence)
            else:
                answer = await self._stage(parts, buffers, sequence)
        except BaseException:
            self._unanswered.release()
            raise
        ids: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda done: self._answered(done, ids))
        return ids

    def _answered(self, answer: asyncio.Future[Any], ids: asyncio.Future[range]) -> None:
        self._unanswered.release()
        if ids.cancelled():
            return
        if answer.cancelled():
            ids.cancel()
        elif (error := answer.exception()) is not None:
            ids.set_exception(error)
            ids.exception()  # a fire-and-forget caller reports it its own way
        else:
            ids.set_result(ids_of_answer(answer.result()))

    def _send(
        self, schema: pa.Schema, buffers: list[memoryview], sequence: int
    ) -> asyncio.Future[Any]:
        number = self._conversation.schema_number(schema)
        message = wire.PublishEvents(
            0, self._channel, self._producer, sequence, number, tuple(map(len, buffers))
        )
        return self._conversation.request(message, buffers, schemas=(number,))

    async def _stage(
        self, parts: list[pa.RecordBatch], buffers: list[memoryview], sequence: int
    ) -> asyncio.Future[Any]:
        attempts = 0
        while True:
            stages = await stage(self._conversation, self._channel, parts, buffers)
            message = wire.CommitStages(0, self._channel, self._producer, sequence, tuple(stages))
            answer = self._conversation.request(message)
            await asyncio.wait([answer])
            attempts += 1
            lost = not answer.cancelled() and isinstance(answer.exception(), NoSuchStage)
            if not lost or attempts == STAGINGS_MAX:
                return answer  # lost: the realm was restarted in between, and has no parts

    def _parts(self, body: pa.RecordBatch) -> list[pa.RecordBatch]:
        return parts_of(body, self._conversation.event_bytes_max)


def _bytes_of(part: pa.RecordBatch) -> pa.Buffer:
    return packed_bytes(part) if is_packed(part) else batch_bytes(part)


async def stage(
    conversation: Conversation,
    channel: int,
    parts: Sequence[pa.RecordBatch],
    buffers: Sequence[memoryview],
    group: str = "",
) -> list[str]:
    """Put batches aside on the server; gives the names to commit them by, in order. A commit of
    some of a ``group`` drops the others of it."""
    names, answers = [], []
    for part, buffer in zip(parts, buffers, strict=True):
        names.append(f"{group}/{uuid.uuid4().hex}" if group else uuid.uuid4().hex)
        number = conversation.schema_number(part.schema)
        message = wire.StageEvents(0, channel, names[-1], number, (len(buffer),))
        await conversation.drained()
        answers.append(conversation.request(message, [buffer], schemas=(number,)))
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
