"""Questions to the servers of NATS, on a connection that is there or has just ended."""

from __future__ import annotations

import asyncio

import pytest
from nats.aio.client import Client
from nats.aio.transport import TcpTransport

from penstock_cluster.storage.jetstream.asking import AskingClient, Unanswered
from penstock_cluster.storage.jetstream.connection import JetStreamRefusal, NatsConnection
from penstock_core.tasks import start_task
from tests.loops import on_a_loop

LARGE = 1 << 21


class Line(TcpTransport):
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, payload: bytes) -> None:
        if self.is_closed:
            raise RuntimeError("unable to perform operation; the handler is closed")
        self.written.append(payload)


class LinkedClient(AskingClient):
    """Has said to nobody that it connects; what nats-py would write itself is ``queued``."""

    def __init__(self) -> None:
        super().__init__()
        self.line = Line()
        self.queued: list[bytes] = []
        self._transport = self.line
        self._status = Client.CONNECTED
        self._max_payload = self._max_pending_size = 2 * LARGE

    async def _send_command(self, cmd: bytes, priority: bool = False) -> None:
        self.queued.append(cmd)

    async def _flush_pending(self, force_flush: bool = False) -> None:
        return None

    def loses_its_connection(self) -> None:
        self._status = Client.RECONNECTING

    async def answers(self, data: bytes, headers: bytes = b"") -> None:
        """Answer the newest question, as the parser hands over what came for it."""
        line = self.line.written[-1] if self.line.written else self.queued[-1]
        inbox = line.split(b" ")[2]
        await self._process_msg(self._inbox_sid, inbox, b"", data=data, headers=headers)


async def linked() -> tuple[LinkedClient, NatsConnection]:
    client = LinkedClient()
    await client.listen()
    client.queued.clear()
    return client, NatsConnection(client)


@on_a_loop
async def test_a_question_is_written_where_it_is_asked_and_its_answer_wakes_who_waits() -> None:
    client, connection = await linked()
    asking = start_task(connection.ask("subject", b"data", {"Name": "value"}))
    await asyncio.sleep(0)

    (written,) = client.line.written
    await client.answers(b"{}")
    await asyncio.sleep(0)

    line, _, rest = written.partition(b"\r\n")
    assert line.split(b" ")[:2] == [b"HPUB", b"subject"]
    assert line.split(b" ")[3:] == [b"%d" % (len(rest) - 6), b"%d" % (len(rest) - 2)]
    assert rest == b"NATS/1.0\r\nName: value\r\n\r\ndata\r\n"
    assert asking.done()
    assert asking.result() == b"{}"


@pytest.mark.parametrize("why", ["large", "behind others", "no connection"])
@on_a_loop
async def test_a_question_that_cannot_be_written_at_once_waits_for_its_turn(why: str) -> None:
    client, connection = await linked()
    if why == "behind others":
        client._pending.append(b"PUB other 0\r\n\r\n")
    elif why == "no connection":
        client.loses_its_connection()
    asking = start_task(connection.ask("subject", bytes(LARGE if why == "large" else 1)))
    await asyncio.sleep(0)

    assert client.line.written == []
    assert len(client.queued) == 1
    await client.answers(b"{}")
    assert await asking == b"{}"


@on_a_loop
async def test_nobody_who_could_answer_is_no_answer() -> None:
    client, connection = await linked()
    asking = start_task(connection.ask("subject"))
    await asyncio.sleep(0)

    await client.answers(b"", b"NATS/1.0 503\r\n\r\n")

    with pytest.raises(Unanswered, match="no server answers"):
        await asking


@on_a_loop
async def test_an_answer_that_says_no_is_a_refusal() -> None:
    client, connection = await linked()
    asking = start_task(connection.ask("subject"))
    await asyncio.sleep(0)

    await client.answers(b'{"error": {"code": 400, "err_code": 10071, "description": "wrong"}}')

    with pytest.raises(JetStreamRefusal, match="10071"):
        await asking


@on_a_loop
async def test_a_question_without_an_answer_ends_and_what_comes_for_it_later_is_nobodys() -> None:
    client, _ = await linked()
    with pytest.raises(Unanswered, match="no answer in time"):
        await client.ask("subject", b"", None, timeout_s=0.0)

    await client.answers(b"{}")

    assert client.pending_answers == {}


@on_a_loop
async def test_an_answer_that_comes_as_the_question_is_given_up_does_not_undo_that() -> None:
    client, connection = await linked()
    asking = start_task(connection.ask("subject"))
    await asyncio.sleep(0)

    await client.answers(b"{}")
    asking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asking


@on_a_loop
async def test_an_answer_is_given_to_whoever_goes_on_after_being_told_to_end() -> None:
    client, connection = await linked()

    async def goes_on() -> bytes:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await connection.ask("subject")
        raise AssertionError("it is told to end")

    going_on = start_task(goes_on())
    await asyncio.sleep(0)
    going_on.cancel()
    await asyncio.sleep(0)
    await client.answers(b"{}")

    assert await going_on == b"{}"


@on_a_loop
async def test_a_question_on_a_connection_that_ended_a_moment_ago_is_unanswered() -> None:
    """uvloop refuses to write to a transport that it has closed, before nats-py is told of it."""
    client, connection = await linked()
    client.line.is_closed = True

    with pytest.raises(Unanswered, match="the handler is closed"):
        await connection.ask("subject")
