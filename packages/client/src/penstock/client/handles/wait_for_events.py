"""Waits until one of several channels and queues has new events."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack

from penstock.client.connection.arguments import Duration, wait_s
from penstock.client.connection.connection import RealmConnection
from penstock.client.handles.channels import Channel
from penstock.client.handles.destination import Destination
from penstock.client.reading.subscription import Subscription
from penstock_core.vocabulary.start_positions import FromId

QUEUE_POLL_S = 0.1
"""Seconds between two polls if there is one queue. The realm notifies only readers of a queue, so
queues are polled. With several queues each is polled less often, so that the total rate of polls
stays the same."""


async def wait_for_events(
    connection: RealmConnection, starts: Mapping[Destination, int], timeout: Duration
) -> bool:
    """Wait until a store in ``starts`` has an event whose id is at least the one given for it.
    Return False if this does not happen within ``timeout``. Raises ``InvalidArgument``."""
    timeout_seconds = wait_s(timeout, "timeout")  # an error here leaves no coroutine behind
    has_events = asyncio.Event()
    pause = QUEUE_POLL_S * sum(not isinstance(store, Channel) for store in starts)
    async with AsyncExitStack() as subscriptions:
        waits = [
            _wait_for_channel(
                await subscriptions.enter_async_context(
                    Subscription(connection, store.number, FromId(start), first_credit=1)
                ),
                has_events,
            )
            if isinstance(store, Channel)
            else _wait_for_queue(store, start, has_events, pause=pause)
            for store, start in starts.items()
        ]
        try:
            async with asyncio.timeout(timeout_seconds), asyncio.TaskGroup() as group:
                tasks = [group.create_task(wait) for wait in waits]
                await has_events.wait()
                for task in tasks:
                    task.cancel()
        except TimeoutError:
            return False
    return True


async def _wait_for_channel(subscription: Subscription, has_events: asyncio.Event) -> None:
    """Set ``has_events`` when the first event of a subscription arrives."""
    if await subscription.next_batch() is not None:
        has_events.set()


async def _wait_for_queue(
    queue: Destination, start: int, has_events: asyncio.Event, pause: float
) -> None:
    """Set ``has_events`` when the last id of a queue is at least ``start``. ``pause`` is the time
    between two polls, in seconds."""
    # The realm does not report new events of a queue, so this polls the realm.
    while (await queue.info()).last_event_id < start:  # noqa: ASYNC110
        await asyncio.sleep(pause)
    has_events.set()
