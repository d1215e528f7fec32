"""Publishes at a fixed rate, even if the server is slower, or as fast as possible."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def at_rate(
    publish: Callable[[int], Awaitable[None]], rate: int, seconds: float, *, sleeps: bool = False
) -> list[float]:
    """Call ``publish`` with 0, 1, ... at ``rate`` per second, and return the latency of each call.

    Latencies count from the due time of the call. So if the server stalls, the wait of events that
    become due in the meantime counts, too (no coordinated omission). The loop spins instead of
    sleeping, so its processor time has no meaning. With ``sleeps`` it leaves the processor to other
    processes until the next call is due; timers add up to a millisecond to a latency.
    """
    count = int(rate * seconds)
    latencies = [0.0] * count
    started_s = time.perf_counter()

    async def timed(number: int) -> None:
        await publish(number)
        latencies[number] = time.perf_counter() - started_s - number / rate

    sent = 0
    async with asyncio.TaskGroup() as publishing:
        while sent < count:
            due = min(count, int((time.perf_counter() - started_s) * rate) + 1)
            for number in range(sent, due):
                publishing.create_task(timed(number))
            sent = max(sent, due)
            rest_s = started_s + sent / rate - time.perf_counter() if sleeps else 0.0
            await asyncio.sleep(max(0.0, rest_s))
    return latencies


async def at_once(
    publish: Callable[[T], Awaitable[None]], batches: Iterable[T], under_way: int
) -> int:
    """Publish ``batches`` as fast as possible, with at most ``under_way`` unconfirmed ones. Return
    the number of batches."""
    count = 0
    room = asyncio.Semaphore(under_way)

    async def publish_and_make_room(batch: T) -> None:
        await publish(batch)
        room.release()

    async with asyncio.TaskGroup() as publishing:
        for batch in batches:
            await room.acquire()
            publishing.create_task(publish_and_make_room(batch))
            count += 1
    return count
