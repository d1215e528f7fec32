"""S14: cost as work grows: with durables, with stored events, with channels."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from msgspec.structs import replace

from bench.fanning import (
    BATCHES_UNDER_WAY,
    DATA_BYTES,
    all_settled,
    at_work,
    closed,
    completed,
    events_of,
    price_of,
    publish,
)
from bench.ledger import Ledger
from bench.measuring import Stopwatch, memory_kb_of
from bench.pacing import at_once
from bench.processes import run_client
from bench.shape import BATCH, Broker, Case, Crowded, Fanned, Figures, Missing, peers
from bench.workload import pool

DELIVERIES = 400_000
"""Approximate number of deliveries of each case, whatever its number of durables."""
STREAM = "orders"
POOL_BATCHES = 10
LATEST = 100_000
"""Events that are published and consumed in addition to the stored ones."""
CHANNELS_BATCH = 100
TOO_MANY = {("nats", "channels", 10_000): "creating 10,000 streams takes minutes"}


class Growing:
    """Four kinds of growth.

    ``all read``: each durable has one client, which reads every event while events are published.
    ``none read``: durables without clients; only publishing counts. ``events stored``: on top of
    the stored events, a fixed number is published and consumed by a durable that starts there.
    ``channels``: batches of 100 go to one channel after another; each has a durable without
    clients.
    """

    name = "S14"
    title = "cost as durables, stored events and channels grow, 128 B"
    figure = "deliveries_per_s"
    higher_is_better = True
    contenders = ("penstock", "nats")
    stored: Sequence[int] = (10_000, 100_000, 10**6, 10**7)
    """Numbers of stored events."""
    channels: Sequence[int] = (10, 1_000, 10_000)
    """Numbers of channels."""

    def cases(self, *, quick: bool) -> Sequence[Case]:
        scale = 50 if quick else 1
        return [
            *(
                Case(f"durables, all read: {count}", "D1", {"durables": count, "scale": scale})
                for count in ((10,) if quick else (1, 10, 100))
            ),
            *(
                Case(f"durables, none read: {count}", "D1", {"idle": count, "scale": scale})
                for count in ((1,) if quick else (0, 1, 10, 100))
            ),
            *(
                Case(f"events stored: {count // scale:,}", "D1", {"stored": count, "scale": scale})
                for count in ((100_000,) if quick else self.stored)
            ),
            *(
                Case(f"channels: {count // scale:,}", "D1", {"channels": count, "scale": scale})
                for count in ((1_000,) if quick else self.channels)
            ),
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        for work, count in case.parameters.items():
            if reason := TOO_MANY.get((contender, work, count)):
                raise Missing(peers()[contender].missing() or reason)
        case = replace(case, parameters={**case.parameters, "mode": "pushed"})
        return run_client(self.name, case, contender, directory=directory)

    async def work(self, case: Case, broker: Broker, server_pid: int) -> Figures:
        if "stored" in case.parameters:
            return await _on_top(case, cast("Crowded", broker), server_pid)
        if "channels" in case.parameters:
            return await _across(case, cast("Crowded", broker), server_pid)
        fanned = cast("Fanned", broker)
        count = case.parameters.get("durables", case.parameters.get("idle"))
        names = [f"durable-{number}" for number in range(count)]
        await fanned.prepare_durables(
            case.durability, names, "shared", clients=1, mode=case["mode"]
        )
        if "idle" in case.parameters:
            return await _published(case, broker, server_pid)
        return await _read(case, fanned, names, server_pid=server_pid)


async def _read(case: Case, broker: Fanned, names: Sequence[str], server_pid: int) -> Figures:
    batches = max(4, DELIVERIES // case["scale"] // BATCH // len(names))
    events = events_of(batches)
    ledgers = [Ledger(batches * BATCH) for _ in names]
    clients = [await broker.client(name) for name in names]
    watch = Stopwatch(server_pid)
    async with at_work(list(zip(clients, ledgers, strict=True)), "columns"):
        await publish(broker, events, "columns")
        await completed(ledgers)
        await all_settled(clients)
        figures = watch.figures(batches * BATCH * len(names))
    for ledger in ledgers:
        ledger.check(price_of(events))
    await closed(clients)
    return {"deliveries_per_s": figures["events_per_s"], **_of_cpu(figures)}


async def _published(case: Case, broker: Broker, server_pid: int) -> Figures:
    events = events_of(16)
    await publish(broker, events, "columns")  # a round that does not count
    watch = Stopwatch(server_pid)
    until_time_is_up = itertools.takewhile(
        lambda _: watch.elapsed_s < 1.0 / case["scale"], itertools.cycle(events)
    )
    batches = await at_once(
        lambda batch: broker.publish_batch(batch, "columns"), until_time_is_up, BATCHES_UNDER_WAY
    )
    figures = watch.figures(batches * BATCH)
    return {"deliveries_per_s": figures["events_per_s"], **figures}


async def _on_top(case: Case, broker: Crowded, server_pid: int) -> Figures:
    """Publish and consume on top of stored events; the durable has passed these before the clock
    starts."""
    events = events_of(POOL_BATCHES)
    rounds = max(1, case["stored"] // case["scale"] // (POOL_BATCHES * BATCH))
    await broker.prepare_streams(case.durability, [STREAM])
    await broker.fill(STREAM, events, rounds)
    await broker.attach_at_end(STREAM)
    wanted = LATEST // case["scale"]
    latest = list(itertools.islice(itertools.cycle(events), max(1, wanted // BATCH)))
    watch = Stopwatch(server_pid)
    async with asyncio.TaskGroup() as working:
        working.create_task(publish(broker, latest, "columns"))
        consumed, price = 0, 0.0
        while consumed < len(latest) * BATCH:
            count, part = await broker.consume(len(latest) * BATCH - consumed, "columns")
            consumed += count
            price += part
        await broker.settled()
    figures = watch.figures(consumed)
    if abs(price - price_of(latest)) > 1e-6 * price:
        raise AssertionError(f"{consumed} events of {price}, {price_of(latest)} expected")
    return {"deliveries_per_s": figures["events_per_s"], **_of_cpu(figures)}


async def _across(case: Case, broker: Crowded, server_pid: int) -> Figures:
    names = [f"channel-{number:05d}" for number in range(case["channels"] // case["scale"])]
    started_s = time.perf_counter()
    await broker.prepare_streams(case.durability, names)
    made_ms = (time.perf_counter() - started_s) / len(names) * 1e3
    events = pool(1, CHANNELS_BATCH, DATA_BYTES)[0]
    turns = itertools.cycle(names)

    async def publish_next(_: int) -> None:
        await broker.publish_to(next(turns), events)

    await at_once(
        publish_next, range(200 // case["scale"]), BATCHES_UNDER_WAY
    )  # a round that does not count
    watch = Stopwatch(server_pid)
    until_time_is_up = itertools.takewhile(
        lambda _: watch.elapsed_s < 1.0 / case["scale"], itertools.count()
    )
    batches = await at_once(publish_next, until_time_is_up, BATCHES_UNDER_WAY)
    figures = watch.figures(batches * CHANNELS_BATCH)
    return {
        "deliveries_per_s": figures["events_per_s"],
        **_of_cpu(figures),
        "made_ms": made_ms,
        "memory_mb": memory_kb_of(server_pid) / 1e3,
    }


def _of_cpu(figures: Figures) -> Figures:
    return {name: value for name, value in figures.items() if "cpu_s_per_million" in name}


SHAPE = Growing()
