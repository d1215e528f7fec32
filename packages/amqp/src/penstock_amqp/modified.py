"""Annotations that receivers add to messages they return (AMQP, messaging, 3.4.5).

Events do not change: the annotations are kept in memory until the event cannot be delivered over
AMQP again, or the realm stops.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final
from uuid import UUID

import proton

from penstock_amqp.message_header import DELIVERY_TIME
from penstock_amqp.typed import whole_ms
from penstock_amqp.wire.sections import HEADER, MESSAGE_ANNOTATIONS, section, section_offsets
from penstock_amqp.wire.types import (
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
    encode,
    encode_map,
    read,
    skip,
)

BYTES_MAX: Final = 16 << 20
"""Maximum bytes of all kept annotations; the oldest are dropped first."""
_OVERHEAD: Final = 512
"""Estimated bytes of Python objects per annotation."""
_NULL: Final = b"\x40"

Added = Mapping[Any, bytes]
"""AMQP-encoded values by key."""


class Modifications:
    """The annotations added to each event, by reader."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._added: OrderedDict[tuple[Hashable, int], dict[Any, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._added)

    def note(self, reader: Hashable, event_id: int, added: Added) -> None:
        """Keep annotations for the next delivery of an event to ``reader``."""
        key = (reader, event_id)
        previous = self._added.pop(key, {})
        self._bytes -= _size(previous)
        merged = {**previous, **added}
        self._added[key] = merged  # at the end, so the oldest annotations are dropped first
        self._bytes += _size(merged)
        while self._bytes > self._bytes_max:
            _, oldest = self._added.popitem(last=False)
            self._bytes -= _size(oldest)

    def added_to(self, reader: Hashable, event_id: int) -> Added | None:
        """Return the annotations added to an event; None without any."""
        return self._added.get((reader, event_id))

    def forget(self, reader: Hashable, ids: Iterable[int]) -> None:
        """Drop the annotations of events that will not be delivered again."""
        for event_id in ids if self._added else ():
            self._bytes -= _size(self._added.pop((reader, event_id), {}))


def _size(added: Added) -> int:
    """Estimate the bytes of annotations. Names also count, because clients choose them."""
    names = sum(len(key) for key in added if isinstance(key, str))
    return names + sum(map(len, added.values())) + _OVERHEAD * len(added)


def annotated(message: bytes, added: Added) -> bytes:
    """Return a message with annotations added; an existing key gets the new value."""
    offsets = section_offsets(message)
    annotations_at = offsets.get(MESSAGE_ANNOTATIONS)
    existing: dict[Any, bytes] = {}
    if annotations_at is not None:
        # `annotations_at` is the offset of the map; its section begins with a descriptor of 3
        # bytes.
        begin, end = annotations_at - 3, skip(message, annotations_at)
        existing = _encoded_entries(message, annotations_at, end)
    else:
        begin = end = skip(message, offsets[HEADER]) if HEADER in offsets else 0
    merged = {**existing, **added}
    pairs = [item for key, value in merged.items() for item in (encode(key), value)]
    return message[:begin] + section(MESSAGE_ANNOTATIONS, encode_map(pairs)) + message[end:]


def _encoded_entries(message: bytes, offset: int, end: int) -> dict[Any, bytes]:
    """Return the keys and the encoded values of the map from ``offset`` to ``end``."""
    entries: dict[Any, bytes] = {}
    # Skip the head of the map: constructor, size and count, of 1 or 4 bytes each.
    offset += 3 if message[offset] == 0xC1 else 9
    while offset < end:
        key, value_at = read(message, offset)
        offset = skip(message, value_at)
        entries[key] = message[value_at:offset]
    return entries


def take_delivery_time(added: dict[Any, bytes]) -> int | None:
    """Remove and return the redelivery time that the receiver asks for, in milliseconds since 1970;
    None without one. Other servers use the same annotation. Raises ``InvalidEvent`` if the value is
    not a time."""
    value, _ = read(added.pop(Symbol(DELIVERY_TIME), _NULL))
    return None if value is None else whole_ms(value, DELIVERY_TIME)


# --- Proton's values --------------------------------------------------------------------------


def added_by(annotations: Any) -> dict[Any, bytes]:
    """Return the annotations that a receiver has sent, read from Proton's objects. Arrays and
    unreadable values are left out."""
    added: dict[Any, bytes] = {}
    for key, value in annotations.items() if isinstance(annotations, dict) else ():
        try:
            own_key = _from_proton(key)
            if type(own_key) in (Symbol, ULong):
                added[own_key] = encode(_from_proton(value))
        except (KeyError, OverflowError, RecursionError, TypeError, ValueError):
            continue
    return added


_TYPES: Final[dict[type, Callable[[Any], Any]]] = {
    type(None): lambda value: None,
    bool: bool,
    proton.ubyte: UByte,
    proton.ushort: UShort,
    proton.uint: UInt,
    proton.ulong: ULong,
    proton.byte: Byte,
    proton.short: Short,
    proton.int32: Int,
    int: int,
    proton.float32: Float32,
    float: float,
    proton.char: Char,
    proton.timestamp: Timestamp,
    proton.decimal32: lambda value: Decimal(int(value).to_bytes(4, "big")),
    proton.decimal64: lambda value: Decimal(int(value).to_bytes(8, "big")),
    proton.decimal128: Decimal,
    UUID: lambda value: value,
    bytes: bytes,
    memoryview: bytes,
    str: str,
    proton.symbol: lambda value: Symbol(str(value)),
    proton.Described: lambda value: Described(
        _from_proton(value.descriptor), _from_proton(value.value)
    ),
    list: lambda value: [_from_proton(item) for item in value],
    dict: lambda value: {_from_proton(key): _from_proton(item) for key, item in value.items()},
}


def _from_proton(value: Any) -> Any:
    """Convert a Proton value to our type. Raises ``KeyError`` for types other than single values,
    lists and maps."""
    return _TYPES[type(value)](value)
