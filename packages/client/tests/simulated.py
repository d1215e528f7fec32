"""Client, realm and network on one simulated event loop, so that tests control which frames are in
transit."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec

from packages.server.tests.runtime.living import living
from penstock import aio
from penstock_server.frontends.native.connection import Connection
from penstock_server.frontends.native.listener import NativeLimits, NativeListener
from penstock_server.runtime.realm import RunningRealm
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import SimLoop, pass_time, simulated
from penstock_testing.network import Door, SimTransport

P = ParamSpec("P")

ADDRESS = ("127.0.0.1", 9000)
URL = "penstock://127.0.0.1:9000"


class World:
    """A realm, a network, and clients that can be stopped as an operating system stops a
    process."""

    def __init__(self, loop: SimLoop, listener: NativeListener, door: Door) -> None:
        self.loop = loop
        self.listener = listener
        self.door = door
        """Accepts new connections; while it is closed, they are refused."""

    def end_of(self, session: aio.Session) -> SimTransport:
        """Return the client's end of its connection."""
        link = session.connection.link
        assert link is not None
        assert isinstance(link.transport, SimTransport)
        return link.transport

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until ``true`` returns True, in virtual time."""
        for _ in range(10_000):
            if true():
                return
            await pass_time(0.01)
        raise AssertionError("the condition was not met within 100 s of virtual time")

    async def full(self, session: aio.Session, publish: Callable[[], Awaitable[object]]) -> None:
        """Stop the client, and publish until its connection takes no more."""
        self.end_of(session).pause_reading()
        await publish()
        connections = [
            connection
            for connection in self.listener.connections
            if isinstance(connection, Connection)
        ]
        await self.until(lambda: any(not connection.is_writable for connection in connections))


@asynccontextmanager
async def served(
    loop: SimLoop,
    journal: MemoryJournal,
    blobs: MemoryBlobs,
    *,
    orderly: bool = True,
    realm_class: type[RunningRealm] = RunningRealm,
) -> AsyncIterator[World]:
    """Run a realm on this store, to which clients can connect. At the end it is closed, or only
    stopped, like the realm of a deposed owner."""
    async with (
        living(journal, blobs, orderly=orderly, realm_class=realm_class) as realm,
        asyncio.TaskGroup() as group,
    ):
        listener = NativeListener(realm, "test", NativeLimits())
        ready = asyncio.Event()
        listening = group.create_task(listener.run(ready))
        await ready.wait()
        door: Any = await loop.create_server(listener.new_protocol, *ADDRESS)
        yield World(loop, listener, door)
        if not orderly:  # another life of the realm may follow
            door.close()
            listener.cut()
        listening.cancel()


def in_world(story: Callable[Concatenate[World, P], Awaitable[None]]) -> Callable[P, None]:
    """Turn a test of a world into a plain one, as :func:`simulated` does. Its first parameter is
    the world; the others are fixtures and parametrized values."""

    @functools.wraps(story)
    async def life(*args: P.args, **kwargs: P.kwargs) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        async with served(loop, MemoryJournal(), MemoryBlobs()) as world:
            await story(world, *args, **kwargs)

    signature = inspect.signature(story)
    parameters_of_test = list(signature.parameters.values())[1:]
    life.__signature__ = signature.replace(parameters=parameters_of_test)  # type: ignore[attr-defined]
    return simulated(life)
