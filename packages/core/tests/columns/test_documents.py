"""Events as JSON documents: reading back restores values and types."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.columns.documents import document_of, event_of, types_of
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import InvalidArgument

names = st.text(st.characters(codec="ascii", exclude_characters="$"), min_size=1, max_size=8)
moments = st.datetimes() | st.datetimes(timezones=st.just(UTC))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | moments,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


def through_json(event: Event) -> Event:
    return event_of(msgspec.json.encode(document_of(event)))


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal and of the same types; NaN equals NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    return bool(left == right)


@pytest.mark.spec("E2")
@given(st.dictionaries(names, values, max_size=4), st.binary())
def test_properties_of_every_type_survive_json(properties: dict[str, Any], data: bytes) -> None:
    event = through_json(Event(data, properties=properties))

    assert event.data == data
    assert same(event.properties, properties)


@pytest.mark.spec("E2")
def test_all_parts_of_an_event_survive_json() -> None:
    expires = datetime(2030, 1, 2, hour=3, minute=4, second=5, microsecond=678, tzinfo=UTC)
    headers = {"timestamp": expires, "expiration": expires, "correlation_id": "7"}
    event = Event(b"", tag="t", headers=headers, ttl=5_000, priority=9, persistent=False)

    read = through_json(event)

    assert (read.tag, read.headers, read.ttl) == ("t", headers, 5_000)
    assert (read.priority, read.persistent) == (9, False)


def test_an_event_with_json_values_only_has_no_types() -> None:
    properties = {"n": 1, "x": 1.5, "s": "a", "b": True, "no": None, "list": [1, {"deep": "b"}]}

    assert types_of(properties) == {}
    assert "types" not in document_of(Event(b"", properties=properties))


def test_types_are_keyed_by_json_pointers() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)

    result = types_of({"a/b~c": moment, "lines": [{"raw": b"x"}, {"v": [math.inf, math.nan]}]})

    assert result == {
        "/a~1b~0c": "time",
        "/lines/0/raw": "bytes",
        "/lines/1/v/0": "inf",
        "/lines/1/v/1": "nan",
    }


def test_a_property_may_be_called_types() -> None:
    assert event_of({"types": {"/a": "time"}, "a": 1}).properties == {
        "types": {"/a": "time"},
        "a": 1,
    }
    assert through_json(Event(properties={"types": "x"})).properties == {"types": "x"}


@pytest.mark.parametrize(
    ("types", "reason"),
    [
        (["/a"], r"'types' is .*must be an object such as"),
        ({"/a": "date"}, "type 'date' of '/a' is unknown; allowed are time, bytes"),
        ({"/a": ["time"]}, "is unknown; allowed are time, bytes"),
        ({"/b": "time"}, "'types' names '/b'; the properties have no such value"),
        ({"": "time"}, "'types' names ''; the properties have no such value"),
        ({"a": "time"}, "'types' names 'a'; the properties have no such value"),
        ({"/list/2": "time"}, "'types' names '/list/2'"),
        ({"/list/-1": "time"}, "'types' names '/list/-1'"),
        ({"/list/99999999999999999999": "time"}, "'types' names '/list/9999"),
        ({"/a/b": "time"}, "'types' names '/a/b'"),
        ({"/a": "time"}, "'/a' is 'x'; it must be a time"),
        ({"/a": "bytes"}, "'/a' is not base64"),
        ({"/list": "bytes"}, "'/list' is not base64"),
        ({"/a": "nan"}, "'/a' is nan by its type, so its value must be null"),
    ],
)
def test_wrong_types_are_refused_with_a_reason(types: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        event_of({"properties": {"a": "x", "list": ["AA==", 1]}, "types": types})
