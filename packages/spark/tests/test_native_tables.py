"""Channels as tables that Spark reads by itself: their rows, columns and snapshots, and the way to
the same rows for executors that see no files."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

import penstock
from packages.core.tests.columns.strategies import PROPERTIES
from penstock.client.sync.sync import Channel, Session
from penstock.spark import table
from penstock_core.vocabulary.errors import InvalidArgument, NameDoesNotExist, Unavailable
from penstock_spark.connections import disconnect
from tests.thorough import examples

pytestmark = [pytest.mark.spec("B7")]


def is_native(frame: DataFrame) -> bool:
    """Whether Spark reads the files itself."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return "FileScan parquet" in plan or "LocalTableScan" in plan or "Scan ExistingRDD" in plan


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.event_id for row in frame.select("event_id").collect())


def stored_ids(channel: Channel) -> list[int]:
    return sorted(channel.read(columns=["event_id"]).column("event_id").to_pylist())


def test_a_table_is_what_is_stored_now_and_stays_it(
    spark: SparkSession, client: Session, url: str, sealed: Callable[[Channel, int], None]
) -> None:
    orders = client.channels.create("orders", type="persistent", storage={"events_per_spindle": 20})
    events = [
        penstock.Event(b"x", properties={"price": float(n), "sku": f"s{n % 3}"}) for n in range(50)
    ]
    orders.publish_many(events)
    sealed(orders, 2)
    orders.purge(start=5, end=6)
    orders.purge(start=45, end=45)
    frame = table(spark, "orders", url)

    assert is_native(frame)
    assert ids(frame) == stored_ids(orders) == [n for n in range(50) if n not in (5, 6, 45)]
    filtered = frame.where("price >= 10 AND sku = 's1'").select("price")
    plan = filtered._jdf.queryExecution().executedPlan().toString()
    assert "GreaterThanOrEqual(price,10.0)" in plan
    assert "ReadSchema: struct<price:double,sku:string>" in plan
    assert filtered.count() == len([n for n in range(10, 50) if n % 3 == 1 and n != 45])

    frame.createOrReplaceTempView("orders_now")
    orders.purge()
    orders.publish(b"new")
    assert spark.sql("SELECT count(*) AS n FROM orders_now").collect()[0].n == 47
    assert ids(table(spark, "orders", url)) == [50]


def test_executors_that_see_no_files_read_the_same_rows_and_columns(
    spark: SparkSession, client: Session, url: str
) -> None:
    channel = client.channels.create("eu/orders,all")
    noon = datetime(2026, 5, 4, 12, tzinfo=UTC)
    wall = noon.replace(tzinfo=None)
    published: list[dict[str, Any]] = [
        {"price": 3, "at": noon, "published_day": "x", "ttl": "mine", "empty": {}},
        {"price": 0.5, "wall": wall, "lines": [{"n": 1}, {"n": None}], "nothing": None},
        {"Price": "dear", "a.b": 1, "a": {"b": 2, "B": 3}, "raw": b"\x00", "mixed": [1, "x"]},
        {"large": 2**53 + 1},
        {"large": 0.25},
        {"nan": math.nan, "yes": True},
    ]
    for properties in published:
        channel.publish(b"d", tag="t", ttl=3_600_000, properties=properties)
    near, far = table(spark, channel.name, url), table(spark, channel.name, url, access="remote")

    assert is_native(near)
    assert not is_native(far)
    assert near.schema == far.schema
    assert {"price", "price::int", "price::float", "large::int", "properties.Price"} <= {
        *near.columns
    }
    assert "large" not in near.columns
    rows, others = (frame.orderBy("event_id").collect() for frame in (near, far))
    assert [repr(row) for row in rows] == [repr(row) for row in others]
    assert [row["price"] for row in rows][:2] == [3.0, 0.5]
    assert rows[0]["properties.ttl"] == "mine"
    assert rows[0]["ttl"] == 3_600_000
    assert tuple(rows[2]["a"]) == (2, 3)
    assert rows[3]["headers"] == others[3]["headers"]


def test_a_queue_is_a_table_too_and_keeps_its_events(
    spark: SparkSession, client: Session, url: str
) -> None:
    jobs = client.queues.create("jobs")
    jobs.push_many([penstock.Event(b"x", properties={"n": n}) for n in range(4)])

    for access in ("auto", "remote"):
        frame = table(spark, "jobs", url, access=access)
        assert sorted(row.n for row in frame.collect()) == [0, 1, 2, 3]
    assert jobs.info().events == 4


