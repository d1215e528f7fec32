"""Streams of several channels, with new and deleted ones, in a real Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from penstock.client.sync.sync import Channel, Session
from penstock_spark.reading.progress import Lag, lag

pytestmark = pytest.mark.slow

QUERY_TIMEOUT_S = 120


@pytest.fixture
def out(client: Session) -> Channel:
    return client.channels.create("out", type="persistent")


@pytest.fixture
def running(spark: SparkSession) -> Iterator[list[StreamingQuery]]:
    """Queries that end with the test."""
    queries: list[StreamingQuery] = []
    yield queries
    for query in queries:
        query.stop()


def load(spark: SparkSession, url: str, channel: str, **options: Any) -> DataFrame:
    all_options = {"url": url, "channel": channel, "startingOffsets": "earliest", **options}
    return spark.readStream.format("penstock").options(**all_options).load()


def start(table: DataFrame, url: str, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    """Its rows go to the channel ``out``, the name of their channel as the tag."""
    rows = table.withColumnRenamed("channel", "source").drop("event_id", "published", "tag")
    writer = rows.writeStream.format("penstock").trigger(**(trigger or {"availableNow": True}))
    return writer.options(url=url, checkpointLocation=str(checkpoint)).start("out")


def properties(channel: Channel, count: int) -> list[dict[str, Any]]:
    """Properties of the first events, waited for."""
    rows: list[dict[str, Any]] = []
    with channel.subscribe(start="earliest", timeout=QUERY_TIMEOUT_S) as subscription:
        for event in subscription:
            rows.append({key: value for key, value in event.properties.items() if value})
            if len(rows) == count:
                return rows
    raise AssertionError(f"{len(rows)} events came, {count} should have")


def test_a_channel_that_fits_the_pattern_joins_a_running_query(
    spark: SparkSession,
    url: str,
    client: Session,
    out: Channel,
    tmp_path: Path,
    running: list[StreamingQuery],
) -> None:
    client.channels.create("day/1").publish(properties={"n": 1})
    table = load(spark, url, "day/*", maxEventsPerTrigger=2)
    query = start(table, url, tmp_path, processingTime="0 seconds")
    running.append(query)
    assert properties(out, 1) == [{"source": "day/1", "n": 1}]

    client.channels.create("day/2").publish_many([penstock.Event(properties={"n": 2})] * 5)

    assert properties(out, 6)[1:] == [{"source": "day/2", "n": 2}] * 5
    query.processAllAvailable()
    query.stop()
    progress = [report for report in query.recentProgress if report["numInputRows"]]
    assert [report["numInputRows"] for report in progress] == [1, 2, 2, 1]
    assert [lag(report).get("day/2", Lag(0, 0)).events for report in progress] == [0, 3, 1, 0]
    assert lag(progress[1])["day/2"].ms > 0
    assert lag(progress[-1]) == {"day/1": Lag(0, 0), "day/2": Lag(0, 0)}


def test_what_is_published_with_new_columns_appears_with_the_next_start(
    spark: SparkSession, url: str, client: Session, out: Channel, tmp_path: Path
) -> None:
    orders = client.channels.create("orders", type="persistent")
    orders.publish(properties={"price": 1, "small": True})

    def run() -> list[str]:
        table = load(spark, url, "orders")
        assert start(table, url, tmp_path / "checkpoint").awaitTermination(QUERY_TIMEOUT_S)
        return table.columns[4:]

    assert run() == ["price", "small"]
    orders.publish(properties={"price": 2.5, "sku": "a"})
    orders.publish(properties={"price": "three", "lines": [{"sku": "b", "count": 4}]})
    assert run() == ["price", "small", "sku", "price::string", "lines"]

    assert properties(out, 3) == [
        {"price": 1, "small": True},
        {"price": 2.5, "sku": "a"},
        {"price::string": "three", "lines": [{"sku": "b", "count": 4}]},
    ]


def test_a_loss_ends_the_query_and_says_why(
    spark: SparkSession, url: str, client: Session, out: Channel, tmp_path: Path
) -> None:
    orders = client.channels.create("orders", type="persistent")
    orders.publish_many([penstock.Event(properties={"n": n}) for n in range(3)])
    table = load(spark, url, "orders")
    assert start(table, url, tmp_path).awaitTermination(QUERY_TIMEOUT_S)
    orders.publish_many([penstock.Event(properties={"n": n}) for n in range(3, 6)])
    orders.purge(end=4)

    with pytest.raises(StreamingQueryException, match=r"events 3-4 were purged.*failOnDataLoss"):
        start(table, url, tmp_path).awaitTermination(QUERY_TIMEOUT_S)

    lenient = load(spark, url, "orders", failOnDataLoss="false")
    assert start(lenient, url, tmp_path).awaitTermination(QUERY_TIMEOUT_S)
    assert out.read().column("n").to_pylist() == [0, 1, 2, 5]
