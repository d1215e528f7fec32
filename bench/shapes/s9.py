"""S9: one of ten consumers receives its window and stops; the loss of the other nine."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

from msgspec.structs import replace

from bench.fanning import all_settled, at_work, closed, completed, events_of, publish
from bench.ledger import Ledger
from bench.measuring import Stopwatch
from bench.processes import run_client
from bench.shape import BATCH, Broker, Case, Client, Fanned, Figures
from bench.workload import Events

WORKING = 9
CLOCKED = 0.8
"""The clock stops at this share of the events: the time of the last ones depends on timeouts."""


class StalledConsumer:
    """Rounds without and with the tenth consumer take turns in one client; the figure is the ratio
    of their rates. Events are published while nine work.

    ``ten durables``: each consumer has its own durable, and the tenth durable exists in all rounds.
    ``one shared durable``: all consumers have the same one.
    """

    name = "S9"
    title = "one of ten consumers stalls: rate that the others keep, 128 B"
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
                    "rounds": 1 if quick else 15,
                },
            )
            for label, durables, batches in (
                ("ten durables", 10, 20),
                ("one shared durable", 1, 150),
            )
            for durability in (("D1",) if quick else ("D1", "D2"))
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        case = replace(case, parameters={**case.parameters, "mode": "pulled"})
        return run_client(self.name, case, contender, directory=directory)

    async def work(self, case: Case, broker: Broker, server_pid: int) -> Figures:
        fanned = cast("Fanned", broker)
        names = [f"durable-{number}" for number in range(case["durables"])]
        shared_by = 10 // len(names)
        await fanned.prepare_durables(
            case.durability, names, "shared", clients=shared_by, mode=case["mode"]
        )
        events = events_of(case["batches"])
        clients = [await fanned.client(names[i % len(names)]) for i in range(WORKING)]
        ledgers = {name: Ledger(0) for name in names[:WORKING]}
        nine = _Nine(broker, server_pid, list(ledgers.values()), events=events)
        rounds: dict[bool, list[_Round]] = {False: [], True: []}
        at_ledgers = [(client, ledgers[names[i % len(names)]]) for i, client in enumerate(clients)]
        async with at_work(at_ledgers, "columns"):
            await nine.round([])  # a round that does not count
            for number in range(case["rounds"]):
                for stalls in (False, True) if number % 2 else (True, False):
                    tenth = [await fanned.client(names[-1])] if stalls else []
                    rounds[stalls].append(await nine.round(tenth))
        await all_settled(clients)
        await closed(clients)
        with_it, without = (_typical(rounds[stalls]) for stalls in (True, False))
        figures = {
            "left": with_it.events_per_s / without.events_per_s,
            "events_per_s": with_it.events_per_s,
        }
        if with_it.events_per_cpu_s:
            figures["cpu_s_per_million"] = 1e6 / with_it.events_per_cpu_s
        if with_it.events_per_cpu_s and without.events_per_cpu_s:
            figures["left_of_work"] = with_it.events_per_cpu_s / without.events_per_cpu_s
        return figures


class _Round(NamedTuple):
    """The work of all nine consumers in one round."""

    events_per_s: float
    events_per_cpu_s: float
    """Rate per second of processor time of client and server, which is more accurate than the plain
    rate on a busy machine; 0 if the time is too short to measure."""


def _typical(rounds: Sequence[_Round]) -> _Round:
    return _Round(*map(statistics.median, zip(*rounds, strict=True)))


class _Nine:
    """The nine clients, and the events that are published for them in each round."""

    def __init__(
        self,
        broker: Broker,
        server_pid: int,
        ledgers: Sequence[Ledger],
        events: Sequence[Events],
    ) -> None:
        self._broker = broker
        self._server_pid = server_pid
        self._ledgers = ledgers
        self._events = events

    async def round(self, tenth: Sequence[Client]) -> _Round:
        count = len(self._events) * BATCH
        clocked = int(count * CLOCKED)
        for client in tenth:
            await client.hold()
        for ledger in self._ledgers:
            ledger.expect(clocked)
        watch = Stopwatch(self._server_pid)
        await publish(self._broker, self._events, "columns")
        await completed(self._ledgers)
        figures = watch.figures(clocked * len(self._ledgers))
        await closed(tenth)
        for ledger in self._ledgers:
            ledger.expect(count - clocked)
        await completed(self._ledgers)
        cpu_s = figures["cpu_s_per_million"]
        return _Round(figures["events_per_s"], 1e6 / cpu_s if cpu_s else 0.0)


SHAPE = StalledConsumer()
