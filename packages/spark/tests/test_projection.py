"""Spark gets stored events in exactly the schema that it expects."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.columns.projection import (
    NO_EXTRAS,
    Extras,
    Projection,
    arrow_schema,
    spark_schema,
    unread_properties,
)

NOON = datetime(2013, 1, 1, hour=12, tzinfo=UTC)


def stored(*properties: dict[str, Any] | None, first: int = 0, **event: Any) -> pa.RecordBatch:
    events = [Event(b"x", properties=event_properties, **event) for event_properties in properties]
    return stamp(body_of(events), Span(first, first + len(events)), 1_000_000)


def channel_of(*batches: pa.RecordBatch) -> pa.Schema:
    schema = ChannelSchema.empty()
    for batch in batches:
        schema = schema.grown(batch.schema)
    return schema.arrow


def read(
    batch: pa.RecordBatch, channel: pa.Schema, ddl: str = "", *, extras: Extras = NO_EXTRAS
) -> pa.RecordBatch:
    schema = spark_schema([channel], extras=extras)
    if ddl:
        ddl_schema = _ddl(ddl)
        schema = ddl_schema
    wanted = arrow_schema(schema)
    result = Projection(channel, wanted, extras=extras).project(batch)
    assert result.schema.equals(wanted)
    result.validate(full=True)
    return result


def _ddl(text: str) -> StructType:
    """Without a JVM: ``name type`` pairs of simple types."""
    kinds: dict[str, Any] = {"bigint": LongType(), "string": StringType()}
    schema = StructType()
    for pair in text.split(","):
        name, kind = pair.split()
        schema = schema.add(name, kinds[kind])
    return schema


def test_a_channel_never_published_to_has_four_columns() -> None:
    schema = spark_schema([ChannelSchema.empty().arrow])

    assert schema.names == ["event_id", "published", "tag", "data"]
    assert [field.dataType for field in schema] == [
        LongType(),
        TimestampType(),
        StringType(),
        BinaryType(),
    ]


def test_every_kind_of_property_is_a_column_of_its_type() -> None:
    properties = {
        "flag": True,
        "count": 7,
        "price": 9.5,
        "text": "é",
        "raw": b"\x00",
        "at": NOON,
        "wall": datetime(2013, 1, 1, hour=12),  # noqa: DTZ001  a time without a zone is meant
        "never": None,
        "tags": ["a", None],
        "lines": [{"sku": "a", "pieces": 2, "note": None}],
        "place": {"city": "Oslo", "at": {"lat": 59.9}},
    }
    batch = stored(properties, None)

    result = read(batch, channel_of(batch))

    rows = result.to_pylist()
    assert {name: rows[0][name] for name in properties} == properties
    assert {rows[1][name] for name in properties} == {None}
    schema = spark_schema([channel_of(batch)])
    assert schema["wall"].dataType == TimestampNTZType()
    assert schema["never"].dataType == StringType()
    assert isinstance(schema["lines"].dataType, ArrayType)


def test_an_older_batch_reads_like_a_newer_one() -> None:
    old, new = stored({"price": 1}), stored({"price": 2, "late": "x"}, first=1)
    channel = channel_of(old, new)

    assert read(old, channel).to_pylist()[0]["late"] is None
    assert read(new, channel).to_pylist()[0]["late"] == "x"


def test_a_second_type_of_a_property_is_a_second_column() -> None:
    number, text = stored({"price": 1}), stored({"price": "dear"}, first=1)
    channel = channel_of(number, text)

    # In its own batch the text is the first type; in the channel it is the second.
    row = read(number, channel).to_pylist()[0]
    assert (row["price"], row["price::string"]) == (1, None)
    assert read(text, channel).to_pylist()[0]["price::string"] == "dear"
    assert read(text, channel).to_pylist()[0]["price"] is None


def test_chosen_columns_come_in_the_order_chosen() -> None:
    batch = stored({"a": 1, "b": 2})

    assert spark_schema([channel_of(batch)], columns=("b", "event_id")).names == ["b", "event_id"]
    with pytest.raises(InvalidArgument, match="no column 'event': did you mean event_id"):
        spark_schema([channel_of(batch)], columns=("event",))


def test_a_schema_of_the_users_casts_and_fills() -> None:
    batch = stored({"a": 1, "b": "text"})

    result = read(batch, channel_of(batch), "a string, missing bigint, data string")

    assert result.to_pylist() == [{"a": "1", "missing": None, "data": "x"}]


def test_a_value_that_does_not_fit_names_its_column() -> None:
    batch = stored({"price": "dear"})

    with pytest.raises(InvalidArgument, match=r"column price is stored as string.*\.schema"):
        read(batch, channel_of(batch), "price bigint")


def test_rows_of_a_slice_are_read_at_their_place() -> None:
    batch = stored(*({"a": i, "s": {"b": i}} if i % 2 else None for i in range(10)))

    result = read(batch.slice(3, 4), channel_of(batch)).to_pylist()

    assert [row["a"] for row in result] == [3, None, 5, None]
    assert [row["s"] for row in result] == [{"b": 3}, None, {"b": 5}, None]


def test_a_property_named_like_a_column_keeps_out_of_its_way() -> None:
    batch = stored({"tag": "mine", "ttl": 5}, tag="theirs", ttl=9)

    plain = read(batch, channel_of(batch)).to_pylist()[0]
    assert (plain["tag"], plain["properties.tag"], plain["ttl"]) == ("theirs", "mine", 5)
    full = read(batch, channel_of(batch), extras=Extras(headers=True)).to_pylist()[0]
    assert (full["ttl"], full["properties.ttl"]) == (9, 5)


def test_headers_come_on_request_and_whole() -> None:
    batch = stored({"a": 1}, headers={"correlation_id": "c-1"}, priority=7, persistent=False)

    row = read(batch, channel_of(batch), extras=Extras(headers=True)).to_pylist()[0]

    assert row["headers"]["correlation_id"] == "c-1"
    assert row["headers"]["reply_to"] is None
    assert (row["priority"], row["persistent"], row["ttl"]) == (7, False, None)


def test_events_without_data_have_empty_data() -> None:
    body = pa.RecordBatch.from_arrays(
        [pa.StructArray.from_arrays([pa.array([1, 2])], names=["a"])], names=["properties"]
    )
    batch = stamp(body, Span(0, 2), 0)

    assert read(batch, channel_of(batch)).column("data").to_pylist() == [b"", b""]


def united(*rows: dict[str, Any]) -> tuple[list[pa.RecordBatch], pa.Schema]:
    """Return each event in a separate batch, and the schema of their channel."""
    batches = [stored(row, first=event_id) for event_id, row in enumerate(rows)]
    return batches, channel_of(*batches)


def values(
    batches: list[pa.RecordBatch], channel: pa.Schema, wanted: pa.Schema, *, by_type: bool = False
) -> list[dict[str, Any]]:
    projection = Projection(channel, wanted, by_type=by_type)
    rows = [projection.project(batch).to_pylist()[0] for batch in batches]
    return [{name: row[name] for name in wanted.names[4:]} for row in rows]


@pytest.mark.spec("E10")
@pytest.mark.parametrize("by_type", [True, False])
def test_integers_and_floats_of_a_property_are_one_column_of_doubles(by_type: bool) -> None:
    rows: list[dict[str, Any]] = [{"p": 3}, {"p": 9.5}, {"p": "x"}, {"d": {"n": 1}, "xs": [1]}]
    batches, channel = united(*rows, {"d": {"n": 0.5}, "xs": [0.5]})
    wanted = arrow_schema(spark_schema([channel]))

    assert wanted.names[4:] == ["p", "p::string", "d", "xs"]
    result = values(batches, channel, wanted, by_type=by_type)
    assert [(row["p"], row["p::string"]) for row in result[:3]] == [
        (3.0, None),
        (9.5, None),
        (None, "x"),
    ]
    assert [(row["d"], row["xs"]) for row in result[3:]] == [
        ({"n": 1.0}, [1.0]),
        ({"n": 0.5}, [0.5]),
    ]


@pytest.mark.spec("E10")
def test_exact_columns_of_numbers_are_chosen_by_name() -> None:
    batches, channel = united({"p": 3}, {"p": 9.5})

    for schema in (
        spark_schema([channel], columns=("event_id", "published", "tag", "data", "p::int", "p")),
        spark_schema([channel], typed={"p"}),
    ):
        result = values(batches, channel, arrow_schema(schema))
        assert [row["p::int"] for row in result] == [3, None]
        assert [row.get("p", row.get("p::float")) for row in result] in ([3.0, 9.5], [None, 9.5])


@pytest.mark.spec("E10")
@pytest.mark.parametrize("by_type", [True, False])
def test_an_integer_without_an_exact_double_is_an_error_that_says_what_to_do(by_type: bool) -> None:
    batches, channel = united({"p": (1 << 53) + 1}, {"p": 9.5})
    wanted = arrow_schema(spark_schema([channel]))

    with pytest.raises(InvalidArgument, match=r"column p has doubles .* start the query again"):
        Projection(channel, wanted, by_type=by_type).project(batches[0])


@pytest.mark.spec("E10")
@pytest.mark.parametrize("by_type", [True, False])
def test_a_query_that_began_with_integers_leaves_floats_out_until_it_starts_again(
    by_type: bool,
) -> None:
    """Floats are reported as a later column, `p::float`; a query that began with floats has all."""
    batches, channel = united({"p": 3}, {"p": 9.5})
    began = arrow_schema(spark_schema([batches[0].schema]))
    with_floats = arrow_schema(spark_schema([batches[1].schema]))

    assert values(batches, channel, began, by_type=by_type) == [{"p": 3}, {"p": None}]
    assert values(batches, channel, with_floats, by_type=by_type) == [{"p": 3.0}, {"p": 9.5}]


@pytest.mark.spec("E10")
def test_channels_with_integers_and_with_floats_share_a_column() -> None:
    integers, texts, floats = stored({"p": 3}), stored({"p": "x"}), stored({"p": 9.5})
    wanted = arrow_schema(
        spark_schema([channel_batch.schema for channel_batch in (texts, integers, floats)])
    )
    assert wanted.names[4:] == ["p", "p::number"]

    for batch, value in ((integers, 3.0), (floats, 9.5)):
        [row] = values([batch], batch.schema, wanted, by_type=True)
        assert row == {"p": None, "p::number": value}


@pytest.mark.parametrize("by_type", [False, True])
def test_names_that_differ_in_case_only_are_columns_that_spark_tells_apart(by_type: bool) -> None:
    batch = stored(
        {"amount": 1, "Amount": "x", "Tag": "t", "Published": 2, "EVENT_ID": 3, "AMOUNT": 4.5}
    )
    schema = spark_schema([batch.schema])
    names = [name.lower() for name in schema.names]
    assert len(set(names)) == len(names)
    assert {"amount", "properties.Amount", "properties.Tag"} <= set(schema.names)

    wanted = arrow_schema(schema)
    row = Projection(batch.schema, wanted, by_type=by_type).project(batch).to_pylist()[0]

    assert (row["amount"], row["properties.Amount"], row["properties.Tag"]) == (1, "x", "t")
    assert (row["properties.Published"], row["properties.EVENT_ID"]) == (2, 3)
    assert row["properties.AMOUNT.2"] == 4.5
    assert row["tag"] is None


def test_a_query_may_say_a_name_in_its_exact_case() -> None:
    batch = stored({"amount": 1, "Amount": "x", "Tag": "t"})

    for ddl in ("Amount string, Tag string", "properties.Amount string, Tag string"):
        row = read(batch, batch.schema, ddl).to_pylist()[0]
        assert list(row.values()) == ["x", "t"]
    chosen = spark_schema([batch.schema], columns=("Amount", "Tag"))
    assert chosen.names == ["Amount", "Tag"]


def test_a_name_in_other_case_changes_no_column_that_a_query_has() -> None:
    before = stored({"amount": 1})
    grown = channel_of(before, stored({"Amount": "x", "Published": 1}))

    names = spark_schema([grown]).names
    assert names[: len(spark_schema([before.schema]).names)] == spark_schema([before.schema]).names


@pytest.mark.parametrize("by_type", [False, True])
def test_fields_that_differ_in_case_only_are_told_apart_by_spark(by_type: bool) -> None:
    batch = stored({"d": {"amount": 1, "Amount": "x", "l": [{"k": 1, "K": 2}]}})
    schema = spark_schema([batch.schema])

    [row] = values([batch], batch.schema, arrow_schema(schema), by_type=by_type)

    assert schema["d"].dataType.simpleString() == (  # in a struct of a list, too
        "struct<amount:bigint,properties.Amount:string,"
        "l:array<struct<k:bigint,properties.K:bigint>>>"
    )
    inner = [{"k": 1, "properties.K": 2}]
    assert row["d"] == {"amount": 1, "properties.Amount": "x", "l": inner}
    for column in ("d.Amount", "d.properties.Amount"):
        chosen = spark_schema([batch.schema], columns=(column,))
        assert chosen["d"].dataType.simpleString() == "struct<properties.Amount:string>"


def test_of_channels_with_fields_in_another_order_each_value_is_in_its_field() -> None:
    one, reordered = stored({"d": {"a": 1, "A": 2}}), stored({"d": {"A": 3, "a": 4}})
    wanted = arrow_schema(spark_schema([one.schema, reordered.schema]))

    rows = [
        values([channel_batch], channel_batch.schema, wanted, by_type=True)[0]["d"]
        for channel_batch in (one, reordered)
    ]

    assert rows == [{"a": 1, "properties.A": 2}, {"a": 4, "properties.A": 3}]


@pytest.mark.spec("E10")
@pytest.mark.parametrize("by_type", [False, True])
@pytest.mark.parametrize(
    ("then", "columns", "left_out_names"),
    [
        ({"sku": "a"}, (), ["sku"]),
        ({"price": "two"}, (), ["price::string"]),
        ({"price": 9.5}, (), ["price::float"]),
        ({"d": {"b": 1}}, (), ["d.b"]),
        ({"d": {"a": "x"}}, (), ["d.a::string"]),
        ({"d": {"a": 2.5}}, (), ["d.a::float"]),
        ({"d": {"A": 1}}, (), ["d.A"]),
        ({"lines": [{"sku": "a", "count": 2}]}, (), ["lines.count"]),
        ({"price": 3, "d": {"a": 2}}, (), []),
        ({"sku": "a", "d": {"b": 1}}, ("event_id", "price", "d.a", "headers"), []),
        ({"price": 9.5, "d": {"b": 1}}, ("price", "d"), ["price::float", "d.b"]),
        ({"sku": "a"}, ("of_another_channel",), []),
    ],
)
def test_a_query_leaves_out_what_a_new_one_would_read(
    then: dict[str, Any], columns: tuple[str, ...], left_out_names: list[str], by_type: bool
) -> None:
    first = stored({"price": 1, "d": {"a": 1}, "lines": [{"sku": "b"}]})
    known_columns = tuple(name for name in columns if name != "of_another_channel")
    extras = Extras(headers="headers" in columns)
    wanted = arrow_schema(spark_schema([first.schema], columns=known_columns, extras=extras))

    names = unread_properties(
        channel_of(first, stored(then)), wanted, columns=columns, by_type=by_type
    )

    assert names == left_out_names
    assert not unread_properties(first.schema, wanted, columns=columns, by_type=by_type)
