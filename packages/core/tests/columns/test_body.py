"""Bodies from events and from column lists."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from packages.core.tests.columns.properties import row_properties
from penstock_core.columns.events.body import body_of, body_of_columns
from penstock_core.columns.events.check import check_body
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.rows import Rows
from penstock_core.vocabulary.errors import InvalidEvent


def test_a_body_has_only_the_columns_in_use() -> None:
    assert body_of([Event(b"x")]).schema.names == ["data"]
    assert body_of([Event(tag="t")]).schema.names == ["tag"]
    assert body_of([Event()]).schema.names == ["data"]
    assert body_of([Event(properties={"a": 1})]).schema.names == ["properties"]
    assert body_of([Event(ttl=1, priority=0, persistent=False, transient=True)]).schema.names == [
        "ttl",
        "persistent",
        "priority",
        "transient",
    ]


def test_a_body_passes_its_own_check() -> None:
    body = body_of(
        [
            Event(b"x", tag="t", properties={"a": None}, ttl=5, priority=1, persistent=False),
            Event(properties={"a": "x", "b": [1, "mixed"], "c": None}, headers={"user": "ann"}),
            Event(transient=True),
        ]
    )
    check_body(body)

    assert body.schema.names == [
        "tag",
        "data",
        "properties",
        "headers",
        "ttl",
        "persistent",
        "priority",
        "transient",
        "sparse",
        "nulls",
        "more",
    ]
    assert body.column("ttl").to_pylist() == [5, None, None]


def test_column_lists_make_the_same_body_as_events() -> None:
    events = [
        Event(b"1", tag="t", properties={"a": 1}, ttl=5),
        Event(b"2", properties={"a": 2}, priority=3),
    ]
    body = body_of_columns(
        [b"1", b"2"], ["t", None], [{"a": 1}, {"a": 2}], ttls=[5, 0], priorities=[None, 3]
    )

    assert body_of(events).equals(body, check_metadata=True)


def test_a_later_body_of_the_same_kind_keeps_its_own_names() -> None:
    assert row_properties(body_of_columns([b""], None, [{"a": 1}]), 0) == {"a": 1}
    assert row_properties(body_of_columns([b""], None, [{"b": 1}]), 0) == {"b": 1}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"datas": [b"", "x"]}, r"event 1: data is a str; .*encode"),
        ({"tags": ["t", 5]}, "event 1: tag 5 is not a string"),
        ({"tags": ["t"]}, "tag has 1 items for 2 events"),
        ({"properties": [{"a": 1}]}, "properties has 1 items for 2 events"),
        ({"ttls": [1, -1]}, "event 1: ttl -1 is not"),
        ({"ttls": [1, (1 << 63) - 1]}, "event 1: ttl 9223372036854775807 .*give 1125899906842624"),
        ({"priorities": [1, 10]}, "event 1: priority 10 is not"),
        ({"persistents": [False, "no"]}, "event 1: persistent 'no' is not a bool"),
        ({"transients": [True, "no"]}, "event 1: transient 'no' is not a bool"),
        ({"headers": [None, {"nope": 1}]}, "event 1: unknown header 'nope'; allowed are mess"),
        ({"headers": [None, {"user": 1}]}, "event 1: header user 1 is not a string"),
        ({"headers": [{"delivery_mode": 128}, None]}, "delivery_mode 128 is not a whole number"),
        (
            {"headers": [{"expiration": datetime(2026, 1, 1)}, None]},  # noqa: DTZ001 - refused
            "not a datetime with a time zone",
        ),
    ],
)
def test_a_wrong_item_is_refused_with_its_place(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidEvent, match=said):
        body_of_columns(**{"datas": [b"", b"x"], **columns})


def test_no_events_or_no_event_is_refused() -> None:
    with pytest.raises(InvalidEvent, match="at least one"):
        body_of([])
    with pytest.raises(InvalidEvent, match="item 0 is bytes; pass"):
        body_of([b"x"])  # type: ignore[list-item]  # what is tested


def test_a_header_set_to_none_is_not_set() -> None:
    body = body_of_columns([b"", b""], headers=[{"user": None}, {"user": "ann"}])

    assert body.column("headers").type == pa.struct([("user", pa.string())])


OPTIONS: list[dict[str, Any]] = [
    {"headers": {"user": "ann"}},
    {"ttl": 5},
    {"persistent": False},
    {"persistent": True},
    {"priority": 0},
    {"transient": True},
    {"deliver_at": datetime(2030, 1, 1, tzinfo=UTC)},
    {"is_delta": True},
    {},
]


def test_options_of_an_event_do_not_affect_others() -> None:
    events = [Event(b"x", **options) for options in OPTIONS]

    rows = Rows(body_of(events))

    result = [Event.received(rows, row) for row in range(len(events))]
    assert [event.headers for event in result] == [event.headers for event in events]
    for name in ("ttl", "persistent", "priority", "transient", "deliver_at", "is_delta"):
        assert [getattr(event, name) for event in result] == [
            getattr(event, name) for event in events
        ]


def test_received_and_new_events_may_share_a_body() -> None:
    new = [Event(b"x", tag="t", properties={"a": 1}, ttl=5), Event(b"y", priority=7)]
    rows = Rows(body_of(new))

    again = Rows(body_of([Event.received(rows, 0), new[1]]))

    result = [Event.received(again, row) for row in (0, 1)]
    for name in ("data", "tag", "properties", "ttl", "priority"):
        assert [getattr(event, name) for event in result] == [getattr(event, name) for event in new]
