"""Tests of durables that run with the blocking client and with the asyncio client."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import penstock
from penstock import aio
from tests.loops import on_a_loop

KINDS = ("exclusive", "priority", "shared", "serial", "shared_queued")


CUMULATIVE = ("exclusive", "priority")


CLIENTS = ("blocking", "asyncio")


WAIT_S = 30.0


async def do(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a method of either client, and return its result."""
    if inspect.iscoroutinefunction(call):
        return await call(*arguments, **options)
    return await asyncio.to_thread(call, *arguments, **options)


@asynccontextmanager
async def connected(client: str, url: str) -> AsyncIterator[Any]:
    session = await aio.connect(url) if client == "asyncio" else await do(penstock.connect, url)
    try:
        yield session
    finally:
        await do(session.close)


async def eventually(is_so: Callable[[], Awaitable[bool]]) -> None:
    pause = threading.Event()
    for _ in range(3_000):
        if await is_so():
            return
        await asyncio.to_thread(pause.wait, 0.01)
    raise AssertionError("it did not come about")


@on_a_loop
async def run(realm: penstock.Realm, client: str, live: Callable[[Any], Awaitable[None]]) -> None:
    """Run ``live`` with a session of a client."""
    async with connected(client, realm.listen()) as session:
        await live(session)


async def says(info: Callable[..., Any], name: str, wanted: object) -> bool:
    return bool(getattr(await do(info), name) == wanted)


async def received(seat: Any, count: int) -> list[Any]:
    """Receive and return ``count`` events."""
    events: list[Any] = []
    while len(events) < count:
        batch = await do(seat.next_batch, WAIT_S)
        assert batch is not None, "nothing came"
        events += list(batch)
    assert len(events) == count
    return events


def ids(events: list[Any]) -> list[int]:
    return [event.event_id for event in events]


def counts(events: list[Any]) -> dict[int, int]:
    return {event.event_id: event.redelivery_count for event in events}


async def published(channel: Any, count: int) -> None:
    await do(channel.publish_many, [penstock.Event(b"%d" % n) for n in range(count)])
