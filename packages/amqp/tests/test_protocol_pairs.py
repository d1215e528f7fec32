"""The guide's table of what one protocol cannot say: its rows of AMQP, one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import pytest

from packages.amqp.tests.sample_messages import NOW_MS, event, message
from penstock_amqp.conditions import condition_of
from penstock_amqp.incoming import batches_of
from penstock_amqp.modified import take_delivery_time
from penstock_amqp.outgoing import EncodedMessages
from penstock_amqp.wire.sections import entries, fields, sections_of
from penstock_amqp.wire.types import (
    Array,
    Char,
    Decimal,
    Described,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    encode,
)
from penstock_core.bounds import TTL_MS_MAX
from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import InvalidEvent
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from tests.docs.protocol_pairs import PairRow, rows_of

DAY_MS: Final = 86_400_000
LONG_MAX: Final = (1 << 63) - 1
TIME, DELAY = Symbol("x-opt-delivery-time"), Symbol("x-opt-delivery-delay")
EXACT: Final = Symbol("x-opt-penstock-properties")


class Said:
    """What AMQP is told of an event that lives a day already, or just came."""

    def __init__(self, event: Event) -> None:
        batch = stamp(body_of([event]), Span(0, 1), NOW_MS * 1_000)
        messages = EncodedMessages(OutgoingBatch((Span(0, 1),), batch=batch), NOW_MS * 1_000)
        raw = sections_of(messages.message(0, 0))
        self.left_out = messages.left_out
        self.header = [*fields(raw.header), *[None] * 5]
        self.annotations = entries(raw.message_annotations)
        self.properties = [*fields(raw.properties), *[None] * 13]
        self.application = entries(raw.application_properties)
        self.body = raw.body


def from_event(data: bytes = b"data", **more: Any) -> Said:
    return Said(Event(data, **more))


def with_properties(**places: Any) -> bytes:
    """A message with some of the standard's properties, by place: ``_8`` is the absolute expiry."""
    values: list[Any] = [None] * 13
    for place, value in places.items():
        values[int(place[1:])] = value
    return message(properties=values)


def applied(value: Any) -> Any:
    """The property that an application property becomes; AMQP gets back what was sent."""
    became = event(message(application={"x": value}))
    assert Said(became).application == {"x": value}
    return became.properties.get("x", "nothing")


def is_refused(annotations: dict[Any, Any]) -> bool:
    _, unusable = batches_of([message(annotations=annotations)], NOW_MS)
    return [condition_of(refusal.error) for refusal in unusable] == ["amqp:invalid-field"]


def due(annotations: dict[Any, Any]) -> datetime:
    batches, _ = batches_of([message(annotations=annotations)], NOW_MS)
    delivery_time: datetime = batches[0].batch.column("deliver_at")[0].as_py()
    return delivery_time


def decides(value: Any) -> int | None:
    return take_delivery_time({TIME: encode(value)})


# --- times --------------------------------------------------------------------------------


def long_ttl() -> None:
    message = from_event(ttl=60 * DAY_MS)
    assert message.header[2] is None
    assert message.properties[8] == NOW_MS + 60 * DAY_MS


def endless_ttl() -> None:
    message = from_event(ttl=TTL_MS_MAX)
    assert message.header[2] is message.properties[8] is None


def past_expiry() -> None:
    for ms in (NOW_MS - 1, -LONG_MAX):
        assert event(with_properties(_8=Timestamp(ms))).ttl == 1


def endless_expiry() -> None:
    assert event(with_properties(_8=Timestamp(LONG_MAX))).ttl == TTL_MS_MAX == 1 << 50


def times_out_of_range() -> None:
    became = event(with_properties(_8=Timestamp(NOW_MS + 5), _9=Timestamp(LONG_MAX)))
    assert became.ttl == 5
    assert "expiration" in became.headers
    assert "timestamp" not in became.headers
    assert Said(became).properties[9] == LONG_MAX


def late_delivery() -> None:
    for said_of in ({TIME: LONG_MAX}, {DELAY: ULong(LONG_MAX)}):
        assert due(said_of).year == 9999


