"""A message that comes alone makes the very event it would make among others."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from packages.amqp.tests.sample_messages import (
    APPLICATION,
    BODIES,
    FULL,
    NOW_MS,
    ODD,
    meaning,
    message,
    sent,
)
from penstock_amqp.incoming import batch_of, batches_of, row_of
from penstock_amqp.single_message import MISMATCHES_MAX, SHAPES_MAX, SingleMessages
from penstock_amqp.wire.sections import DATA, VALUE, section
from penstock_amqp.wire.types import (
    Byte,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    encode,
)
from penstock_core.bounds import PROPERTY_NAME_CHARACTERS_MAX
from penstock_core.columns.events.batch import EventBatch, stamp
from penstock_core.columns.events.check import check_body
from penstock_core.columns.events.digest import digest
from penstock_core.columns.events.single_event import ROW_BYTES_MAX
from penstock_core.columns.schema.ipc import SCHEMA_BYTES_KEPT_MAX, batch_bytes, schema_bytes
from penstock_core.columns.schema.layout import PROPERTY_COLUMNS_MAX
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import EventTooLarge, PenstockError
from penstock_server.runtime.store.bodies import Body
from tests.counting import calls_during

LIMIT = 1 << 30
TAG = Symbol("x-opt-penstock-tag")
PLAIN_VALUES = (
    st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats()
    | st.floats(width=32).map(Float32)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.integers(-(1 << 31), (1 << 31) - 1).map(Int)
    | st.integers(-(1 << 15), (1 << 15) - 1).map(Short)
    | st.integers(-128, 127).map(Byte)
    | st.integers(0, 255).map(UByte)
    | st.integers(0, (1 << 32) - 1).map(UInt)
    | st.just(Symbol("symbol"))
)
OTHER_VALUES = (
    st.none()
    | st.integers(0, (1 << 64) - 1).map(ULong)
    | st.integers(-(1 << 62), 1 << 62).map(Timestamp)
    | st.uuids()
)


def rarely(value: Any) -> st.SearchStrategy[Any]:
    """What makes a message go the usual way: most should not."""
    return st.sampled_from([None, None, None, value])


times = st.none() | st.integers(0, 1 << 43).map(Timestamp) | st.just(Timestamp(-(1 << 62)))
texts = st.none() | st.text(max_size=9)
ids = texts | st.integers(0, 9).map(ULong) | st.uuids() | st.binary(max_size=4)
properties: st.SearchStrategy[Any] = st.just([]) | st.tuples(
    ids,
    st.none() | st.binary(max_size=4),
    texts,
    texts,
    texts,
    ids,
    st.none() | st.just(Symbol("text/plain")),
    st.none(),
    times,
    times,
    rarely("group"),
    rarely(UInt(7)),
    texts,
)
marks: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        TAG: st.text(max_size=9),
        Symbol("x-opt-jms-msg-type"): st.integers(0, 5).map(Byte),
        Symbol("x-opt-jms-dest"): st.just(Byte(0)),
    },
) | st.sampled_from(
    [
        {Symbol("x-opt-delivery-time"): NOW_MS + 5},
        {Symbol("x-opt-penstock-properties"): {"nested": [1, 2]}},
    ]
)
messages = st.builds(
    message,
    durable=st.booleans(),
    priority=st.none() | st.integers(0, 9),
    ttl=st.none() | st.just(0) | st.integers(1, (1 << 32) - 1),
    annotations=marks,
    properties=properties,
    application=st.dictionaries(st.text("abc", max_size=2), PLAIN_VALUES | OTHER_VALUES, max_size=3)
    | st.dictionaries(st.sampled_from("abc"), PLAIN_VALUES, max_size=3),
    body=st.sampled_from(list(BODIES.values()))
    | st.binary(max_size=300).map(lambda data: section(DATA, encode(data))),
    footer=st.none() | st.just({Symbol("crc"): 5}),
)
containers = st.sampled_from(["", "me"])


def body_of_one(raw: bytes, sender: str = "") -> Body | None:
    """The event of a message that is the first by its link."""
    return SingleMessages().body(raw, NOW_MS, sender)


def checked(body: Body) -> Body:
    check_body(body.batch)
    return body


@given(messages, containers)
def test_a_lone_message_is_byte_for_byte_what_it_is_among_others(raw: bytes, sender: str) -> None:
    body = body_of_one(raw, sender)
    assume(body is not None)
    assert body is not None
    checked(body)
    batch = batch_of([row_of(0, raw, NOW_MS)], sender).batch

    assert (body.buffer, body.schema_bytes) == (batch_bytes(batch), schema_bytes(batch.schema))
    assert body.digest(LIMIT) == digest(batch, LIMIT)


@given(messages)
def test_a_lone_message_comes_out_as_it_went_in(raw: bytes) -> None:
    body = body_of_one(raw)
    (usual,), unusable = batches_of([raw], NOW_MS)
    alone = usual.batch if body is None else body.batch
    events = [EventBatch(stamp(batch, Span(0, 1), 0))[0] for batch in (alone, usual.batch)]

    assert not unusable
    assert meaning(sent(stamp(alone, Span(0, 1), 0))) == meaning(
        sent(stamp(usual.batch, Span(0, 1), 0))
    )
    assert repr(events[0]) == repr(events[1])


same_texts = st.text(min_size=1, max_size=2)
programs = st.fixed_dictionaries(
    {},
    optional={
        "durable": st.just(value=True),
        "ttl": st.just(5_000),
        "annotations": st.just({TAG: "t", Symbol("x-opt-jms-msg-type"): Byte(5)}),
        "application": st.just({"a": 1}) | st.just({"a": 2}) | st.just({"a": None}),
    },
)
one_programs = st.builds(
    lambda same, identity, time, data, code: message(
        **same,
        properties=[identity, None, "orders", *[None] * 6, time],
        body=section(code, encode(data if code == DATA else data.decode("latin-1"))),
    ),
    programs,
    st.none() | same_texts | st.uuids(),
    times,
    st.binary(max_size=2) | st.binary(min_size=255, max_size=257),
    st.sampled_from([DATA, VALUE]),
)


@given(st.lists(one_programs | messages, min_size=2, max_size=12), containers)
def test_messages_of_one_link_do_not_mix(raws: list[bytes], sender: str) -> None:
    link = SingleMessages()

    for raw in chain.from_iterable(zip(raws, raws, strict=True)):
        assert seen(link.body(raw, NOW_MS, sender)) == seen(body_of_one(raw, sender))


def parts(*datas: bytes) -> bytes:
    return message(body=b"".join(section(DATA, encode(data)) for data in datas))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        tuple(
            message(properties=[*[None] * 9, Timestamp(time_ms)]) for time_ms in (NOW_MS, 1 << 62)
        ),
        (parts(b"", b"x"), parts(b"", b"xy")),
        (parts(b"x", b""), parts(b"xy", b"")),
    ],
    ids=["a time outside of the years", "nothing before the data", "nothing behind the data"],
)
def test_what_is_different_in_another_way_is_read(first: bytes, second: bytes) -> None:
    link = SingleMessages()
    link.body(first, NOW_MS, "")

    assert seen(link.body(second, NOW_MS, "")) == seen(body_of_one(second))


@given(one_programs, st.data())
def test_bytes_that_have_changed_mean_what_they_would_without_the_first(
    raw: bytes, data: st.DataObject
) -> None:
    link = SingleMessages()
    link.body(raw, NOW_MS, "")
    changed = bytearray(raw)
    for place in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=3)):
        changed[place] = data.draw(st.integers(0, 255))
    cut = bytes(changed[: data.draw(st.just(len(raw)) | st.integers(0, len(raw)))])
    longer = cut + data.draw(st.binary(max_size=3))

    assert seen(link.body(longer, NOW_MS, "")) == seen(body_of_one(longer))


def seen(body: Body | None) -> tuple[object, ...] | None:
    return None if body is None else (body.buffer, body.schema_bytes, body.known_digest)


def test_of_what_one_program_sends_no_more_is_read_than_differs() -> None:
    link = SingleMessages()
    raws = [
        message(
            durable=True,
            properties=[f"ID:{number}", None, "orders", *[None] * 6, Timestamp(NOW_MS + number)],
            body=section(DATA, encode(bytes(number))),
        )
        for number in range(10, 99)
    ]
    bodies: list[Body | None] = []

    read = calls_during(
        lambda: bodies.extend(link.body(raw, NOW_MS, "") for raw in raws), row_of.__name__
    )

    assert read == 1, "the first is read, and no other"
    assert [*map(seen, bodies)] == [seen(body_of_one(raw)) for raw in raws]


def test_who_sends_something_else_each_time_is_not_learned_from() -> None:
    """To learn takes longer than to read: once it was in vain some times, it ends."""
    link = SingleMessages()
    raws = [message(application={"n": number}) for number in range(MISMATCHES_MAX + 10)]

    work = [calls_during(partial(link.body, raw, NOW_MS, "")) for raw in raws]

    assert all(link.body(raw, NOW_MS, "") is not None for raw in raws)
    assert max(work[MISMATCHES_MAX:]) < min(work[1:MISMATCHES_MAX])


USUAL = {
    "properties of any type": message(application=APPLICATION),
    "a null property": message(application={"a": None}),
    "nested properties": message(
        annotations={Symbol("x-opt-penstock-properties"): {"a": [1]}},
    ),
    "a group": message(properties=FULL),
    "a time to deliver at": message(annotations={Symbol("x-opt-delivery-time"): NOW_MS}),
    "much data": message(body=section(DATA, encode(bytes(ROW_BYTES_MAX + 1)))),
    "a name no property may have": ODD["a property nobody may name so"],
    "many properties": message(application={f"p{number}": number for number in range(60)}),
}


@pytest.mark.parametrize("raw", USUAL.values(), ids=list(USUAL))
def test_anything_else_takes_the_usual_way(raw: bytes) -> None:
    assert body_of_one(raw) is None
    assert body_of_one(raw) is None
    assert not batches_of([raw], NOW_MS)[1]


JMS = {
    "bytes": message(
        durable=True,
        annotations={Symbol("x-opt-jms-msg-type"): Byte(3), Symbol("x-opt-jms-dest"): Byte(0)},
        properties=["ID:1", None, "orders", *[None] * 6, Timestamp(NOW_MS)],
    ),
    "a text to a topic, with a time to live, a priority and properties": message(
        priority=7,
        ttl=5_000,
        annotations={Symbol("x-opt-jms-msg-type"): Byte(5), Symbol("x-opt-jms-dest"): Byte(1)},
        properties=["ID:1", None, "orders", *[None] * 5, Timestamp(NOW_MS), Timestamp(NOW_MS)],
        application={"n": Int(1), "s": "x", "f": Float32(0.5)},
        body=section(VALUE, encode("žluť")),
    ),
    "nothing but data": message(durable=True),
}


@pytest.mark.parametrize("raw", JMS.values(), ids=list(JMS))
def test_what_jms_clients_send_takes_the_short_way(raw: bytes) -> None:
    assert body_of_one(raw, "client") is not None


BAD: dict[str, Any] = {
    "no message": b"\x00\x99",
    "an id that is none": message(properties=[1.5]),
    "a text that is no UTF-8": message(body=section(VALUE, b"\xa1\x01\xff")),
}


@pytest.mark.parametrize("raw", BAD.values(), ids=list(BAD))
def test_what_is_no_event_is_left_to_the_usual_way(raw: bytes) -> None:
    assert body_of_one(raw) is None
    assert batches_of([raw], NOW_MS)[1]


def header(*values: Any) -> bytes:
    return section(0x70, encode(list(values))) + BODIES["data"]


@pytest.mark.parametrize(
    ("raw", "alike"),
    [
        (header(True, Int(-5)), header(True, Int(5))),
        (header(True, None, ULong(1 << 63)), header(True, None, UInt(5))),
    ],
    ids=["a priority below 0", "a time to live of ages"],
)
def test_a_value_no_event_has_is_refused_as_ever(raw: bytes, alike: bytes) -> None:
    """Also where the form of messages of its kind is known."""
    assert body_of_one(alike) is not None
    assert body_of_one(raw) is None
    with pytest.raises(PenstockError):
        batches_of([raw], NOW_MS)


def test_a_lone_message_that_is_too_large_is_refused() -> None:
    body = body_of_one(message(body=section(DATA, encode(bytes(2_000)))))
    assert body is not None

    with pytest.raises(EventTooLarge, match=r"event 0 .* has 2001 bytes"):
        body.digest(1_000)


def test_kinds_of_messages_do_not_fill_memory() -> None:
    """The first kind is forgotten in the end: it takes the work of a new one again."""
    raws = [message(durable=True, application={f"name {n}": 1}) for n in range(SHAPES_MAX + 1)]

    new, cached_calls = (calls_during(lambda: body_of_one(raws[0])) for _ in range(2))
    for raw in raws:
        assert body_of_one(raw) is not None

    assert new > cached_calls
    assert calls_during(lambda: body_of_one(raws[0])) > cached_calls


def test_a_schema_of_any_size_is_not_remembered() -> None:
    """It is learned each time, where another is learned once."""
    long = PROPERTY_NAME_CHARACTERS_MAX - 4
    names = [f"{number:04}" + "x" * long for number in range(PROPERTY_COLUMNS_MAX)]
    raw = message(durable=True, application=dict.fromkeys(names, 1))
    batch = pa.record_batch({"properties": [dict.fromkeys(names, 1)]})
    assert len(schema_bytes(batch.schema)) > SCHEMA_BYTES_KEPT_MAX
    other_raw = message(durable=True, application={"y": 1})
    body_of_one(other_raw)

    assert body_of_one(raw) is None
    assert calls_during(lambda: body_of_one(raw), "_learn_shape") == 1
    assert calls_during(lambda: body_of_one(other_raw), "_learn_shape") == 0
