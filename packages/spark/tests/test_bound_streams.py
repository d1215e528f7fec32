"""Streams of a real Spark session that are bound to a durable: broken off, repeated, and freed of
events that make them fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from packages.client.tests.patience import eventually
from penstock.client.sync.sync import Channel, Durable, Session
from penstock_spark.options import source_options
from penstock_spark.reading.poison import Verdict, bury_poison, unfinished_batch

pytestmark = pytest.mark.slow

QUERY_TIMEOUT_S = 120


@pytest.fixture
def orders(client: Session) -> Channel:
    client.channels.create("dead", type="persistent")
    return client.channels.create("orders", type="persistent", dead_event_store="dead")


@pytest.fixture
def lake(orders: Channel) -> Durable:
    return orders.durables.create("lake", type="serial")


@pytest.fixture
def out(client: Session) -> Channel:
    return client.channels.create("out", type="persistent")


def publish(channel: Channel, first: int, end: int) -> None:
    channel.publish_many([penstock.Event(properties={"n": n}) for n in range(first, end)])


def source(url: str, **options: str) -> dict[str, str]:
    return {"url": url, "channel": "orders", "durable": "lake", **options}


def checked(table: DataFrame, *bad: int) -> DataFrame:
    """A transformation that cannot do anything with some events."""

    def check(n):  # type: ignore[no-untyped-def]  # Spark warns of hints it does not know
        if n in bad:
            raise ValueError(f"no airport {n}")
        return n

    return table.select(udf(check, "bigint")("n").alias("n"))


def run(
    spark: SparkSession, url: str, checkpoint: Path, *bad: int, **options: str
) -> StreamingQuery:
    """Process the stored events, and end."""
    table = spark.readStream.format("penstock").options(**source(url, **options)).load()
    query = (
        checked(table, *bad)
        .writeStream.format("penstock")
        .options(url=url, channel="out", checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    return query


def healed(spark: SparkSession, url: str, checkpoint: Path, *bad: int) -> Verdict:
    def attempt(table: DataFrame) -> None:
        checked(table, *bad).write.format("noop").mode("overwrite").save()

    return bury_poison(spark, source(url), checkpoint, attempt=attempt)


def numbers(channel: Channel) -> list[int]:
    table = channel.read()
    return table.column("n").to_pylist() if table.num_rows else []


def test_a_query_to_its_end_has_acknowledged_everything(
    spark: SparkSession, url: str, orders: Channel, lake: Durable, out: Channel, tmp_path: Path
) -> None:
    publish(orders, 0, 25)
    query = run(spark, url, tmp_path / "c", maxEventsPerTrigger="10")
    assert [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]] == [10, 10, 5]
    info = lake.info()
    assert (info.outstanding, info.in_flight, info.redelivered) == (0, 0, 0)
    assert orders.info().events == 0

    publish(orders, 25, 30)
    run(spark, url, tmp_path / "c")
    assert numbers(out) == list(range(30))
    assert lake.info().outstanding == 0


def test_poison_is_counted_found_and_buried_and_the_query_goes_on(
    spark: SparkSession, url: str, orders: Channel, lake: Durable, out: Channel, tmp_path: Path
) -> None:
    publish(orders, 0, 30)
    bad = (13, 17)
    with pytest.raises(StreamingQueryException, match="no airport 13"):
        run(spark, url, tmp_path / "c", *bad, maxEventsPerTrigger="10")
    assert numbers(out) == list(range(10))
    eventually(lambda: lake.info().in_flight == 0)
    info = lake.info()
    assert (info.outstanding, info.redelivered) == (20, 10)

    elsewhere = healed(spark, url, tmp_path / "c")
    assert "does not fail when it is run again" in elsewhere.why_none
    assert lake.info().outstanding == 20

    verdict = healed(spark, url, tmp_path / "c", *bad)
    assert [(one.event_id, one.error) for one in verdict.buried] == [
        (13, "ValueError: no airport 13"),
        (17, "ValueError: no airport 17"),
    ]
    run(spark, url, tmp_path / "c", *bad, maxEventsPerTrigger="10")

    assert numbers(out) == [n for n in range(30) if n not in bad]
    dead = list(orders_dead(url))
    assert [event.properties["n"] for event in dead] == list(bad)
    assert [event.origin.reason for event in dead if event.origin] == [
        "ValueError: no airport 13",
        "ValueError: no airport 17",
    ]
    assert lake.info().outstanding == 0
    counters = orders.info().counters
    assert (counters.published, counters.dead, counters.consumed) == (30, 2, 28)
    assert "no micro-batch that was begun" in healed(spark, url, tmp_path / "c").why_none


def orders_dead(url: str) -> list[penstock.Event]:
    with penstock.connect(url) as session:
        return list(session.channels.get("dead").browse())


DRIVER = """
import os, signal, sys
from pyspark import SparkContext
from penstock_spark.session.session import session

url, checkpoint, dies_in = sys.argv[1:]
spark = session("doomed", "local[2]")
driver = SparkContext._gateway.proc.pid

def write(table, number):
    rows = [row.n for row in table.collect()]
    if number == 1 and dies_in == "the batch":
        os.kill(driver, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    with open(os.path.join(os.path.dirname(checkpoint), str(number)), "w") as file:
        file.write(repr(rows))

query = (
    spark.readStream.format("penstock")
    .options(url=url, channel="orders", durable="lake", maxEventsPerTrigger=10)
    .load()
    .writeStream.foreachBatch(write)
    .option("checkpointLocation", checkpoint)
    .start()
)
commits = os.path.join(checkpoint, "commits", "1")
while not os.path.exists(commits):
    query.awaitTermination(0.001)
os.kill(driver, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
@pytest.mark.parametrize("dies_in", ["the batch", "between commit and acknowledgement"])
def test_a_driver_that_is_killed_loses_nothing_and_repeats_its_micro_batch(
    spark: SparkSession,
    url: str,
    orders: Channel,
    lake: Durable,
    out: Channel,
    tmp_path: Path,
    dies_in: str,
) -> None:
    publish(orders, 0, 25)
    killed = subprocess.run(
        [sys.executable, "-c", DRIVER, url, str(tmp_path / "c"), dies_in],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert killed.returncode < 0, killed.stderr
    eventually(lambda: lake.info().clients == ())
    assert lake.info().outstanding in ((15,) if dies_in == "the batch" else (15, 5))

    query = run(spark, url, tmp_path / "c", maxEventsPerTrigger="10")
    rows = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
    assert rows == ([10, 5] if dies_in == "the batch" else [5])
    assert lake.info().outstanding == 0
    assert numbers(out) == list(range(10 if dies_in == "the batch" else 20, 25))
    assert orders.info().counters.redelivered >= (10 if dies_in == "the batch" else 0)


def test_a_relative_checkpoint_lies_where_spark_was_started(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    at_start = Path(str(spark.sparkContext._jvm.java.lang.System.getProperty("user.dir")))  # type: ignore[union-attr]
    checkpoint = Path(os.path.relpath(tmp_path / "checkpoint", at_start))
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    offset = '{"c": {"orders": {"e": "r/1", "n": 5}}, "v": 1}'
    (tmp_path / "checkpoint" / "offsets" / "0").write_text(f"v1\n{{}}\n{offset}")
    options = source_options({"url": "penstock://localhost:9000", "channel": "orders"})

    monkeypatch.chdir(tmp_path)

    _, end = unfinished_batch(spark, checkpoint, options)
    assert end["orders"].event_id == 5
