"""An archive keeps all parts of an event, and converts back to the same event."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packages.core.tests.columns.stored_rows import Rows, stored
from penstock.tables.kinds import conform, extend_columns, stored_schema
from penstock_core.columns.events.batch import EventBatch, stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.columns.events.origin import for_join
from penstock_core.columns.files.archives import DAY, ArchiveLayout, from_archive, identity_of
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import InvalidArgument
from tests.thorough import examples

from .strategies import PROPERTIES, typed


def through_archive(batches: list[pa.RecordBatch]) -> tuple[pa.Schema, pa.RecordBatch]:
    """Archive the events one by one, then write all rows to one file, as a compaction does."""
    channel, table, kept = ChannelSchema.empty(), pa.schema([]), []
    for batch in batches:
        channel = channel.grown(batch.schema)
        rows = ArchiveLayout(channel.arrow, table, channel="orders", epoch="e/1").of(batch)
        table = extend_columns(table, rows.schema)
        kept.append(conform(rows, stored_schema(rows.schema)))
    archive = pa.Table.from_batches([conform(rows, table) for rows in kept])
    return table, archive.combine_chunks().to_batches()[0]


@pytest.mark.slow
@pytest.mark.spec("E2")
@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.lists(PROPERTIES, min_size=1, max_size=4), min_size=1, max_size=4))
def test_properties_survive_an_archive_that_grows(batches: list[Rows]) -> None:
    table, rows = through_archive([stored(batch) for batch in batches])

    result = EventBatch(from_archive(rows, table))
    expected = [typed(row) for batch in batches for row in batch]
    assert [typed(event.properties) for event in result] == expected
    for names in names_in(pa.struct(list(table))):
        assert len({name.casefold() for name in names}) == len(names), "told apart by their case"


def names_in(kind: pa.DataType) -> Iterator[list[str]]:
    """Return the names of the fields of a struct, and of the fields inside them."""
    if pa.types.is_list(kind):
        yield from names_in(kind.value_type)
    elif pa.types.is_struct(kind):
        yield kind.names
        for field in kind:
            yield from names_in(field.type)


def test_fields_that_differ_only_in_case_round_trip() -> None:
    rows: list[Rows] = [
        [{"d": {"amount": 1, "Amount": "x", "l": [{"k": 1, "K": 2}]}}],
        [{"d": {"AMOUNT": 3, "Amount": 2.5}}, {"d": {"properties.amount": None, "amount": 7}}],
    ]

    table, archived = through_archive([stored(batch) for batch in rows])
    events = EventBatch(from_archive(archived, table))

    assert table.field("d").type.names[:2] == ["amount", "properties.Amount"]
    assert [event.properties for event in events] == [row for batch in rows for row in batch]
    assert "properties.Amount" not in str(from_archive(archived, table).schema)


def test_local_times_are_columns_at_any_depth() -> None:
    local = datetime(2026, 5, 4, 23, 59, 59, 7)  # noqa: DTZ001  a time without a zone is meant
    rows: list[Rows] = [
        [{"n": 1}],
        [{"n": 2, "at": local, "d": {"at": [local, None]}}, {"at": local.replace(tzinfo=UTC)}],
    ]

    table, archived = through_archive([stored(batch) for batch in rows])

    assert table.field("at").type == pa.timestamp("us")
    assert table.field("d").type.field("at").type.value_type == pa.timestamp("us")
    assert "$penstock_more" not in table.names
    events = EventBatch(from_archive(archived, table))
    assert [event.properties for event in events] == [row for batch in rows for row in batch]


def test_only_rows_with_a_list_of_nulls_use_more() -> None:
    rows: list[Rows] = [[{"n": 1}, {"n": 2, "l": [None, None]}, {"n": 3, "l": []}, {"l": None}]]

    table, archived = through_archive([stored(row) for row in rows])

    more = archived.column(archived.schema.get_field_index("$penstock_more"))
    assert more.is_valid().to_pylist()[:2] == [False, True]
    events = EventBatch(from_archive(archived, table))
    assert [event.properties for event in events] == rows[0]


def test_a_field_of_a_plain_table_that_differs_only_in_case_keeps_its_name() -> None:
    batch = stored([{"d": {"amount": 1, "Amount": "x"}}])
    layout = ArchiveLayout(batch.schema, pa.schema([]), channel="orders", epoch="e/1")
    table = layout.of(batch).schema
    index = table.get_field_index("d")
    before = pa.struct([("amount", pa.int64()), ("Amount", pa.string())])  # as 0.1.0 wrote it
    table = table.set(index, table.field("d").with_type(before))

    again = ArchiveLayout(batch.schema, table, channel="orders", epoch="e/1").of(batch)

    assert again.schema.field("d").type.names == ["amount", "Amount"]


def test_an_archive_keeps_all_parts_of_an_event() -> None:
    delivery_time = datetime(2026, 5, 4, hour=23, minute=59, second=59, tzinfo=UTC)
    events = [
        Event(
            b"\x00\xff",
            tag="t",
            properties={"price": 1.5, "price_": None, "lines": [{"sku": "a"}, {"sku": None}]},
            headers={"correlation_id": "c", "expiration": delivery_time},
            ttl=1_000,
            priority=9,
            persistent=False,
        ),
        Event(b"plain"),
        Event(properties={"price": "dear"}),
    ]
    batch = stamp(body_of(events), Span(7, 10), int(delivery_time.timestamp() * 1_000_000))
    table, rows = through_archive([batch])

    first, second, third = EventBatch(from_archive(rows, table))
    assert (first.event_id, first.published, first.tag, first.data) == (
        7,
        delivery_time,
        "t",
        b"\x00\xff",
    )
    assert first.properties == events[0].properties
    assert first.headers == {"correlation_id": "c", "expiration": delivery_time}
    assert (first.ttl, first.priority, first.persistent) == (1_000, 9, False)
    assert (second.tag, second.data, second.properties, second.headers) == (None, b"plain", {}, {})
    assert (second.ttl, second.priority, second.persistent, second.origin) == (0, 4, True, None)
    assert third.properties == {"price": "dear"}
    assert rows.column(DAY).to_pylist() == [date(2026, 5, 4)] * 3
    assert identity_of(table) == ("orders", "e/1")


def test_people_find_the_columns_they_expect() -> None:
    rows = [{"Origin": "JFK", "origin": "lga", "tag": "x", "n": np.int16(3), "f": np.float32(0.5)}]
    _, flat = through_archive([stored(rows)])

    result = flat.to_pylist()[0]
    assert {name: result[name] for name in ("Origin", "properties.origin", "n", "f")} == {
        "Origin": "JFK",
        "properties.origin": "lga",
        "n": 3,
        "f": 0.5,
    }
    assert result["properties.tag"] == "x"
    assert [str(flat.schema.field(name).type) for name in "nf"] == ["int64", "double"]
    assert not [name for name in flat.schema.names if name.startswith("$")]


def test_an_archive_keeps_the_publisher() -> None:
    batch = stamp(body_of([Event(headers={"host": "said"}), Event(), Event()]), Span(5, 8), 0)
    rows = ArchiveLayout(batch.schema).of(batch, (("ann@desk", ((5, 7),)), ("@lab", ((7, 8),))))

    result = [event.headers for event in EventBatch(from_archive(rows, rows.schema))]
    assert result[0] == {"publisher": "ann", "host": "desk"}
    assert result[1:] == [{"publisher": "ann", "host": "desk"}, {"host": "lab"}]
    everyone = ArchiveLayout(batch.schema).of(batch, (("bob@x", ()),))
    assert {row["publisher"] for row in everyone.column("headers").to_pylist()} == {"bob"}


def test_an_archive_keeps_the_origin() -> None:
    batch = stamp(
        for_join(body_of([Event(b"x")]), 41, 1_000_000, store="source"), Span(0, 1), 2_000_000
    )
    table, rows = through_archive([batch])

    (event,) = EventBatch(from_archive(rows, table))
    assert event.origin is not None
    assert (event.origin.store, event.origin.event_id, event.origin.path) == (
        "source",
        41,
        ("source",),
    )


def test_a_property_keeps_its_column_however_the_channel_grows() -> None:
    one, second = [{"Price": 1}], [{"price": 2, "Price": 3}]
    table, rows = through_archive([stored(one), stored(second, 1)])

    assert [name for name in table.names if "rice" in name] == ["Price", "properties.price"]
    result = [event.properties for event in EventBatch(from_archive(rows, table))]
    assert result == [{"Price": 1}, {"price": 2, "Price": 3}]


def test_a_batch_without_absent_keys_is_read_as_dense() -> None:
    table, rows = through_archive([stored([{"a": 1}, {"a": 2}]), stored([{"a": 3, "b": "x"}], 2)])

    assert "sparse" not in from_archive(rows.slice(2), table).schema.names
    assert "sparse" in from_archive(rows, table).schema.names


def test_another_table_is_no_archive() -> None:
    with pytest.raises(InvalidArgument, match="not an archive of a channel"):
        identity_of(pa.schema([("event_id", pa.int64())]))
