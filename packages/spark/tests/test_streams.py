"""Streams of a real Spark session: resumed, repeated and broken off, each event comes once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from penstock.client.sync.sync import Channel, Session
from penstock_spark import register
from penstock_spark.source import PenstockSource
from penstock_spark.writing.writing import ChannelStreamWriter
from penstock_testing.process import ServerProcess

QUERY_TIMEOUT_S = 120


@pytest.fixture
def orders(client: Session) -> Channel:
    return client.channels.create(
        "orders", type="persistent", storage={"events_per_spindle": 1_000}
    )


@pytest.fixture
def out(client: Session) -> Channel:
    return client.channels.create("out", type="persistent")


def publish(channel: Channel, first: int, end: int) -> None:
    channel.publish_many(
        [penstock.Event(b"%d" % n, properties={"n": n}) for n in range(first, end)]
    )


def load(spark: SparkSession, url: str, channel: str = "orders", **options: Any) -> DataFrame:
    all_options = {"url": url, "channel": channel, "startingOffsets": "earliest", **options}
    return spark.readStream.format("penstock").options(**all_options).load()


def run(
    table: DataFrame, url: str, checkpoint: Path, *, sink: str = "penstock", **options: Any
) -> StreamingQuery:
    """Process the stored events, and end."""
    query = (
        table.writeStream.format(sink)
        .options(url=url, channel="out", checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    return query


def copied(spark: SparkSession, url: str, checkpoint: Path, **options: Any) -> StreamingQuery:
    table = load(spark, url, maxEventsPerTrigger=1_000).drop("event_id", "published")
    return run(table, url, checkpoint, **options)


def rows_of(query: StreamingQuery) -> list[int]:
    """Rows of each micro-batch that had some."""
    return [n for progress in query.recentProgress if (n := progress["numInputRows"])]


def numbers(channel: Channel) -> list[int]:
    table = channel.read()
    return table.column("n").to_pylist() if table.num_rows else []


def next_numbers(channel: Channel, start: int, count: int) -> list[int]:
    """The next ``count`` events, waited for."""
    with channel.subscribe(start=start, timeout=QUERY_TIMEOUT_S) as subscription:
        return [event.properties["n"] for event in islice(subscription, count)]


def test_what_is_there_is_read_in_portions_and_the_next_run_goes_on(
    spark: SparkSession,
    url: str,
    orders: Channel,
    out: Channel,
    sealed: Callable[[Channel, int], None],
    tmp_path: Path,
) -> None:
    publish(orders, 0, 2_500)
    sealed(orders, 2)

    assert rows_of(copied(spark, url, tmp_path / "checkpoint")) == [1_000, 1_000, 500]
    publish(orders, 2_500, 3_200)
    assert rows_of(copied(spark, url, tmp_path / "checkpoint")) == [700]
    assert rows_of(copied(spark, url, tmp_path / "checkpoint")) == []

    assert numbers(out) == list(range(3_200))
    assert out.read().column("data").to_pylist()[3_199] == b"3199"


def test_a_query_that_ended_in_its_first_moment_starts_again(
    spark: SparkSession, url: str, orders: Channel, out: Channel, tmp_path: Path
) -> None:
    """Stopped or killed between the two steps of writing down its first micro-batch."""
    begun = tmp_path / "checkpoint" / "offsets" / ".0.98d427f3-eca7-4382-9db1-a8d328c61450.tmp"
    begun.parent.mkdir(parents=True)
    begun.write_text("v1\n")
    publish(orders, 0, 10)

    assert rows_of(copied(spark, url, tmp_path / "checkpoint")) == [10]
    assert numbers(out) == list(range(10))


def test_a_query_that_starts_leaves_the_variables_of_the_others_as_they_are(
    spark: SparkSession, url: str, orders: Channel, out: Channel, tmp_path: Path
) -> None:
    register(spark, url)
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    variables = sources.lookupDataSource("penstock").dataSourceCls().envVars()
    names = set(variables.keySet())
    publish(orders, 0, 10)

    assert rows_of(copied(spark, url, tmp_path / "checkpoint")) == [10]

    assert set(variables.keySet()) == names
    assert "SPARK_LOCAL_DIRS" not in spark.sparkContext.environment


def test_a_micro_batch_spark_has_forgotten_is_stored_once(
    spark: SparkSession, url: str, orders: Channel, out: Channel, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    publish(orders, 0, 1_500)
    copied(spark, url, checkpoint)
    before = out.read()
    newest = max((checkpoint / "commits").iterdir(), key=lambda path: path.name)
    assert newest.name == "1"
    newest.unlink()
    publish(orders, 1_500, 1_600)

    assert rows_of(copied(spark, url, checkpoint)) == [500, 100]
    assert out.read(end=1_499).equals(before)
    assert numbers(out) == list(range(1_600))


def test_a_task_that_fails_is_tried_again_and_its_rows_come_once(
    spark: SparkSession, url: str, orders: Channel, out: Channel, tmp_path: Path
) -> None:
    from pyspark.sql.functions import udf

    publish(orders, 0, 1_000)

    @udf("bigint", useArrow=False)
    def second_try(n: int) -> int:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if n == 999 and context.attemptNumber() == 0:
            raise ValueError("the first try of the last partition")
        return n

    table = load(spark, url, minPartitions=3).select(second_try("n").alias("n"), "data")
    run(table, url, tmp_path / "checkpoint")

    assert numbers(out) == list(range(1_000))


def test_two_queries_write_to_one_channel(
    spark: SparkSession, url: str, client: Session, orders: Channel, out: Channel, tmp_path: Path
) -> None:
    publish(orders, 0, 500)
    publish(client.channels.create("returns", type="persistent"), 500, 1_000)
    queries = []
    for channel in ("orders", "returns"):
        table = load(spark, url, channel, maxEventsPerTrigger=200).select("n")
        queries.append(
            table.writeStream.format("penstock")
            .options(url=url, checkpointLocation=str(tmp_path / channel))
            .trigger(availableNow=True)
            .start("out")
        )

    assert all(query.awaitTermination(QUERY_TIMEOUT_S) for query in queries)
    assert sorted(numbers(out)) == list(range(1_000))


def test_a_commit_of_unknown_outcome_is_repeated_and_stored_once(
    spark: SparkSession, url: str, orders: Channel, out: Channel, tmp_path: Path
) -> None:
    # Made in here, the classes travel to Spark's processes by value.
    class Doomed(ChannelStreamWriter):
        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
            super().commit(messages, batchId)
            if batchId == 1:
                raise OSError("the answer never came")

    class DoomedSource(PenstockSource):
        @classmethod
        def name(cls) -> str:
            return "doomed"

        def streamWriter(self, schema: Any, overwrite: bool) -> ChannelStreamWriter:  # noqa: N802
            return Doomed(self._sink(schema, overwrite=overwrite))

    spark.dataSource.register(DoomedSource)
    publish(orders, 0, 2_500)
    table = load(spark, url, maxEventsPerTrigger=1_000).select("n")

    with pytest.raises(StreamingQueryException, match="the answer never came"):
        run(table, url, tmp_path / "checkpoint", sink="doomed")
    assert numbers(out) == list(range(2_000))
    assert rows_of(run(table, url, tmp_path / "checkpoint")) == [1_000, 500]
    assert numbers(out) == list(range(2_500))


def test_a_running_query_outlives_a_crash_of_the_realm(
    spark: SparkSession, serve: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = serve()
    with penstock.connect(server.url) as client:
        orders = client.channels.create("orders", type="persistent")
        out = client.channels.create("out", type="persistent")
        publish(orders, 0, 100)
        query = (
            load(spark, server.url)
            .select("n")
            .writeStream.format("penstock")
            .options(url=server.url, channel="out", checkpointLocation=str(tmp_path / "cp"))
            .start()
        )
        assert next_numbers(out, 0, 100) == list(range(100))

        server.kill()
        serve("--port", str(server.port))
        publish(orders, 100, 200)
        seen = next_numbers(out, 100, 100)
        query.stop()

        assert seen == list(range(100, 200))
        assert numbers(out) == list(range(200))


def test_a_channel_created_again_ends_the_query(
    spark: SparkSession, url: str, client: Session, orders: Channel, out: Channel, tmp_path: Path
) -> None:
    publish(orders, 0, 10)
    copied(spark, url, tmp_path / "checkpoint")
    client.channels.delete("orders")
    publish(client.channels.create("orders", type="persistent"), 0, 20)

    with pytest.raises(StreamingQueryException, match="not the channel of this checkpoint"):
        copied(spark, url, tmp_path / "checkpoint")
    assert out.info().events == 10


def test_sql_writes_to_a_view_with_columns_and_errors_have_no_traceback(
    spark: SparkSession, url: str, client: Session
) -> None:
    client.channels.create("bought")
    register(spark, url)
    view = "CREATE OR REPLACE TEMPORARY VIEW {} USING penstock OPTIONS (channel 'bought')"
    spark.sql(view.format("bought (price DOUBLE, lines ARRAY<STRING>)"))

    spark.sql("INSERT INTO bought VALUES (2.5, array())")
    spark.sql("INSERT INTO bought SELECT 3.5, array('a')")
    spark.sql(view.format("whole"))
    refusals = []
    refusal: pytest.ExceptionInfo[PySparkException]
    for statement in (
        "INSERT INTO whole BY NAME SELECT 1 AS price",
        "CREATE TABLE bought_too USING penstock OPTIONS (channel 'bought')",
        "SELECT priority FROM nothing",
    ):
        with pytest.raises(PySparkException) as refusal:
            spark.sql(statement)
        refusals.append(str(refusal.value))
    writer = spark.sql("SELECT CAST(99 AS TINYINT) AS priority").write.format("penstock")
    with pytest.raises(PySparkException) as refusal:
        writer.mode("append").option("channel", "bought").save()
    refusals.append(str(refusal.value))

    rows = client.channels.get("bought").read().to_pylist()
    assert [(row["price"], row["lines"]) for row in rows] == [(2.5, []), (3.5, ["a"])]
    assert "For INSERT INTO, give the view the columns to write: CREATE TEMPORARY" in refusals[0]
    assert "instead of CREATE TABLE use CREATE TEMPORARY VIEW" in refusals[1]
    assert "priority 99 is not in 0..9; give 0 to 9" in refusals[3]
    assert not [text for text in refusals if "Traceback" in text or 'File "' in text]


def test_a_target_that_is_missing_ends_the_query(
    spark: SparkSession, url: str, orders: Channel, tmp_path: Path
) -> None:
    publish(orders, 0, 10)

    with pytest.raises(StreamingQueryException, match="no channel 'out'; create it first"):
        copied(spark, url, tmp_path / "checkpoint")


def test_an_aggregate_goes_out_by_a_batch_write_for_each_micro_batch(
    spark: SparkSession, url: str, orders: Channel, out: Channel, tmp_path: Path
) -> None:
    publish(orders, 0, 1_000)
    attempts = []

    def write(batch: DataFrame, batch_id: int) -> None:
        attempts.append(batch_id)
        batch.write.format("penstock").mode("append").options(
            url=url, channel="out", txnAppId="odd-counts", txnVersion=batch_id
        ).save()
        if len(attempts) == 1:
            raise OSError("ends between the write and the checkpoint")

    def process() -> None:
        counted = load(spark, url).selectExpr("n % 2 AS odd").groupBy("odd").count()
        query = (
            counted.writeStream.outputMode("update")
            .foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(QUERY_TIMEOUT_S)

    with pytest.raises(StreamingQueryException, match="ends between"):
        process()
    process()

    assert attempts[:2] == [0, 0]
    result = out.read().select(["odd", "count"]).sort_by("odd").to_pydict()
    assert result == {"odd": [0, 1], "count": [500, 500]}


def test_a_result_that_is_rewritten_as_a_whole_is_refused(
    spark: SparkSession, url: str, orders: Channel, out: Channel, tmp_path: Path
) -> None:
    publish(orders, 0, 10)
    counted = load(spark, url).groupBy("n").count()
    started = (
        counted.writeStream.format("penstock")
        .outputMode("complete")
        .options(url=url, channel="out", checkpointLocation=str(tmp_path / "checkpoint"))
    )

    with pytest.raises(StreamingQueryException, match="a channel only ever grows"):
        started.start().awaitTermination(QUERY_TIMEOUT_S)
