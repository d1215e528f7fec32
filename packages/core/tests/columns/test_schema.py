"""The schema of a channel grows, and events in the grown schema keep their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packages.core.tests.columns.properties import row_properties
from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.events.check import check_body
from penstock_core.columns.schema.ipc import batch_bytes, batch_from, schema_bytes, schema_from
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import InvalidEvent
from tests.thorough import examples

from .strategies import PROPERTIES, typed

Rows = list[dict[str, Any]]


def stored(rows: Rows) -> pa.RecordBatch:
    body = body_of_columns([b""] * len(rows), properties=rows)
    return stamp(body, Span(0, len(rows)), 0)


def read(batch: pa.RecordBatch) -> Rows:
    return [row_properties(batch, row) for row in range(batch.num_rows)]


def through_channel(batches: list[Rows]) -> tuple[ChannelSchema, Rows]:
    """Publish batches one by one; read all back from one table in the grown schema."""
    schema = ChannelSchema.empty()
    kept = []
    for rows in batches:
        batch = stored(rows)
        schema = schema.grown(batch.schema)
        kept.append(schema.conform(batch))
    table = pa.Table.from_batches([schema.conform(batch) for batch in kept])
    combined = table.combine_chunks().to_batches()
    return schema, [row for batch in combined for row in read(batch)]


@pytest.mark.slow
@pytest.mark.spec("E2")
@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.lists(PROPERTIES, min_size=1, max_size=4), min_size=1, max_size=4))
def test_properties_survive_a_growing_channel_unchanged(batches: list[Rows]) -> None:
    _, result = through_channel(batches)

    assert [typed(row) for row in result] == [typed(row) for rows in batches for row in rows]


@pytest.mark.slow
@pytest.mark.spec("E2")
@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(PROPERTIES, min_size=1, max_size=6),
    st.lists(PROPERTIES, min_size=1, max_size=3),
    st.data(),
)
def test_a_slice_sent_over_the_wire_conforms_like_the_whole(
    rows: Rows, others: Rows, data: st.DataObject
) -> None:
    first = data.draw(st.integers(min_value=0, max_value=len(rows) - 1))
    body = body_of_columns([b"x"] * len(rows), properties=rows)
    sent = batch_from(batch_bytes(body.slice(first)), schema_from(schema_bytes(body.schema)))
    check_body(sent)
    batch = stamp(body, Span(0, len(rows)), 0).slice(first)
    schema = ChannelSchema.empty().grown(body.schema).grown(stored(others).schema)
    conformed = schema.conform(batch)
    conformed.validate(full=True)

    assert [typed(row) for row in read(sent)] == [typed(row) for row in rows[first:]]
    assert [typed(row) for row in read(conformed)] == [typed(row) for row in rows[first:]]


@pytest.mark.spec("E2")
def test_a_null_stays_a_null_and_an_absent_key_absent_when_the_channel_grows() -> None:
    batches: list[Rows] = [
        [{"a": None, "lines": [{"sku": None}, None, {"sku": "x"}], "d": {"k": None}}],
        [{"b": 1, "lines": [{"qty": 2}], "d": {"j": 1}}],
        [{}],
    ]

    assert through_channel(batches)[1] == [row for rows in batches for row in rows]


@pytest.mark.spec("E2")
def test_a_second_type_gets_a_separate_column_with_the_logical_name() -> None:
    schema, result = through_channel([[{"price": 1}], [{"price": "one"}], [{"price": 1.5}]])
    fields = schema.arrow.field("properties").type

    assert [typed(row) for row in result] == [
        typed({"price": 1}),
        typed({"price": "one"}),
        typed({"price": 1.5}),
    ]
    assert [(field.name, field.type) for field in fields] == [
        ("price", pa.int64()),
        ("price::string", pa.string()),
        ("price::float", pa.float64()),
    ]
    assert fields.field(1).metadata == {b"penstock.name": b"price"}


@pytest.mark.spec("E2")
def test_a_property_named_like_a_typed_column_is_not_mistaken_for_it() -> None:
    batches: list[Rows] = [
        [{"price": 1, "price::string": 2}],
        [{"price": "one"}],
        [{"price::string": "two"}],
    ]

    assert through_channel(batches)[1] == [row for rows in batches for row in rows]


@pytest.mark.spec("E2")
@pytest.mark.parametrize(
    ("narrow", "wide", "kind"),
    [
        (np.int8(3), np.int16(300), pa.int16()),
        (np.int32(3), 4, pa.int64()),
        (np.float32(1.5), 2.5, pa.float64()),
        (None, "x", pa.string()),
        ([], ["x"], pa.list_(pa.string())),
        ([np.int8(1)], [2], pa.list_(pa.int64())),
    ],
)
def test_a_lossless_wider_type_shares_the_column(narrow: Any, wide: Any, kind: pa.DataType) -> None:
    for batches in ([[{"v": narrow}], [{"v": wide}]], [[{"v": wide}], [{"v": narrow}]]):
        schema, result = through_channel(batches)

        assert [field.type for field in schema.arrow.field("properties").type] == [kind]
        assert result == [row for rows in batches for row in rows]


@pytest.mark.spec("E2")
def test_properties_beyond_the_limit_overflow_without_loss() -> None:
    first: Rows = [{f"a{n}": n for n in range(200)}]
    second: Rows = [{f"b{n}": {"deep": [np.int8(1), None]} for n in range(100)}, {"b99": None}]
    third: Rows = [{"a0": "other type", "b99": 1.5}]
    schema, result = through_channel([first, second, third, first])

    assert result == [*first, *second, *third, *first]
    assert schema.arrow.field("properties").type.num_fields == 256


def test_overflow_keeps_the_width_of_numbers() -> None:
    rows: Rows = [{f"a{n}": n for n in range(256)}, {"late": np.int8(1)}]
    narrow = stored([{"late": np.int8(1), "deep": {"f": np.float32(0.5)}}])
    schema = ChannelSchema.empty().grown(stored(rows[:1]).schema).grown(narrow.schema)
    conformed = schema.conform(narrow)

    assert row_properties(conformed, 0) == {"late": 1, "deep": {"f": 0.5}}
    assert b"\x92\xa1b\x01" in conformed.column("more")[0].as_py()


def test_growing_by_a_cached_schema_returns_the_same_object() -> None:
    batch = stored([{"a": 1}])
    schema = ChannelSchema.empty().grown(batch.schema)

    assert schema.grown(batch.schema) is schema
    assert schema.grown(stored([{"a": np.int8(1)}]).schema) is schema
    assert schema.grown(stored([{"b": 1}]).schema) is not schema


def test_the_first_batch_of_a_channel_conforms_as_it_is() -> None:
    batch = stored([{"a": 1}, {"a": 2}])

    assert ChannelSchema.empty().grown(batch.schema).conform(batch) is batch


def test_batches_without_properties_need_no_sparse_column() -> None:
    schema = ChannelSchema.empty().grown(stored([{"a": 1}]).schema).grown(stored([{}]).schema)
    conformed = schema.conform(stored([{}, {}]))

    assert "sparse" not in schema.arrow.names
    assert read(conformed) == [{}, {}]


def test_missing_data_is_empty_not_null() -> None:
    schema = ChannelSchema.empty().grown(body_of_columns([b"x"], ["t"]).schema)
    conformed = schema.conform(stamp(body_of_columns([b"", b""], ["t", None]), Span(0, 2), 0))

    assert conformed.column("data").to_pylist() == [b"", b""]


def test_a_schema_survives_its_bytes() -> None:
    schema, _ = through_channel([[{"a": 1}], [{"a": "x", "b": {"c": [None]}}]])
    again = ChannelSchema.from_bytes(schema.to_bytes())

    assert again.arrow.equals(schema.arrow, check_metadata=True)
    assert again.grown(schema.arrow) is again
    with pytest.raises(InvalidEvent, match="not an Arrow schema"):
        ChannelSchema.from_bytes(b"garbage")


def test_headers_grow_too() -> None:
    one = stamp(body_of_columns([b""], headers=[{"type": "order"}]), Span(0, 1), 0)
    two = stamp(body_of_columns([b""], headers=[{"user": "ann"}]), Span(0, 1), 0)
    schema = ChannelSchema.empty().grown(one.schema).grown(two.schema)

    assert schema.conform(one).column("headers").to_pylist() == [{"type": "order", "user": None}]
    assert schema.conform(two).column("headers").to_pylist() == [{"type": None, "user": "ann"}]


def test_channels_with_equal_events_share_their_schema() -> None:
    orders, bills = ChannelSchema.empty(), ChannelSchema.empty()
    batch = stored([{"price": 1.5}])

    assert orders.grown(batch.schema) is bills.grown(stored([{"price": 2.5}]).schema)
    assert orders.grown(batch.schema).grown(batch.schema) is orders.grown(batch.schema)
    assert ChannelSchema.empty().names == frozenset()
