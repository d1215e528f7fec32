"""Converts application properties to event properties and back (SEM E2)."""

from __future__ import annotations

import decimal
import struct
from datetime import UTC, datetime, timedelta
from math import isnan
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from penstock_amqp.wire.types import (
    NAMES,
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
)
from penstock_core.vocabulary.errors import InvalidEvent
from penstock_core.vocabulary.nesting import NESTING_MAX

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a timestamp without a zone stays so
_MS_MIN: Final = -62_135_596_800_000
MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, in milliseconds since 1970."""
_MICROSECOND: Final = timedelta(microseconds=1)
_LONG_MAX: Final = (1 << 63) - 1
LEVELS_MAX: Final = NESTING_MAX - 2
"""Maximum nesting of a property in a message: the annotations and the map of nested properties add
two levels."""
_FLOAT32: Final = struct.Struct(">f")

MICROSECONDS: Final = Symbol("penstock:timestamp-us")
NAIVE: Final = Symbol("penstock:local-us")
"""Descriptors of timestamps that AMQP's type (UTC, milliseconds) cannot express: microseconds and
local times."""

ARROW: Final[dict[type, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    Int: pa.int32(),
    Short: pa.int16(),
    Byte: pa.int8(),
    Float32: pa.float32(),
    UByte: pa.int64(),
    UShort: pa.int64(),
    UInt: pa.int64(),
    Symbol: pa.string(),
    Char: pa.string(),
}
"""Types whose values Arrow accepts unchanged, with the type of the column."""

KEPT: Final = {
    kind: NAMES[kind]
    for kind in (Int, Short, Byte, Float32, UByte, UShort, UInt, ULong, Symbol, Char, UUID)
}
"""Names of the types that properties do not have, or that are lost when the column holds wider
values."""

_BY_NAME: Final[dict[str, type]] = {name: kind for kind, name in NAMES.items()}

# Numpy's types make Arrow choose columns of the same width.
_NUMPY: Final[dict[type, Any]] = {
    Int: np.int32,
    Short: np.int16,
    Byte: np.int8,
    Float32: np.float32,
    UByte: int,
    UShort: int,
    UInt: int,
    Symbol: str,
    Char: str,
    UUID: str,
}


class NoProperty(ValueError):
    """Raised for a value that cannot be a property."""


def whole_ms(value: Any, name: str) -> int:
    """Return the milliseconds in an annotation. Raises ``InvalidEvent`` if the value is not an
    integer."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidEvent(
            f"{name} is {str(value)[:40]!r} of type {type(value).__name__}; it must be whole "
            f"milliseconds, as a long or a timestamp"
        )
    return int(value)


def in_range(ms: int) -> bool:
    """Return True if an event can have this timestamp: the range is the years 1 to 9999."""
    return _MS_MIN <= ms <= MS_MAX


def property_of(value: Any) -> Any:
    """Convert the value of an application property to an event property. Raises
    :class:`NoProperty`."""
    kind = type(value)
    if kind in (bool, int, float, str, bytes) or value is None:
        return value
    if (numpy := _NUMPY.get(kind)) is not None:
        return numpy(value)
    if kind is ULong:
        if value > _LONG_MAX:
            raise NoProperty(f"{value} does not fit int64")
        return int(value)
    if kind is Timestamp:
        if not in_range(value):
            raise NoProperty(f"{value} ms is outside the years 1 to 9999")
        return EPOCH + timedelta(milliseconds=int(value))
    if isinstance(value, dict):
        return _convert_dictionary(value)
    if isinstance(value, list):
        return [property_of(item) for item in value]
    if isinstance(value, Described) and isinstance(value.value, int):
        return _timestamp_of(value)
    raise NoProperty(f"{kind.__name__} is not a type that a property can have")


def text_of(value: Any) -> str | None:
    """Convert a value that has no exact property to the text that clients of other protocols see: a
    decimal, a number above int64, or a time outside the years 1 to 9999 (in milliseconds). None for
    any other value."""
    if isinstance(value, Decimal):
        return _decimal_text(value)
    return str(int(value)) if type(value) in (ULong, Timestamp) else None


_DECIMALS: Final = {4: (8, 101, 7), 8: (10, 398, 16), 16: (14, 6_176, 34)}
"""Exponent bits, exponent bias and maximum digits of a decimal, by its bytes (IEEE 754-2008)."""


