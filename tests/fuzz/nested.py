"""Inputs that are nested more deeply than any reader may follow, in each encoding, and the same
with numbers beyond what the values that they become can hold.

Each is an addition to the seeds of a target: it has to be refused or taken, like any other.
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
    """Selectors of many levels: parentheses, signs, operators, nested properties and indexes."""
    found = [b"n = " + number for number in _NUMBERS]
    for levels in LEVELS:
        found += [
            b"(" * levels + b"a = 1" + b")" * levels,
            b"NOT " * levels + b"a = 1",
            b"a" + b".b" * levels + b" = 1",
            b"a" + b"[0]" * levels + b" = 1",
            b"a = " + b"- " * levels + b"1",
            b"a = " + b"1 + (" * levels + b"1" + b")" * levels,
            b" OR ".join([b"a = 1"] * levels),
        ]
    return found


def documents(name: bytes = b"name") -> Sequence[bytes]:
    """JSON objects with lists, with objects and with numbers as the value of one key."""
    found = [b'{"%s": %s}' % (name, number) for number in _NUMBERS]
    for levels in (*LEVELS, DEEPEST):
        found.append(b'{"%s": %s}' % (name, b"[" * levels + b"]" * levels))
        found.append(b'{"%s": ' % name * levels + b"1" + b"}" * levels)
    return found


def toml() -> Sequence[bytes]:
    found = [b"x = " + b"[" * levels + b"]" * levels for levels in LEVELS]
    found += [b"x = " + b"{a = " * levels + b"1" + b"}" * levels for levels in LEVELS]
    found += [b"[" + b".".join([b"a"] * levels) + b"]\n" for levels in LEVELS]
    found += [b"[listen]\nport = %s\n" % number for number in (*_NUMBERS, b"inf", b"nan", b"-1")]
    return [*found, b"[listen]\nidle_timeout_s = nan\n", b"[listen]\nidle_timeout_s = -inf\n"]


def msgpack() -> Sequence[bytes]:
    """Lists and maps in MessagePack, and lists that state more elements than there are bytes."""
    stated = (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff")
    nested = [one * levels for levels in (*LEVELS, DEEPEST) for one in (b"\x91", b"\x81\xa1a")]
    return [*stated, *nested]


def native_frames() -> Sequence[bytes]:
    """Frames whose headers are such MessagePack, after the preface and without it."""
    framed = [b"".join(frame(header)) for header in msgpack()]
    return [*framed, *(PREFACE + each for each in framed)]


def amqp_values() -> Sequence[bytes]:
    """Described values, lists, maps and arrays within each other."""
    found = [b"\x00\x53\x24" * levels + b"\x45" for levels in (*LEVELS, 20_000)]
    found += [b"\x00" * levels + b"\x53\x24\x45" for levels in LEVELS]  # descriptors of descriptors
    for levels in LEVELS:
        in_lists = in_maps = b"\x40"
        array = Array(1, b"\x40")
        for _ in range(levels):
            in_lists = encode_list([in_lists])
            key = b"\xa1\x01k"
            size = (4 + len(key) + len(in_maps)).to_bytes(4, "big")
            in_maps = b"\xd1" + size + b"\0\0\0\x02" + key + in_maps
            array = Array(1, encode(Array(array.count, array.raw)))
        found += [in_lists, in_maps, encode(array)]
    return found


def amqp_messages() -> Sequence[bytes]:
    """Messages with such values in each kind of section."""
    body = section(0x77, encode(UInt(1)))
    found = [section(0x77, value) for value in amqp_values()]
    for code in (0x72, 0x74):
        found += [section(code, value) + body for value in amqp_values()]
    return [*found, *(body + section(0x78, value) for value in amqp_values())]


def protobuf_messages() -> Sequence[bytes]:
    """Messages of ``shop.Tree`` within each other, groups, and numbers of ten bytes."""
    found = []
    for levels in LEVELS:
        inside = b""
        for _ in range(levels):
            inside = _TREE_FIELD + _varint(len(inside)) + inside
        found.append(inside)
        found.append(b"\x13" * levels + b"\x14" * levels)  # groups
    largest = b"\xff" * 9 + b"\x01"
    found += [b"\x10" + largest, b"\x48" + largest, b"\x20" + largest]
    return [*found, b"\x32\x0b\x08" + largest]  # a time of so many seconds


def a_deep_tree() -> bytes:
    """A message of ``shop.Tree`` as deep as is allowed, written by the realm's own encoder."""
    tree: dict[str, object] = {"name": "leaf"}
    for _ in range(NESTING_MAX // 4):
        tree = {"branches": [tree]}
    return descriptors_of(shop()).encoded("shop.Tree", tree)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
