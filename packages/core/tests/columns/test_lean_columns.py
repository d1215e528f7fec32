"""Batches in the columns that they need, and their conversion back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from packages.core.tests.columns.properties import row_properties
from packages.core.tests.columns.strategies import PROPERTIES, typed
from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.events.lifted_columns import flat_table, in_columns, lifted
from penstock_core.columns.files.lean_columns import Needs, fitted_in, has_columns, lean
from penstock_core.columns.schema.ipc import batch_bytes, batch_from, schema_bytes, schema_from
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import InvalidEvent
from tests.thorough import examples

pytestmark = pytest.mark.spec("E2")

Rows = list[dict[str, Any]]
WIDE: dict[str, Any] = {f"p{number:03d}": number for number in range(250)}
ORDERS: Rows = [{"sku": f"a{n % 9}", "price": n / 2} for n in range(1_000)]


def stored(rows: Rows, first: int = 0) -> pa.RecordBatch:
    body = body_of_columns([b""] * len(rows), properties=rows)
    return stamp(body, Span(first, first + len(rows)), 0)


def published(*parts: Rows) -> tuple[ChannelSchema, list[pa.RecordBatch]]:
    channel, batches, first = ChannelSchema.empty(), [], 0
    for rows in parts:
        batches.append(stored(rows, first))
        channel = channel.grown(batches[-1].schema)
        first += len(rows)
    return channel, batches


def read(*batches: pa.RecordBatch) -> Rows:
    return [row_properties(batch, row) for batch in batches for row in range(batch.num_rows)]


def property_names(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema.field("properties").type]


def bytes_of(batches: list[pa.RecordBatch]) -> int:
    return sum(batch_bytes(batch).size for batch in batches)


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.lists(PROPERTIES, min_size=1, max_size=5), min_size=1, max_size=4),
    st.sampled_from([0, 20, 64, 1 << 20]),
)
def test_properties_survive_leaving_columns_out_and_putting_them_back(
    parts: list[Rows], free_bytes: int
) -> None:
    wanted = [typed(row) for rows in parts for row in rows]
    channel, batches = published(*parts)

    kept = lean(batches, channel, free_bytes)
    assert [typed(row) for row in read(*kept)] == wanted
    assert len({batch.schema for batch in kept}) == 1
    again = lean(kept, channel, free_bytes)
    assert [typed(row) for row in read(*again)] == wanted
    assert [typed(row) for row in read(*map(lifted, kept))] == wanted
    assert [typed(row) for row in read(*(in_columns(b, channel) for b in kept))] == wanted


def test_a_value_without_a_column_of_its_type_stays_where_it_is() -> None:
    parts: list[Rows] = [[{"a": {"b": 1}}], [{"a": []}], [{"a": {"c": [None]}}], [{"a": {"b": 2}}]]
    channel, _ = published(parts[0])
    _, batches = published(*parts)
    kept = lean(batches, channel, 0)

    placed = [in_columns(batch, channel) for batch in kept]

    assert read(*placed) == [row for rows in parts for row in rows]
    assert {*map(tuple, map(property_names, [batch.schema for batch in placed]))} == {("a",)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* integers are beyond 2:UserWarning")
@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.lists(PROPERTIES, min_size=1, max_size=5), min_size=1, max_size=3))
@example([[{}, {}, {}, {}, {"0": None}], [{"a": {"a": 0, "b": 0, "a.b": 0}}]])
@example([[{"a": 2**53 + 1}, {"a": 0.5}]])
def test_a_flat_table_does_not_depend_on_left_out_columns(parts: list[Rows]) -> None:
    channel, batches = published(*parts)

    full_table = flat_table([channel.conform(batch) for batch in batches], channel)

    assert flat_table(lean(batches, channel, 0), channel).equals(full_table)


def test_one_event_with_many_names_costs_the_others_nothing() -> None:
    channel, batches = published(ORDERS, [{"sku": "a1", **WIDE}], ORDERS)
    alone = bytes_of(lean(published(ORDERS, ORDERS)[1], published(ORDERS)[0]))

    kept = lean(batches, channel, 0)

    assert property_names(kept[0].schema) == ["sku", "price"]
    assert bytes_of([channel.conform(batch) for batch in batches]) > 20 * alone
    assert bytes_of(kept) < 1.5 * alone
    assert row_properties(kept[1], 0) == {"sku": "a1", **WIDE}


@pytest.mark.slow
def test_so_it_is_within_one_batch_and_within_dictionaries_and_lists() -> None:
    rows: Rows = [{"a": {"x": n}, "lines": [{"sku": "s", "n": n}]} for n in range(1_000)]
    rows[500] = {
        "a": {"x": 1, **WIDE},
        "lines": [{"sku": "s", "n": 1}, {f"q{n}": n for n in range(60)} | {"gone": None}],
        "rare": None,
    }
    channel, batches = published(rows[:450], rows[450:])

    kept = lean(batches, channel, 0)

    assert str(kept[0].schema.field("properties").type) == (
        "struct<a: struct<x: int64>, lines: list<item: struct<sku: string, n: int64>>>"
    )
    assert [typed(row) for row in read(*kept)] == [typed(row) for row in rows]


def test_names_that_most_events_have_are_columns_and_few_rare_ones_too() -> None:
    rows: Rows = [{"a": n} if n % 3 else {"b": str(n)} for n in range(300)]
    rows[7] = {"c": 1.5}
    channel, batches = published(rows)

    (kept,) = lean(batches, channel)

    assert property_names(kept.schema) == ["b", "a", "c"]
    assert "more" not in kept.schema.names


def test_columns_have_the_names_and_types_of_the_channel_in_every_part() -> None:
    channel, batches = published([{"p": 1, "q": 1}], [{"p": "x", "q": 1 << 40}], [{"p": "y"}])

    (last,) = lean(batches[2:], channel)

    assert property_names(last.schema) == ["p::string"]
    assert lean(batches[:1], channel)[0].schema.field("properties").type.field("q").type == (
        pa.int64()
    )


def test_what_a_file_leaves_out_is_noted_in_its_schema() -> None:
    channel, batches = published(ORDERS, [WIDE])
    (kept,) = lean(batches[:1], channel)
    noted = schema_bytes(kept.schema.with_metadata(channel.note(kept.schema)))

    assert len(noted) < 8_000
    assert ChannelSchema.of_file(noted).arrow.equals(channel.arrow, check_metadata=True)
    assert batch_from(batch_bytes(kept), schema_from(noted)).num_rows == 1_000
    assert channel.note(channel.arrow) is None
    assert ChannelSchema.of_file(schema_bytes(kept.schema)).arrow.equals(kept.schema)
    for garbage in (b"-", b"AAAA", b"eJwDAAAAAAE="):
        with pytest.raises(InvalidEvent):
            ChannelSchema.of_file(
                schema_bytes(kept.schema.with_metadata({b"penstock.channel": garbage}))
            )


def test_an_open_file_accepts_all_events_of_the_channel() -> None:
    channel, batches = published(ORDERS, [WIDE], [{"price": None, "mixed": [1, "x"]}])
    needs = Needs(channel)
    needs.add(batches[0])

    schema = needs.open_schema()

    assert property_names(schema.arrow) == ["sku", "price"]
    (kept,) = fitted_in(batches[2:], schema, channel)
    assert kept.schema.equals(schema.arrow)
    assert row_properties(kept, 0) == {"price": None, "mixed": [1, "x"]}
    assert has_columns(schema, needs.shape())
    assert not has_columns(schema, channel.properties)
    assert property_names(needs.open_schema(channel.properties).arrow) == property_names(
        channel.arrow
    )


def test_an_open_file_keeps_the_overflow_columns_of_counted_events() -> None:
    channel, batches = published([{"k": 1, "rare": 2}], [{"k": 3}] * 9)
    [first, second] = [lean([batch], channel, free_bytes=0)[0] for batch in batches]
    [spilled] = fitted_in([first], ChannelSchema.from_bytes(schema_bytes(second.schema)), channel)
    assert "more" in spilled.schema.names
    needs = Needs(channel)
    needs.add_all([spilled, second])
    schema = needs.open_schema(channel.properties)
    assert property_names(schema.arrow) == ["k", "rare"]

    schemas = [fitted_in([batch], schema, channel)[0].schema for batch in (spilled, second)]
    assert schemas == [schema.arrow, schema.arrow]


@pytest.mark.slow
def test_a_flat_table_shares_the_nulls_of_its_columns() -> None:
    channel, batches = published(ORDERS, [{"sku": "a1", **WIDE}], ORDERS)
    (kept,) = pa.Table.from_batches(lean(batches, channel, 0)).combine_chunks().to_batches()

    table = flat_table([kept], channel)

    assert table.column("p042").to_pylist() == [None] * 1_000 + [42] + [None] * 1_000
    assert table.num_columns == 4 + 2 + 250
    assert table.get_total_buffer_size() < 3 * kept.get_total_buffer_size()


@pytest.mark.slow
def test_lifted_values_have_the_widths_they_were_published_with() -> None:
    rare: dict[str, Any] = {
        "i8": np.int8(1),
        "f32": np.float32(0.5),
        "l": [np.int16(3)],
        "d": {"k": np.int32(4)},
    }
    rare |= WIDE | {"mixed": [1, "x"]}
    channel, batches = published([{"a": n} for n in range(3_000)], [rare])
    kept = lean(batches, channel, 0)
    assert property_names(kept[0].schema) == ["a"]

    result = lifted(kept[1])

    kinds = {field.name: str(field.type) for field in result.schema.field("properties").type}
    assert kinds["i8"] == "int8"
    assert (kinds["f32"], kinds["l"]) == ("float", "list<item: int16>")
    assert kinds["d"] == "struct<k: int32>"
    assert row_properties(result, 0)["mixed"] == [1, "x"]
    assert lifted(kept[1], ["i8"]).schema.field("properties").type.num_fields == 2


def test_a_null_that_many_events_have_published_has_its_column() -> None:
    rows: Rows = [{"sku": "a1", "price": None} if n % 2 else {"sku": "c9"} for n in range(1_000)]
    channel, batches = published(ORDERS, rows)

    (kept,) = lean(batches[1:], channel)

    assert property_names(kept.schema) == ["sku", "price"]
    assert "more" not in kept.schema.names
    assert read(kept) == rows


@pytest.mark.parametrize("step", [1, 7, 500])
def test_slices_of_events_with_explicit_nulls_keep_their_rows(step: int) -> None:
    # `rare` gets no column, so its values and nulls move to `more`, row by row.
    rows: Rows = [
        {"n": n, "sku": None if n % 3 else "a", **({"rare": None} if n in (5, 6, 499) else {})}
        for n in range(500)
    ]
    channel, (batch,) = published(rows)
    wide = channel.grown(stored([WIDE], 500).schema)
    for first in range(0, 500, max(step, 83)):
        part = wide.conform(batch).slice(first, step)
        assert read(*lean([part], wide)) == rows[first : first + step]
