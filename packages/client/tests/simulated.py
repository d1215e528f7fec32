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
    """A realm, a network, and clients that may be stopped as the operating system stops them."""

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
    """A realm of this store that clients connect to; closed at the end, or just stopped, as that
    of an owner is whom another has deposed."""
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
    """Make a test that is told in a world a plain one, as :func:`simulated` does.

    Its first parameter is the world; the others are fixtures and parametrised values as ever.
    """

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
