"""Batches of one event, written and recognised by a template."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock_core.columns.events import single_event
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.check import check_body
from penstock_core.columns.events.digest import digest
from penstock_core.columns.events.event import Event
from penstock_core.columns.events.single_event import (
    codec_in_message,
    codec_of_schema,
    encode_event,
    trusted_codec_of,
)
from penstock_core.columns.schema.ipc import (
    SCHEMA_BYTES_KEPT_MAX,
    batch_bytes,
    batch_from,
    schema_bytes,
)
from penstock_core.columns.schema.layout import UTC_MICROSECONDS
from penstock_core.vocabulary.errors import InvalidEvent

LIMIT = 1 << 30
SPECIAL: dict[str, dict[str, Any]] = {
    "ttl": {"ttl": 5},
    "priority": {"priority": 4},
    "not persistent": {"persistent": False},
    "transient": {"transient": True},
    "later": {"deliver_at": 2e9},
    "headers": {"headers": {"user": "me"}},
    "delta": {"is_delta": True},
    "null": {"properties": {"a": None}},
    "nested": {"properties": {"a": {"b": 1}}},
    "list": {"properties": {"a": [1]}},
    "narrow": {"properties": {"a": np.int8(1)}},
}

values = (
    st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
plain_events = st.builds(
    Event,
    st.binary(max_size=40),
    tag=st.none() | st.text(max_size=20),
    properties=st.dictionaries(st.text("abcé/. ", min_size=1, max_size=3), values, max_size=4),
)


def written(event: Event) -> tuple[pa.RecordBatch, bytes]:
    """Return the batch of an event from Arrow, and its message from the template."""
    result = encode_event(event)
    assert result is not None, f"{event} is plain"
    return body_of([event]), result[1]


@given(plain_events)
def test_a_plain_event_is_written_byte_for_byte_as_arrow_writes_it(event: Event) -> None:
    batch, message = written(event)

    assert message == bytes(batch_bytes(batch))


@pytest.mark.slow
@given(plain_events)
def test_what_is_recognised_has_the_digest_of_the_batch(event: Event) -> None:
    batch, message = written(event)
    form = codec_in_message(schema_bytes(batch.schema))
    assert form is not None, "it was written by one"

    assert form.digest_of(message) == digest(batch_from(message, batch.schema), LIMIT)


@given(plain_events)
def test_the_values_of_a_message_are_those_of_its_columns(event: Event) -> None:
    batch, message = written(event)
    form = codec_of_schema(batch.schema)
    assert form is not None, "it was written by one"
    (row,) = batch.to_pylist()
    fields = row.pop("properties", {})

    # Texts, because NaN differs from itself.
    assert repr(form.values_of(message)) == repr((*row.values(), *fields.values()))
    assert form.values_of(message[:-8]) is None


@pytest.mark.slow
@given(plain_events, st.data())
def test_nothing_is_recognised_that_a_full_check_would_refuse(event: Event, data: Any) -> None:
    """Change bytes anywhere, as a hostile client might; accepted messages must still be sound."""
    batch, message = written(event)
    form = codec_of_schema(batch.schema)
    assert form is not None, "it was written by one"
    hurt = bytearray(message)
    places = data.draw(st.lists(st.integers(0, len(hurt) - 1), min_size=1, max_size=4))
    for place in places:
        hurt[place] = data.draw(st.integers(0, 255))
    cut = bytes(hurt[: data.draw(st.sampled_from([len(hurt), len(hurt) - 8, 16, 0]))])
    result = form.digest_of(cut)

    if result is not None:
        read = batch_from(cut, batch.schema)
        check_body(read)
        assert result == digest(read, LIMIT)


@pytest.mark.parametrize("kind", single_event._FIXED)
def test_a_form_of_the_realm_has_numbers_of_every_kind(kind: str) -> None:
    kinds = {"double": pa.float64(), "float": pa.float32(), "bool": pa.bool_()}
    kinds[str(UTC_MICROSECONDS)] = UTC_MICROSECONDS
    numbers = pa.array([1]).cast(kinds.get(kind, kind))
    inner = pa.StructArray.from_arrays([numbers, pa.array(["x"])], ["n", "s"])
    columns = [pa.array([b"x"]), inner, pa.array([5], pa.int64()), inner]
    batch = pa.RecordBatch.from_arrays(columns, ["data", "headers", "ttl", "properties"])

    form = trusted_codec_of(batch.schema)
    made = None if form is None else form.encode_with_digest([b"x", 1, "x", 5, 1, "x"])

    assert form is not None
    assert made == (bytes(batch_bytes(batch)), replace(digest(batch, LIMIT), ttls=()))
    assert form.values_of(made[0]) == (b"x", 1, "x", 5, 1, "x")


def test_text_that_is_not_utf8_is_left_to_the_full_check() -> None:
    batch, message = written(Event(b"x", tag="word"))
    form = codec_of_schema(batch.schema)
    assert form is not None, "it was written by one"

    assert form.digest_of(message) is not None
    assert form.digest_of(message.replace(b"word", b"wo\xff\xfe")) is None


@pytest.mark.parametrize("what", SPECIAL)
def test_other_events_are_encoded_by_arrow(what: str) -> None:
    event = Event(b"x", **SPECIAL[what])
    schema = body_of([event]).schema

    assert encode_event(event) is None
    assert codec_of_schema(schema) is None or what in ("null",)


def test_a_received_event_is_encoded_by_arrow() -> None:
    from penstock_core.columns.events.batch import EventBatch, stamp
    from penstock_core.ids.ids import Span

    (event,) = EventBatch(stamp(body_of([Event(b"x", tag="t")]), Span(5, 6), 0))

    assert encode_event(event) is None


def test_a_large_event_is_encoded_by_arrow() -> None:
    assert encode_event(Event(bytes(single_event.ROW_BYTES_MAX + 1))) is None
    assert encode_event(Event(bytes(single_event.ROW_BYTES_MAX))) is not None


@pytest.mark.parametrize("value", [1 << 63, "\ud800"])
def test_a_value_no_column_can_hold_is_refused_as_ever(value: Any) -> None:
    encode_event(Event(properties={"a": 1}))  # the form is known by then
    encode_event(Event(properties={"a": "text"}))

    assert encode_event(Event(properties={"a": value})) is None
    with pytest.raises(InvalidEvent, match="property 'a'"):
        body_of([Event(properties={"a": value})])


def test_a_property_name_no_event_may_have_is_refused() -> None:
    with pytest.raises(InvalidEvent, match="reserved"):
        encode_event(Event(properties={"$penstock": 1}))


def test_forms_and_schemas_do_not_fill_memory() -> None:
    form = codec_of_schema(pa.schema([("data", pa.binary())]))
    assert form is not None, "it is plain"
    for length in range(3 * single_event.TEMPLATES_MAX):
        assert form.encode([bytes(length)]) is not None
    for number in range(2 * single_event.SCHEMAS_MAX):
        properties = pa.struct([(f"p{number}", pa.int64())])
        assert codec_in_message(schema_bytes(pa.schema([("properties", properties)]))) is not None

    assert len(form._templates) <= single_event.TEMPLATES_MAX
    assert len(single_event._by_schema) <= single_event.SCHEMAS_MAX


def test_a_schema_of_any_size_is_not_remembered() -> None:
    """Sixty-four schemas as large as a frame would fill memory, and would stay after their senders
    have left."""
    large = pa.schema([("data", pa.binary())], metadata={"x": "x" * SCHEMA_BYTES_KEPT_MAX})

    assert codec_in_message(schema_bytes(large)) is None
    assert all(len(message) <= SCHEMA_BYTES_KEPT_MAX for message in single_event._by_schema)


def test_a_schema_no_body_has_has_no_form() -> None:
    assert codec_of_schema(pa.schema([("data", pa.string())])) is None
    assert codec_of_schema(pa.schema([("nonsense", pa.int64())])) is None
    assert codec_of_schema(pa.schema([])) is None
    assert codec_of_schema(pa.schema([("properties", pa.struct([("a", pa.int64())] * 2))])) is None
    names = [(f"p{number}", pa.int64()) for number in range(single_event.COLUMNS_MAX + 1)]
    assert codec_of_schema(pa.schema([("properties", pa.struct(names))])) is None


def test_what_no_form_holds_has_none() -> None:
    for kind in (pa.list_(pa.int64()), pa.null(), pa.struct([]), pa.large_string()):
        assert trusted_codec_of(pa.schema([("properties", pa.struct([("a", kind)]))])) is None
    assert trusted_codec_of(pa.schema([])) is None
