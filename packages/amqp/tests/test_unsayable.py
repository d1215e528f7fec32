"""An event that AMQP cannot say in full comes without what cannot be said, and takes nothing else
with it."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
from proton import Message, symbol

import penstock
from packages.amqp.tests.clients import WAIT_S, texts
from packages.amqp.tests.conftest import Connect
from packages.amqp.tests.sample_messages import NOW_MS, message, of_native
from packages.amqp.tests.sample_messages import event as stored_event
from packages.server.tests.frontends.http.asking import Web
from penstock_amqp import incoming, message_header
from penstock_amqp.conditions import condition_of
from penstock_amqp.message_header import KNOWN_CHARACTERS_MAX, PLAIN, PROPERTIES
from penstock_amqp.outgoing import EncodedMessages
from penstock_amqp.single_message import SingleMessages
from penstock_amqp.wire.sections import entries, fields, sections_of
from penstock_amqp.wire.types import Decimal, Symbol, Timestamp, UInt, ULong, encode
from penstock_core.bounds import TTL_MS_MAX
from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import Span
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


POISON = {
    "amqp, nested": {"amqp": '{"zz":' + "[" * 60_000 + "]" * 60_000 + "}"},
    "amqp, 101 levels": {"amqp": '{"zz":' + "[" * 101 + "]" * 101 + "}"},
    "mqtt, nested": {"mqtt": '{"zz":' + '{"a":' * 60_000 + "0" + "}" * 60_001},
    "annotations that end too early": {
        "amqp": f'{{"annotations":"{encoded(bytes.fromhex("c10202b1"))}"}}'
    },
    "annotations with an impossible key": {
        "amqp": f'{{"annotations":"{encoded(bytes.fromhex("c103024540"))}"}}'
    },
    "application properties that are a list": {
        "amqp": f'{{"application_properties":"{encoded(encode([1]))}"}}'
    },
    "a type that the value exceeds": {"amqp": '{"types":{"huge":"float"}}'},
}


@pytest.mark.parametrize("headers", POISON.values(), ids=list(POISON))
def test_headers_that_cannot_be_read_cut_no_receiver(
    session: penstock.Session, connect: Connect, headers: dict[str, str]
) -> None:
    jobs = session.queues.create("jobs")
    jobs.push(b"poisoned", tag="t", properties={"huge": 1e300}, headers=headers)
    jobs.push(b"next")

    assert texts(connect().receiver("jobs"), 2) == [b"poisoned", b"next"]


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(("levels", "is_said"), [(98, True), (99, False)])
def test_a_property_nested_deeper_than_a_message_may_be_is_left_out(
    levels: int, is_said: bool
) -> None:
    event = Event(b"data", properties={"deep": nested(levels), "n": 3})

    sections = sections_of(of_native(event))

    assert entries(sections.application_properties) == {"n": 3}
    assert (PROPERTIES in entries(sections.message_annotations)) is is_said


def test_what_was_left_out_is_counted(
    realm: penstock.Realm, session: penstock.Session, connect: Connect
) -> None:
    jobs = session.queues.create("jobs")
    jobs.push(b"x", headers={"amqp": '{"content_encoding":"é"}'})

    assert texts(connect().receiver("jobs"), 1) == [b"x"]

    metrics = Web(realm.listen_http()).ask("GET", "/metrics").data.decode()
    assert "penstock_amqp_left_out_parts_total 1.0" in metrics


def test_sizes_of_data_sections_cannot_multiply_the_data() -> None:
    text = '{"sizes":[5,-5,5]}'

    assert message_header.decode_extras(text) is not PLAIN
    assert message_header.decode_extras(text).sizes == ()


def test_long_headers_are_not_remembered() -> None:
    message_header.extras_by_text.clear()
    message_header.extras_by_mqtt_text.clear()
    long = "x" * KNOWN_CHARACTERS_MAX

    for number in range(50):
        assert message_header.decode_extras(f'{{"to":"{long}{number}"}}').to == f"{long}{number}"
        header = message_header.decode_mqtt(f'{{"content_type":"{long}{number}"}}')
        assert header.content_type == f"{long}{number}"

    assert not message_header.extras_by_text
    assert not message_header.extras_by_mqtt_text


def test_what_senders_say_at_length_is_not_remembered() -> None:
    before = len(incoming.texts_by_residue)

    for number in range(50):
        annotations = {Symbol("x-opt-note"): "x" * 10_000 + str(number)}
        _, unusable = incoming.batches_of([message(annotations=annotations)], NOW_MS, "me")
        assert not unusable

    assert len(incoming.texts_by_residue) == before


def test_a_link_remembers_no_data_of_its_last_message() -> None:
    lone = SingleMessages()
    large = message(body=b"\x00\x53\x75" + encode(bytes(20_000)), application={"n": 1})

    assert lone.body(large, NOW_MS, "") is not None

    template = lone._template
    assert template is not None
    assert template.row.data == b""
    assert all(not isinstance(value, bytes) or len(value) < 1_000 for value in template.values)
    again = lone.body(large, NOW_MS, "")
    assert again is not None
    assert again.weight > 20_000


# --- what was to wait -----------------------------------------------------------------------

TIME, DELAY = Symbol("x-opt-delivery-time"), Symbol("x-opt-delivery-delay")
YEAR_9999 = datetime(9999, 12, 31, hour=23, minute=59, second=59, microsecond=999_000, tzinfo=UTC)
LONG_MAX = (1 << 63) - 1


def due(annotations: dict[Any, Any]) -> datetime:
    batches, unusable = incoming.batches_of([message(annotations=annotations)], NOW_MS, "")
    assert not unusable
    (delivery_time,) = batches[0].batch.column("deliver_at").to_pylist()
    assert isinstance(delivery_time, datetime)
    return delivery_time


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({TIME: NOW_MS + 5_000}, NOW_MS + 5_000),
        ({TIME: ULong(NOW_MS + 5_000)}, NOW_MS + 5_000),
        ({TIME: Timestamp(NOW_MS + 5_000)}, NOW_MS + 5_000),
        ({DELAY: 3_600_000}, NOW_MS + 3_600_000),
        ({DELAY: UInt(3_600_000)}, NOW_MS + 3_600_000),
        ({DELAY: 3_600_000, TIME: NOW_MS + 5_000}, NOW_MS + 5_000),
    ],
    ids=str,
)
def test_a_message_that_is_to_wait_waits(annotations: dict[Any, Any], expected: int) -> None:
    assert due(annotations) == datetime.fromtimestamp(expected / 1_000, UTC)


@pytest.mark.parametrize(
    "annotations",
    [
        {TIME: LONG_MAX},
        {TIME: ULong((1 << 64) - 1)},
        {TIME: 253_402_300_800_000},
        {DELAY: LONG_MAX},
        {DELAY: ULong((1 << 64) - 1)},
    ],
    ids=str,
)
def test_one_that_is_to_wait_longer_than_time_lasts_waits_to_its_end(
    annotations: dict[Any, Any],
) -> None:
    assert due(annotations) == YEAR_9999


@pytest.mark.parametrize(
    "annotations",
    [
        {TIME: 1e12},
        {TIME: "2030-01-01"},
        {TIME: True},
        {TIME: [1]},
        {TIME: b"1"},
        {TIME: -LONG_MAX - 1},
        {DELAY: -1},
        {DELAY: 5.0},
        {DELAY: "5s"},
        {DELAY: False},
    ],
    ids=str,
)
def test_one_that_does_not_say_how_long_is_refused(annotations: dict[Any, Any]) -> None:
    batches, unusable = incoming.batches_of([message(annotations=annotations)], NOW_MS, "")

    assert not batches
    (refused,) = unusable
    assert "x-opt-delivery-" in str(refused.error)
    assert condition_of(refused.error) == "amqp:invalid-field"


def test_a_message_delayed_by_a_client_comes_after_its_delay(
    session: penstock.Session, connect: Connect
) -> None:
    jobs = session.queues.create("jobs")
    sender = connect().sender("jobs")
    sender.send(Message(body="later", annotations={symbol("x-opt-delivery-delay"): 3_600_000}))
    sender.send(Message(body="now"))

    event = jobs.pop(timeout=WAIT_S)

    assert event is not None
    assert event.data == b"now"
    assert jobs.pop(timeout=0) is None
    assert len(jobs.scheduled.list()) == 1


# --- times to live --------------------------------------------------------------------------


def lived(ms: int, **headers: Any) -> tuple[Any, Any]:
    """Time to live and absolute expiry of the message of an event, half a day after it was
    published."""
    event = Event(b"data", ttl=ms, headers=headers)
    rows = OutgoingBatch((Span(0, 1),), batch=stamp(body_of([event]), Span(0, 1), NOW_MS * 1_000))
    now_us = (NOW_MS + HALF_DAY_MS) * 1_000
    sections = sections_of(EncodedMessages(rows, now_us).message(0, 0))
    ttl = [*fields(sections.header), None, None, None][2]
    return ttl, [*fields(sections.properties), *[None] * 9][8]


HALF_DAY_MS = 12 * 3_600_000
UINT_MAX = (1 << 32) - 1


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (UINT_MAX + HALF_DAY_MS, (UINT_MAX, None)),
        (UINT_MAX + HALF_DAY_MS + 1, (None, NOW_MS + UINT_MAX + HALF_DAY_MS + 1)),
        (60 * 86_400_000, (None, NOW_MS + 60 * 86_400_000)),
        (TTL_MS_MAX, (None, None)),
    ],
)
def test_a_time_to_live_beyond_49_days_is_told_as_the_time_of_its_end(
    ms: int, said: tuple[int | None, int | None]
) -> None:
    assert lived(ms) == said


def test_an_expiry_that_the_event_has_is_told_as_it_is() -> None:
    expiry = datetime.fromtimestamp((NOW_MS + 5) / 1_000, UTC)

    assert lived(60 * 86_400_000, expiration=expiry) == (None, NOW_MS + 5)


@pytest.mark.parametrize("creation", [Timestamp(LONG_MAX), Timestamp(-LONG_MAX), None])
@pytest.mark.parametrize(
    ("expiry", "ttl"),
    [(NOW_MS + 5_000, 5_000), (NOW_MS - 5, 1), (-LONG_MAX, 1), (LONG_MAX, TTL_MS_MAX), (0, 0)],
)
def test_an_absolute_expiry_holds_whatever_the_creation_time_is(
    creation: Timestamp | None, expiry: int, ttl: int | None
) -> None:
    times = [*[None] * 8, Timestamp(expiry), creation]

    assert stored_event(message(properties=times)).ttl == ttl


# --- numbers that events do not have --------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (ULong(1 << 63), "9223372036854775808"),
        (ULong((1 << 64) - 1), "18446744073709551615"),
        (Decimal(bytes.fromhex("31c00000000004e2")), "1250"),
        (Decimal(bytes.fromhex("31a00000000004e2")), "125.0"),
        (Decimal(bytes.fromhex("b1a00000000004e2")), "-125.0"),
        (Decimal(bytes.fromhex("32800005")), "5"),
        (Decimal(bytes.fromhex("6cb8967f")), "9999999"),
        (Decimal(bytes.fromhex("303e" + "00" * 13 + "7b")), "12.3"),
        (Decimal(bytes.fromhex("7800000000000000")), "Infinity"),
        (Decimal(bytes.fromhex("f8000000")), "-Infinity"),
        (Decimal(bytes.fromhex("7c000000")), "NaN"),
        (Timestamp(LONG_MAX), "9223372036854775807"),
    ],
    ids=str,
)
def test_a_number_no_property_can_have_is_seen_as_a_text(value: Any, text: str) -> None:
    """By others than AMQP clients, which get what was sent."""
    raw = message(application={"n": value, "ok": 1})

    event = stored_event(raw)

    assert event.properties == {"n": text, "ok": 1}
    assert isinstance(event.properties["ok"], int)
    again = sections_of(of_native(event)).application_properties
    assert entries(again) == {"n": value, "ok": 1}


@pytest.mark.parametrize("size", [4, 8, 16])
def test_a_user_that_is_a_decimal_spoils_no_message(size: int) -> None:
    """Decimals are kept as bytes, and a user id is binary."""
    raw = message(properties=[None, Decimal(b"\xff" * size)])

    assert stored_event(raw).data == b"data"
