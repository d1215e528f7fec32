"""The Spark part: two streams that write delay statistics exactly once, then an archive.

A process of its own, so that it can fail, or be killed, by itself.

What is to be counted exactly once must not wait for a window to close: the last day of the year
would stay open for ever, since no event comes after it. So each micro-batch writes the sums of
its own flights, without any state between batches; a day that is cut in two by a micro-batch has
two rows, and they add up. A flight lost, or counted twice, would show in the report's sums.

Exactly once in both outputs. To the channel: the sink publishes a micro-batch in one step, and
the realm knows it by the query and the number of the batch, so a batch that is repeated after a
crash is not stored again. To Parquet: Spark's own file sink, whose ``_spark_metadata`` lists the
files that count. The archive is a batch job that overwrites what an interrupted one has left.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from examples.flights import statistics
from examples.flights.companion import Instructions, report, serve
from examples.flights.names import DELAYS, FLIGHTS
from penstock.spark import register
from penstock.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

TO_CHANNEL, TO_PARQUET = "to-channel", "to-parquet"
"""The two streams, by the names of their queries and checkpoints."""

EVENTS_PER_BATCH = 25_000
RESTARTS_MAX = 3
"""How often a stream that failed is started again."""
_LOOK_INTERVAL_S = 0.25
_FLIGHT_TYPE = ", ".join(f"{name} {kind}" for name, kind in statistics.FLIGHT_COLUMNS.items())
_ROW_TYPE = ", ".join(
    f"{field.name} {'STRING' if field.type == 'string' else 'BIGINT'}"
    for field in statistics.SCHEMA
)


class SparkPart:
    """What Spark does in a run, on the realm at ``url``."""

    def __init__(self, spark: SparkSession, url: str, directory: Path) -> None:
        self._spark = spark
        self._url = url
        self._directory = directory

    def to_channel(self) -> StreamingQuery:
        """Daily sums as events of the channel ``flight-delays``."""
        writer = self._daily_sums().writeStream.format("penstock").option("url", self._url)
        return self._started(writer.option("channel", DELAYS), TO_CHANNEL)

    def to_parquet(self) -> StreamingQuery:
        """Daily sums as Parquet files."""
        writer = self._daily_sums().writeStream.format("parquet")
        return self._started(writer.option("path", str(self._directory / "statistics")), TO_PARQUET)

    def archive(self) -> None:
        """Every event of ``flights`` as it is stored, as Parquet files."""
        flights = self._spark.read.format("penstock").option("url", self._url)
        stored = flights.option("channel", FLIGHTS).load()
        stored.write.mode("overwrite").parquet(str(self._directory / "archive"))

    def _daily_sums(self) -> DataFrame:
        flights = (
            self._spark.readStream.format("penstock")
            .option("url", self._url)
            .option("channel", FLIGHTS)
            .option("startingOffsets", "earliest")
            .option("maxEventsPerTrigger", EVENTS_PER_BATCH)
            # Only these columns are read. Said here, since the channel may still be empty.
            .schema(_FLIGHT_TYPE)
            .load()
        )
        return flights.mapInArrow(statistics.partial_sums, _ROW_TYPE)

    def _started(self, writer: DataStreamWriter, name: str) -> StreamingQuery:
        checkpoint = self._directory / "checkpoints" / name
        return writer.queryName(name).option("checkpointLocation", str(checkpoint)).start()


def position(query: StreamingQuery) -> int | None:
    """The id after the last event that a query has dealt with; None: none since it started."""
    progress: Any = query.lastProgress
    if not progress:
        return None
    return position_of(json.loads(progress["sources"][0]["endOffset"]))


def committed_position(checkpoint: Path) -> int:
    """The position a stream goes on from after an interruption."""
    batches = [int(file.name) for file in (checkpoint / "commits").glob("[0-9]*")]
    if not batches:
        return 0
    offsets = (checkpoint / "offsets" / str(max(batches))).read_text().splitlines()
    return position_of(json.loads(offsets[-1]))


def position_of(offset: dict[str, Any]) -> int:
    """The event id in a position as Spark keeps it."""
    return int(offset["c"][FLIGHTS]["n"])


class Stream:
    """A query that is started again where it was, should Spark lose it.

    A lost worker or a task that Spark garbled ends a query. Both queries write exactly once, so
    starting again is always right.
    """

    def __init__(self, start: Callable[[], StreamingQuery]) -> None:
        self._start = start
        self.query = start()
        self._restarts_left = RESTARTS_MAX
        self.error: Exception | None = None

    def look_after(self) -> None:
        """Start again if the query has failed. Raises its error when that did not help."""
        error = self.query.exception()
        if error is not None:
            self._start_again(error)

    def drain(self) -> None:
        """Process everything there is; what cannot be mended is kept in :attr:`error`."""
        try:
            while True:
                try:
                    self.query.processAllAvailable()
                except StreamingQueryException as error:
                    self._start_again(error)
                else:
                    return
        except Exception as error:  # noqa: BLE001  a thread's root: told by the main thread
            self.error = error

    def _start_again(self, error: Exception) -> None:
        if not self._restarts_left:
            raise error
        self._restarts_left -= 1
        print(f"query {self.query.name} failed and is started again: {error}", file=sys.stderr)
        self.query = self._start()


def follow(streams: list[Stream], instructions: Instructions) -> None:
    """Report how far the streams are until they are through with everything published."""
    pause = threading.Event()
    while not instructions.finish:
        for stream in streams:
            stream.look_after()
        _tell(streams)
        pause.wait(_LOOK_INTERVAL_S)
    draining = [threading.Thread(target=stream.drain, daemon=True) for stream in streams]
    for thread in draining:
        thread.start()
    while any(thread.is_alive() for thread in draining):
        _tell(streams)
        pause.wait(_LOOK_INTERVAL_S)
    for stream in streams:
        if stream.error is not None:
            raise stream.error
    _tell(streams)


def _tell(streams: list[Stream]) -> None:
    for stream in streams:
        if (reached := position(stream.query)) is not None:
            report(**{stream.query.name: reached})


def run(url: str, directory: Path, instructions: Instructions) -> None:
    """Stream until everything is published and processed; then write the archive."""
    spark = session("penstock-flights", **{"spark.driver.memory": "1g"})
    register(spark)
    part = SparkPart(spark, url, directory)
    streams = [Stream(part.to_channel), Stream(part.to_parquet)]
    report(ready=True)
    follow(streams, instructions)
    for stream in streams:
        stream.query.stop()
    began = perf_counter()
    report(archiving=True)
    part.archive()
    report(archive_seconds=perf_counter() - began)
    spark.stop()


if __name__ == "__main__":
    serve(partial(run, sys.argv[1], Path(sys.argv[2])))
