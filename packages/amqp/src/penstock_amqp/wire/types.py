"""The type system of AMQP 1.0: converts bytes to Python values and back without loss.

Types with an equivalent in Python use it: ``bool``, ``int`` (AMQP long), ``float`` (double),
``str``, ``bytes``, ``list``, ``dict``, ``UUID``, ``None``. The other types are the classes below,
so that a decoded value is encoded again with its original type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from msgspec import Struct

from penstock_core.vocabulary.errors import RemoteProtocolViolation
from penstock_core.vocabulary.nesting import NESTING_MAX

Bytes = bytes | bytearray | memoryview

EMPTY_ELEMENTS_MAX: Final = 65_536
"""Maximum elements of an array whose elements take no bytes: the array's size cannot limit them."""


class Symbol(str):
    """An AMQP symbol: an ASCII name from a standard."""

    __slots__ = ()


class Char(str):
    """One Unicode character."""

    __slots__ = ()


class UByte(int):
    """Unsigned 8-bit integer."""


class UShort(int):
    """Unsigned 16-bit integer."""


class UInt(int):
    """Unsigned 32-bit integer."""


class ULong(int):
    """Unsigned 64-bit integer."""


class Byte(int):
    """Signed 8-bit integer."""


class Short(int):
    """Signed 16-bit integer."""


class Int(int):
    """Signed 32-bit integer."""


class Float32(float):
    """32-bit float."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970, UTC."""


class Decimal(bytes):
    """A decimal of 4, 8 or 16 bytes, kept encoded."""

    __slots__ = ()


class Described(Struct, frozen=True):
    """A described value: a descriptor and the value."""

    descriptor: Any
    value: Any


class Array(Struct, frozen=True):
    """An array, kept encoded: the constructor of its elements and their bytes."""

    count: int
    raw: bytes


_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_F32 = struct.Struct(">f")
_F64 = struct.Struct(">d")

Reader = Callable[[Bytes, int, int], tuple[Any, int]]
"""A function that decodes the value at an offset, and returns it with its end. The last argument is
the depth of nesting."""


def read(data: Bytes, offset: int = 0, depth: int = 0) -> tuple[Any, int]:
    """Decode the value at ``offset`` and return it with its end. Raises
    ``RemoteProtocolViolation``."""
    try:
        return _READERS[data[offset]](data, offset + 1, depth)
    except (IndexError, KeyError, struct.error, ValueError) as error:
        if isinstance(error, KeyError) and offset < len(data):
            raise RemoteProtocolViolation(
                f"0x{data[offset]:02x} is not a constructor of an AMQP type"
            ) from None
        raise RemoteProtocolViolation(f"an AMQP value cannot be read: {error}") from None


def skip(data: Bytes, offset: int, depth: int = 0) -> int:
    """Return the end of the value at ``offset``. Raises ``RemoteProtocolViolation``."""
    try:
        code = data[offset]
        offset += 1
        if code == 0:
            if depth >= NESTING_MAX:
                raise RemoteProtocolViolation(
                    f"described values are nested too deep; at most {NESTING_MAX} levels are "
                    "allowed"
                )
            return skip(data, skip(data, offset, depth + 1), depth + 1)
        # The high half of a constructor states the width of the value, or of its size (1.2).
        kind = code >> 4
        if kind in _WIDTHS:
            end = offset + _WIDTHS[kind]
        elif kind in (0xA, 0xC, 0xE):
            end = offset + 1 + data[offset]
        elif kind in (0xB, 0xD, 0xF):
            end = offset + 4 + _U32.unpack_from(data, offset)[0]
        else:
            raise RemoteProtocolViolation(f"0x{code:02x} is not a constructor of an AMQP type")
    except (IndexError, struct.error) as error:
        raise RemoteProtocolViolation(f"an AMQP value ends too early: {error}") from None
    if end > len(data):
        raise RemoteProtocolViolation("an AMQP value ends too early")
    return end


_WIDTHS: Final = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}
"""Bytes of the values of fixed width, by the high half of their constructor."""


def _fixed(layout: struct.Struct, kind: Callable[[Any], Any]) -> Reader:
    """Return a reader of values of fixed width, which ``kind`` converts."""

    def fixed(data: Bytes, offset: int, depth: int) -> tuple[Any, int]:
        return kind(layout.unpack_from(data, offset)[0]), offset + layout.size

    return fixed


def _constant(value: Any) -> Reader:
    return lambda data, offset, depth: (value, offset)


def _one_byte(layout: str, kind: Callable[[Any], Any]) -> Reader:
    return _fixed(struct.Struct(layout), kind)


