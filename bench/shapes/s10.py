"""S10: a thousand channels and a thousand connections at once."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar, cast

from bench.measuring import Stopwatch, memory_kb_of, percentiles_us
from bench.processes import run_client
from bench.shape import Broker, Case, Crowded, Figures
from bench.workload import Events, pool

CROWD = 1_000
ROUNDS = 5
BATCH = 10
"""Events in one publish: many clients, each with a few events."""
AT_A_TIME = 50
"""Connections that are opened at the same time."""
FILES_A_CONNECTION = 2
SPARE_FILES = 500

T = TypeVar("T")


class Crowd:
    """Each connection has its own channel and durable. It publishes some rounds of events, and
    consumes and acknowledges each round before it publishes the next. Each consumer must get
    exactly the events of its publisher.

    Memory of the server: its growth by the connections, measured when all of them consume and no
    event has been published, and its growth by the channels before the first connection.
    """

    name = "S10"
    title = f"{CROWD:,} channels, {CROWD:,} connections, 128 B, {BATCH} events per publish"
    figure = "events_per_s"
    higher_is_better = True
    contenders: Sequence[str] = ("penstock", "nats", "redis")

    def cases(self, *, quick: bool) -> Sequence[Case]:
        size = {"crowd": 20, "rounds": 2} if quick else {"crowd": CROWD, "rounds": ROUNDS}
        return [
            Case(f"{size['crowd']:,} channels and connections", durability, dict(size))
            for durability in (("D1",) if quick else ("D1", "D2"))
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        _allow_files(case["crowd"] * FILES_A_CONNECTION + SPARE_FILES)
        return run_client(self.name, case, contender, directory=directory)

    async def work(self, case: Case, broker: Broker, server_pid: int) -> Figures:
        _allow_files(case["crowd"] * FILES_A_CONNECTION + SPARE_FILES)
        crowded = cast("Crowded", broker)
        names = [f"channel-{number:04d}" for number in range(case["crowd"])]
        alone_kb = memory_kb_of(server_pid)
        await crowded.prepare_streams(case.durability, names)
        with_channels_kb = memory_kb_of(server_pid)
        started_s = time.perf_counter()

        async def attached(name: str) -> Crowded:
            member = await crowded.another()
            await member.attach(name)
            return member

        members = await _some_at_a_time(attached, names)
        connected_s = time.perf_counter() - started_s
        with_connections_kb = memory_kb_of(server_pid)
        events = pool(case["rounds"], BATCH, 128)
        latencies: list[float] = []
        watch = Stopwatch(server_pid)
        async with asyncio.TaskGroup() as working:
            for member in members:
                working.create_task(_converse(member, events, latencies))
        figures = watch.figures(case["crowd"] * case["rounds"] * BATCH)
        await _some_at_a_time(lambda member: member.close(), members)
        return {
            **figures,
            **percentiles_us(latencies),
            "kb_per_connection": (with_connections_kb - with_channels_kb) / case["crowd"],
            "kb_per_channel": (with_channels_kb - alone_kb) / case["crowd"],
            "connected_s": connected_s,
            "lost": 0,  # otherwise the call would have failed
        }


async def _converse(member: Crowded, rounds: Sequence[Events], latencies: list[float]) -> None:
    """Publish and consume the rounds. Raises ``AssertionError`` if the consumed events differ from
    the published ones."""
    for events in rounds:
        published_s = time.perf_counter()
        await member.publish_batch(events, "columns")
        latencies.append(time.perf_counter() - published_s)
        consumed, price = 0, 0.0
        while consumed < len(events):
            count, part = await member.consume(len(events) - consumed, "columns")
            consumed += count
            price += part
        if consumed != len(events) or abs(price - events.price) > 1e-6 * max(events.price, 1.0):
            raise AssertionError(f"{consumed} of {len(events)} events, {price} of {events.price}")
    await member.settled()


async def _some_at_a_time(make: Callable[..., Awaitable[T]], of_each: Iterable[object]) -> list[T]:
    room = asyncio.Semaphore(AT_A_TIME)

    async def made(one: object) -> T:
        async with room:
            return await make(one)

    async with asyncio.TaskGroup() as making:
        tasks = [making.create_task(made(one)) for one in of_each]
    return [task.result() for task in tasks]


def _allow_files(count: int) -> None:
    """Raise the limit of open files as far as the system allows; a started server inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


SHAPE = Crowd()
