"""Runs several clients of durables at the same time, until all expected events are
acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager

from bench.ledger import FLAW, Ledger
from bench.pacing import at_once
from bench.shape import BATCH, Broker, Client, Subscriber
from bench.workload import Events, pool

BATCHES_UNDER_WAY = 4
"""Unconfirmed batches of a publisher, equal for all contenders."""
DATA_BYTES = 128


def events_of(batches: int) -> list[Events]:
    """Return this number of batches, without two equal events."""
    return pool(batches, BATCH, DATA_BYTES)


def price_of(events: Sequence[Events]) -> float:
    """Return the sum of the prices of all events."""
    return sum(batch.price for batch in events)


def flawed_of(events: Sequence[Events]) -> int:
    """Return the number of events that are rolled back once."""
    return sum(row["price"] == FLAW for batch in events for row in batch.properties)


async def publish(broker: Broker, events: Sequence[Events], api: str) -> None:
    """Publish all events; they are confirmed on return."""
    await at_once(lambda batch: broker.publish_batch(batch, api), events, BATCHES_UNDER_WAY)


@asynccontextmanager
async def at_work(
    clients: Sequence[tuple[Client | Subscriber, Ledger]], api: str
) -> AsyncIterator[None]:
    """Let each client work within the block, and record its events in its ledger."""
    async with asyncio.TaskGroup() as working:
        tasks = [working.create_task(client.work(ledger, api)) for client, ledger in clients]
        yield
        for task in tasks:
            task.cancel()


async def completed(ledgers: Sequence[Ledger]) -> None:
    """Wait until all expected events are acknowledged."""
    for ledger in ledgers:
        await ledger.is_complete.wait()


async def closed(clients: Sequence[Client | Subscriber]) -> None:
    """Close all clients."""
    for client in clients:
        await client.close()


async def all_settled(clients: Sequence[Client]) -> None:
    """Wait until the server has processed every settlement of every client."""
    async with asyncio.TaskGroup() as settling:
        for client in clients:
            settling.create_task(_awaited(client.settled()))


async def _awaited(work: Awaitable[None]) -> None:
    """Await ``work``; a task needs a coroutine, and the method of a client may return another
    awaitable."""
    await work
