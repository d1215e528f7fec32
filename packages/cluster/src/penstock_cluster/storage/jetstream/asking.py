"""The client of nats-py with a shorter way for a request and its answer.

The ``request`` of nats-py passes through a queue and a task before it is written, and its answer
through another queue, two tasks and ``asyncio.wait_for``: a lone append would wait for seven turns
of the loop. Here a request is written immediately, and its answer wakes the caller as soon as it is
parsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import count
from typing import Final

from nats.aio.client import Client, Srv
from nats.aio.transport import TcpTransport
from nats.errors import Error as NatsError

_AT_ONCE_BYTES_MAX: Final = 1 << 20
"""Size in bytes of the largest request that is written immediately. A larger request waits for its
turn, so that the unsent bytes are bounded."""
_CANCELLED_S: Final = 0.05
"""Pause after which a cancelled task that continues is cancelled again."""
_NO_RESPONDERS: Final = b"NATS/1.0 503"
"""Header of the answer that NATS itself gives if no server has subscribed to a subject."""


class Unanswered(Exception):
    """No server has answered, or none can answer now: the outcome is unknown."""


class AskingClient(Client):
    """Sends requests by a shorter way, and closes connections that nats-py 2.16 leaves open."""

    def __init__(self) -> None:
        super().__init__()
        self.pending_answers: dict[bytes, asyncio.Future[bytes]] = {}
        """Requests without an answer, by the subject of the answer."""
        self._inbox = ""
        self._inbox_sid = 0
        """Subscription that receives the answers."""
        self._numbers = count(1)

    @property
    def server(self) -> str:
        """Name of the connected server; empty without a connection."""
        return str(self._server_info.get("server_name", "")) if self.is_connected else ""

    async def listen(self) -> None:
        """Subscribe to answers. After a reconnection nats-py subscribes again before other
        requests."""
        self._inbox = self.new_inbox()
        self._inbox_sid = (await self.subscribe(f"{self._inbox}.*"))._id

    async def ask(
        self, subject: str, request: bytes, headers: Mapping[str, str] | None, timeout_s: float
    ) -> bytes:
        """Send a request and return its answer. Raises ``Unanswered``."""
        assert self._inbox, "`listen` is called before `ask`"
        reply = f"{self._inbox}.{next(self._numbers)}"
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        self.pending_answers[reply.encode()] = answer
        timeout = loop.call_later(timeout_s, _time_out, answer, subject)
        try:
            if not self._write(subject, reply, request, headers=headers):
                await self.publish(
                    subject, request, reply=reply, headers=dict(headers or {}) or None
                )
            return await answer
        except (NatsError, OSError) as error:
            raise Unanswered(f"{subject}: {error!r}") from error
        finally:
            timeout.cancel()
            del self.pending_answers[reply.encode()]

    def _write(
        self, subject: str, reply: str, request: bytes, headers: Mapping[str, str] | None
    ) -> bool:
        """Write a request now. Returns False if earlier ones still wait to be written."""
        transport = self._transport
        # Earlier requests that wait must not be overtaken.
        if not isinstance(transport, TcpTransport) or self._pending or not self.is_connected:
            return False
        if len(request) > min(_AT_ONCE_BYTES_MAX, self._max_payload):
            return False
        if headers:
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            assert lines.count("\n") == len(headers), "a value has one line"
            head = f"NATS/1.0\r\n{lines}\r\n".encode()
            sizes = f"{len(head)} {len(head) + len(request)}"
            line = f"HPUB {subject} {reply} {sizes}\r\n"
        else:
            head, line = b"", f"PUB {subject} {reply} {len(request)}\r\n"
        command = b"".join((line.encode(), head, request, b"\r\n"))
        try:
            transport.write(command)  # type: ignore[no-untyped-call]  # nats-py types only some
        except RuntimeError as error:  # uvloop raises this for a connection that has just ended
            raise Unanswered(f"{subject}: {error}") from error
        return True

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        """Called by the parser of nats-py with each message."""
        if sid != self._inbox_sid:
            await super()._process_msg(sid, subject, reply, data=data, headers=headers)
            return
        answer = self.pending_answers.get(bytes(subject))
        if answer is None or answer.done():
            return
        if headers and headers.startswith(_NO_RESPONDERS):
            answer.set_exception(Unanswered(f"{subject.decode()}: no server answers this subject"))
        else:
            answer.set_result(data)

    async def close(self) -> None:
        """Close the connection, and an attempt to reconnect.

        An attempt to reconnect that gets its connection at that moment continues although it is
        cancelled: ``asyncio.wait_for`` of Python 3.11 prefers the result. nats-py cancels only
        once.
        """
        await self._close_connection()
        reconnecting = self._reconnection_task
        if reconnecting is None or reconnecting is asyncio.current_task():
            return
        while not reconnecting.done():
            reconnecting.cancel()
            await asyncio.wait([reconnecting], timeout=_CANCELLED_S)
        await self._close_connection()

    async def _close_connection(self) -> None:
        """Close the connection. If it is lost already, drop the pending bytes first: nats-py would
        fail to write them."""
        if not self.is_connected:
            self._pending, self._pending_data_size = [], 0
        await super().close()

    async def _connect_to_server(self, s: Srv) -> None:
        """Close the connection of a failed attempt, which nats-py forgets: a frozen server accepts
        connections and sends nothing on them."""
        if self._transport:
            self._transport.close()  # type: ignore[no-untyped-call]  # nats-py types only some
        await super()._connect_to_server(s)


def _time_out(answer: asyncio.Future[bytes], subject: str) -> None:
    if not answer.done():
        answer.set_exception(Unanswered(f"{subject}: no answer in time"))
