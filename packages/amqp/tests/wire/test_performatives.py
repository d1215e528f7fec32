"""Each field of each performative, and of what they carry, has a type and a bound."""

from __future__ import annotations

from typing import Any

import pytest

from packages.amqp.tests.frames import performative
from penstock_amqp.wire.performatives import (
    ADDRESS_MAX,
    COORDINATOR,
    DECLARE,
    DISCHARGE,
    ERROR,
    PERFORMATIVES,
    SOURCE,
    TARGET,
    Composite,
    Unfit,
    check_fields,
    check_performative,
    encode_close,
    performative_of,
)
from penstock_amqp.wire.types import (
    Array,
    Described,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
    encode,
    encode_list,
)
from penstock_core.vocabulary.errors import RemoteProtocolViolation

COMPOSITES = (*PERFORMATIVES.values(), SOURCE, TARGET, COORDINATOR, DECLARE, DISCHARGE, ERROR)
BEYOND: dict[str, Any] = {
    "container-id": "c" * 256,
    "hostname": "h" * 256,
    "max-frame-size": UInt(511),
    "name": "n" * 1_025,
    "snd-settle-mode": UByte(3),
    "rcv-settle-mode": UByte(2),
    "delivery-tag": bytes(33),
    "txn-id": bytes(33),
    "address": "a" * (ADDRESS_MAX + 1),
    "durable": UInt(3),
    "expiry-policy": Symbol("tomorrow"),
    "condition": Symbol("c" * 256),
    "description": "d" * 4_097,
    "outgoing-locales": Array(9, b"\xa3\x01x"),
    "incoming-locales": Array(1, b"\x50\x01"),
    "offered-capabilities": Array(1, b"\xa3\x01\xff"),
    "desired-capabilities": Array(1, b"\x00"),
    "capabilities": Array(1, b"\xdf\x01"),
    "outcomes": Array(2, b"\xa3\x01x"),
    "properties": {Symbol("p"): [Array(9, b"\xa3\x01x")]},
}
"""What is of the right type and of no use; other fields have no bound but their type's."""
GOOD: dict[str, Any] = {
    "container-id": "c", "name": "n", "handle": UInt(0), "role": True, "txn-id": b"t",
    "next-outgoing-id": UInt(0), "incoming-window": UInt(0), "outgoing-window": UInt(0),
    "first": UInt(0), "condition": Symbol("c"),
}  # fmt: skip
OTHERS: tuple[Any, ...] = (
    "text",
    UInt(1),
    UShort(1),
    UByte(1),
    ULong(1),
    1,
    1.5,
    True,
    b"b",
    Symbol("s"),
    [],
    {},
)


def mandatory(composite: Composite) -> list[Any]:
    return [GOOD.get(field.name) if field.is_mandatory else None for field in composite.fields]


FIELDS = {
    f"{composite.name}.{field.name}": (composite, place)
    for composite in COMPOSITES
    for place, field in enumerate(composite.fields)
}


@pytest.mark.parametrize("composite", COMPOSITES, ids=lambda composite: composite.name)
def test_what_has_to_be_there_is_enough(composite: Composite) -> None:
    check_fields(composite, mandatory(composite))
    values = mandatory(composite)
    while values and values[-1] is None:
        values.pop()
    check_fields(composite, values)


@pytest.mark.parametrize("composite", COMPOSITES, ids=lambda composite: composite.name)
def test_fields_that_the_standard_does_not_know_are_refused(composite: Composite) -> None:
    with pytest.raises(Unfit, match="the standard defines") as refused:
        check_fields(composite, [*mandatory(composite), None])

    assert refused.value.condition == "amqp:decode-error"


@pytest.mark.parametrize("composite_and_place", FIELDS.values(), ids=FIELDS)
def test_a_field_of_another_type_is_refused_and_named(
    composite_and_place: tuple[Composite, int],
) -> None:
    composite, place = composite_and_place
    field, refusals = composite.fields[place], []
    for other in OTHERS:
        values = mandatory(composite)
        values[place] = other
        try:
            check_fields(composite, values)
        except Unfit as error:
            refusals.append(str(error))
    assert all(field.name in refusal for refusal in refusals)
    # A state of nobody's making may be anything described; a global id may be anything.
    assert len(refusals) >= (0 if field.name == "global-id" else len(OTHERS) - 2)


@pytest.mark.parametrize("composite_and_place", FIELDS.values(), ids=FIELDS)
def test_a_field_beyond_its_bound_is_refused_and_named(
    composite_and_place: tuple[Composite, int],
) -> None:
    composite, place = composite_and_place
    field, values = composite.fields[place], mandatory(composite)
    if field.is_mandatory:
        values[place] = None
        with pytest.raises(Unfit, match=f"{field.name} of {composite.name} is missing"):
            check_fields(composite, values)
    if field.name in BEYOND:
        values[place] = BEYOND[field.name]
        with pytest.raises(Unfit, match=f"{field.name} of {composite.name}"):
            check_fields(composite, values)


@pytest.mark.parametrize(
    "state",
    [
        Described(ULong(0x34), [None]),
        Described(ULong(0x34), [UInt(1)]),
        Described(ULong(0x34), [bytes(33)]),
        Described(ULong(0x34), [b"t", Described(ULong(0x25), ["text"])]),
        Described(ULong(0x34), [b"t", None, None]),
        Described(Symbol("amqp:transactional-state:list"), []),
        Described(ULong(0x23), [UInt(1)]),
        Described(ULong(0x24), [True]),
        Described(ULong(0x25), [Described(ULong(0x1D), [])]),
        Described(ULong(0x27), [True, True, []]),
        Described(ULong(0x27), UInt(1)),
        UInt(1),
    ],
)
def test_states_are_looked_into(state: Any) -> None:
    transfer = PERFORMATIVES[0x14]

    with pytest.raises(Unfit):
        check_fields(transfer, [UInt(0), *[None] * 6, state])


def test_a_sender_says_how_many_deliveries_there_were() -> None:
    values = ["s", UInt(0), False]
    attach = b"\x00\x53\x12" + encode_list([encode(value) for value in values])

    with pytest.raises(Unfit, match="initial-delivery-count"):
        check_performative(performative_of(attach, 0))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x40", b"\x00\x53\x77\x45", b"\x00\x53\x10\x40", b"\x00\x53\x12\xc0\xff\x01", b"\x00"],
)
def test_what_is_no_performative_is_none(data: bytes) -> None:
    with pytest.raises(RemoteProtocolViolation):
        performative_of(data, 0)


def test_a_connection_is_closed_with_a_reason() -> None:
    frame = encode_close("amqp:not-allowed", "why")

    performative = performative_of(frame, 8)

    assert len(frame) == int.from_bytes(frame[:4], "big")
    (error,) = check_performative(performative)
    assert error == Described(ULong(0x1D), [Symbol("amqp:not-allowed"), "why"])


@pytest.mark.parametrize(
    "descriptor",
    [[1, 2], {"a": 1}, Described(ULong(1), [2]), "amqp:open:list", UInt(0x10), 0x10, None],
    ids=str,
)
def test_a_descriptor_of_another_type_is_unknown(descriptor: Any) -> None:
    described = b"\x00" + encode(descriptor) + b"\x45"

    with pytest.raises(RemoteProtocolViolation, match="unknown performative"):
        performative_of(described, 0)
    ended = performative(0x17, b"\x00" + encode(descriptor) + b"\x45")
    assert check_performative(performative_of(ended, 0))[0].descriptor == descriptor
