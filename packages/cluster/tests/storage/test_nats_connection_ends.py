"""A connection to NATS whose servers accept it and say little leaves nothing open behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from penstock_cluster.storage.jetstream.connection import NatsConnection
from penstock_core.vocabulary.errors import Unavailable
from tests.contract.jetstream import ignore
from tests.loops import on_a_loop

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Be a server of NATS until a client is connected."""
    writer.write(b'INFO {"max_payload": 1024}\r\n')
    while await reader.readline() != b"PING\r\n":
        pass
    writer.write(b"PONG\r\n")
    await writer.drain()


@asynccontextmanager
async def a_server(*connections: Serve) -> AsyncIterator[str]:
    """The address of a server that treats each connection by a function of its own, and those
    that come after by closing them."""
    numbers = count()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (number := next(numbers)) < len(connections):
            await connections[number](reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def opened(urls: list[str], timeout_s: float = 15.0) -> NatsConnection:
    """A connection that gives up a server that says nothing after a second."""
    return await NatsConnection.open(urls, ignore, timeout_s, answer_timeout_s=1.0)


class Silence:
    """Says nothing, and notes the connections that their client has closed."""

    def __init__(self) -> None:
        self.ended: asyncio.Queue[bytes] = asyncio.Queue()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ended.put_nowait(await reader.read())


@on_a_loop
async def test_each_attempt_to_reconnect_closes_the_one_before() -> None:
    """A frozen server accepts connections, and each attempt makes another."""
    silence = Silence()
    async with a_server(greet, silence) as url:
        connection = await opened([url])
        assert await silence.ended.get() == b""
        await connection.close()


@on_a_loop
async def test_opening_that_is_given_up_closes_its_last_attempt() -> None:
    silence = Silence()
    async with a_server(silence, silence) as url:
        with pytest.raises(Unavailable):
            await opened([url], timeout_s=1.5)
        assert await silence.ended.get() == b""
        assert await silence.ended.get() == b""


@on_a_loop
async def test_closing_also_closes_a_connection_that_is_made_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``asyncio.wait_for`` of Python 3.11 takes what has come for more urgent than that it was
    cancelled."""
    silence = Silence()
    open_ = asyncio.open_connection
    ended: list[bool] = []
    async with a_server(greet, silence) as url, asyncio.TaskGroup() as tasks:
        connection = await opened([url])

        async def close(reconnecting: asyncio.Task[Any]) -> None:
            await connection.close()
            ended.append(reconnecting.done())

        async def open_connection(*args: Any, **kwargs: Any) -> Any:
            made = await open_(*args, **kwargs)
            (reconnecting,) = filter(is_reconnecting, asyncio.all_tasks())
            tasks.create_task(close(reconnecting))
            while not reconnecting.cancelling():  # noqa: ASYNC110 - it ends in that very turn
                await asyncio.sleep(0)
            return made

        monkeypatch.setattr(asyncio, "open_connection", open_connection)
        assert await silence.ended.get() == b""
    assert ended == [True]


def is_reconnecting(task: asyncio.Task[Any]) -> bool:
    return "_attempt_reconnect" in repr(task.get_coro())
