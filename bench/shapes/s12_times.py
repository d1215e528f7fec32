"""S12T: Spark's times: end to end, idle, to the first result."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import penstock
from bench.processes import figures_of
from bench.shape import Case, Figures, Missing, peers
from bench.spark_times import TimesJob
from bench.spark_work import missing

SECONDS = 20.0


class SparkTimes:
    """``penstock`` is the shipped session helper, as it is or for short jobs; ``plain`` is Spark
    with its own settings."""

    name = "S12T"
    title = "Spark latency and start-up"
    figure = "ms"
    higher_is_better = False
    contenders = ("penstock", "plain session")
    seconds = SECONDS
    """Seconds for which a query runs."""

    def cases(self, *, quick: bool) -> Sequence[Case]:
        seconds = 2.0 if quick else self.seconds
        return [
            Case(label, "", {"work": work, "seconds": seconds})
            for work, label in (
                ("latency", "source event to subscriber of the target, 1,000 events/s"),
                ("idle", "CPU time of an idle query, per second"),
                ("start-up", "new process until a channel is read"),
                ("start-up short", "new process until a channel is read, short=True"),
            )
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        if reason := missing():
            raise Missing(reason)
        stored = directory / "stored"
        stored.mkdir()
        work, _, detail = case["work"].partition(" ")
        kind = (detail or "tuned") if contender == "penstock" else "plain"
        with peers()["penstock"].serve(stored, "D2") as server:
            with penstock.connect(server.url) as session:
                orders = session.channels.create("orders", type="persistent")
                orders.publish_many([penstock.Event(properties={"n": n}) for n in range(1_000)])
            spark = str(directory / "spark")
            job = TimesJob(
                work,
                kind,
                server.url,
                server_pid=server.pid,
                directory=spark,
                seconds=case["seconds"],
            )
            return figures_of([sys.executable, "-m", "bench.spark_times"], job)


SHAPE = SparkTimes()
