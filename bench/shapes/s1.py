"""S1: publish and consume with one durable, one producer and one consumer in one client."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench.measuring import Stopwatch
from bench.processes import run_client
from bench.shape import (
    BATCH,
    CONTENDERS,
    WINDOWS,
    Broker,
    Case,
    Figures,
    Missing,
    lacks_window,
)
from bench.workload import Events, pool

POOL_BATCHES = 16
WARM_UP_BATCHES = 3
BATCHES_UNDER_WAY = 4
"""Unconfirmed batches of a publisher, equal for all."""
APIS = (
    ("columns", "batches of columns"),
    ("rows", "batches of events"),
    ("pipelined", "one at a time, pipelined"),
)
"""Ways to publish and consume, and their names in tables."""


class PublishAndConsume:
    """Publishes for some seconds while the consumer follows; the clock stops when the last event
    is acknowledged."""

    name = "S1"
    title = "publish and consume through one durable, 1 producer, 1 consumer"
    figure = "events_per_s"
    higher_is_better = True
    contenders: Sequence[str] = CONTENDERS

    def cases(self, *, quick: bool) -> Sequence[Case]:
        return [
            *self._equal(quick=quick),
            *(
                Case(
                    f"128 B, {label}, {windows}",
                    durability,
                    {"size": 128, "api": api, "seconds": 1.0, "window": window},
                )
                for window, windows in WINDOWS
                for durability in (() if quick else ("D1", "D2"))
                for api, label in APIS[:2]
            ),
        ]

    def _equal(self, *, quick: bool) -> Sequence[Case]:
        """Return the cases with the window of all shapes."""
        return [
            Case(
                f"{size} B, {label}",
                durability,
                {"size": size, "api": api, "seconds": 0.05 if quick else 1.0},
            )
            for size in ((128,) if quick else (128, 1_024))
            for durability in (("D1",) if quick else ("D1", "D2"))
            for api, label in APIS
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        if reason := lacks_window(case, contender):
            raise Missing(reason)
        return run_client(self.name, case, contender, directory=directory)

    async def work(self, case: Case, broker: Broker, server_pid: int) -> Figures:
        await broker.prepare(case.durability, consumes=True)
        events = pool(POOL_BATCHES, BATCH, case["size"])
        await _run(broker, case["api"], itertools.islice(events, WARM_UP_BATCHES))
        watch = Stopwatch(server_pid)

        def until_time_is_up() -> Iterator[Events]:
            return itertools.takewhile(
                lambda _: watch.elapsed_s < case["seconds"], itertools.cycle(events)
            )

        count = await _run(broker, case["api"], until_time_is_up())
        return watch.figures(count)


class _Ledger:
    """The published events, and the check that all of them were consumed."""

    def __init__(self) -> None:
        self.published = 0
        self.price = 0.0
        self.is_complete = False
        self.grown = asyncio.Event()

    def add(self, events: Events) -> None:
        self.published += len(events)
        self.price += events.price
        self.grown.set()


async def _run(broker: Broker, api: str, batches: Iterable[Events]) -> int:
    ledger = _Ledger()
    async with asyncio.TaskGroup() as group:
        consuming = group.create_task(_consume(broker, api, ledger))
        await _publish(broker, api, batches, ledger=ledger)
    price = consuming.result()
    if abs(price - ledger.price) > 1e-6 * max(ledger.price, 1.0):
        raise AssertionError(f"prices of {ledger.price} published, {price} consumed")
    return ledger.published


async def _publish(broker: Broker, api: str, batches: Iterable[Events], ledger: _Ledger) -> None:
    room = asyncio.Semaphore(BATCHES_UNDER_WAY)
    async with asyncio.TaskGroup() as under_way:
        for events in batches:
            if api == "pipelined":
                ledger.add(events)
                for row in range(len(events)):
                    await broker.send(events, row)
            else:
                await room.acquire()
                ledger.add(events)
                publishing = under_way.create_task(broker.publish_batch(events, api))
                publishing.add_done_callback(lambda _: room.release())
            await asyncio.sleep(0)
    await broker.flush()
    ledger.is_complete = True
    ledger.grown.set()


async def _consume(broker: Broker, api: str, ledger: _Ledger) -> float:
    consumed, price = 0, 0.0
    while not (ledger.is_complete and consumed == ledger.published):
        if consumed == ledger.published:
            ledger.grown.clear()
            await ledger.grown.wait()
            continue
        count, part = await broker.consume(ledger.published - consumed, api)
        consumed += count
        price += part
    await broker.settled()
    return price


SHAPE = PublishAndConsume()
