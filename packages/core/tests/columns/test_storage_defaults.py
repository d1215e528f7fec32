"""Stamping bodies leaves everything else unchanged."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.columns.events.batch import EventBatch, stamp
from penstock_core.columns.events.body import body_of, body_of_columns
from penstock_core.columns.events.check import check_body
from penstock_core.columns.events.event import Event
from penstock_core.columns.events.storage_defaults import with_dictionary, with_priority
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import InvalidEvent
from tests.thorough import examples

from .strategies import PROPERTIES, typed

TIME = datetime(2026, 1, 2, hour=3, minute=4, second=5, microsecond=6, tzinfo=UTC)
AT_US = 1_767_323_045_000_006


def body(rows: list[dict[str, Any] | None]) -> pa.RecordBatch:
    return body_of_columns([b""] * len(rows), properties=rows)


def stamped(batch: pa.RecordBatch, first_id: int = 7) -> pa.RecordBatch:
    return with_dictionary(batch, first_id, AT_US, publisher="ada", host="office")


def read(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return [event.properties for event in EventBatch(stamp(batch, Span(0, batch.num_rows), 0))]


def dictionary(event_id: int) -> dict[str, Any]:
    return {"publisher": "ada", "host": "office", "time": TIME, "id": event_id}


@pytest.mark.spec("E1")
def test_events_without_a_priority_get_the_channels() -> None:
    mixed = body_of([Event(), Event(priority=9)])
    plain = body_of([Event()])
    full = body_of([Event(priority=3)])

    assert with_priority(mixed, 2).column("priority").to_pylist() == [2, 9]
    assert with_priority(plain, 2).column("priority").to_pylist() == [2]
    assert with_priority(full, 2) is full
    assert with_priority(mixed, 4) is mixed


@pytest.mark.spec("E3")
def test_the_dictionary_has_publisher_host_time_and_id() -> None:
    result = read(stamped(body([{"a": 1}, {"a": 2}])))

    assert result == [{"a": 1, "$penstock": dictionary(7)}, {"a": 2, "$penstock": dictionary(8)}]


@pytest.mark.parametrize("rows", [[{}], [None, {}], [{"a": None}, {}], [{}, {"a": {"b": None}}]])
def test_absent_keys_and_nulls_are_unchanged(rows: list[dict[str, Any] | None]) -> None:
    result = read(stamped(body(rows)))

    assert result == [
        {**(row or {}), "$penstock": dictionary(7 + index)} for index, row in enumerate(rows)
    ]


def test_a_row_without_properties_has_only_the_dictionary() -> None:
    struct = pa.array([{"a": 1}, None, {"a": None}], pa.struct([("a", pa.int64())]))
    result = read(stamped(pa.RecordBatch.from_arrays([struct], names=["properties"])))

    assert [sorted(row) for row in result] == [
        ["$penstock", "a"],
        ["$penstock"],
        ["$penstock", "a"],
    ]


@pytest.mark.spec("E2")
@settings(max_examples=examples(25), deadline=None)
@given(st.lists(PROPERTIES, min_size=1, max_size=5))
def test_all_properties_survive_the_stamp_and_the_channel(rows: list[dict[str, Any]]) -> None:
    batch = stamp(stamped(body(list(rows))), Span(0, len(rows)), 0)
    result = read(
        ChannelSchema.empty()
        .grown(batch.schema)
        .conform(batch)
        .drop_columns(["event_id", "published"])
    )

    assert [row.pop("$penstock") for row in result] == [dictionary(7 + i) for i in range(len(rows))]
    assert [typed(row) for row in result] == [typed(row) for row in rows]


def test_a_dictionary_of_another_channel_is_replaced() -> None:
    twice = stamped(stamped(body([{"a": 1}, {}])), 100)

    assert [row["$penstock"]["id"] for row in read(twice)] == [100, 101]
    assert twice.column("properties").type.num_fields == 2


def full_channel(count: int) -> pa.RecordBatch:
    """Return stamped events of a channel that has no free column."""
    batch = stamp(stamped(body([{f"p{i}": i for i in range(256)}] * count)), Span(0, count), 0)
    schema = ChannelSchema.empty()
    wide = body([{f"p{i}": i for i in range(256)}])
    return schema.grown(wide.schema).grown(batch.schema).conform(batch)


def test_a_dictionary_in_the_overflow_is_read_and_replaced() -> None:
    kept = full_channel(2)
    again = stamped(kept.drop_columns(["event_id", "published"]), 50)

    assert "$penstock" not in [field.name for field in kept.schema.field("properties").type]
    assert [event.properties["$penstock"] for event in EventBatch(kept)] == [
        dictionary(7),
        dictionary(8),
    ]
    assert [row["$penstock"]["id"] for row in read(again)] == [50, 51]


@pytest.mark.spec("F2")
def test_selectors_see_the_dictionary() -> None:
    batch = stamp(stamped(body([{"a": 1}, {"a": 2}])), Span(7, 9), 0)
    selector = Selector("$penstock.id = 8 AND $penstock.publisher = 'ada'")

    assert np.flatnonzero(selector.mask(batch)).tolist() == [1]


def test_publishers_cannot_write_it_but_can_publish_a_received_event_again() -> None:
    batch = stamp(stamped(body([{"a": 1}])), Span(0, 1), 0)

    assert read(body_of(list(EventBatch(batch)))) == [{"a": 1}]
    with pytest.raises(
        InvalidEvent, match=r"'\$penstock' starts with the reserved prefix '\$penstock'"
    ):
        body_of([Event(properties={"$penstock": {"id": 1}})])
    for forged in (
        stamped(body([{"a": 1}])),
        full_channel(1).drop_columns(["event_id", "published"]),
    ):
        with pytest.raises(InvalidEvent, match="reserved"):
            check_body(forged)
