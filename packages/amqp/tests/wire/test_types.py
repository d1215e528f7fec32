"""The type system of AMQP: exact there and back, and safe against whatever comes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_amqp.wire.types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    check_arrays,
    elements,
    encode,
    encode_symbols,
    read,
    skip,
)
from penstock_core.vocabulary.errors import RemoteProtocolViolation
from penstock_core.vocabulary.nesting import NESTING_MAX

SINGLE = [
    None,
    True,
    False,
    UByte(255),
    UShort(65_535),
    UInt(0),
    UInt(200),
    UInt(1 << 31),
    ULong(0),
    ULong(7),
    ULong((1 << 64) - 1),
    Byte(-128),
    Short(-5),
    Int(-1),
    Int(1 << 30),
    5,
    -(1 << 63),
    Float32(0.5),
    0.1,
    Char("é"),
    Timestamp(-1),
    Decimal(b"abcd"),
    Decimal(b"12345678"),
    Decimal(bytes(16)),
    UUID(int=9),
    b"",
    b"x" * 300,
    "",
    "žluť" * 100,
    Symbol("a:b"),
    [],
    [1, "a", None],
    {},
    {"a": [Int(1)], Symbol("b"): {}},
    Described(ULong(0x24), []),
    Array(2, b"\xa3\x01a\x01b"),
]


@pytest.mark.parametrize("value", SINGLE, ids=lambda value: f"{type(value).__name__} {value!r:.20}")
def test_a_value_is_read_as_it_was_written(value: Any) -> None:
    data = b"?" + encode(value) + b"!"

    decoded, end = read(data, 1)

    assert (decoded, type(decoded)) == (value, type(value))
    assert end == skip(data, 1) == len(data) - 1


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.slow
@given(values)
def test_any_value_comes_back(value: Any) -> None:
    data = encode(value)

    assert read(data) == (value, len(data))
    assert skip(data, 0) == len(data)


@given(st.binary(max_size=200))
def test_bytes_that_mean_nothing_are_a_violation_and_nothing_worse(data: bytes) -> None:
    for decode in (read, lambda data: skip(data, 0)):
        try:
            result = decode(data)
        except RemoteProtocolViolation:
            continue
        assert result is not None


def test_what_claims_to_be_larger_than_it_is_is_refused() -> None:
    for data in (b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff", b"\xb0\x7f\xff\xff\xffx", b"\xa1\x05ab"):
        with pytest.raises(RemoteProtocolViolation):
            read(data)
        with pytest.raises(RemoteProtocolViolation):
            skip(data, 0)


def test_values_are_nested_only_so_deep() -> None:
    with pytest.raises(RemoteProtocolViolation, match="deep"):
        read(b"\x00" * (NESTING_MAX + 2) + b"\x40" * 400)
    with pytest.raises(RemoteProtocolViolation, match="nested"):
        skip(b"\x00" * (NESTING_MAX + 2) + b"\x40" * 400, 0)


@pytest.mark.parametrize("levels", [NESTING_MAX + 1, 7_000])
def test_arrays_are_nested_only_so_deep(levels: int) -> None:
    value = Array(1, b"\x40")
    for _ in range(levels):
        size = (len(value.raw) + 4).to_bytes(4, "big")
        value = Array(1, b"\xf0" + size + value.count.to_bytes(4, "big") + value.raw)

    with pytest.raises(RemoteProtocolViolation, match="deep"):
        check_arrays({Symbol("any"): value})


def test_an_array_of_nothing_does_not_fill_the_memory() -> None:
    with pytest.raises(RemoteProtocolViolation, match="elements"):
        elements(Array(4_000_000_000, b"\x40"))


def test_an_array_has_elements_of_one_type() -> None:
    array, _ = read(encode_symbols(["PLAIN", "ANONYMOUS"]))

    assert elements(array) == [Symbol("PLAIN"), Symbol("ANONYMOUS")]
    assert elements(Array(1, b"\x00\x53\x24\x45")) == [Described(ULong(0x24), [])]


def test_a_value_that_its_type_cannot_hold_is_refused() -> None:
    for value in (1 << 63, UByte(256), Symbol("é"), object()):
        with pytest.raises(ValueError, match=r"."):
            encode(value)


@pytest.mark.parametrize("number", [0x110000, 0xD800, 0xDFFF, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_number_that_is_no_character_is_refused(number: int) -> None:
    with pytest.raises(RemoteProtocolViolation, match="is not a character"):
        read(b"\x73" + number.to_bytes(4, "big"))
