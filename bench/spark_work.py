"""The Spark process of S12: reads or writes, once to warm up and once on the clock."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from bench.shape import Figures
from bench.workload import pool
from penstock.core.errors import Unavailable
from penstock.spark.jvm import find_jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = 10_000
FILES = 8


class SparkJob(msgspec.Struct, frozen=True):
    """What a Spark process is told to do."""

    work: str
    contender: str
    rows: int
    url: str
    directory: str


class Work:
    """Reads and writes of one contender: Penstock's channel ``orders``, or a directory."""

    def __init__(self, job: SparkJob, spark: SparkSession) -> None:
        self._job = job
        self._spark = spark
        self._source = str(Path(job.directory) / "source")
        self._round = 0

    def run(self) -> None:
        """One round."""
        self._round += 1
        getattr(self, f"_{self._job.work}")()

    def _read(self) -> None:
        if self._job.contender == "parquet":
            rows = self._spark.read.parquet(self._source)
        else:
            rows = self._spark.read.format("penstock").options(**self._options("orders")).load()
        found = rows.selectExpr(
            "count(*)", "sum(price)", "sum(quantity)", "sum(length(data))", "sum(length(sku))"
        ).collect()[0]
        if found[0] != self._job.rows:
            raise AssertionError(f"{found[0]} rows read, {self._job.rows} stored")

    def _read_stream(self) -> None:
        rows = self._stream(self._job.contender)
        seen = rows.selectExpr("length(data)", "price", "quantity", "sku")
        self._drain(seen.writeStream.format("noop"))

    def _stream(self, contender: str) -> DataFrame:
        if contender == "parquet":
            schema = self._spark.read.parquet(self._source).schema
            return self._spark.readStream.schema(schema).parquet(self._source)
        options = self._options("orders") | {
            "startingOffsets": "earliest",
            "maxEventsPerTrigger": str(self._job.rows),
        }
        return self._spark.readStream.format("penstock").options(**options).load()

    def _write(self) -> None:
        rows = self._spark.read.parquet(self._source)
        if self._job.contender == "parquet":
            rows.write.parquet(self._target())
        else:
            options = self._options(self._new_channel())
            rows.write.format("penstock").mode("append").options(**options).save()

    def _write_stream(self) -> None:
        rows = self._stream("parquet").writeStream
        if self._job.contender == "parquet":
            self._drain(rows.format("parquet").option("path", self._target()))
        else:
            self._drain(rows.format("penstock").options(**self._options(self._new_channel())))

    def _drain(self, writer: Any) -> None:
        checkpoint = f"{self._job.directory}/checkpoint-{self._round}"
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        rows = sum(progress.numInputRows for progress in query.recentProgress)
        if rows != self._job.rows:
            raise AssertionError(f"{rows} rows streamed, {self._job.rows} stored")

    def _target(self) -> str:
        return f"{self._job.directory}/target-{self._round}"

    def _new_channel(self) -> str:
        name = f"target-{self._round}"
        with penstock.connect(self._job.url) as session:
            session.channels.create(name, type="persistent", retain_consumed=True)
        return name

    def _options(self, channel: str) -> dict[str, str]:
        return {"url": self._job.url, "channel": channel}


def missing() -> str:
    """What Spark lacks here; empty when nothing."""
    if importlib.util.find_spec("pyspark") is None:
        return 'pyspark is not installed: pip install "penstock[spark]"'
    try:
        find_jvm()
    except Unavailable as error:
        return str(error)
    return ""


def main() -> None:
    from penstock.spark.session import session

    job = msgspec.json.decode(sys.argv[1], type=SparkJob)
    _store(job)
    spark = session("bench")
    try:
        work = Work(job, spark)
        work.run()
        started_s = time.perf_counter()
        work.run()
        elapsed_s = time.perf_counter() - started_s
    finally:
        spark.stop()
    figures: Figures = {"rows_per_s": job.rows / elapsed_s, "seconds": elapsed_s}
    print(msgspec.json.encode(figures).decode())


def _store(job: SparkJob) -> None:
    """The rows, where this job finds them."""
    tables = [events.columns.table for events in pool(job.rows // BATCH, BATCH, 128)]
    if job.contender == "penstock" and job.work.startswith("read"):
        with penstock.connect(job.url) as session:
            channel = session.channels.create("orders", type="persistent", retain_consumed=True)
            for table in tables:
                channel.publish_table(table)
        return
    source = Path(job.directory) / "source"
    source.mkdir()
    share = max(1, -(-len(tables) // FILES))
    for number, first in enumerate(range(0, len(tables), share)):
        file = source / f"{number}.parquet"
        pq.write_table(pa.concat_tables(tables[first : first + share]), file)


if __name__ == "__main__":
    main()