def _read_bytes(data: Bytes, offset: int, size: int) -> tuple[bytes, int]:
    end = offset + size
    if end > len(data):
        raise ValueError(f"a size of {size} bytes, but only {len(data) - offset} bytes remain")
    return bytes(data[offset:end]), end


def _sized(kind: Callable[[bytes], Any], *, wide: bool) -> Reader:
    """Return a reader of bytes after their length, which has 4 bytes if ``wide``, otherwise 1."""

    def short(data: Bytes, offset: int, depth: int) -> tuple[Any, int]:
        raw, end = _read_bytes(data, offset + 1, data[offset])
        return kind(raw), end

    def long(data: Bytes, offset: int, depth: int) -> tuple[Any, int]:
        raw, end = _read_bytes(data, offset + 4, _U32.unpack_from(data, offset)[0])
        return kind(raw), end

    return long if wide else short


def _symbol(raw: bytes) -> Symbol:
    return Symbol(raw.decode("ascii"))


def _decimal_of(width: int) -> Reader:
    """Return a reader of decimals of ``width`` bytes."""

    def decimal(data: Bytes, offset: int, depth: int) -> tuple[Any, int]:
        raw, end = _read_bytes(data, offset, width)
        return Decimal(raw), end

    return decimal


def _uuid(data: Bytes, offset: int, depth: int) -> tuple[Any, int]:
    raw, end = _read_bytes(data, offset, 16)
    return UUID(bytes=raw), end


def _boolean(data: Bytes, offset: int, depth: int) -> tuple[Any, int]:
    return data[offset] == 1, offset + 1


def _char(data: Bytes, offset: int, depth: int) -> tuple[Any, int]:
    number = _U32.unpack_from(data, offset)[0]
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise ValueError(f"0x{number:x} is not a character")
    return Char(chr(number)), offset + 4


def _described(data: Bytes, offset: int, depth: int) -> tuple[Any, int]:
    """Read a described value. Return it, and the offset after it."""
    _check_depth(depth)
    descriptor, offset = read(data, offset, depth + 1)
    value, offset = read(data, offset, depth + 1)
    return Described(descriptor, value), offset


def _check_depth(depth: int) -> None:
    if depth >= NESTING_MAX:
        raise RemoteProtocolViolation(
            f"AMQP values are nested too deep; at most {NESTING_MAX} levels are allowed"
        )


