"""Inputs with more levels of nesting than any reader follows, in each encoding, and the same with
numbers beyond the limits of their types.

They extend the seeds of a target, which must refuse or accept them like any other input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock_amqp.wire.sections import section
from penstock_amqp.wire.types import Array, UInt, encode, encode_list
from penstock_core.columns.protobuf.descriptors import descriptors_of
from penstock_core.vocabulary.nesting import NESTING_MAX
from penstock_core.wire.native.frames import PREFACE, frame
from tests.protocols import shop

LEVELS: Final = (NESTING_MAX + 1, 3_000)
DEEPEST: Final = 100_000
_TREE_FIELD: Final = b"\x12"
"""Tag of ``branches`` in ``shop.Tree``: field 2, with a length."""
_NUMBERS: Final = (b"18446744073709551616", b"-9223372036854775809", b"1e999", b"9" * 400)


def selectors() -> Sequence[bytes]:
    """Selectors with many levels: parentheses, signs, operators, nested properties and indexes."""
    texts = [b"n = " + number for number in _NUMBERS]
    for levels in LEVELS:
        texts += [
            b"(" * levels + b"a = 1" + b")" * levels,
            b"NOT " * levels + b"a = 1",
            b"a" + b".b" * levels + b" = 1",
            b"a" + b"[0]" * levels + b" = 1",
            b"a = " + b"- " * levels + b"1",
            b"a = " + b"1 + (" * levels + b"1" + b")" * levels,
            b" OR ".join([b"a = 1"] * levels),
        ]
    return texts


def documents(name: bytes = b"name") -> Sequence[bytes]:
    """JSON objects with lists, objects and numbers as the value of one key."""
    texts = [b'{"%s": %s}' % (name, number) for number in _NUMBERS]
    for levels in (*LEVELS, DEEPEST):
        texts.append(b'{"%s": %s}' % (name, b"[" * levels + b"]" * levels))
        texts.append(b'{"%s": ' % name * levels + b"1" + b"}" * levels)
    return texts


def toml() -> Sequence[bytes]:
    texts = [b"x = " + b"[" * levels + b"]" * levels for levels in LEVELS]
    texts += [b"x = " + b"{a = " * levels + b"1" + b"}" * levels for levels in LEVELS]
    texts += [b"[" + b".".join([b"a"] * levels) + b"]\n" for levels in LEVELS]
    texts += [b"[listen]\nport = %s\n" % number for number in (*_NUMBERS, b"inf", b"nan", b"-1")]
    return [*texts, b"[listen]\nidle_timeout_s = nan\n", b"[listen]\nidle_timeout_s = -inf\n"]


def msgpack() -> Sequence[bytes]:
    """Lists and maps in MessagePack, and lists that state more elements than they have bytes."""
    stated = (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff")
    nested = [
        container * levels for levels in (*LEVELS, DEEPEST) for container in (b"\x91", b"\x81\xa1a")
    ]
    return [*stated, *nested]


def native_frames() -> Sequence[bytes]:
    """Frames with such MessagePack as headers, with and without the preface."""
    framed = [b"".join(frame(header)) for header in msgpack()]
    return [*framed, *(PREFACE + frame_bytes for frame_bytes in framed)]


def amqp_values() -> Sequence[bytes]:
    """Described values, lists, maps and arrays inside each other."""
    values = [b"\x00\x53\x24" * levels + b"\x45" for levels in (*LEVELS, 20_000)]
    values += [
        b"\x00" * levels + b"\x53\x24\x45" for levels in LEVELS
    ]  # descriptors of descriptors
    for levels in LEVELS:
        in_lists = in_maps = b"\x40"
        array = Array(1, b"\x40")
        for _ in range(levels):
            in_lists = encode_list([in_lists])
            key = b"\xa1\x01k"
            size = (4 + len(key) + len(in_maps)).to_bytes(4, "big")
            in_maps = b"\xd1" + size + b"\0\0\0\x02" + key + in_maps
            array = Array(1, encode(Array(array.count, array.raw)))
        values += [in_lists, in_maps, encode(array)]
    return values


def amqp_messages() -> Sequence[bytes]:
    """Messages with such values in each kind of section."""
    body = section(0x77, encode(UInt(1)))
    messages = [section(0x77, value) for value in amqp_values()]
    for code in (0x72, 0x74):
        messages += [section(code, value) + body for value in amqp_values()]
    return [*messages, *(body + section(0x78, value) for value in amqp_values())]


def protobuf_messages() -> Sequence[bytes]:
    """Messages of ``shop.Tree`` inside each other, groups, and numbers of ten bytes."""
    messages = []
    for levels in LEVELS:
        inside = b""
        for _ in range(levels):
            inside = _TREE_FIELD + _varint(len(inside)) + inside
        messages.append(inside)
        messages.append(b"\x13" * levels + b"\x14" * levels)  # groups
    largest = b"\xff" * 9 + b"\x01"
    messages += [b"\x10" + largest, b"\x48" + largest, b"\x20" + largest]
    return [*messages, b"\x32\x0b\x08" + largest]  # a time with this many seconds


def a_deep_tree() -> bytes:
    """Return a message of ``shop.Tree`` of the largest allowed depth, written by the realm's own
    encoder."""
    tree: dict[str, object] = {"name": "leaf"}
    for _ in range(NESTING_MAX // 4):
        tree = {"branches": [tree]}
    return descriptors_of(shop()).encoded("shop.Tree", tree)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
