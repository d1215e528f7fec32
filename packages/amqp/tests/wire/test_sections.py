"""The sections of messages: where they are, and what is none."""

from __future__ import annotations

import pytest

from penstock_amqp.wire.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    entries,
    field_offsets,
    fields,
    header_of,
    section,
    section_offsets,
    sections_of,
)
from penstock_amqp.wire.types import Symbol, UByte, UInt, encode, read
from penstock_core.vocabulary.errors import RemoteProtocolViolation


def test_every_section_is_found() -> None:
    parts = {
        HEADER: encode([True]),
        0x71: encode({Symbol("hop"): 1}),
        MESSAGE_ANNOTATIONS: encode({Symbol("a"): 1}),
        PROPERTIES: encode(["id"]),
        APPLICATION_PROPERTIES: encode({"p": 2}),
        DATA: encode(b"x"),
        FOOTER: encode({Symbol("f"): 3}),
    }

    sections = sections_of(b"".join(section(code, value) for code, value in parts.items()))

    assert fields(sections.header) == [True]
    assert entries(sections.message_annotations) == {"a": 1}
    assert fields(sections.properties) == ["id"]
    assert entries(sections.application_properties) == {"p": 2}
    assert sections.body == [(DATA, encode(b"x"))]
    assert entries(sections.footer) == {"f": 3}


def test_the_place_of_each_value_is_found() -> None:
    values = {PROPERTIES: encode(["id", None, 5]), DATA: encode(b"x")}
    message = b"".join(section(code, value) for code, value in values.items())

    places = section_offsets(message)

    assert places == {PROPERTIES: 3, DATA: len(message) - 3}
    for code, value in values.items():
        assert message[places[code] :].startswith(value)


@pytest.mark.parametrize("long", ["", "x" * 300], ids=["a short list", "a long list"])
def test_the_place_of_each_field_is_found(long: str) -> None:
    values = [None, "id", UInt(9), b"", long]
    message = section(PROPERTIES, encode(values)) + section(DATA, encode(b"x"))

    places = field_offsets(message, 3)

    assert [read(message, place)[0] for place in places] == values
    assert field_offsets(section(PROPERTIES, encode([])), 3) == []


def test_sections_may_be_named_instead_of_numbered() -> None:
    named = b"\x00" + encode(Symbol("amqp:amqp-value:*")) + encode("v")

    assert sections_of(named).body == [(VALUE, encode("v"))]


@pytest.mark.parametrize(
    "message",
    [
        section(DATA, encode(b"x")) + section(HEADER, encode([])),
        section(VALUE, encode(1)) * 2,
        section(HEADER, encode([])) * 2,
        section(DATA, encode(b"x")) + section(SEQUENCE, encode([])),
        b"\x00\x53\x99\x40",
        b"\x53\x75",
        b"\x00\x53\x75\xa0\x05ab",
        b"\x00",
    ],
)
def test_what_is_no_message_is_refused(message: bytes) -> None:
    with pytest.raises(RemoteProtocolViolation):
        sections_of(message)


def test_several_data_sections_are_one_body() -> None:
    assert len(sections_of(section(DATA, encode(b"x")) * 3).body) == 3


def test_a_header_says_only_what_is_not_usual() -> None:
    assert header_of(durable=False, priority=None) == b""
    sections = sections_of(header_of(durable=True, priority=9, ttl=70_000, deliveries=2))

    assert fields(sections.header) == [True, UByte(9), UInt(70_000), None, UInt(2)]


def test_a_section_of_another_shape_is_refused() -> None:
    with pytest.raises(RemoteProtocolViolation, match="must be a list"):
        fields(encode({}))
    with pytest.raises(RemoteProtocolViolation, match="must be a map"):
        entries(encode([]))
