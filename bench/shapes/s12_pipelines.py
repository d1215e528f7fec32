"""S12P: pipeline steps that keep a state; the same aggregation over Parquet is the measure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bench.processes import printed_by
from bench.shape import Case, Figures, Missing, peers
from bench.spark_pipelines import KEYS, WINDOW_EVENTS, PipelineJob, fill
from bench.spark_work import missing

EVENTS = 1_000_000
MICRO_BATCHES = 4
ROUNDS = 3

CASES = {
    "latest of deltas, aggregation only": "latest",
    "latest of deltas, into a Delta table": "latest table",
    "roll-up, into a channel": "roll-up channel",
    "roll-up, into a Delta table": "roll-up table",
}


class SparkPipelines:
    """Both contenders take turns in one warm session; a round is a complete run of the step. With
    ``quick``, one session that is not warm measures all cases."""

    name = "S12P"
    title = "stateful Spark pipelines"
    figure = "rows_per_s"
    higher_is_better = True
    contenders = ("penstock", "parquet")
    events = 0
    """Number of rows; 0 means :data:`EVENTS`."""

    def __init__(self) -> None:
        self._rounds: dict[str, dict[str, list[float]]] = {}
        """Seconds of the measured rounds that no call has returned yet, by work and contender."""

    def cases(self, *, quick: bool) -> Sequence[Case]:
        rows = 20_000 if quick else self.events or EVENTS
        rounds = 1 if quick else ROUNDS
        keys, windows = min(KEYS, rows), -(-rows // WINDOW_EVENTS)
        states = {"latest": f"{keys:,} keys", "roll-up": f"{windows:,} windows"}
        return [
            Case(
                f"{label}, {states[work.partition(' ')[0]]}, {rows:,} rows",
                "",
                {"work": work, "rows": rows, "rounds": rounds, "is_quick": quick},
            )
            for label, work in CASES.items()
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        """Measure one round; the rounds of both contenders are measured in turns."""
        if reason := missing():
            raise Missing(reason)
        if not self._rounds.get(case["work"], {}).get(contender):
            self._rounds |= _measured(case, directory)
        seconds = self._rounds[case["work"]][contender].pop(0)
        return {"rows_per_s": case["rows"] / seconds, "seconds": seconds}


def _measured(case: Case, directory: Path) -> dict[str, dict[str, list[float]]]:
    stored = directory / "stored"
    stored.mkdir()
    rows = case["rows"]
    with peers()["penstock"].serve(stored, "D2") as server:
        fill(server.url, rows)
        spark = str(directory / "spark")
        job = PipelineJob(
            works=[*CASES.values()] if case["is_quick"] else [case["work"]],
            rows=rows,
            batch_rows=rows // MICRO_BATCHES,
            rounds=case["rounds"],
            is_warm=not case["is_quick"],
            url=server.url,
            directory=spark,
        )
        command = [sys.executable, "-m", "bench.spark_pipelines"]
        return printed_by(command, dict[str, dict[str, list[float]]], job)


SHAPE = SparkPipelines()
