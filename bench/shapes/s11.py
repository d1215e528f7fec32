"""S11: latency of one publish: sequential, at a fixed rate, while another client floods."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path

from bench.flooding import flooding
from bench.measuring import cpu_s_of_all, percentiles_us
from bench.pacing import at_rate
from bench.processes import run_client
from bench.shape import BATCH, CONTENDERS, Broker, Case, Figures
from bench.workload import Events, pool

WARM_UP = 200


class Latency:
    """Latency from the call to its confirmation; a durable exists, but no client reads it.

    At a rate, each latency counts from the time the event was due (``bench.pacing``). ``during a
    flood`` is ``sequential`` while another process publishes to another stream with a thousand
    events in flight.
    """

    name = "S11"
    title = "publish latency, one event per publish, 128 B"
    figure = "p50_us"
    higher_is_better = False
    contenders: Sequence[str] = CONTENDERS

    def cases(self, *, quick: bool) -> Sequence[Case]:
        seconds = 0.2 if quick else 3.0
        return [
            Case(label, durability, {"rate": rate, "seconds": seconds, "floods": floods})
            for durability in (("D1",) if quick else ("D1", "D2"))
            for label, rate, floods in (
                ("sequential", 0, False),
                ("during a flood", 0, True),
                ("1,000/s", 1_000, False),
                ("10,000/s", 10_000, False),
            )
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        beside = flooding if case["floods"] else None
        return run_client(self.name, case, contender, directory=directory, beside=beside)

    async def work(self, case: Case, broker: Broker, server_pid: int) -> Figures:
        await broker.prepare(case.durability, consumes=False)
        events = pool(1, BATCH, 128)[0]
        for row in range(WARM_UP):
            await broker.publish_one(events, row)
        server_cpu_s = cpu_s_of_all(server_pid)
        started_s = time.perf_counter()
        if case["rate"]:
            latencies = await at_rate(
                lambda number: broker.publish_one(events, number % len(events)),
                case["rate"],
                case["seconds"],
            )
        else:
            latencies = await _one_after_the_other(broker, events, case["seconds"])
        elapsed_s = time.perf_counter() - started_s
        count = len(latencies)
        return percentiles_us(latencies) | {
            "achieved_per_s": count / elapsed_s,
            "of_server_cpu_s_per_million": (cpu_s_of_all(server_pid) - server_cpu_s) / count * 1e6,
        }


async def _one_after_the_other(broker: Broker, events: Events, seconds: float) -> list[float]:
    latencies = []
    started_s = now_s = time.perf_counter()
    for row in itertools.cycle(range(len(events))):
        if now_s - started_s >= seconds:
            break
        await broker.publish_one(events, row)
        before_s, now_s = now_s, time.perf_counter()
        latencies.append(now_s - before_s)
    return latencies


SHAPE = Latency()
