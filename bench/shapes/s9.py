"""S9: one of ten consumers takes its window and does nothing; what the other nine lose."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from msgspec.structs import replace

from bench.fanning import at_work, closed, completed, events_of, publish
from bench.ledger import Ledger
from bench.processes import run_client
from bench.shape import BATCH, Broker, Case, Client, Fanned, Figures
from bench.workload import Events

WORKING = 9
CLOCKED = 0.8
"""The clock stops at this part of the events: the last ones say more about timeouts."""


class StalledConsumer:
    """Rounds without and with the tenth take turns in one client: the ratio of their rates.

    Events are published while nine work. ``ten durables``: each consumer has its own, the tenth
    durable is there in all rounds. ``one shared durable``: all have the same one.
    """

    name = "S9"
    title = "one of ten consumers stalled: what is left of the others' rate, 128 B"
    figure = "left"
    higher_is_better = True
    contenders = ("penstock", "nats")

    def cases(self, *, quick: bool) -> Sequence[Case]:
        return [
            Case(
                label,
                durability,
                {
                    "durables": durables,
                    "batches": 4 if quick else batches,
                    "rounds": 1 if quick else 5,
                },
            )
            for label, durables, batches in (
                ("ten durables", 10, 30),
                ("one shared durable", 1, 200),
            )
            for durability in ("D1", "D2")
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        case = replace(case, parameters={**case.parameters, "mode": "pulled"})
        return run_client(self.name, case, contender, directory)

    async def work(self, case: Case, broker: Broker, server_pid: int) -> Figures:
        fanned = cast("Fanned", broker)
        names = [f"durable-{number}" for number in range(case["durables"])]
        shared_by = 10 // len(names)
        await fanned.prepare_durables(case.durability, names, "shared", shared_by, case["mode"])
        events = events_of(case["batches"])
        clients = [await fanned.client(names[i % len(names)]) for i in range(WORKING)]
        ledgers = {name: Ledger(0) for name in names[:WORKING]}
        nine = _Nine(broker, list(ledgers.values()), events)
        rates: dict[bool, list[float]] = {False: [], True: []}
        at_ledgers = [(client, ledgers[names[i % len(names)]]) for i, client in enumerate(clients)]
        async with at_work(at_ledgers, "columns"):
            await nine.round([])  # warm
            for number in range(case["rounds"]):
                for stalls in (False, True) if number % 2 else (True, False):
                    tenth = [await fanned.client(names[-1])] if stalls else []
                    rates[stalls].append(await nine.round(tenth))
        await closed(clients)
        with_it, without = (statistics.median(rates[stalls]) for stalls in (True, False))
        return {"left": with_it / without, "events_per_s": with_it}


class _Nine:
    """Those who work, and what is published for them in each round."""

    def __init__(self, broker: Broker, ledgers: Sequence[Ledger], events: Sequence[Events]) -> None:
        self._broker = broker
        self._ledgers = ledgers
        self._events = events

    async def round(self, tenth: Sequence[Client]) -> float:
        """Events acknowledged a second, by all nine together."""
        count = len(self._events) * BATCH
        clocked = int(count * CLOCKED)
        for client in tenth:
            await client.hold()
        for ledger in self._ledgers:
            ledger.expect(clocked)
        started_s = time.perf_counter()
        await publish(self._broker, self._events, "columns")
        await completed(self._ledgers)
        elapsed_s = time.perf_counter() - started_s
        await closed(tenth)
        for ledger in self._ledgers:
            ledger.expect(count - clocked)
        await completed(self._ledgers)
        return clocked * len(self._ledgers) / elapsed_s


SHAPE = StalledConsumer()