def no_delivery_time() -> None:
    for value in (1.5, "soon", True, -LONG_MAX):
        assert is_refused({TIME: value})
    for value in (1.5, "soon", True, -1):
        assert is_refused({DELAY: value})


def late_outcome() -> None:
    assert decides(LONG_MAX) == LONG_MAX  # packages/amqp/tests/test_modified.py: it waits a year


def no_outcome_time() -> None:
    for value in (1.5, "soon", True):
        with pytest.raises(InvalidEvent, match="whole milliseconds"):
            decides(value)


def exact_time() -> None:
    time = datetime(2030, 1, 1, hour=0, minute=0, second=0, microsecond=1_500, tzinfo=UTC)
    message = from_event(properties={"at": time, "local": time.replace(tzinfo=None)})
    assert (
        message.application["at"] == message.application["local"] == int(time.timestamp() * 1_000)
    )
    assert set(message.annotations[EXACT]) == {"at", "local"}


def time_out_of_range() -> None:
    assert applied(Timestamp(LONG_MAX)) == str(LONG_MAX)


# --- numbers ------------------------------------------------------------------------------


def decimals() -> None:
    assert applied(Decimal(bytes.fromhex("31800000000004e2"))) == "12.50"
    assert applied(Decimal(bytes.fromhex("7c000000"))) == "NaN"
    assert applied(Decimal(bytes.fromhex("78000000"))) == "Infinity"
    assert applied(Decimal(bytes.fromhex("f8000000"))) == "-Infinity"


def large_unsigned() -> None:
    assert applied(ULong(1 << 63)) == str(1 << 63)


def unsigned() -> None:
    for value in (UByte(255), UShort(65_535), UInt((1 << 32) - 1), ULong(LONG_MAX)):
        assert applied(value) == int(value)
        assert type(applied(value)) is int


def no_numbers() -> None:
    application = from_event(properties={"n": float("nan"), "i": float("-inf")}).application
    assert application["n"] != application["n"]
    assert application["i"] == float("-inf")


def high_priority() -> None:
    raw = message(priority=200)
    assert event(raw).priority == 9
    assert Said(event(raw)).header[1] == 200


# --- texts, names and bytes ---------------------------------------------------------------


def null_characters() -> None:
    headers = {"amqp": '{"content_type":"a\\u0000b"}'}
    message = from_event(properties={"a\0b": "c\0d"}, headers=headers)
    assert message.application == {"a\0b": "c\0d"}
    assert message.properties[6] == "a\0b"
    assert not message.left_out


def reserved_names() -> None:
    sent = {"": 1, "$penstock_x": 2, "ok": 3}
    became = event(message(application=sent))
    assert became.properties == {"ok": 3}
    assert Said(became).application == sent


def no_ascii() -> None:
    message = from_event(headers={"amqp": '{"content_type":"é","content_encoding":"é"}'})
    assert message.properties[6] is message.properties[7] is None
    assert len(message.left_out) == 2


def texts() -> None:
    uuid = UUID(int=5)
    assert [applied(value) for value in (Char("é"), Symbol("s"), uuid)] == ["é", "s", str(uuid)]


def binary() -> None:
    assert from_event(properties={"b": b"\x00\xff"}).application == {"b": b"\x00\xff"}


def other_ids() -> None:
    for value, text in ((b"\x00\xff", "00ff"), (ULong(7), "7"), (UUID(int=1), str(UUID(int=1)))):
        became = event(with_properties(_0=value, _5=value))
        assert became.headers["message_id"] == became.headers["correlation_id"] == text
        assert Said(became).properties[0] == Said(became).properties[5] == value


def groups() -> None:
    message = from_event(properties={"JMSXGroupID": 5, "JMSXGroupSeq": -1})
    assert message.application == {"JMSXGroupID": 5, "JMSXGroupSeq": -1}


# --- lists, dictionaries and headers ------------------------------------------------------


