"""S14: cost as work grows: with durables that are read, and with durables nobody reads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
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
    price_of,
    publish,
)
from bench.ledger import Ledger
from bench.measuring import Stopwatch
from bench.pacing import at_once
from bench.processes import run_client
from bench.shape import BATCH, Broker, Case, Fanned, Figures

DELIVERIES = 400_000
"""Each case has about as many, however many durables share them."""


class GrowingDurables:
    """``read``: each durable has one client, and gets every event; events are published
    meanwhile. ``idle``: nobody reads, and only publishing counts."""

    name = "S14"
    title = "cost as durables grow, 128 B"
    figure = "deliveries_per_s"
    higher_is_better = True
    contenders = ("penstock", "nats")

    def cases(self, *, quick: bool) -> Sequence[Case]:
        scale = 50 if quick else 1
        return [
            *(
                Case(f"all read, durables: {count}", "D1", {"durables": count, "scale": scale})
                for count in (1, 10, 100)
            ),
            *(
                Case(f"none read, durables: {count}", "D1", {"idle": count, "scale": scale})
                for count in (0, 1, 10, 100)
            ),
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        case = replace(case, parameters={**case.parameters, "mode": "pushed"})
        return run_client(self.name, case, contender, directory)

    async def work(self, case: Case, broker: Broker, server_pid: int) -> Figures:
        fanned = cast("Fanned", broker)
        count = case.parameters.get("durables", case.parameters.get("idle"))
        names = [f"durable-{number}" for number in range(count)]
        await fanned.prepare_durables(case.durability, names, "shared", 1, case["mode"])
        if "idle" in case.parameters:
            return await _published(case, broker, server_pid)
        return await _read(case, fanned, names, server_pid)


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
    return {
        "deliveries_per_s": figures["events_per_s"],
        "cpu_s_per_million": figures["cpu_s_per_million"],
        "client_cpu_s_per_million": figures["client_cpu_s_per_million"],
    }


async def _published(case: Case, broker: Broker, server_pid: int) -> Figures:
    events = events_of(16)
    await publish(broker, events, "columns")  # warm
    watch = Stopwatch(server_pid)
    until_time_is_up = itertools.takewhile(
        lambda _: watch.elapsed_s < 1.0 / case["scale"], itertools.cycle(events)
    )
    batches = await at_once(
        lambda batch: broker.publish_batch(batch, "columns"), until_time_is_up, BATCHES_UNDER_WAY
    )
    figures = watch.figures(batches * BATCH)
    return {"deliveries_per_s": figures["events_per_s"], **figures}


SHAPE = GrowingDurables()
