"""Sends the requests of a session, and reads their replies from a temporary queue (SEM R)."""

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
"""Maximum number of replies in transit to the session at a time."""
_RESERVED: Final = ("reply_to", "correlation_id", "message_id")
"""Headers that the client sets on each request."""


class Requester:
    """Sends the requests of one session and matches replies with them. The first request creates
    the reply queue, which all later requests share."""

    def __init__(self, connection: RealmConnection) -> None:
        self._connection = connection
        self._opening = asyncio.Lock()
        self._queue = ""
        """Name of the reply queue."""
        self._reading: asyncio.Task[None] | None = None
        """The task that reads the reply queue."""
        self.waiting: dict[str, asyncio.Future[ReceivedEvent]] = {}
        """Futures of the replies that have not arrived, by correlation id."""
        self._identity = uuid.uuid4().hex
        self._requests = 0
        """Number of requests so far; makes their correlation ids unique."""

    async def request(
        self,
        to: str,
        publisher: Publisher,
        data: bytes,
        timeout: Duration,
        attributes: Mapping[str, Any],
    ) -> ReceivedEvent:
        """Publish a request and return its reply.

        ``to`` is the name of the publisher's channel or queue, for error texts. Raises ``NoReply``
        if no reply arrives within ``timeout`` seconds, ``InvalidArgument``, and the errors of
        publishing.
        """
        timeout_seconds = wait_s(timeout, "timeout")
        headers = dict(attributes.get("headers") or {})
        if reserved := [name for name in _RESERVED if name in headers]:
            raise InvalidArgument(
                f"header {reserved[0]} is reserved in requests: the client sets it; leave it out"
            )
        self._requests += 1
        correlation = f"ID:{self._identity}-{self._requests}"
        # A peer may reply with either of the two ids.
        headers |= {"correlation_id": correlation, "message_id": correlation}
        reply: asyncio.Future[ReceivedEvent] = asyncio.get_running_loop().create_future()
        event_id: int | None = None
        try:
            async with asyncio.timeout(timeout_seconds):
                headers["reply_to"] = await self._reply_queue()
                # Registered before the request is published, because the reply may be fast.
                self.waiting[correlation] = reply
                request = Event(data, **{**attributes, "headers": headers})
                event_id = await publisher.publish_one(request)
                return await reply
        except TimeoutError:
            request_text = "the request" if event_id is None else f"request {event_id}"
            raise NoReply(
                f"no reply to {request_text} on {to} arrived within {timeout_seconds:g} s"
            ) from None
        finally:
            self.waiting.pop(correlation, None)

    async def close(self) -> None:
        """Remove the reply queue at the end of the session. Pending requests raise
        ``SessionClosed``."""
        self._fail(SessionClosed("the session is closed"))
        reading, self._reading = self._reading, None
        if reading is None:
            return
        reading.cancel()
        await asyncio.wait([reading])
        # If this fails, the realm removes the queue because it has no reader any more.
        with contextlib.suppress(PenstockError):
            await self._connection.request(CloseReplyQueue(self._queue), resend=False, waits=False)

    async def _reply_queue(self) -> str:
        """Return the name of the reply queue. The first call creates the queue and a reader, and so
        does a call after the reader has failed."""
        async with self._opening:
            if self._reading is None or self._reading.done():
                name = REPLY_QUEUE_PREFIX + uuid.uuid4().hex
                opened = await self._connection.ask(OpenReplyQueue(name), ChannelOpened)
                reader = Reader(self._connection, opened.channel, window=WINDOW, name=opened.name)
                await reader.open()
                self._queue = opened.name
                self._reading = start_task(self._read(reader), on_failure=self._reader_failed)
            return self._queue

    async def _read(self, reader: Reader) -> None:
        """Match replies with their requests until the reader fails."""
        try:
            async for replies in reader.batches():
                for event in replies:
                    self._resolve(event)
        except PenstockError as error:  # the queue was deleted, or the session has ended
            self._fail(error)
        finally:
            with contextlib.suppress(PenstockError):
                await reader.close()

    def _resolve(self, event: ReceivedEvent) -> None:
        """Pass a reply to the request that waits for it. A late or second reply is dropped."""
        reply = self.waiting.get(event.headers.get("correlation_id") or "")
        if reply is not None and not reply.done():
            reply.set_result(event)

    def _reader_failed(self, error: BaseException) -> None:
        self._fail(NoReply(f"replies can no longer be read: {error!r}"))

    def _fail(self, error: PenstockError) -> None:
        for reply in self.waiting.values():
            if not reply.done():
                reply.set_exception(error)
                # Mark the error as retrieved: asyncio would log it if the request was cancelled.
                reply.exception()
