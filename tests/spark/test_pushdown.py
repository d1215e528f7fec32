"""Filters of Spark as selectors: never more strict than Spark, and left alone where in doubt."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.functions import lit
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock import Event
from penstock.client.sync import Channel, Session
from penstock.columns.layout import LOGICAL_NAME
from penstock.spark.projection import spark_schema
from penstock.spark.pushdown import TEXT_MAX, Taker, narrowed

STORED = pa.schema(
    [
        pa.field(
            "properties",
            pa.struct(
                [
                    pa.field("n", pa.int64()),
                    pa.field("x", pa.float64()),
                    pa.field("s", pa.string()),
                    pa.field("flag", pa.bool_()),
                    pa.field("n::string", pa.string(), metadata={LOGICAL_NAME: b"n"}),
                    pa.field("a.b", pa.int64()),
                    pa.field("like", pa.int64()),
                    pa.field("JMSPriority", pa.int64()),
                ]
            ),
        )
    ]
)
SCHEMA = spark_schema(STORED)
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


@pytest.mark.spec("F5")
@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (EqualTo(("n",), 5), "n = 5"),
        (EqualNullSafe(("n",), 5), "n = 5"),
        (Not(EqualTo(("n",), 5)), "n <> 5"),
        (LessThan(("n",), -5), "n < -5"),
        (GreaterThanOrEqual(("n",), 5), "n >= 5"),
        (LessThanOrEqual(("x",), 1.5), "x <= 1.5"),
        (GreaterThan(("x",), 1.5), "NOT x <= 1.5"),
        (GreaterThanOrEqual(("x",), 1.5), "NOT x < 1.5"),
        (EqualTo(("flag",), True), "flag = TRUE"),
        (EqualTo(("s",), "it's"), "s = 'it''s'"),
        (In(("s",), ("a", "b")), "s IN ('a', 'b')"),
        (Not(In(("n",), (1, 2))), "n NOT IN (1, 2)"),
        (IsNotNull(("s",)), "s IS NOT NULL"),
        (StringStartsWith(("s",), "a%"), "s LIKE 'a\\%%' ESCAPE '\\'"),
        (StringEndsWith(("s",), "_"), "s LIKE '%\\_' ESCAPE '\\'"),
        (StringContains(("s",), "\\"), "s LIKE '%\\\\%' ESCAPE '\\'"),
        (EqualTo(("tag",), "t"), "tag = 't'"),
        (GreaterThan(("event_id",), 7), "event_id > 7"),
        (LessThan(("published",), NOON), "published < '2026-05-04T12:00:00+00:00'"),
    ],
)
def test_a_filter_becomes_a_selector(one: Filter, expected: str) -> None:
    assert narrowed("", [one], SCHEMA, STORED) == f"({expected})"


@pytest.mark.spec("F5")
@pytest.mark.parametrize(
    "one",
    [
        IsNull(("n",)),
        Not(IsNotNull(("n",))),
        Not(LessThan(("n",), 5)),
        Not(EqualNullSafe(("n",), 5)),
        Not(StringContains(("s",), "a")),
        EqualNullSafe(("n",), None),
        EqualTo(("n",), 5.0),
        EqualTo(("n",), True),
        EqualTo(("s",), 5),
        EqualTo(("x",), math.nan),
        LessThan(("x",), math.inf),
        LessThan(("flag",), True),
        In(("n",), ()),
        In(("n",), (1, None)),
        In(("published",), (NOON,)),
        LessThan(("published",), NOON.replace(tzinfo=None)),
        EqualTo(("n::string",), "5"),
        EqualTo(("a.b",), 5),
        EqualTo(("a", "b"), 5),
        EqualTo(("like",), 5),
        EqualTo(("JMSPriority",), 5),
        EqualTo(("data",), b"x"),
        EqualTo(("missing",), 5),
        EqualTo(("s",), "x" * TEXT_MAX),
        StringContains(("n",), "5"),
    ],
)
def test_a_filter_in_doubt_is_left_to_spark(one: Filter) -> None:
    assert narrowed("", [one], SCHEMA, STORED) == ""
    assert narrowed("s = 'a'", [one], SCHEMA, STORED) == "(s = 'a')"


@pytest.mark.spec("F5")
@pytest.mark.parametrize("kind", [StringType(), StringType("UTF8_LCASE"), LongType()])
def test_a_column_read_as_another_type_is_left_to_spark(kind: Any) -> None:
    as_text = StructType([StructField("n", StringType()), StructField("s", kind)])
    filters = [EqualTo(("n",), "5"), EqualTo(("s",), "a")]
    is_the_same = kind == StringType()

    assert narrowed("", filters, as_text, STORED) == ("(s = 'a')" if is_the_same else "")


@pytest.mark.spec("F5")
def test_nothing_is_said_of_properties_where_some_are_in_the_overflow_column() -> None:
    stored = STORED.append(pa.field("more", pa.binary()))
    filters = [EqualTo(("n",), 5), EqualTo(("tag",), "t")]

    assert narrowed("", filters, SCHEMA, stored) == "(tag = 't')"


def test_a_taker_travels_with_its_filters() -> None:
    taker = Taker()
    assert list(taker([EqualTo(("n",), 5)])) == [EqualTo(("n",), 5)]

    assert pickle.loads(pickle.dumps(taker)).filters == [EqualTo(("n",), 5)]


# --- with Spark ---------------------------------------------------------------------------

CONDITIONS: list[Callable[[DataFrame], Any]] = [
    lambda t: t.n == 7,
    lambda t: t.n > 2_990,
    lambda t: (t.n >= 5) & (t.n < 9) & t.s.isNotNull(),
    lambda t: t.x > 748.0,
    lambda t: t.x >= 0.25,
    lambda t: t.x < 1,
    lambda t: t.x == float("nan"),
    lambda t: ~(t.x == 3.5),
    lambda t: t.x.isNull(),
    lambda t: t.s.startswith("a_"),
    lambda t: t.s.contains("%"),
    lambda t: t.s.isin("a_1", "b%2"),
    lambda t: ~t.s.isin("a_1", "b%2"),
    lambda t: t.flag,
    lambda t: ~t.flag,
    lambda t: t.tag == "odd",
    lambda t: t.event_id > 2_995,
    lambda t: t.published > lit(datetime(2020, 1, 1, tzinfo=UTC)),
    lambda t: t.published < lit(datetime(2020, 1, 1, tzinfo=UTC)),
    lambda t: (t.n == 1) | (t.n == 2),
    lambda t: t.place.city == "Oslo",
    lambda t: t.n.cast("string") == "7",
]


@contextmanager
def not_pushing(spark: SparkSession) -> Iterator[None]:
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "false")
    try:
        yield
    finally:
        spark.conf.set(name, "true")


def _events() -> list[Event]:
    return [
        Event(
            b"",
            tag="odd" if n % 2 else None,
            properties={
                "n": n if n % 5 else f"text {n}",
                "x": None if n % 7 == 0 else math.nan if n % 11 == 0 else n / 4,
                "s": (f"a_{n % 3}", f"b%{n % 4}", f"c{n}", None)[n % 4],
                "flag": None if n % 3 == 0 else n % 2 == 0,
                "place": {"city": "Oslo" if n % 2 else "Bonn"},
            },
        )
        for n in range(1, 3_001)
    ]


@pytest.mark.spark
@pytest.mark.spec("F5")
def test_spark_finds_the_same_with_and_without(
    spark: SparkSession, url: str, client: Session, sealed: Callable[[Channel, int], None]
) -> None:
    orders = client.channels.create(
        "orders", type="persistent", storage={"events_per_spindle": 1_000}
    )
    orders.publish_many(_events())
    sealed(orders, 2)
    table = spark.read.format("penstock").options(url=url, channel="orders").load()

    def found() -> list[set[int]]:
        return [{row.event_id for row in table.where(c(table)).collect()} for c in CONDITIONS]

    with_filters = found()
    with not_pushing(spark):
        without = found()

    assert with_filters == without
    assert all(with_filters[:5])


@pytest.mark.spark
@pytest.mark.spec("F5")
def test_what_is_filtered_away_is_not_even_read(
    spark: SparkSession, url: str, client: Session, sealed: Callable[[Channel, int], None]
) -> None:
    orders = client.channels.create(
        "orders", type="persistent", storage={"events_per_spindle": 1_000}
    )
    orders.publish_many([Event(b"", properties={"n": n}) for n in range(3_000)])
    sealed(orders, 3)
    options = {"url": url, "channel": "orders", "minPartitions": "3"}
    table = spark.read.format("penstock").options(**options).load()

    assert table.rdd.getNumPartitions() == 3
    assert table.where("n > 2990").rdd.getNumPartitions() == 1
    assert table.where("n > 2990").count() == 9


@pytest.mark.spark
@pytest.mark.spec("F5")
def test_a_session_that_does_not_push_filters_down_reads_as_well(
    spark: SparkSession, url: str, client: Session
) -> None:
    orders = client.channels.create("orders", type="persistent")
    orders.publish_many([Event(b"", properties={"n": n}) for n in range(10)])
    with not_pushing(spark):
        table = spark.read.format("penstock").options(url=url, channel="orders").load()
        assert sorted(row.n for row in table.where("n > 6").collect()) == [7, 8, 9]
