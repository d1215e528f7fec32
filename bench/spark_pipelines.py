"""The Spark process of S12P: a step of a pipeline, compared with Spark on its own files.

Both produce the same rows with the same aggregates, in the same number of micro-batches, with the
same settings.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

import penstock
from bench.spark_work import BATCH, SETTINGS, in_turns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANNEL = "changes"
KEYS = 10_000
WINDOW_EVENTS = 1_000
"""Events per window: an event occurs each second, and a window is this number of seconds long."""
START_US = 1_357_000_000_000_000
"""Microseconds since 1970: windows begin at whole multiples of their length."""
DELAY_S = 10
DELAY = f"{DELAY_S} seconds"
WINDOW = f"{WINDOW_EVENTS} seconds"
COLUMNS = ("event_id", "account", "at", "price", "quantity")
SUMS = {"orders": "count(*)", "turnover": "sum(price)", "largest": "max(price)"}


class PipelineJob(msgspec.Struct, frozen=True):
    """The work of the process."""

    works: list[str]
    rows: int
    batch_rows: int
    rounds: int
    is_warm: bool
    """Whether a round that does not count precedes the others."""
    url: str
    directory: str


class PipelineWork:
    """One case, for the channel and for files that Spark wrote from it."""

    def __init__(self, job: PipelineJob, work: str, spark: SparkSession) -> None:
        self._job = job
        self._spark = spark
        self._files = f"{job.directory}/parquet"
        self._kind, _, self._target = work.partition(" ")
        self._name = work.replace(" ", "-")
        self._round = 0

    def store_files(self) -> None:
        """Store the channel's events as Parquet, with a file for each micro-batch."""
        rows = self._spark.read.format("penstock").options(url=self._job.url, channel=CHANNEL)
        all_rows = rows.option("minPartitions", 1).load().select(*COLUMNS).coalesce(1)
        options = {"maxRecordsPerFile": str(self._job.batch_rows)}
        all_rows.write.options(**options).parquet(self._files)

    def run(self, contender: str) -> float:
        """Return the seconds of one round."""
        self._round += 1
        folder = Path(self._job.directory, f"{self._name}-{contender}-{self._round}")
        folder.mkdir()
        if contender == "parquet":
            work = self._over_files(folder)
        elif self._target:
            work = self._pipeline(folder)
        else:
            work = self._aggregation(self._channel(), folder)
        started_s = time.perf_counter()
        row_count = work()
        elapsed_s = time.perf_counter() - started_s
        if row_count != self._rows_out():
            raise AssertionError(f"{row_count} rows of {contender}, not {self._rows_out()}")
        return elapsed_s

    def _rows_out(self) -> int:
        """Return the number of rows of a round: changed keys of each micro-batch, or closed
        windows."""
        job = self._job
        if self._kind == "latest":
            return min(KEYS, job.batch_rows) * (job.rows // job.batch_rows)
        # The last windows stay open, because the watermark has not passed their ends.
        return (job.rows - 1 - DELAY_S) // WINDOW_EVENTS

    # --- the steps of pipelines ------------------------------------------------------------

    def _pipeline(self, folder: Path) -> Callable[[], int]:
        from penstock_spark.pipelines import parse, run

        step: dict[str, Any] = {"name": "step", "kind": self._kind, "source": CHANNEL}
        if self._kind == "latest":
            step |= {"key": "account", "deltas": True}
        else:
            step |= {"time": "at", "window": WINDOW, "delay": DELAY, "aggregates": SUMS}
        if self._target == "channel":
            with penstock.connect(self._job.url) as session:
                session.channels.create(folder.name, type="persistent", retain_consumed=True)
            step["channel"] = folder.name
        else:
            step["table"] = "table"
        source = {
            "name": CHANNEL,
            "channel": CHANNEL,
            "starting": "earliest",
            "columns": [*COLUMNS],
            "max_events": self._job.batch_rows,
        }
        pipeline = parse({"name": "p", "source": [source], "step": [step]}, folder=folder)

        def go() -> int:
            done = run(pipeline, url=self._job.url, once=True, spark=self._spark)
            if self._target == "channel":
                # The report does not count a micro-batch that only closes windows.
                return self._published(folder.name)
            return self._handed_over(folder, done.steps[0].rows_out or 0)

        return go

    def _published(self, channel: str) -> int:
        with penstock.connect(self._job.url) as session:
            return session.channels.get(channel).info().last_event_id + 1

    def _handed_over(self, folder: Path, rows_out: int) -> int:
        """Return the number of states written to the table, where they replace those of the same
        key."""
        from penstock.tables import Table

        rows: int = Table.found(str(folder / "table")).dataset().count_rows()
        return rows_out if rows == min(KEYS, self._job.rows) else rows

    # --- the aggregation of Spark on files ----------------------------------------------------

    def _channel(self) -> DataFrame:
        options = {"startingOffsets": "earliest", "maxEventsPerTrigger": str(self._job.batch_rows)}
        where = {"url": self._job.url, "channel": CHANNEL, "columns": ",".join(COLUMNS)}
        return self._spark.readStream.format("penstock").options(**where, **options).load()

    def _over_files(self, folder: Path) -> Callable[[], int]:
        schema = self._spark.read.parquet(self._files).schema
        stream = self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        files = stream.parquet(self._files)
        if self._kind == "latest":
            return self._aggregation(files, folder)
        from pyspark.sql import functions as sf

        windows = files.withWatermark("at", DELAY).groupBy(sf.window("at", WINDOW))
        rows = windows.agg(*(sf.expr(text).alias(name) for name, text in SUMS.items()))
        rows = rows.selectExpr("window.start AS window_start", "window.end AS window_end", *SUMS)
        writer = rows.writeStream.format("parquet").option("path", f"{folder}/rows")

        def go() -> int:
            _drained(writer, folder)
            return self._spark.read.parquet(f"{folder}/rows").count()

        return go

    def _aggregation(self, events: DataFrame, folder: Path) -> Callable[[], int]:
        """Return a function that computes the states of the keys, into files if the case has a
        target."""
        from penstock_spark.pipelines.states import StateRules, states

        writer = states(events, StateRules(key=("account",), deltas=True)).writeStream
        writer = writer.outputMode("update")
        if self._target:
            path = f"{folder}/rows"
            writer = writer.foreachBatch(
                lambda frame, _number: frame.write.mode("append").parquet(path)
            )
            return lambda: _drained(writer, folder) and self._spark.read.parquet(path).count()
        writer = writer.format("noop")
        return lambda: _drained(writer, folder)


def _drained(writer: Any, folder: Path) -> int:
    """Run a query to its end, and return the number of rows in its state updates."""
    query = writer.option("checkpointLocation", f"{folder}/checkpoint")
    query = query.trigger(availableNow=True).start()
    query.awaitTermination()
    operators = [progress.stateOperators for progress in query.recentProgress]
    return sum(operator.numRowsUpdated for operators in operators for operator in operators)


def fill(url: str, rows: int) -> None:
    """Publish deltas: each changes the price or the quantity of one account, in an order that does
    not repeat soon."""
    with penstock.connect(url) as session:
        channel = session.channels.create(CHANNEL, type="persistent", retain_consumed=True)
        for first in range(0, rows, BATCH):
            channel.publish_table(_table(np.arange(first, min(first + BATCH, rows))))


def _table(numbers: np.ndarray) -> pa.Table:
    is_price = numbers % 2 == 0
    return pa.table(
        {
            "account": [f"account-{number:05d}" for number in (numbers * 7_919 % KEYS).tolist()],
            "at": pa.array(START_US + numbers * 1_000_000, pa.timestamp("us", "UTC")),
            "price": pa.array(numbers % 100 * 0.5, mask=~is_price),
            "quantity": pa.array(numbers % 10, mask=is_price),
        }
    )


def main() -> None:
    from penstock_spark.session.session import session

    job = msgspec.json.decode(sys.argv[1], type=PipelineJob)
    Path(job.directory).mkdir(exist_ok=True)
    spark = session("bench", **SETTINGS)
    try:
        works = {name: PipelineWork(job, name, spark) for name in job.works}
        works[job.works[0]].store_files()
        seconds = {
            name: in_turns(work.run, job.rounds, is_warm=job.is_warm)
            for name, work in works.items()
        }
    finally:
        spark.stop()
    print(msgspec.json.encode(seconds).decode())


if __name__ == "__main__":
    main()