def lists() -> None:
    message = from_event(properties={"l": [1], "d": {"a": 1}})
    assert message.annotations[EXACT] == {"l": [1], "d": {"a": 1}}
    assert not message.application


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def deep_property() -> None:
    assert not from_event(properties={"x": nested(98)}).left_out
    message = from_event(properties={"x": nested(99), "ok": 1})
    assert message.left_out == ["x"]
    assert message.application == {"ok": 1}


def compound_property() -> None:
    for value in (Described(ULong(9), 1), Array(1, b"\x40")):
        assert applied(value) == "nothing"


def unreadable_header() -> None:
    for header in ("amqp", "mqtt"):
        for text in ("no JSON", '{"zz":' + "[" * 200 + "]" * 200 + "}", '{"body":5}'):
            message = from_event(headers={header: text})
            assert [code for code, _ in message.body] == [0x75]


def impossible_header() -> None:
    text = '{"sizes":[9,-5],"annotations":"AAAA","types":{"x":"float"}}'
    message = from_event(properties={"x": 1e300}, headers={"amqp": text})
    assert len(message.body) == 1
    assert not message.annotations
    assert message.application == {"x": 1e300}


CASES: Final[Mapping[tuple[str, str, str], Callable[[], None]]] = {
    ("TTL above 49.7 days", "all", "AMQP"): long_ttl,
    ("TTL that ends after the year 9999", "all", "AMQP"): endless_ttl,
    ("absolute expiry that has passed, or before the year 1", "AMQP", "all"): past_expiry,
    ("absolute expiry after the year 9999", "AMQP", "all"): endless_expiry,
    (
        "creation or expiry outside of the years 1 to 9999",
        "AMQP",
        "all",
    ): times_out_of_range,
    ("delivery time or delay that ends after the year 9999", "AMQP", "all"): late_delivery,
    (
        "delivery time that is no integer, or before the year 1; delay that is no integer, or "
        "negative",
        "AMQP",
        "all",
    ): no_delivery_time,
    ("delivery time in a `modified` outcome: beyond a year", "AMQP", "all"): late_outcome,
    ("delivery time in a `modified` outcome: no integer", "AMQP", "all"): no_outcome_time,
    ("time with microseconds or without a zone as a property", "all", "AMQP"): exact_time,
    ("time as a property outside of the years 1 to 9999", "AMQP", "all"): time_out_of_range,
    ("decimal", "AMQP", "all"): decimals,
    ("unsigned number above 2^63-1", "AMQP", "all"): large_unsigned,
    ("unsigned number up to 2^63-1", "AMQP", "all"): unsigned,
    ("NaN and infinity", "all", "AMQP"): no_numbers,
    ("priority above 9", "AMQP", "all"): high_priority,
    ("null character in a string, a name or a content type", "all", "AMQP"): null_characters,
    (
        "property without a name, or whose name begins with `$penstock`",
        "AMQP",
        "all",
    ): reserved_names,
    ("content type or encoding that is not ASCII", "all", "AMQP"): no_ascii,
    ("character, symbol or UUID", "AMQP", "all"): texts,
    ("bytes as a property", "all", "AMQP"): binary,
    (
        "correlation or message id that is binary, a number or a UUID",
        "AMQP",
        "all",
    ): other_ids,
    ("group id that is no string, group sequence that is no uint", "all", "AMQP"): groups,
    ("list or dictionary as a property", "all", "AMQP"): lists,
    ("property nested more than 98 levels", "all", "AMQP"): deep_property,
    (
        "described value or array as an application property",
        "AMQP",
        "all",
    ): compound_property,
    ("header `amqp` or `mqtt` that cannot be read", "all", "AMQP"): unreadable_header,
    (
        "size, map or type in the header `amqp` that is impossible",
        "all",
        "AMQP",
    ): impossible_header,
}


@pytest.mark.parametrize("row", rows_of("AMQP"), ids=lambda row: "-".join(row))
def test_what_the_table_says_of_amqp_is_what_happens(row: PairRow) -> None:
    CASES[row]()


def test_every_case_is_in_the_table() -> None:
    assert set(CASES) == set(rows_of("AMQP"))
