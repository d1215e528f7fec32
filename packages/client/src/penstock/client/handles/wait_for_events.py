"""Waiting for events of several channels and queues at once."""

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

QUEUE_LOOK_S = 0.1
"""Seconds between two looks at queues: only their readers are told of their events. Several queues
are looked at in turn, so that many cost no more than one."""


async def wait_for_events(
    connection: RealmConnection, starts: Mapping[Destination, int], timeout: Duration
) -> bool:
    """Whether one of them has an event of the given id or a later one within ``timeout`` s."""
    has_come = asyncio.Event()
    pause = QUEUE_LOOK_S * sum(not isinstance(each, Channel) for each in starts)
    async with AsyncExitStack() as opened:
        looks = [
            _subscribed(
                await opened.enter_async_context(
                    Subscription(connection, each.number, FromId(start), first_credit=1)
                ),
                has_come,
            )
            if isinstance(each, Channel)
            else _queue(each, start, has_come, pause=pause)
            for each, start in starts.items()
        ]
        try:
            async with asyncio.timeout(wait_s(timeout, "timeout")), asyncio.TaskGroup() as group:
                waiting = [group.create_task(look) for look in looks]
                await has_come.wait()
                for task in waiting:
                    task.cancel()
        except TimeoutError:
            return False
    return True


async def _subscribed(subscription: Subscription, has_come: asyncio.Event) -> None:
    if await subscription.next_batch() is not None:
        has_come.set()


async def _queue(queue: Destination, start: int, has_come: asyncio.Event, pause: float) -> None:
    while (await queue.info()).last_event_id < start:  # noqa: ASYNC110  nobody sets an event
        await asyncio.sleep(pause)
    has_come.set()
