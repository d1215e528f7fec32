"""Rows become events: their routes, and the errors of invalid rows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    CalendarIntervalType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from penstock_core.vocabulary.errors import EventTooLarge, InvalidArgument, InvalidEvent
from penstock_spark.columns.rows import ChannelRows, check_writable, events_of, route_rows, shown
from penstock_spark.options import SinkOptions, Where, sink_options, with_routes

URL = "penstock://localhost:9000"
ANY_SIZE = 1 << 30


def options(**settings: str) -> SinkOptions:
    return sink_options({"url": URL, **settings})


def rows(first: int = 0, partition: int = 2, **columns: Any) -> ChannelRows:
    table = pa.table(columns)
    numbers = np.arange(first, first + table.num_rows, dtype=np.int64)
    return ChannelRows("out", table, numbers, partition=partition)


def test_rows_go_where_their_column_says_each_channel_in_the_order_of_the_rows() -> None:
    table = pa.table({"to": ["b", "a", None, "b", "a"], "n": [0, 1, 2, 3, 4]})

    result = list(route_rows(table, 10, 1, options=options(channelColumn="to", channel="rest")))

    assert [(r.channel, r.table.column("n").to_pylist(), r.numbers.tolist()) for r in result] == [
        ("b", [0, 3], [10, 13]),
        ("a", [1, 4], [11, 14]),
        ("rest", [2], [12]),
    ]
    assert all(r.table.column_names == ["n"] for r in result)


def test_without_a_column_all_rows_go_to_the_channel_of_the_write() -> None:
    (result,) = route_rows(pa.table({"n": [1, 2]}), 0, 0, options=options(channel="out"))

    assert (result.channel, result.table.num_rows) == ("out", 2)


def test_a_row_without_a_channel_is_named() -> None:
    table = pa.table({"to": ["b", None, "a", None], "n": [0, 1, 2, 3]})

    with pytest.raises(InvalidEvent, match=r"row 101 of partition 4 names no channel"):
        list(route_rows(table, 100, 4, options=options(channelColumn="to")))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (
            {"priority": [1, 5, 12, 99], "n": [1, 2, 3, 4]},
            r"row 32 of partition 2 cannot be an event: priority 12 is not in 0\.\.9; give 0 to 9;"
            r".* the row is priority=12, n=3",
        ),
        ({"priority": pa.array([1, 5, 300, 1], pa.int32())}, "row 32 .*300.*give 0 to 9"),
        ({"ttl": [None, 0, 5, -1]}, "row 33 .*ttl -1 is not in .*give milliseconds, 0 to 1125"),
        (
            {
                "at": pa.array([0, 0, -(1 << 62), 0], pa.timestamp("us", tz="UTC")).slice(0, 2),
                "priority": [1, -1],
            },
            "row 31 .*priority -1",
        ),
        (
            {"deliver_at": pa.array([None, 5, 1 << 61, None], pa.timestamp("us", tz="UTC"))},
            "row 32 .*outside the years 1 to 9999",
        ),
    ],
)
def test_the_first_row_that_cannot_be_an_event_is_named(columns: Any, says: str) -> None:
    with pytest.raises(InvalidEvent, match=says):
        events_of(rows(30, **columns), options(channel="out"), ANY_SIZE)


def test_a_row_that_is_too_large_is_named_and_not_printed_in_full() -> None:
    data = [b"x", b"y" * 5_000, b"z"]

    with pytest.raises(EventTooLarge, match=r"row 1 of partition 2 .*has 5\d+ bytes") as raised:
        events_of(rows(data=data, n=[1, 2, 3]), options(channel="out"), 1_000)
    assert len(str(raised.value)) < 300


def test_a_row_is_shown_shortened() -> None:
    text = shown(pa.table({f"c{n}": ["v" * 100] for n in range(20)}))

    assert text.endswith("and 8 more columns")
    assert len(text) < 700


def test_columns_of_meaning_are_no_properties() -> None:
    body, later = events_of(
        rows(
            data=[b"a", b"b"],
            tag=["t", None],
            ttl=[5, None],
            priority=[9, None],
            headers=[{"type": "order"}, None],
            deliver_at=[None, datetime(2013, 1, 31, tzinfo=UTC)],
            n=[1, 2],
        ),
        options(channel="out"),
        ANY_SIZE,
    )[::-1]

    assert body.schema.names == ["tag", "data", "properties", "headers", "ttl", "priority"]
    assert [field.name for field in body.schema.field("properties").type] == ["n"]
    assert body.to_pylist()[0]["headers"] == {"type": "order"}
    assert later.to_pylist()[0]["deliver_at"] == datetime(2013, 1, 31, tzinfo=UTC)


def test_in_a_delta_a_null_is_no_change() -> None:
    columns: dict[str, Any] = {"key": ["a", "b"], "bid": [1.0, None], "whole": [False, True]}

    (all_of_them,) = events_of(
        rows(key=columns["key"], bid=columns["bid"]), options(channel="out", delta="true"), ANY_SIZE
    )
    (some,) = events_of(rows(**columns), options(channel="out", deltaColumn="whole"), ANY_SIZE)
    (none,) = events_of(
        rows(**{**columns, "whole": [None, False]}),
        options(channel="out", deltaColumn="whole"),
        ANY_SIZE,
    )

    assert all_of_them.column("delta").to_pylist() == [True, True]
    assert all_of_them.column("sparse").to_pylist() == [True, True]
    assert some.column("delta").to_pylist() == some.column("sparse").to_pylist() == [False, True]
    assert none.schema.names == ["properties"]
    assert [field.name for field in some.schema.field("properties").type] == ["key", "bid"]


def test_nulls_may_be_absent_properties() -> None:
    (body,) = events_of(rows(n=[1, None]), options(channel="out", nulls="absent"), ANY_SIZE)

    assert body.column("sparse").to_pylist() == [True, True]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"channelColumn": "chanel"}, "no such column: did you mean channel"),
        ({"channelColumn": "n"}, "a column of type int64; it must be STRING"),
        ({"deltaColumn": "n"}, "a column of type int64; it must be BOOLEAN"),
        ({"deltaColumn": "is_delta", "delta": "true"}, "not both"),
        ({"nulls": "none"}, "it must be keep or absent"),
        ({"delta": "yes"}, "it must be false or true"),
    ],
)
def test_options_that_do_not_fit_the_rows_are_refused_before_any_task(
    settings: dict[str, str], says: str
) -> None:
    schema = StructType().add("channel", StringType()).add("n", LongType())
    schema = schema.add("is_delta", BooleanType())

    with pytest.raises(InvalidArgument, match=says):
        check_writable(schema, options(**settings), overwrite=False)


def test_rows_with_nothing_but_a_channel_are_no_events() -> None:
    schema = StructType().add("channel", StringType())

    with pytest.raises(InvalidEvent, match="no column that an event could be made of"):
        check_writable(schema, options(channelColumn="channel"), overwrite=False)


def test_a_column_named_channel_routes_unless_something_else_is_said() -> None:
    names = ["channel", "n"]

    def column(**settings: str) -> str:
        return with_routes(options(**settings), names, settings).channel_column

    assert column() == "channel"
    assert column(channel="out", channelColumn="channel") == "channel"
    assert column(channel="out", channelColumn="") == ""
    with pytest.raises(InvalidArgument, match=r'\.drop\("channel"\), set channelColumn=channel'):
        column(channel="out")
    with pytest.raises(InvalidArgument, match="no channel is given"):
        column(channelColumn="")
    with pytest.raises(InvalidArgument, match="give the rows a column channel"):
        with_routes(options(), ["n"], {})


def test_a_type_that_fits_by_its_values_is_taken() -> None:
    schema = StructType().add("priority", IntegerType())

    check_writable(schema, SinkOptions(Where(URL, "out")), overwrite=False)


def test_lists_of_nothing_but_nulls_are_taken_also_empty_ones() -> None:
    """The types of ``array()`` and ``array(null)`` in SQL."""
    void = StructField("void", NullType(), nullable=False)
    kinds: list[DataType] = [
        NullType(),
        StructType([void]),
        ArrayType(NullType(), containsNull=False),
    ]
    for kind in kinds:
        schema = StructType().add("n", LongType()).add("odd", ArrayType(kind, containsNull=False))
        check_writable(schema, options(channel="out"), overwrite=False)
    schema = StructType().add("odd", MapType(NullType(), NullType()))
    with pytest.raises(InvalidEvent, match="column 'odd' is map<void,void>, a type that"):
        check_writable(schema, options(channel="out"), overwrite=False)


def test_a_type_that_only_spark_has_is_refused_with_its_column() -> None:
    for kind in (CalendarIntervalType(), VariantType(), StructType().add("a", VariantType())):
        schema = StructType().add("n", LongType()).add("odd", kind)
        with pytest.raises(InvalidEvent, match=r"column 'odd' is .*(interval|variant).*; cast it"):
            check_writable(schema, options(channel="out"), overwrite=False)
    named = StructType().add("odd", StructType().add("variant", StringType()))
    check_writable(named, options(channel="out"), overwrite=False)
