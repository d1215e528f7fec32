"""S3: one shared durable and eight clients, each with a separate connection and window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from msgspec.structs import replace

from bench.fanning import (
    all_settled,
    at_work,
    closed,
    completed,
    events_of,
    flawed_of,
    price_of,
    publish,
)
from bench.ledger import Ledger
from bench.measuring import Stopwatch
from bench.processes import run_client
from bench.shape import BATCH, Broker, Case, Fanned, Figures
from bench.workload import Events

CLIENTS = 8
DURABLE = "billing"
WARM_UP_BATCHES = 2
SLOW = ("rabbitmq", "postgres", "artemis")
"""Contenders that would take minutes for all events."""
SLOW_BATCHES = 40
"""Largest number of batches of a slow contender; a rate does not depend on it."""


class SharedDurable:
    """All clients work on the outstanding events of one durable, and roll back 1 % of them once.

    ``stored``: the events are stored before the clock starts. ``live``: they are published while it
    runs. The clock stops when the server has processed the last acknowledgement.
    """

    name = "S3"
    title = "shared durable, 8 clients, 1 % rolled back, 128 B"
    figure = "events_per_s"
    higher_is_better = True
    contenders: Sequence[str] = (
        "penstock",
        "nats",
        "nats, pulled",
        "redis",
        "rabbitmq",
        "postgres",
        "kafka",
        "artemis",
    )

    def cases(self, *, quick: bool) -> Sequence[Case]:
        batches = 4 if quick else 200
        cases = [
            Case(
                f"{source}, {shown}", durability, {"source": source, "api": api, "batches": batches}
            )
            for source, api, shown, durabilities in (
                ("stored", "columns", "batches of columns", ("D1", "D2")),
                ("stored", "rows", "events", ("D1", "D2")),
                ("live", "columns", "batches of columns", ("D1",)),
                ("live", "rows", "events", ("D1",)),
            )
            for durability in (durabilities[:1] if quick else durabilities)
        ]
        return cases[1:3] if quick else cases

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        peer, _, mode = contender.partition(", ")
        batches = min(case["batches"], SLOW_BATCHES) if peer in SLOW else case["batches"]
        parameters = {**case.parameters, "mode": mode or "pushed", "batches": batches}
        return run_client(
            self.name, replace(case, parameters=parameters), peer, directory=directory
        )

    async def work(self, case: Case, broker: Broker, server_pid: int) -> Figures:
        fanned, kind = cast("Fanned", broker), case.parameters.get("kind", "shared")
        clients_wanted = 1 if case["mode"] == "alone" else CLIENTS
        await fanned.prepare_durables(
            case.durability, [DURABLE], kind, clients=clients_wanted, mode=case["mode"]
        )
        events = events_of(case["batches"])
        await _warm_up(fanned, events[:WARM_UP_BATCHES], case["api"])
        order = {"serial": "first", "strict": "strict"}.get(kind, "")
        ledger = Ledger(len(events) * BATCH, order)
        if case["source"] == "stored":
            await publish(broker, events, "columns")
        watch = Stopwatch(server_pid)  # a client that attaches gets the stored events at once
        clients = [await fanned.client(DURABLE) for _ in range(clients_wanted)]
        async with at_work([(client, ledger) for client in clients], case["api"]):
            if case["source"] == "live":
                await publish(broker, events, case["api"])
            await completed([ledger])
            await all_settled(clients)
            figures = watch.figures(ledger.acked)
        ledger.check(price_of(events), flawed_of(events))
        await closed(clients)
        return figures


async def _warm_up(broker: Fanned, events: Sequence[Events], api: str) -> None:
    await publish(broker, events, api)
    client, ledger = await broker.client(DURABLE), Ledger(len(events) * BATCH)
    async with at_work([(client, ledger)], api):
        await completed([ledger])
        await client.settled()
    await closed([client])


SHAPE = SharedDurable()
