"""The client of nats-py with a shorter way for a question and its answer.

Its own ``request`` passes through a queue and a task before it is written, and its answer through
another queue, two tasks and ``asyncio.wait_for``: a lone append would wait for seven turns of the
loop. Here a question is written where it is asked, and its answer wakes who waits for it as soon as
it is parsed.
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
"""A larger question waits for its turn, so that what is written and not sent yet has a limit."""
_CANCELLED_S: Final = 0.05
"""After so long a task that was cancelled and goes on is cancelled again."""
_NO_RESPONDERS: Final = b"NATS/1.0 503"


class Unanswered(Exception):
    """No server has answered, or none can answer now: the outcome is unknown."""


class AskingClient(Client):
    """Asks by a shorter way, and ends connections where nats-py 2.16 does not."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[bytes, asyncio.Future[bytes]] = {}
        """Questions without an answer, by the subject that it comes to."""
        self._inbox = ""
        self._inbox_sid = 0
        """The subscription that has the answers."""
        self._numbers = count(1)

    @property
    def server(self) -> str:
        """The name of the server it is connected to; empty while there is none."""
        return str(self._server_info.get("server_name", "")) if self.is_connected else ""

    async def listen(self) -> None:
        """Begin to have answers; after a reconnection nats-py does so again, before anything is
        asked."""
        self._inbox = self.new_inbox()
        self._inbox_sid = (await self.subscribe(f"{self._inbox}.*"))._id

    async def ask(
        self, subject: str, request: bytes, headers: Mapping[str, str] | None, timeout_s: float
    ) -> bytes:
        """What was answered. Raises ``Unanswered``."""
        assert self._inbox, "it listens before it asks"
        reply = f"{self._inbox}.{next(self._numbers)}"
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        self._asked[reply.encode()] = answer
        giving_up = loop.call_later(timeout_s, _give_up, answer, subject)
        try:
            if not self._write(subject, reply, request, headers=headers):
                await self.publish(
                    subject, request, reply=reply, headers=dict(headers or {}) or None
                )
            return await answer
        except (NatsError, OSError) as error:
            raise Unanswered(f"{subject}: {error!r}") from error
        finally:
            giving_up.cancel()
            del self._asked[reply.encode()]

    def _write(
        self, subject: str, reply: str, request: bytes, headers: Mapping[str, str] | None
    ) -> bool:
        """Write a question now; not where others wait to be written, which come first."""
        transport = self._transport
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
        except RuntimeError as error:  # uvloop's word for a connection that ended a moment ago
            raise Unanswered(f"{subject}: {error}") from error
        return True

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        """Called by the parser of nats-py with each message."""
        if sid != self._inbox_sid:
            await super()._process_msg(sid, subject, reply, data=data, headers=headers)
            return
        answer = self._asked.get(bytes(subject))
        if answer is None or answer.done():
            return
        if headers and headers.startswith(_NO_RESPONDERS):
            answer.set_exception(Unanswered(f"{subject.decode()}: nobody is there to answer"))
        else:
            answer.set_result(data)

    async def close(self) -> None:
        """Close it and what it is connecting to.

        An attempt to reconnect that gets its connection just then goes on when it is cancelled:
        what has come is more urgent to ``asyncio.wait_for`` of Python 3.11. nats-py cancels once.
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
        """Close the connection there is, if any. While there is none, nats-py would fail to write
        what waits."""
        if not self.is_connected:
            self._pending, self._pending_data_size = [], 0
        await super().close()

    async def _connect_to_server(self, s: Srv) -> None:
        """Close the connection of an attempt that failed, which nats-py forgets: a frozen server
        accepts connections and says nothing on them."""
        if self._transport:
            self._transport.close()  # type: ignore[no-untyped-call]  # nats-py types only some
        await super()._connect_to_server(s)


def _give_up(answer: asyncio.Future[bytes], subject: str) -> None:
    if not answer.done():
        answer.set_exception(Unanswered(f"{subject}: no answer in time"))
