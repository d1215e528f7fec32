"""S12: Spark reads and writes a channel; its own Parquet files of the same rows are the measure."""

from __future__ import annotations

import atexit
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.processes import printed_by
from bench.shape import Case, Figures, Missing, Server, peers
from bench.spark_work import SparkJob, missing, store

EVENTS = 2_000_000
ROUNDS = 3

CASES = {
    "batch read, sealed files, all columns": "read",
    "batch read, over the wire, all columns": "read remote",
    "batch read, sealed files, three columns": "read columns",
    "streaming read, sealed files": "stream",
    "streaming read, sealed files, large micro-batches": "stream large",
    "streaming read, over the wire": "stream remote",
    "streaming write, exactly once, on disk": "write",
}


class Spark:
    """Both contenders take turns in one warm session; rows go to a sink that does nothing."""

    name = "S12"
    title = "Spark, 128 random bytes and three properties a row, `local[*]`"
    figure = "rows_per_s"
    higher_is_better = True
    contenders = ("penstock", "parquet")
    events = 0
    """How many; 0: as many as are affordable."""

    def __init__(self) -> None:
        self._running = ExitStack()
        """The realm and its rows serve all cases, until the process ends."""
        self._server: Server | None = None
        self._directory = Path()
        self._rows = 0
        self._rounds: dict[str, dict[str, list[float]]] = {}
        """Seconds of the rounds that were not asked for yet, by case and contender."""

    def cases(self, *, quick: bool) -> Sequence[Case]:
        self._rows = 20_000 if quick else self.events or EVENTS
        rounds = 1 if quick else ROUNDS
        return [
            Case(
                f"{label}, {self._rows:,} rows",
                "",
                {"work": work, "rounds": rounds, "is_warm": not quick},
            )
            for label, work in CASES.items()
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        """A round; those of both contenders were measured in turns."""
        if reason := missing():
            raise Missing(reason)
        if not self._rounds.setdefault(case.label, {}).get(contender):
            self._rounds[case.label] = self._measured(case)
        seconds = self._rounds[case.label][contender].pop(0)
        return {"rows_per_s": self._rows / seconds, "seconds": seconds}

    def _measured(self, case: Case) -> dict[str, list[float]]:
        server = self._server or self._started()
        job = SparkJob(
            work=case["work"],
            rows=self._rows,
            rounds=case["rounds"],
            is_warm=case["is_warm"],
            url=server.url,
            directory=str(self._directory),
        )
        command = [sys.executable, "-m", "bench.spark_work"]
        return printed_by(command, dict[str, list[float]], job)

    def _started(self) -> Server:
        place = tempfile.TemporaryDirectory(prefix="penstock-bench-")
        self._directory = Path(self._running.enter_context(place))
        stored = self._directory / "stored"
        stored.mkdir()
        self._server = self._running.enter_context(peers()["penstock"].serve(stored, "D2"))
        atexit.register(self._running.close)
        store(self._server.url, self._rows)
        return self._server


SHAPE = Spark()