def check_arrays(value: Any, depth: int = 0) -> None:
    """Check the arrays inside a value, because encoding an invalid array again would have
    unpredictable results.

    Raises ``RemoteProtocolViolation`` if an array cannot be decoded, or its elements are nested
    deeper than `NESTING_MAX`, counted from the outermost value.
    """
    # Only arrays stay encoded; `read` has checked everything outside of them.
    if isinstance(value, Array):
        _check_depth(depth)
        for element in elements(value):
            check_arrays(element, depth + 1)
    elif isinstance(value, Described):
        check_arrays(value.value, depth + 1)
    elif isinstance(value, dict):
        for key, inner in value.items():
            check_arrays(key, depth + 1)
            check_arrays(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            check_arrays(inner, depth + 1)


def _compound_bounds(data: Bytes, offset: int, *, wide: bool) -> tuple[int, int, int]:
    """Return the start of the elements, their count, and the end of a list, map or array."""
    if wide:
        size, count = _U32.unpack_from(data, offset)[0], _U32.unpack_from(data, offset + 4)[0]
        begin, end = offset + 8, offset + 4 + size
    else:
        size, count = data[offset], data[offset + 1]
        begin, end = offset + 2, offset + 1 + size
    if end > len(data) or end < begin:
        raise ValueError(f"a size of {size} bytes, but only {len(data) - offset} bytes remain")
    return begin, count, end


def _elements(data: Bytes, offset: int, depth: int, *, wide: bool) -> tuple[list[Any], int]:
    """Read the elements of a list or map. Return them, and the offset after them. Raises
    ``ValueError``."""
    _check_depth(depth)
    offset, count, end = _compound_bounds(data, offset, wide=wide)
    # Each element takes at least its constructor, so a larger count is false; without this check
    # the loop below would run up to 2^32 times.
    if count > end - offset:
        raise ValueError(f"a list of {end - offset} bytes states {count} elements")
    values = []
    for _ in range(count):
        value, offset = read(data, offset, depth + 1)
        values.append(value)
    if offset != end:
        raise ValueError("the elements take more or fewer bytes than the stated size")
    return values, end


def _list(*, wide: bool) -> Reader:
    return lambda data, offset, depth: _elements(data, offset, depth, wide=wide)


def _map(*, wide: bool) -> Reader:
    """Return a reader of maps; their size and count have 4 bytes each if ``wide``, otherwise 1."""

    def read_map(data: Bytes, offset: int, depth: int) -> tuple[Any, int]:
        flat, end = _elements(data, offset, depth, wide=wide)
        if len(flat) % 2:
            raise ValueError("a map has a key without a value")
        try:
            return dict(zip(flat[::2], flat[1::2], strict=True)), end
        except TypeError:
            raise ValueError("a key of a map must not be a list or a map") from None

    return read_map


def _array(*, wide: bool) -> Reader:
    """Return a reader of arrays, which keeps their elements encoded; their size and count have 4
    bytes each if ``wide``, otherwise 1."""

    def read_array(data: Bytes, offset: int, depth: int) -> tuple[Any, int]:
        _check_depth(depth)
        begin, count, end = _compound_bounds(data, offset, wide=wide)
        return Array(count, bytes(data[begin:end])), end

    return read_array


def elements(array: Array) -> list[Any]:
    """Decode the elements of an array. Raises ``RemoteProtocolViolation``."""
    data, offset, descriptor = array.raw, 0, None
    try:
        if data[0] == 0:
            descriptor, offset = read(data, 1)
        reader = _READERS[data[offset]]
        _check_count(array.count, data[offset], len(data))
        offset += 1
        values = []
        for _ in range(array.count):
            value, offset = reader(data, offset, 1)
            values.append(value if descriptor is None else Described(descriptor, value))
    except (IndexError, KeyError, struct.error, ValueError) as error:
        raise RemoteProtocolViolation(f"an AMQP array cannot be read: {error}") from None
    return values


def _check_count(count: int, code: int, size: int) -> None:
    """Raise ``ValueError`` if an array states more elements than its bytes can contain. ``code`` is
    the constructor of the elements; elements of width 0 take no bytes."""
    count_max = EMPTY_ELEMENTS_MAX if code >> 4 == 4 else size
    if count > count_max:
        raise ValueError(f"an array of {size} bytes states {count} elements")


_READERS: Final[dict[int, Reader]] = {
    0x00: _described,
    0x40: _constant(None),
    0x41: _constant(value=True),
    0x42: _constant(value=False),
    0x43: _constant(UInt(0)),
    0x44: _constant(ULong(0)),
    0x45: lambda data, offset, depth: ([], offset),
    0x50: _one_byte(">B", UByte),
    0x51: _one_byte(">b", Byte),
    0x52: _one_byte(">B", UInt),
    0x53: _one_byte(">B", ULong),
    0x54: _one_byte(">b", Int),
    0x55: _one_byte(">b", int),
    0x56: _boolean,
    0x60: _fixed(_U16, UShort),
    0x61: _fixed(_I16, Short),
    0x70: _fixed(_U32, UInt),
    0x71: _fixed(_I32, Int),
    0x72: _fixed(_F32, Float32),
    0x73: _char,
    0x74: _decimal_of(4),
    0x80: _fixed(_U64, ULong),
    0x81: _fixed(_I64, int),
    0x82: _fixed(_F64, float),
    0x83: _fixed(_I64, Timestamp),
    0x84: _decimal_of(8),
    0x94: _decimal_of(16),
    0x98: _uuid,
    0xA0: _sized(bytes, wide=False),
    0xA1: _sized(lambda raw: raw.decode(), wide=False),
    0xA3: _sized(_symbol, wide=False),
    0xB0: _sized(bytes, wide=True),
    0xB1: _sized(lambda raw: raw.decode(), wide=True),
    0xB3: _sized(_symbol, wide=True),
    0xC0: _list(wide=False),
    0xC1: _map(wide=False),
    0xD0: _list(wide=True),
    0xD1: _map(wide=True),
    0xE0: _array(wide=False),
    0xF0: _array(wide=True),
}


# --- writing ------------------------------------------------------------------------------


def encode(value: Any) -> bytes:
    """Encode a value. Raises ``ValueError`` if its type cannot hold it."""
    try:
        writer = _WRITERS[type(value)]
    except KeyError:
        raise ValueError(f"AMQP has no type for {type(value).__name__}") from None
    try:
        return writer(value)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{value!r} is not a valid {type(value).__name__}: {error}") from None


def _unsigned(
    code: int, small: int, zero: int | None, layout: struct.Struct
) -> Callable[[int], bytes]:
    """Return a writer of unsigned numbers in their shortest form. ``zero`` is the constructor of 0,
    ``small`` that of one byte, ``code`` that of the full width."""

    def number(value: int) -> bytes:
        if value == 0 and zero is not None:
            return bytes((zero,))
        if 0 <= value < 256:
            return bytes((small, value))
        return bytes((code,)) + layout.pack(value)

    return number


def _signed(code: int, small: int, layout: struct.Struct) -> Callable[[int], bytes]:
    """Return a writer of signed numbers in their shortest form."""

    def number(value: int) -> bytes:
        if -128 <= value < 128:
            return bytes((small, value & 0xFF))
        return bytes((code,)) + layout.pack(value)

    return number


def _fixed_writer(code: int, layout: struct.Struct) -> Callable[[Any], bytes]:
    head = bytes((code,))
    return lambda value: head + layout.pack(value)


def encode_sized(code: int, raw: Bytes) -> bytes:
    """Encode variable-length bytes. ``code`` is that of the short form; the long form adds 0x10."""
    if len(raw) < 256:
        return bytes((code, len(raw))) + raw
    return bytes((code + 0x10,)) + _U32.pack(len(raw)) + raw


def encode_list(values: list[bytes]) -> bytes:
    """Encode a list from encoded values."""
    return b"\x45" if not values else _encode_compound(0xC0, b"".join(values), len(values))


def encode_map(pairs: list[bytes]) -> bytes:
    """Encode a map from encoded keys and values, in turn."""
    return _encode_compound(0xC1, b"".join(pairs), len(pairs))


def _encode_compound(code: int, inner: bytes, count: int) -> bytes:
    """Encode a list or map from its encoded elements. ``code`` is the constructor of the short
    form; the long form adds 0x10."""
    # The size includes the count, so at most 254 bytes of elements fit the short form.
    if len(inner) < 255 and count < 256:
        return bytes((code, len(inner) + 1, count)) + inner
    return bytes((code + 0x10,)) + _U32.pack(len(inner) + 4) + _U32.pack(count) + inner


def encode_symbols(names: list[str]) -> bytes:
    """Encode an array of symbols."""
    inner = b"".join(bytes((len(name),)) + name.encode("ascii") for name in names)
    return bytes((0xF0,)) + _U32.pack(len(inner) + 5) + _U32.pack(len(names)) + b"\xa3" + inner


def _encode_array(value: Array) -> bytes:
    return bytes((0xF0,)) + _U32.pack(len(value.raw) + 4) + _U32.pack(value.count) + value.raw


def _encode_map_value(value: dict[Any, Any]) -> bytes:
    return encode_map([encode(part) for pair in value.items() for part in pair])


_DECIMALS: Final = {4: b"\x74", 8: b"\x84", 16: b"\x94"}

_WRITERS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda value: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    UByte: _fixed_writer(0x50, struct.Struct(">B")),
    UShort: _fixed_writer(0x60, _U16),
    UInt: _unsigned(0x70, 0x52, 0x43, layout=_U32),
    ULong: _unsigned(0x80, 0x53, 0x44, layout=_U64),
    Byte: _fixed_writer(0x51, struct.Struct(">b")),
    Short: _fixed_writer(0x61, _I16),
    Int: _signed(0x71, 0x54, _I32),
    int: _signed(0x81, 0x55, _I64),
    Float32: _fixed_writer(0x72, _F32),
    float: _fixed_writer(0x82, _F64),
    Char: lambda value: b"\x73" + _U32.pack(ord(value)),
    Timestamp: _fixed_writer(0x83, _I64),
    Decimal: lambda value: _DECIMALS[len(value)] + value,
    UUID: lambda value: b"\x98" + value.bytes,
    bytes: lambda value: encode_sized(0xA0, value),
    str: lambda value: encode_sized(0xA1, value.encode()),
    Symbol: lambda value: encode_sized(0xA3, value.encode("ascii")),
    list: lambda value: encode_list([encode(element) for element in value]),
    dict: _encode_map_value,
    Array: _encode_array,
    Described: lambda value: b"\x00" + encode(value.descriptor) + encode(value.value),
}

NAMES: Final[dict[type, str]] = {
    UByte: "ubyte",
    UShort: "ushort",
    UInt: "uint",
    ULong: "ulong",
    Byte: "byte",
    Short: "short",
    Int: "int",
    Float32: "float",
    Char: "char",
    Timestamp: "timestamp",
    Symbol: "symbol",
    UUID: "uuid",
    bytes: "binary",
    str: "string",
    int: "long",
    float: "double",
    bool: "boolean",
    type(None): "null",
}
"""The standard's names of the primitive types."""
