"""The requests of a session, and the queue that their replies come to (SEM R)."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Mapping
from typing import Any, Final

from penstock.client.connection.arguments import Duration, wait_s
from penstock.client.connection.connection import RealmConnection
from penstock.client.publishing.publishing import Publisher
from penstock.client.reading.reader import Reader
from penstock.client.reading.received import ReceivedEvent
from penstock_core.api.channels import ChannelOpened
from penstock_core.api.requesting import CloseReplyQueue, OpenReplyQueue
from penstock_core.columns.events.event import Event
from penstock_core.tasks import start_task
from penstock_core.vocabulary.errors import InvalidArgument, NoReply, PenstockError, SessionClosed
from penstock_core.vocabulary.temporary import REPLY_QUEUE_PREFIX

WINDOW: Final = 1_024
"""Most replies on their way to the session at a time."""
_OWN: Final = ("reply_to", "correlation_id", "message_id")
"""Headers that a request sets itself."""


class Requester:
    """One for each session. Its first request makes the reply queue, which all share."""

    def __init__(self, connection: RealmConnection) -> None:
        self._connection = connection
        self._opening = asyncio.Lock()
        self._queue = ""
        """Name of the reply queue."""
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[str, asyncio.Future[ReceivedEvent]] = {}
        """The requests without a reply yet, by their correlation id."""
        self._identity = uuid.uuid4().hex
        self._requests = 0

    async def request(
        self,
        to: str,
        publisher: Publisher,
        data: bytes,
        timeout: Duration,
        attributes: Mapping[str, Any],
    ) -> ReceivedEvent:
        """Publish a request and wait for its reply. ``to`` is the name of where it is published.
        Raises ``NoReply``, ``InvalidArgument``, and what publishing raises."""
        wait = wait_s(timeout, "timeout")
        headers = dict(attributes.get("headers") or {})
        if own := [name for name in _OWN if name in headers]:
            raise InvalidArgument(f"a request sets the header {own[0]} itself; leave it out")
        self._requests += 1
        correlation = f"ID:{self._identity}-{self._requests}"
        # A peer may reply with either of the two ids.
        headers |= {"correlation_id": correlation, "message_id": correlation}
        reply: asyncio.Future[ReceivedEvent] = asyncio.get_running_loop().create_future()
        event_id: int | None = None
        try:
            async with asyncio.timeout(wait):
                headers["reply_to"] = await self._reply_queue()
                self._waiting[correlation] = reply
                request = Event(data, **{**attributes, "headers": headers})
                event_id = await publisher.publish_one(request)
                return await reply
        except TimeoutError:
            what = "the request" if event_id is None else f"request {event_id}"
            raise NoReply(f"no reply to {what} on {to} came within {wait:g} s") from None
        finally:
            self._waiting.pop(correlation, None)

    async def close(self) -> None:
        """Remove the reply queue, as the session ends. Requests that wait raise
        ``SessionClosed``."""
        self._fail(SessionClosed("the session is closed"))
        reading, self._reading = self._reading, None
        if reading is None:
            return
        reading.cancel()
        await asyncio.wait([reading])
        with contextlib.suppress(PenstockError):  # the realm removes it when nobody reads it
            await self._connection.request(CloseReplyQueue(self._queue), resend=False, waits=False)

    async def _reply_queue(self) -> str:
        async with self._opening:
            if self._reading is None or self._reading.done():
                name = REPLY_QUEUE_PREFIX + uuid.uuid4().hex
                opened = await self._connection.ask(OpenReplyQueue(name), ChannelOpened)
                reader = Reader(self._connection, opened.channel, window=WINDOW)
                await reader.open()
                self._queue = opened.name
                self._reading = start_task(self._read(reader), on_failure=self._broke)
            return self._queue

    async def _read(self, reader: Reader) -> None:
        try:
            async for replies in reader.batches():
                for event in replies:
                    self._replied(event)
        except PenstockError as error:  # the queue was deleted, or the session has ended
            self._fail(error)
        finally:
            with contextlib.suppress(PenstockError):
                await reader.close()

    def _replied(self, event: ReceivedEvent) -> None:
        """Give a reply to its request; a late one, or a second one, is dropped."""
        reply = self._waiting.get(event.headers.get("correlation_id") or "")
        if reply is not None and not reply.done():
            reply.set_result(event)

    def _broke(self, error: BaseException) -> None:
        self._fail(NoReply(f"replies can not be read any more: {error!r}"))

    def _fail(self, error: PenstockError) -> None:
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(error)
                reply.exception()  # its request may be over
