"""Which files of tables are files of archives: columns of the same property, name and type."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packages.core.tests.columns.stored_rows import stored
from packages.core.tests.columns.strategies import PROPERTIES
from penstock_core.columns.files.archives import DAY, ArchiveLayout
from penstock_core.columns.files.shared_columns import OtherColumns, SharedColumns, is_part_of
from penstock_core.columns.files.table_rows import TableLayout
from penstock_core.columns.schema.schema import ChannelSchema

pytestmark = pytest.mark.spec("B8")


def grown(*batches: pa.RecordBatch) -> pa.Schema:
    """Return the columns of a channel with these events."""
    schema = ChannelSchema.empty()
    for batch in batches:
        schema = schema.grown(batch.schema)
    return schema.arrow


def shared(columns: pa.Schema, table: pa.Schema | None = None) -> SharedColumns:
    return SharedColumns(columns, table, channel="orders", epoch="e")


def archived(columns: pa.Schema, *batches: pa.RecordBatch, table: pa.Schema | None) -> pa.Table:
    """Return the rows of an archive of events, written by value."""
    layout = ArchiveLayout(columns, table, channel="orders", epoch="e")
    return pa.concat_tables(
        [pa.table(layout.of(batch)) for batch in batches], promote_options="default"
    )


@given(
    st.lists(PROPERTIES, min_size=1, max_size=4),
    st.lists(PROPERTIES, min_size=1, max_size=4),
    st.booleans(),
)
def test_a_shared_file_has_the_rows_that_an_archive_by_value_has(
    first: list[dict[str, Any]], second: list[dict[str, Any]], begins_early: bool
) -> None:
    early, late = stored(first), stored(second, len(first))
    columns = grown(early, late)
    table = archived(grown(early), early, table=None).schema if begins_early else None
    common = shared(columns, table)
    for batch in (early, late):
        rows = TableLayout(columns).rows_of([batch], ()).table
        try:
            programs = common.check(rows.schema)
        except OtherColumns:
            continue
        copied = archived(columns, batch, table=table)
        known = {field.name for field in common.columns} | {field.name for field in programs}
        assert {*rows.column_names} <= known
        for name in copied.column_names:
            if name == DAY:
                continue
            column = copied.column(name)
            if name not in rows.column_names:
                assert column.null_count == len(column), name
                continue
            assert repr(rows.column(name).to_pylist()) == repr(
                pa.array(column.to_pylist(), rows.column(name).type).to_pylist()
            ), name


def test_plain_events_share_all_columns() -> None:
    batch = stored([{"n": 1, "price": 1.5, "sku": "a", "inner": {"a": 1, "A": [1]}}])
    rows = TableLayout(grown(batch)).rows_of([batch], ()).table

    assert shared(grown(batch)).check(rows.schema) == []
    assert shared(grown(batch)).columns.names[-1] == DAY


def test_columns_for_programs_have_the_types_of_archives() -> None:
    batch = stored([{"n": 1, "nothing": None}, {"n": 2, "nothing": "x"}])
    rows = TableLayout(grown(batch)).rows_of([batch], ()).table

    (nulls,) = shared(grown(batch)).check(rows.schema)

    assert nulls == pa.field("$penstock_nulls", pa.list_(pa.string()))
    archive = archived(grown(batch), batch, table=None)
    assert archive.schema.field("$penstock_nulls").type == nulls.type


@pytest.mark.parametrize(
    ("events", "column"),
    [
        ([{"price": 1}, {"price": 1.5}], "property 'price' has integers and floats"),
        ([{"a.b": 1, "a": {"b": 2}}], "column 'a'"),
    ],
)
def test_columns_of_readers_are_not_those_of_archives(
    events: list[dict[str, Any]], column: str
) -> None:
    batches = [stored([event], number) for number, event in enumerate(events)]
    rows = TableLayout(grown(*batches)).rows_of(batches, ()).table

    with pytest.raises(OtherColumns, match=column):
        shared(grown(*batches)).check(rows.schema)


def test_a_column_that_the_archive_has_for_another_property_is_not_shared() -> None:
    """The table was made when the channel had other columns; its names stay."""
    batch = stored([{"text": "a"}])
    table = archived(grown(batch), batch, table=None).schema
    index = table.get_field_index("text")
    other = table.set(index, table.field(index).with_metadata({b"penstock.property": b"Text"}))
    rows = TableLayout(grown(batch)).rows_of([batch], ()).table

    with pytest.raises(OtherColumns, match="column 'text' has another name or type"):
        shared(grown(batch), other).check(rows.schema)


def test_an_unknown_column_is_not_shared() -> None:
    batch = stored([{"n": 1}])
    with pytest.raises(OtherColumns, match="column 'secret'"):
        shared(grown(batch)).check(pa.schema([("event_id", pa.int64()), ("secret", pa.string())]))


@pytest.mark.parametrize(
    ("kind", "column", "is_part"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int32(), pa.int8(), True),
        (pa.int64(), pa.int32(), False),
        (pa.int64(), pa.float64(), False),
        (pa.string(), pa.binary(), False),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
        (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.string()), ("a", pa.int64())]), True),
        (pa.struct([("A", pa.int32())]), pa.struct([("a", pa.int64())]), False),
        (pa.struct([("a", pa.int32())]), pa.string(), False),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), True),
        (pa.list_(pa.string()), pa.list_(pa.int64()), False),
    ],
)
def test_a_column_has_wider_numbers_and_more_fields(
    kind: pa.DataType, column: pa.DataType, is_part: bool
) -> None:
    assert is_part_of(kind, column) is is_part
