"""Ids and names of columns, and the statistics of files."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.columns.files.table_rows import distinct_names
from penstock_core.ids.ids import IdSet
from penstock_lakehouse.data_files import events_image, removed_positions
from penstock_lakehouse.table_schema import ColumnIds, table_schema

pytestmark = pytest.mark.spec("B4")

COLUMNS = pa.schema(
    [
        pa.field("event_id", pa.int64()),
        pa.field("price", pa.float64()),
        pa.field("at", pa.struct([pa.field("x", pa.int64()), pa.field("y", pa.string())])),
        pa.field("tags", pa.list_(pa.string())),
    ]
)


def test_ids_depend_on_nothing_but_the_path() -> None:
    one = table_schema(COLUMNS)
    more = table_schema(pa.schema([pa.field("new", pa.bool_()), *reversed(list(COLUMNS))]))

    ids = {field["name"]: field["id"] for field in one.fields}
    assert {field["name"]: field["id"] for field in more.fields if field["name"] != "new"} == ids
    assert ids["event_id"] == 1
    assert max(ids.values()) <= one.last_column_id < 2_147_483_447


def test_two_paths_never_share_an_id() -> None:
    ids = ColumnIds(number_of=lambda path: path.count(b"\n"))

    assert [ids.id_of("a"), ids.id_of("b"), ids.id_of("a"), ids.id_of("c")] == [
        1_000,
        1_001,
        1_000,
        1_002,
    ]
    assert ids.last == 1_002


def test_leaves_are_in_the_order_of_a_parquet_file() -> None:
    schema = table_schema(COLUMNS)

    kinds = [(leaf.kind, leaf.in_list) for leaf in schema.leaves(["event_id", "at", "tags"])]
    assert kinds == [("long", False), ("long", False), ("string", False), ("string", True)]


def test_paths_are_distinct_even_if_case_is_ignored() -> None:
    kind = pa.struct([pa.field("b", pa.int64()), pa.field("B", pa.int64())])
    schema = pa.schema(
        [pa.field("a", kind), pa.field("a.b", pa.int64()), pa.field("A", pa.bool_())]
    )

    names = distinct_names(schema)

    assert names.names == ["a", "properties.a.b", "properties.A"]
    assert [field.name for field in names.field("a").type] == ["b", "properties.B"]


def test_bounds_are_known_of_values_but_not_of_data_long_texts_or_nan() -> None:
    rows = pa.table(
        {
            "event_id": pa.array([3, 5]),
            "data": pa.array([b"a", b"b"]),
            "s": pa.array(["x" * 100, "y"]),
            "t": pa.array(["a", None]),
            "v": pa.array([1.5, np.nan]),
            "w": pa.array([-1.5, 2.0]),
        }
    )
    schema = table_schema(rows.schema)
    ids = {field["name"]: field["id"] for field in schema.fields}

    metrics = events_image(rows, schema, "none").metrics

    assert metrics.lower[1] == struct.pack("<q", 3)
    assert metrics.upper[1] == struct.pack("<q", 5)
    assert metrics.upper[ids["t"]] == b"a"
    assert metrics.nulls[ids["t"]] == 1
    assert metrics.lower[ids["w"]] == struct.pack("<d", -1.5)
    assert not {ids["data"], ids["s"], ids["v"]} & metrics.lower.keys()


@given(st.sets(st.integers(0, 60), min_size=1), st.sets(st.integers(0, 60)))
def test_positions_of_removed_rows(rows: set[int], removed: set[int]) -> None:
    stored = IdSet.from_ids(sorted(rows - removed))

    positions = removed_positions(IdSet.from_ids(sorted(rows)), stored)

    assert [sorted(rows)[position] for position in positions] == sorted(rows & removed)
