"""S12: Spark reads and writes a channel; the same rows in Parquet files are the limit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bench.processes import figures_of
from bench.shape import Case, Figures, Missing, peers
from bench.spark_work import SparkJob, missing

ROWS = 1_000_000


class Spark:
    """All columns of all rows; the second of two rounds in one warm Spark session counts."""

    name = "S12"
    title = "Spark, 128 B of data and three properties a row"
    figure = "rows_per_s"
    higher_is_better = True
    contenders = ("penstock", "parquet")

    def cases(self, *, quick: bool) -> Sequence[Case]:
        rows = 10_000 if quick else ROWS
        return [
            Case(f"{label}, {rows:,} rows", "", {"work": work, "rows": rows})
            for work, label in (
                ("read", "batch read"),
                ("read_stream", "streaming read"),
                ("write", "batch write"),
                ("write_stream", "streaming write, exactly once"),
            )
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        if reason := missing():
            raise Missing(reason)
        stored = directory / "stored"
        stored.mkdir()
        with peers()["penstock"].serve(stored, "D2") as server:
            job = SparkJob(case["work"], contender, case["rows"], server.url, str(directory))
            return figures_of([sys.executable, "-m", "bench.spark_work"], job)


SHAPE = Spark()
