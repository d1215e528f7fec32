"""The Spark process of S12: one session, in which the channel and the files take turns."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

import penstock
from penstock_core.vocabulary.errors import Unavailable
from penstock_spark.session.jvm import find_jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = 50_000
DATA_BYTES = 128
TRIGGER_EVENTS = 1_000_000
FILES_PER_TRIGGER = 2
LARGE = 5
"""Factor of the size of micro-batches of ``stream large``, for both."""
CHANNEL = "orders"
SETTINGS = {
    "spark.driver.memory": "3g",
    # No row is large here: see the guide.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
}


class SparkJob(msgspec.Struct, frozen=True):
    """The work of the process."""

    work: str
    rows: int
    rounds: int
    is_warm: bool
    """Whether a round that does not count precedes the others."""
    url: str
    directory: str


class Work:
    """One case, for the channel ``orders`` and for files that Spark wrote from it."""

    def __init__(self, job: SparkJob, spark: SparkSession) -> None:
        self._job = job
        self._spark = spark
        self._files = str(Path(job.directory) / "parquet")
        self._round = 0

    def run(self, contender: str) -> float:
        """Return the seconds of one round."""
        self._round += 1
        kind, _, detail = self._job.work.partition(" ")
        work: Callable[[str], None]
        if kind == "read":
            work = self._reading(contender, detail)
        elif kind == "stream":
            work = self._streaming(contender, detail)
        else:
            work = self._writing(contender)
        target = self._target(contender)
        started_s = time.perf_counter()
        work(target)
        return time.perf_counter() - started_s

    # --- reads: every row reaches a sink that does nothing -------------------------------

    def _reading(self, contender: str, detail: str) -> Callable[[str], None]:
        columns = ["event_id", "price", "sku"] if detail.endswith("columns") else []
        if detail.startswith("table"):
            return self._reading_table(contender, columns)
        if contender == "parquet":
            rows = self._spark.read.parquet(self._files)
            rows = rows.select(*columns) if columns else rows
        else:
            options = {"columns": ", ".join(columns)} if columns else {}
            if detail == "remote":
                options["access"] = "remote"
            rows = self._spark.read.format("penstock").options(**self._where(), **options).load()
        if self._round <= 2 and rows.count() != self._job.rows:
            raise AssertionError(f"{rows.count()} rows, {self._job.rows} stored")
        return lambda target: rows.write.format("noop").mode("overwrite").save()

    def _reading_table(self, contender: str, columns: Sequence[str]) -> Callable[[str], None]:
        """Read Parquet files with Spark's own reader. The time includes the request of the table,
        which has made its files before, as it includes the look-up of the other files."""

        def rows() -> DataFrame:
            if contender == "parquet":
                table = self._spark.read.parquet(self._files)
            else:
                # Without `local`, a realm that offers no tables would be read through the format.
                table = penstock_table(self._spark, CHANNEL, url=self._job.url, access="local")
            return table.select(*columns) if columns else table

        from penstock_spark import table as penstock_table

        if self._round <= 2 and (count := rows().count()) != self._job.rows:
            raise AssertionError(f"{count} rows, {self._job.rows} stored")
        return lambda target: rows().write.format("noop").mode("overwrite").save()

    def _streaming(self, contender: str, detail: str) -> Callable[[str], None]:
        rows = self._stream(contender, detail)
        return lambda target: self._drain(rows.writeStream.format("noop"), target)

    def _stream(self, contender: str, detail: str = "") -> DataFrame:
        times = LARGE if detail == "large" else 1
        if contender == "parquet":
            schema = self._spark.read.parquet(self._files).schema
            stream = self._spark.readStream.schema(schema)
            files = str(times * FILES_PER_TRIGGER)
            return stream.option("maxFilesPerTrigger", files).parquet(self._files)
        events = str(times * TRIGGER_EVENTS)
        options = {"startingOffsets": "earliest", "maxEventsPerTrigger": events}
        if detail == "remote":
            options["access"] = "remote"
        stream = self._spark.readStream.format("penstock")
        return stream.options(**self._where(), **options).load()

    # --- writes: the same files are the source of both ------------------------------------

    def _writing(self, contender: str) -> Callable[[str], None]:
        rows = self._stream("parquet").drop("event_id", "published").writeStream
        if contender == "parquet":
            return lambda target: self._drain_synced(rows, target)
        with penstock.connect(self._job.url) as session:
            name = f"target-{os.getpid()}-{self._round}"
            session.channels.create(name, type="persistent", retain_consumed=True)
        rows = rows.format("penstock").options(url=self._job.url, channel=name)
        return lambda target: self._drain(rows, target)

    def _drain_synced(self, rows: Any, target: str) -> None:
        """Drain and sync the files: Spark leaves them to the kernel, but a realm's commit is on
        disk."""
        self._drain(rows.format("parquet").option("path", f"{target}/rows"), target)
        for path in Path(target, "rows").rglob("*.parquet"):
            with path.open("rb") as file:
                os.fsync(file.fileno())

    def _drain(self, writer: Any, target: str) -> None:
        checkpoint = f"{target}/checkpoint"
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        rows = sum(progress.numInputRows for progress in query.recentProgress)
        if rows != self._job.rows:
            raise AssertionError(f"{rows} rows streamed, {self._job.rows} stored")

    def _target(self, contender: str) -> str:
        return f"{self._job.directory}/{os.getpid()}-{contender}-{self._round}"

    def _where(self) -> dict[str, str]:
        return {"url": self._job.url, "channel": CHANNEL}


def missing() -> str:
    """Return why Spark cannot run here; empty if it can."""
    if importlib.util.find_spec("pyspark") is None:
        return 'pyspark is not installed: pip install "penstock-realm[spark]"'
    try:
        find_jvm()
    except Unavailable as error:
        return str(error)
    return ""


def store(url: str, rows: int) -> None:
    """Fill the channel with 128 random bytes, which no format can compress, and three
    properties."""
    random = np.random.default_rng(7)
    with penstock.connect(url) as session:
        channel = session.channels.create(CHANNEL, type="persistent", retain_consumed=True)
        for first in range(0, rows, BATCH):
            channel.publish_table(_table(random, first, min(BATCH, rows - first)))


def _table(random: np.random.Generator, first: int, count: int) -> pa.Table:
    ends = np.arange(count + 1, dtype=np.int32) * DATA_BYTES
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(random.bytes(DATA_BYTES * count))]
    numbers = np.arange(first, first + count)
    return pa.table(
        {
            "data": pa.Array.from_buffers(pa.binary(), count, buffers),
            "sku": [f"sku-{number % 1000:04d}" for number in numbers.tolist()],
            "price": numbers % 100 * 0.5,
            "quantity": numbers % 10,
        }
    )


def in_turns(run: Callable[[str], float], rounds: int, *, is_warm: bool) -> dict[str, list[float]]:
    """Return the seconds of each contender's rounds; with ``is_warm``, a round that does not count
    precedes them."""
    seconds: dict[str, list[float]] = {"penstock": [], "parquet": []}
    for number in range(rounds + is_warm):
        for contender, round_seconds in seconds.items():
            elapsed_s = run(contender)
            if number or not is_warm:
                round_seconds.append(elapsed_s)
    return seconds


def main() -> None:
    from penstock_spark.session.session import session

    job = msgspec.json.decode(sys.argv[1], type=SparkJob)
    spark = session("bench", **SETTINGS)
    try:
        files = Path(job.directory) / "parquet"
        if not files.exists():
            parts = max(1, -(-job.rows * FILES_PER_TRIGGER // TRIGGER_EVENTS))
            rows = spark.read.format("penstock").options(url=job.url, channel=CHANNEL)
            rows.option("minPartitions", parts).load().write.parquet(str(files))
        work = Work(job, spark)
        seconds = in_turns(work.run, job.rounds, is_warm=job.is_warm)
    finally:
        spark.stop()
    print(msgspec.json.encode(seconds).decode())


if __name__ == "__main__":
    main()
