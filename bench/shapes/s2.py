"""S2: fan-out; every subscriber, or every durable, gets every event."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

from msgspec.structs import replace

from bench.fanning import (
    BATCHES_UNDER_WAY,
    all_settled,
    at_work,
    closed,
    completed,
    events_of,
)
from bench.ledger import NO_FLAW, Ledger
from bench.measuring import Stopwatch
from bench.processes import run_client
from bench.shape import (
    BATCH,
    Broadcasting,
    Broker,
    Case,
    Client,
    Fanned,
    Figures,
    Subscriber,
)
from bench.workload import Events

AHEAD = 8
"""Batches that the publisher may be ahead of the slowest subscriber, equal for all: a server that
does not wait for its subscribers would drop events."""
POOL_BATCHES = 8
WARM_UP_BATCHES = 2


class FanOut:
    """Publishes for some seconds to 1, 10 or 100 receivers, each over a separate connection. The
    clock stops when the last one has the last event.

    ``subscribers`` have no stored position and acknowledge nothing; ``durables`` have one, and
    acknowledge every event.
    """

    name = "S2"
    title = "fan-out to 1, 10 and 100 subscribers or durables, 128 B"
    figure = "deliveries_per_s"
    higher_is_better = True
    contenders: Sequence[str] = ("penstock", "nats", "redis", "rabbitmq", "kafka")

    def cases(self, *, quick: bool) -> Sequence[Case]:
        seconds = 0.05 if quick else 1.0
        kinds = [
            ("subscribers", "columns", "batches of columns", "D0"),
            ("subscribers", "rows", "events", "D0"),
            ("subscribers", "columns", "batches of columns", "D1"),
            ("durables", "columns", "batches of columns", "D1"),
            ("durables", "columns", "batches of columns", "D2"),
        ]
        return [
            Case(
                f"{kind}: {count}, {shown}",
                durability,
                {"kind": kind, "count": count, "api": api, "seconds": seconds},
            )
            for kind, api, shown, durability in (kinds[::2] if quick else kinds)
            for count in ((4,) if quick else (1, 10, 100))
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        case = replace(case, parameters={**case.parameters, "mode": "pushed"})
        return run_client(self.name, case, contender, directory=directory)

    async def work(self, case: Case, broker: Broker, server_pid: int) -> Figures:
        audience = await _audience(case, broker)
        ledgers = [Ledger(0, flaw=NO_FLAW) for _ in audience]
        events = events_of(POOL_BATCHES)
        async with at_work(list(zip(audience, ledgers, strict=True)), case["api"]):
            await _publish(broker, events[:WARM_UP_BATCHES], case["api"], ledgers=ledgers)
            await completed(ledgers)
            watch = Stopwatch(server_pid)
            until_time_is_up = itertools.takewhile(
                lambda _: watch.elapsed_s < case["seconds"], itertools.cycle(events)
            )
            published, price = await _publish(
                broker, until_time_is_up, case["api"], ledgers=ledgers
            )
            await completed(ledgers)
            if case["kind"] == "durables":
                await all_settled(cast("Sequence[Client]", audience))
            figures = watch.figures(published * len(ledgers))
        warm = sum(batch.price for batch in events[:WARM_UP_BATCHES])
        for ledger in ledgers:
            ledger.check(price + warm)
        await closed(audience)
        return {
            "deliveries_per_s": figures["events_per_s"],
            "cpu_s_per_million": figures["cpu_s_per_million"],
            "client_cpu_s_per_million": figures["client_cpu_s_per_million"],
        }


async def _audience(case: Case, broker: Broker) -> Sequence[Subscriber | Client]:
    if case["kind"] == "subscribers":
        broadcasting = cast("Broadcasting", broker)
        await broadcasting.prepare_broadcast(case.durability)
        return [await broadcasting.subscriber() for _ in range(case["count"])]
    fanned = cast("Fanned", broker)
    names = [f"durable-{number}" for number in range(case["count"])]
    await fanned.prepare_durables(case.durability, names, "shared", clients=1, mode=case["mode"])
    return [await fanned.client(name) for name in names]


async def _publish(
    broker: Broker, batches: Iterable[Events], api: str, ledgers: Sequence[Ledger]
) -> tuple[int, float]:
    """Publish without getting too far ahead of any receiver. Return the number of events and the
    sum of their prices."""
    before = ledgers[0].wanted
    price = 0.0
    room = asyncio.Semaphore(BATCHES_UNDER_WAY)
    async with asyncio.TaskGroup() as under_way:
        for events in batches:
            await room.acquire()
            for ledger in ledgers:
                ledger.expect(len(events))
                await ledger.reached(ledger.wanted - AHEAD * BATCH)
            publishing = under_way.create_task(broker.publish_batch(events, api))
            publishing.add_done_callback(lambda _: room.release())
            price += events.price
    return ledgers[0].wanted - before, price


SHAPE = FanOut()
