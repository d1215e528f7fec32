"""An event in JSON with the most common fields is read by a shorter way, with the same result."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.layout import DICTIONARY
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.frontends.http.publishing import _plain_event, event_of_body, json_document
from penstock_server.frontends.http.shapes import NewEvent

scalars = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(max_size=5)
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.text(), scalars, max_size=2)
documents = st.fixed_dictionaries(
    {},
    optional={
        "data": st.text(max_size=10),
        "tag": st.none() | st.text(max_size=5),
        "properties": st.dictionaries(st.text(max_size=5), values, max_size=3),
    },
)


def parts(event: Event) -> tuple[Any, ...]:
    return event.data, event.tag, event.properties, event.headers, event.ttl, event.priority


@given(documents)
def test_the_shorter_way_has_the_same_result(document: dict[str, Any]) -> None:
    data = msgspec.json.encode(document)
    event = _plain_event(msgspec.json.decode(data))

    assert event is not None
    assert parts(event) == parts(event_of_body(msgspec.json.decode(data, type=NewEvent), None))


@pytest.mark.parametrize(
    "document",
    [
        *({"data": value} for value in (None, 1, True, ["x"])),
        *({"tag": value} for value in (1, True, ["x"])),
        *({"properties": value} for value in (None, 1, "x", [1])),
        {"properties": {DICTIONARY: 1}},
        {"data": "x", "ttl": 1},
        {"data": "x", "unknown": 1},
        {"data_base64": "eA=="},
        [],
        "data",
        None,
    ],
)
def test_other_documents_take_the_usual_way(document: Any) -> None:
    assert _plain_event(document) is None


def test_the_stamp_of_a_realm_is_left_out() -> None:
    document = {"data": "x", "properties": {DICTIONARY: {"id": 1}, "n": 1}}
    read = json_document(msgspec.json.encode(document), None, {})

    properties = read.bodies[0].batch.schema.field("properties").type
    assert [field.name for field in properties] == ["n"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"data": 1}', "data must be a string"),
        (b'{"tag": 1}', "tag must be a string"),
        (b'{"properties": []}', "properties"),
        (b"{", "ends too early"),
    ],
)
def test_an_error_is_explained(text: bytes, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        json_document(text, None, {})
