"""Messages as events and events as messages: what is lossless, and what the other side sees."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from proton import Message

from packages.amqp.tests.sample_messages import (
    APPLICATION,
    BODIES,
    FULL,
    NOW_MS,
    ODD,
    event,
    meaning,
    message,
    of_native,
    sent,
    stored,
    typed,
)
from penstock_amqp.incoming import batches_of
from penstock_amqp.outgoing import EncodedMessages
from penstock_amqp.single_message import SingleMessages
from penstock_amqp.wire.sections import (
    DATA,
    HEADER,
    VALUE,
    fields,
    section,
    sections_of,
)
from penstock_amqp.wire.types import (
    Byte,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    encode,
)
from penstock_core.columns.events.batch import EventBatch, stamp
from penstock_core.columns.events.check import check_body
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import Span
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_a_body_of_any_kind_is_what_it_was(body: bytes) -> None:
    raw = message(body=body)

    assert meaning(sent(stored(raw))) == meaning(raw)


@pytest.mark.parametrize("raw", ODD.values(), ids=list(ODD))
def test_what_an_amqp_client_sends_another_one_gets(raw: bytes) -> None:
    assert meaning(sent(stored(raw))) == meaning(raw)


def test_messages_of_one_batch_do_not_mix() -> None:
    raws = [*ODD.values(), *(message(body=body) for body in BODIES.values())]

    batch = stored(*raws)

    for row, raw in enumerate(raws):
        assert meaning(sent(batch, row)) == meaning(raw)


@pytest.mark.spec("E2")
def test_application_properties_are_properties_of_their_types() -> None:
    decoded = event(message(application=APPLICATION))

    assert decoded.properties == {
        "bool": True,
        "ubyte": 1,
        "ushort": 2,
        "uint": 3,
        "ulong": 4,
        "byte": -5,
        "short": -6,
        "int": -7,
        "long": -8,
        "float": 0.5,
        "double": 0.1,
        "char": "é",
        "uuid": f"{UUID(int=9)}",
        "binary": b"\xff",
        "string": "s",
        "symbol": "s",
        "null": None,
        "time": datetime(2027, 1, 15, hour=8, tzinfo=UTC),
    }
    kinds = stored(message(application={"i": Int(1), "f": Float32(1.0)})).schema.field("properties")
    assert str(kinds.type) == "struct<i: int32, f: float>"


@pytest.mark.spec("E3")
def test_properties_of_a_message_are_headers() -> None:
    decoded = event(message(durable=True, priority=7, properties=FULL, body=BODIES["text"]))

    headers = dict(decoded.headers)
    assert headers.pop("amqp").startswith('{"body":"text","to":"to"')
    assert headers == {
        "message_id": "id",
        "correlation_id": "correlation",
        "reply_to": "reply",
        "type": "subject",
        "user": "user",
        "expiration": datetime(2027, 1, 15, hour=8, minute=0, second=9, tzinfo=UTC),
        "timestamp": datetime(2027, 1, 15, hour=8, tzinfo=UTC),
    }
    assert (decoded.priority, decoded.persistent, decoded.ttl) == (7, True, 9_000)
    assert decoded.properties == {"JMSXGroupID": "group", "JMSXGroupSeq": 7}
    assert decoded.data == "žluť".encode()


def test_messages_that_differ_in_their_data_alone_are_one_table() -> None:
    raws = [message(durable=True, body=section(DATA, encode(bytes((n,)) * 9))) for n in range(99)]

    batch = stored(*raws)

    assert batch.schema.names == ["event_id", "published", "data"]
    assert batch.column("data").to_pylist() == [bytes((n,)) * 9 for n in range(99)]
    fleeting = stored(*(message(body=section(DATA, encode(b"x"))) for _ in range(9)))
    assert fleeting.column("persistent").to_pylist() == [False] * 9


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=300)), min_size=1, max_size=9))
def test_messages_of_any_lengths_are_what_they_were(contents: list[tuple[bool, bytes]]) -> None:
    raws = [message(durable=d, body=section(DATA, encode(data))) for d, data in contents]

    batch = stored(*raws)

    assert [meaning(sent(batch, row)) for row in range(len(raws))] == [meaning(r) for r in raws]


def test_a_message_that_means_nothing_spoils_no_other() -> None:
    batches, unusable = batches_of([message(), b"\x00\x99", message()], NOW_MS)

    assert [list(part.indexes) for part in batches] == [[0, 2]]
    assert [part.index for part in unusable] == [1]


@given(st.lists(st.binary(max_size=80), min_size=1, max_size=3))
def test_bytes_of_strangers_do_no_harm(raws: list[bytes]) -> None:
    batches, unusable = batches_of(raws, NOW_MS)

    for batch in batches:
        check_body(batch.batch)
    assert sum(len(batch.indexes) for batch in batches) + len(unusable) == len(raws)


@pytest.mark.spec("X4")
def test_what_is_to_be_delivered_later_is_a_batch_of_its_own() -> None:
    later = message(annotations={Symbol("x-opt-delivery-time"): NOW_MS + 5})

    batches, _ = batches_of([message(), later], NOW_MS)

    assert [list(batch.indexes) for batch in batches] == [[0], [1]]
    assert batches[1].batch.column("deliver_at").cast(pa.int64()).to_pylist() == [
        (NOW_MS + 5) * 1_000
    ]


def test_who_has_sent_to_a_topic_is_known() -> None:
    assert event(message(), container="me").headers["application_id"] == "me"


# --- from elsewhere -----------------------------------------------------------------------

NATIVE = {
    "b": True,
    "i8": np.int8(1),
    "i16": np.int16(2),
    "i32": np.int32(3),
    "i64": 4,
    "f32": np.float32(0.5),
    "f64": 0.1,
    "s": "x",
    "y": b"y",
    "none": None,
    "t": datetime(2026, 1, 1, tzinfo=UTC),
}
NESTED = {
    "exact": datetime(2026, 1, 1, hour=0, minute=0, second=0, microsecond=1, tzinfo=UTC),
    "naive": datetime(2026, 1, 1),  # noqa: DTZ001  the very thing
    "list": [1, 2],
    "nested": {"a": {"b": [{"c": 1.5}, {"c": None}]}},
}


def test_a_native_event_is_a_message_of_its_types() -> None:
    decoded = meaning(of_native(Event(b"x", tag="t", properties=NATIVE, priority=3, ttl=9)))

    assert decoded["application"] == typed(
        {
            "b": True,
            "i8": Byte(1),
            "i16": Short(2),
            "i32": Int(3),
            "i64": 4,
            "f32": Float32(0.5),
            "f64": 0.1,
            "s": "x",
            "y": b"y",
            "none": None,
            "t": Timestamp(1_767_225_600_000),
        }
    )
    assert decoded["header"] == [True, UByte(3), UInt(9)]
    assert decoded["annotations"] == typed({Symbol("x-opt-penstock-tag"): "t"})
    assert decoded["body"] == [(DATA, ("bytes", b"x"))]


@pytest.mark.spec("R2")
@pytest.mark.parametrize(("kind", "said"), [("reply", 2), ("queue", 2), ("topic", 3)])
def test_who_replies_to_a_temporary_destination_is_told_its_kind(kind: str, said: int) -> None:
    address = f"temp-{kind}-{32 * 'a'}"
    meaning_of_address = meaning(of_native(Event(b"x", headers={"reply_to": address})))
    meaning_of_name = meaning(of_native(Event(b"x", headers={"reply_to": "answers"})))

    assert meaning_of_address["annotations"] == typed({Symbol("x-opt-jms-reply-to"): Byte(said)})
    assert meaning_of_name["annotations"] != meaning_of_address["annotations"]


@pytest.mark.spec("E2")
def test_a_native_event_comes_back_over_amqp_as_it_was() -> None:
    properties = {**NATIVE, **NESTED}
    raw = of_native(Event(b"x", tag="t", properties=properties, headers={"type": "T"}))

    decoded = event(raw)

    assert decoded.properties == properties
    assert (decoded.tag, decoded.data, decoded.headers["type"]) == ("t", b"x", "T")


def test_who_publishes_natively_may_say_that_it_is_text() -> None:
    raw = of_native(Event("žluť".encode(), headers={"amqp": '{"body":"text"}'}))

    assert meaning(raw)["body"] == [(VALUE, ("str", "žluť"))]


@pytest.mark.parametrize(
    "header",
    [
        "no JSON",
        "[]",
        '{"body":"value"}',
        '{"body":"sequence"}',
        '{"annotations":"AAAA","footer":"AAAA","application_properties":"AAAA"}',
        '{"sizes":[99]}',
        '{"message_id":"ulong","content_type":"é"}',
        '{"types":{"n":"ubyte"}}',
    ],
)
def test_a_header_that_is_not_true_does_no_harm(header: str) -> None:
    headers = {"amqp": header, "message_id": "x"}
    decoded = meaning(of_native(Event(b"\xff\x00", headers=headers, properties={"n": 300})))

    assert decoded["body"] == [(DATA, ("bytes", b"\xff\x00"))]
    assert decoded["application"] == typed({"n": 300})


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"mqtt": '{"content_type":"a/b","payload_format":1}'}, ("x", "a/b", "c")),
        ({"mqtt": '{"hex":true}', "correlation_id": "00ff"}, (b"x", None, b"\0\xff")),
        ({"mqtt": '{"hex":true}'}, (b"x", None, "c")),  # "c" is no hexadecimal number
        ({"mqtt": '{"content_type":3}'}, (b"x", None, "c")),
        ({"mqtt": '{"content_type":"a/b"}', "amqp": '{"body":"text"}'}, ("x", None, "c")),
    ],
)
def test_what_an_mqtt_client_has_said_of_a_message_is_told(
    said: dict[str, str], expected: tuple[Any, ...]
) -> None:
    decoded = Message()
    decoded.decode(of_native(Event(b"x", headers={"correlation_id": "c", **said})))

    body, kind, correlation = expected
    assert (decoded.body, decoded.correlation_id) == (body, correlation)
    assert str(decoded.content_type) == str(kind)


def test_redeliveries_are_in_the_header() -> None:
    batch = stored(message(durable=True))

    assert fields(sections_of(sent(batch, deliveries=3)).header)[4] == 3


# --- the header (AMQP, messaging, 3.2.1) ------------------------------------------------------


def headed(*values: Any) -> bytes:
    return section(HEADER, encode(list(values))) + section(DATA, encode(b"x"))


@pytest.mark.parametrize(
    ("values", "priority", "ttl"),
    [
        ([False, UByte(9)], 9, 0),
        ([False, UByte(10)], 9, 0),
        ([True, UByte(255), UInt(7_000)], 9, 7_000),
        ([True, None, UInt(0)], 4, 0),
        ([True, UByte(200), UInt(0)], 9, 0),
    ],
    ids=["the highest", "higher", "as high as can be", "a ttl of 0", "both"],
)
@pytest.mark.parametrize("is_alone", [False, True])
def test_what_a_header_says_comes_out_as_it_was(
    values: list[Any], priority: int, ttl: int, is_alone: bool
) -> None:
    raw = headed(*values)
    batch = stored(raw)
    if is_alone:
        body = SingleMessages().body(raw, NOW_MS, "")
        assert body is not None
        batch = stamp(body.batch, Span(0, 1), 0)

    assert fields(sections_of(sent(batch)).header) == values
    stored_event = EventBatch(batch)[0]
    assert (stored_event.priority, stored_event.ttl) == (priority, ttl)


def test_a_native_priority_is_not_raised_by_what_is_said_besides() -> None:
    for header_text, wanted in (('{"priority":200}', 5), ('{"priority":-3}', 5)):
        raw = of_native(Event(b"", priority=5, headers={"amqp": header_text}))

        assert fields(sections_of(raw).header)[1] == wanted
    for header_text, wanted in (('{"priority":-3}', 9), ('{"priority":999}', 255)):
        raw = of_native(Event(b"", priority=9, headers={"amqp": header_text}))

        assert fields(sections_of(raw).header)[1] == wanted


def test_what_the_header_of_a_message_says_of_its_way_here_is_not_kept() -> None:
    """``first-acquirer`` and ``delivery-count``: the realm delivers it for the first time, and
    never claims that nobody has had it."""
    batch = stored(headed(True, None, None, True, UInt(7)))

    assert fields(sections_of(sent(batch)).header) == [True]
    assert fields(sections_of(sent(batch, deliveries=2)).header) == [
        True,
        None,
        None,
        None,
        UInt(2),
    ]


def test_the_time_to_live_that_comes_out_is_what_is_left() -> None:
    batch = stamp(batches_of([headed(True, None, UInt(9_000))], NOW_MS)[0][0].batch, Span(0, 1), 5)
    rows = OutgoingBatch((Span(0, 1),), batch=batch)
    remaining_ms = {}
    for ms in (0, 1, 8_999, 10_000):
        raw = EncodedMessages(rows, 5 + ms * 1_000 + 999).message(0, 0)
        remaining_ms[ms] = fields(sections_of(raw).header)[2]

    assert remaining_ms == {0: 9_000, 1: 8_999, 8_999: 1, 10_000: 1}


@pytest.mark.parametrize(("expires_ms", "ttl"), [(-5_000, 1), (1, 1), (0, 0), (NOW_MS + 50, 50)])
def test_a_message_that_has_expired_long_ago_expires_at_once(expires_ms: int, ttl: int) -> None:
    values: list[Any] = [*[None] * 8, Timestamp(expires_ms)]
    raw = message(durable=True, properties=values)

    assert event(raw).ttl == ttl
    assert fields(sections_of(sent(stored(raw))).properties) == values
