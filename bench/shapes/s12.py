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
SMALL = 3_000_000
"""With more rows than this number, every case also runs with this number, which shows the part of
the time that does not depend on the rows."""
ROUNDS = 3

CASES = {
    "batch read, sealed files, all columns": "read",
    "batch read, over the wire, all columns": "read remote",
    "batch read, sealed files, three columns": "read columns",
    "batch read, as a table, all columns": "read table",
    "batch read, as a table, three columns": "read table columns",
    "streaming read, sealed files": "stream",
    "streaming read, sealed files, large micro-batches": "stream large",
    "streaming read, over the wire": "stream remote",
    "streaming write, exactly once, on disk": "write",
}


class Spark:
    """Both contenders take turns in one warm session; rows go to a sink that does nothing."""

    name = "S12"
    title = "Spark reads and writes, rows with 128 B"
    figure = "rows_per_s"
    higher_is_better = True
    contenders = ("penstock", "parquet")
    events = 0
    """Number of rows; 0 means :data:`EVENTS`."""

    def __init__(self) -> None:
        self._running = ExitStack()
        """A realm with its rows serves all cases of one size, until the process ends."""
        self._realms: dict[int, tuple[Server, Path]] = {}
        """Realms and their folders by the number of rows."""
        self._rounds: dict[str, dict[str, list[float]]] = {}
        """Seconds of the measured rounds that no call has returned yet, by case and contender."""

    def close(self) -> None:
        """End the realms, which otherwise serve until the process ends."""
        self._running.close()
        self._realms.clear()

    def cases(self, *, quick: bool) -> Sequence[Case]:
        rows = 20_000 if quick else self.events or EVENTS
        rounds = 1 if quick else ROUNDS
        return [
            Case(
                f"{label}, {size:,} rows",
                "",
                {"work": work, "rows": size, "rounds": rounds, "is_warm": not quick},
            )
            for label, work in CASES.items()
            for size in ((rows, SMALL) if rows > SMALL else (rows,))
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        """Measure one round; the rounds of both contenders are measured in turns."""
        if reason := missing():
            raise Missing(reason)
        if not self._rounds.setdefault(case.label, {}).get(contender):
            self._rounds[case.label] = self._measured(case)
        seconds = self._rounds[case.label][contender].pop(0)
        return {"rows_per_s": case["rows"] / seconds, "seconds": seconds}

    def _measured(self, case: Case) -> dict[str, list[float]]:
        rows = case["rows"]
        server, directory = self._realms.get(rows) or self._started(rows)
        job = SparkJob(
            work=case["work"],
            rows=rows,
            rounds=case["rounds"],
            is_warm=case["is_warm"],
            url=server.url,
            directory=str(directory),
        )
        command = [sys.executable, "-m", "bench.spark_work"]
        return printed_by(command, dict[str, list[float]], job)

    def _started(self, rows: int) -> tuple[Server, Path]:
        if not self._realms:
            atexit.register(self._running.close)
        place = tempfile.TemporaryDirectory(prefix="penstock-bench-")
        directory = Path(self._running.enter_context(place))
        stored = directory / "stored"
        stored.mkdir()
        server = self._running.enter_context(peers()["penstock"].serve(stored, "D2"))
        self._realms[rows] = server, directory
        store(server.url, rows)
        return server, directory


SHAPE = Spark()