def _decimal_text(value: Decimal) -> str:
    """Convert a decimal in binary integer encoding to digits."""
    width, bias, digits = _DECIMALS[len(value)]
    bits, size = int.from_bytes(value, "big"), 8 * len(value)
    sign, magnitude = bits >> (size - 1), bits & ((1 << (size - 1)) - 1)
    # The four bits after the sign mark infinity and NaN; the next bit distinguishes the two.
    if magnitude >> (size - 5) == 0b1111:
        is_nan = magnitude >> (size - 6) & 1
        return "NaN" if is_nan else "-Infinity" if sign else "Infinity"
    if magnitude >> (size - 3) == 0b11:  # the coefficient has an implicit 100 in front
        tail = size - 3 - width
        exponent = magnitude >> tail & ((1 << width) - 1)
        coefficient = 0b100 << tail | magnitude & ((1 << tail) - 1)
    else:
        tail = size - 1 - width
        exponent, coefficient = magnitude >> tail, magnitude & ((1 << tail) - 1)
    if coefficient >= 10**digits:  # not canonical: it counts as 0
        coefficient = 0
    return str(decimal.Decimal((sign, tuple(map(int, str(coefficient))), exponent - bias)))


def _convert_dictionary(value: dict[Any, Any]) -> dict[str, Any]:
    """Convert a map to a property. Raises :class:`NoProperty` unless all keys are strings."""
    if not all(isinstance(key, str) for key in value):
        raise NoProperty("the keys of a dictionary must be strings")
    return {str(key): property_of(inner) for key, inner in value.items()}


def _timestamp_of(value: Described) -> datetime:
    """Convert a described number to a time. Raises :class:`NoProperty` for other descriptors, and
    for times outside the years 1 to 9999."""
    try:
        if value.descriptor == MICROSECONDS:
            return EPOCH + timedelta(microseconds=value.value)
        if value.descriptor == NAIVE:
            return _NAIVE_EPOCH + timedelta(microseconds=value.value)
    except OverflowError as error:
        raise NoProperty(str(error)) from None
    raise NoProperty(f"a value described as {value.descriptor!r} cannot be a property")


def message_value(value: Any, amqp_type: str = "") -> tuple[Any, bool]:
    """Convert a property to an application property, and report whether the result is exact.
    ``amqp_type`` names the AMQP type to use if the value fits it."""
    if amqp_type and (typed_value := _typed_number_or_text(value, amqp_type)) is not None:
        return typed_value, True
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            return Timestamp((value - _NAIVE_EPOCH) // timedelta(milliseconds=1)), False
        us = (value - EPOCH) // _MICROSECOND
        return Timestamp(us // 1_000), us % 1_000 == 0
    if isinstance(value, dict | list):
        return None, False
    return value, True


def exact(value: Any, depth: int = 0) -> Any:
    """Convert a property to an AMQP value without loss. Raises :class:`NoProperty` for more than
    `LEVELS_MAX` levels."""
    if depth > LEVELS_MAX:
        raise NoProperty(f"lists and dictionaries have more than {LEVELS_MAX} levels")
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            return Described(NAIVE, (value - _NAIVE_EPOCH) // _MICROSECOND)
        return Described(MICROSECONDS, (value - EPOCH) // _MICROSECOND)
    if isinstance(value, dict):
        return {key: exact(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [exact(item, depth + 1) for item in value]
    return value


_RANGES: Final = {
    "ubyte": (0, 255),
    "ushort": (0, 65_535),
    "uint": (0, (1 << 32) - 1),
    "ulong": (0, (1 << 64) - 1),
    "byte": (-128, 127),
    "short": (-32_768, 32_767),
    "int": (-(1 << 31), (1 << 31) - 1),
}


def _typed_number_or_text(value: Any, name: str) -> Any:
    """Convert a value to the named AMQP type; None if it does not fit, because clients may have
    changed the value since."""
    kind = _BY_NAME.get(name)
    if kind is None:
        return None
    if type(value) is int and name in _RANGES:
        low, high = _RANGES[name]
        return kind(value) if low <= value <= high else None
    if type(value) is float and kind is Float32:
        return Float32(value) if _is_float32(value) else None
    if type(value) is str:
        return _typed_text(value, kind)
    return None


def _is_float32(value: float) -> bool:
    """Return True if 32 bits represent the value without loss."""
    try:
        return isnan(value) or _FLOAT32.unpack(_FLOAT32.pack(value))[0] == value
    except OverflowError:
        return False


def _typed_text(value: str, kind: type) -> Any:
    """Convert a text to a symbol, a character or a UUID; None if it does not fit the type."""
    if kind is Symbol and value.isascii():
        return Symbol(value)
    if kind is Char and len(value) == 1:
        return Char(value)
    if kind is UUID:
        try:
            return UUID(value)
        except ValueError:
            return None
    return None
