"""Channels as tables of a real Spark session: reading and writing once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf import api_pb2
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.client.sync.sync import Channel, Session
from penstock_spark import register

NOON = datetime(2013, 1, 1, hour=12, tzinfo=UTC)


@pytest.fixture
def orders(client: Session) -> Channel:
    return client.channels.create(
        "orders", type="persistent", storage={"events_per_spindle": 1_000}
    )


def load(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    return spark.read.format("penstock").options(url=url, channel="orders", **options).load()


def properties_of(n: int) -> dict[str, Any]:
    return {
        "n": n,
        "price": n / 4 if n % 3 else None,
        "at": NOON,
        "flag": n % 2 == 0,
        "lines": [{"sku": f"s{n}", "pieces": n}, {"sku": None, "pieces": 0}],
        "place": {"city": "Oslo", "where": {"lat": 59.9}},
    }


def test_a_read_gives_what_was_published(
    spark: SparkSession, url: str, orders: Channel, sealed: Callable[[Channel, int], None]
) -> None:
    published = [
        penstock.Event(b"%d" % n, tag="t" if n % 5 else None, properties=properties_of(n))
        for n in range(2_500)
    ]
    orders.publish_many(published)
    sealed(orders, 2)
    orders.publish(b"late", properties={"n": 2_500, "late": "x"})

    table = load(spark, url, minPartitions=3)
    rows = [row.asDict(recursive=True) for row in table.orderBy("event_id").collect()]

    assert table.rdd.getNumPartitions() == 3
    assert [row["event_id"] for row in rows] == list(range(2_501))
    for event, row in zip(published, rows, strict=False):
        time = row.pop("at").astimezone(UTC)
        assert bytes(row["data"]) == event.data
        assert row["tag"] == event.tag
        assert time == NOON
        for name in ("n", "price", "flag", "lines", "place"):
            assert row[name] == event.properties[name]
        assert row["late"] is None
    assert (rows[-1]["late"], rows[-1]["price"], rows[-1]["lines"]) == ("x", None, None)


def test_a_selector_that_rules_out_files(
    spark: SparkSession, url: str, orders: Channel, sealed: Callable[[Channel, int], None]
) -> None:
    orders.publish_many([penstock.Event(properties={"n": n}) for n in range(3_000)])
    sealed(orders, 3)

    chosen = load(spark, url, selector="n >= 2990", minPartitions=3)
    nothing = load(spark, url, selector="n > 5000")

    assert sorted(row.n for row in chosen.collect()) == list(range(2_990, 3_000))
    assert nothing.collect() == []


@pytest.mark.spec("F5", "P1")
def test_a_selector_reads_the_fields_of_messages(
    spark: SparkSession, url: str, client: Session, sealed: Callable[[Channel, int], None]
) -> None:
    orders = client.channels.create(
        "orders",
        type="persistent",
        storage={"events_per_spindle": 1_000},
        descriptors=api_pb2,
    )
    messages = orders.messages()
    orders.publish_many(
        [
            messages.event("google.protobuf.Api", {"name": f"n{n}", "methods": [{"name": "Get"}]})
            for n in range(1_500)
        ]
    )
    sealed(orders, 1)

    chosen = load(spark, url, selector="name IN ('n7', 'n1400') AND methods[].name = 'Get'")

    assert sorted(row.event_id for row in chosen.collect()) == [7, 1_400]


@pytest.mark.spec("F5", "K4")
def test_a_merge_channel_is_a_table_of_states(
    spark: SparkSession, url: str, client: Session
) -> None:
    orders = client.channels.create("orders", engine="merge", keys={"n": 1})
    for n in range(3):
        orders.register(n, bid=1, ask=2)
    orders.update(1, ask=5)

    table = load(spark, url)
    assert sorted((row.n, row.bid, row.ask) for row in table.collect()) == [
        (0, 1, 2),
        (1, 1, 5),
        (2, 1, 2),
    ]
    assert [row.n for row in load(spark, url, selector="ask = 5 AND bid = 1").collect()] == [1]


@pytest.mark.spec("F5")
def test_one_query_does_not_narrow_the_next(spark: SparkSession, url: str, orders: Channel) -> None:
    """Spark would go on using the filters of the first, were they handed to the source."""
    orders.publish_many([penstock.Event(properties={"n": n}) for n in range(20)])
    table = load(spark, url)

    assert table.where("n >= 15").count() == 5
    assert table.count() == 20
    assert table.where("n < 15").count() == 15


def test_columns_selectors_and_schemas_choose(
    spark: SparkSession, url: str, orders: Channel
) -> None:
    orders.publish_many([penstock.Event(properties=properties_of(n)) for n in range(30)])

    chosen = load(spark, url, columns="n, event_id", selector="price > 4.5 AND flag = TRUE")
    assert chosen.columns == ["n", "event_id"]
    assert sorted(row.n for row in chosen.collect()) == [20, 22, 26, 28]
    reader = (
        spark.read.format("penstock")
        .options(url=url, channel="orders")
        .schema("price STRING, n DOUBLE, absent DATE")
        .load()
        .where("n = 4")
    )
    assert [tuple(row) for row in reader.collect()] == [("1", 4.0, None)]


def test_purged_events_are_not_read(
    spark: SparkSession, url: str, orders: Channel, sealed: Callable[[Channel, int], None]
) -> None:
    orders.publish_many([penstock.Event(properties={"n": n}) for n in range(1_500)])
    sealed(orders, 1)
    orders.purge(selector="n BETWEEN 100 AND 199 OR n > 1400")

    result = load(spark, url, minPartitions=2).agg({"n": "sum", "event_id": "count"}).collect()[0]

    assert result["count(event_id)"] == 1_301
    assert result["sum(n)"] == sum(n for n in range(1_401) if not 100 <= n <= 199)


def test_an_empty_channel_is_an_empty_table(spark: SparkSession, url: str, orders: Channel) -> None:
    assert load(spark, url).collect() == []


def test_views_and_sql_read_channels(spark: SparkSession, url: str, orders: Channel) -> None:
    orders.publish_many([penstock.Event(properties={"n": n}) for n in range(10)])
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING penstock "
        f"OPTIONS (url '{url}', channel 'orders')"
    )

    assert spark.sql("SELECT sum(n) AS total FROM orders").collect()[0].total == 45


def test_a_registered_realm_is_the_default(
    spark: SparkSession, url: str, orders: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.publish(properties={"n": 1})
    register(spark, url)
    assert spark.read.format("penstock").load("orders").count() == 1
    monkeypatch.setenv("PENSTOCK_URL", url)
    register(spark)
    assert spark.read.format("penstock").load("orders").count() == 1


def test_a_table_is_appended_in_the_order_of_its_partitions(
    spark: SparkSession, url: str, client: Session
) -> None:
    out = client.channels.create("out", type="persistent")
    table = spark.range(0, 1_000, 1, numPartitions=4).selectExpr(
        "concat('row ', id) AS data",
        "if(id % 2 = 0, 'even', null) AS tag",
        "id AS n",
        "timestamp '2013-01-01 12:00:00' AS at",
        "array(named_struct('a', id)) AS list",
    )

    table.write.format("penstock").options(url=url, channel="out").mode("append").save()

    result = out.read()
    assert result.column("n").to_pylist() == list(range(1_000))
    first = result.slice(1, 1).to_pylist()[0]
    assert (first["data"], first["tag"], first["at"], first["list"]) == (
        b"row 1",
        None,
        NOON,
        [{"a": 1}],
    )


def test_the_same_transaction_is_appended_once(
    spark: SparkSession, url: str, client: Session
) -> None:
    out = client.channels.create("out", type="persistent")
    for version in (0, 0, 1):
        spark.range(10).write.format("penstock").options(
            url=url, channel="out", txnAppId="nightly", txnVersion=version
        ).mode("append").save()

    assert out.info().events == 20


def test_a_task_tried_again_is_stored_once(spark: SparkSession, url: str, client: Session) -> None:
    from pyspark.sql.functions import udf

    out = client.channels.create("out", type="persistent")

    @udf("bigint", useArrow=False)
    def second_try(n: int) -> int:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if n == 999 and context.attemptNumber() == 0:
            raise ValueError("the first try of the last partition")
        return n

    table = spark.range(0, 1_000, 1, numPartitions=2).select(second_try("id").alias("n"))
    table.write.format("penstock").options(url=url, channel="out").mode("append").save()

    assert out.read().column("n").to_pylist() == list(range(1_000))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"channel": "odrers"}, "no channel 'odrers'; create it first"),
        ({"startingOfsets": "earliest"}, "did you mean startingOffsets?"),
        ({"url": "penstock://127.0.0.1:1"}, "is one running?"),
        ({"columns": "evnt_id"}, "did you mean event_id?"),
        ({"selector": "n >"}, "selector line 1, column"),
    ],
)
def test_a_mistake_is_said_when_the_table_is_named(
    spark: SparkSession, url: str, orders: Channel, options: dict[str, str], says: str
) -> None:
    all_options = {"url": url, "channel": "orders", **options}

    with pytest.raises(AnalysisException) as refusal:
        spark.read.format("penstock").options(**all_options).load()

    assert says in str(refusal.value)


def test_a_column_no_event_can_have_is_said_before_anything_is_written(
    spark: SparkSession, url: str, client: Session
) -> None:
    out = client.channels.create("out", type="persistent")
    table = spark.range(3).selectExpr("id", "map('a', id) AS extra")

    with pytest.raises(AnalysisException, match="'extra' has type map"):
        table.write.format("penstock").options(url=url, channel="out").mode("append").save()

    assert out.info().last_event_id == -1