def test_a_merge_channel_and_an_empty_one_are_tables(
    spark: SparkSession, client: Session, url: str
) -> None:
    prices = client.channels.create("prices", keys={"sku": 1}, engine="merge")
    client.channels.create("none")
    for sku, price in (("a", 1), ("b", 2), ("a", 3)):
        prices.publish(b"", properties={"sku": sku, "price": price})

    for access in ("auto", "remote"):
        frame = table(spark, "prices", url, access=access)
        assert sorted(row.price for row in frame.collect()) == [2, 3]
        assert table(spark, "none", url, access=access).count() == 0


def test_a_number_in_a_struct_that_is_shown_twice_is_refused_far_away(
    spark: SparkSession, client: Session, url: str
) -> None:
    channel = client.channels.create("nested")
    for number in (1, 0.5):
        channel.publish(b"", properties={"p": {"n": number}})

    assert table(spark, "nested", url).count() == 2
    with pytest.raises(InvalidArgument, match="column p has a field with integers and floats"):
        table(spark, "nested", url, access="remote")


def test_a_realm_without_files_is_read_over_the_wire(spark: SparkSession) -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        url = realm.listen()
        channel = session.channels.create("orders")
        channel.publish_many([penstock.Event(b"x", properties={"n": n}) for n in range(10)])
        frame = table(spark, "orders", url)

        assert not is_native(frame)
        assert ids(frame) == list(range(10))
        with pytest.raises(Unavailable, match="cannot be read on this machine"):
            table(spark, "orders", url, access="local")
        disconnect()


def test_wrong_names_and_choices_are_refused(
    spark: SparkSession, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    with pytest.raises(NameDoesNotExist, match="has no"):
        table(spark, "nothing", url)
    with pytest.raises(InvalidArgument, match="access is 'near'"):
        table(spark, "nothing", url, access="near")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="no realm is given"):
        table(spark, "nothing")


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Steps in the life of a channel."""
    steps = st.one_of(
        st.tuples(st.just("publish"), st.lists(PROPERTIES, min_size=1, max_size=6)),
        st.tuples(st.just("purge"), st.integers(0, 20)),
        st.tuples(st.just("ack"), st.integers(1, 5)),
        st.tuples(st.just("expire"), PROPERTIES),
        st.tuples(st.just("maintain"), st.none()),
    )
    return draw(st.lists(steps, min_size=2, max_size=8))


@given(life=lives())
@settings(
    max_examples=examples(8),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_life_of_a_channel_gives_the_rows_of_read(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, life: list[tuple[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("life") / "a [folder] {with} signs? %20*"
    with penstock.Realm(folder) as realm, realm.connect() as session:
        url = realm.listen()
        channel = session.channels.create("c", type="persistent", storage={"events_per_spindle": 4})
        durable = channel.durables.create("d")
        for step, value in life:
            live(channel, durable, step, value)
            if step == "maintain":
                check(spark, channel, url)
        check(spark, channel, url)
        disconnect()


def live(channel: Channel, durable: Any, step: str, value: Any) -> None:
    if step == "publish":
        channel.publish_many([penstock.Event(b"x", properties=properties) for properties in value])
    elif step == "purge":
        channel.purge(start=value, end=value)
    elif step == "ack":
        with durable.subscribe(timeout=0.05) as subscription:
            for event, _ in zip(subscription, range(value), strict=False):
                event.ack()
    elif step == "expire":
        channel.publish(b"gone", ttl=1, properties=value)


def check(spark: SparkSession, channel: Channel, url: str) -> None:
    """The rows and values of the table are those of ``read``."""
    before = channel.read().sort_by("event_id")
    frame = table(spark, channel.name, url)
    rows = frame.orderBy("event_id").toArrow()

    assert is_native(frame)
    ids_before = before.column("event_id").to_pylist()
    wanted = rows.column("event_id").to_pylist()
    # The TTL of an event may have ended in between.
    assert {*stored_ids(channel)} <= {*wanted} <= {*ids_before}
    truth = before.filter(pc.is_in(before.column("event_id"), rows.column("event_id")))
    assert wanted == truth.column("event_id").to_pylist()
    for name in {*truth.column_names} & {*rows.column_names}:
        for one, other_value in zip(
            truth.column(name).to_pylist(), rows.column(name).to_pylist(), strict=True
        ):
            assert repr(one) == repr(other_value) or one == other_value or is_nan(one), name


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
