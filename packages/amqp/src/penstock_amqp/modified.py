"""Annotations that receivers add to messages they give back (AMQP, messaging, 3.4.5).

Events do not change. What was added is remembered until the event cannot be delivered by AMQP
again, or the realm stops.
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
"""Limit in bytes for all remembered annotations; the oldest are forgotten first."""
_OVERHEAD: Final = 512
_NULL: Final = b"\x40"

Added = Mapping[Any, bytes]
"""Values as AMQP encodes them, by key."""


class Modifications:
    """The annotations added to each event, by reader."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._added: OrderedDict[tuple[Hashable, int], dict[Any, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._added)

    def note(self, reader: Hashable, event_id: int, added: Added) -> None:
        """Remember annotations for the next delivery of an event to ``reader``."""
        key = (reader, event_id)
        known = self._added.pop(key, {})
        self._bytes -= _size(known)
        merged = {**known, **added}
        self._added[key] = merged
        self._bytes += _size(merged)
        while self._bytes > self._bytes_max:
            _, oldest = self._added.popitem(last=False)
            self._bytes -= _size(oldest)

    def of(self, reader: Hashable, event_id: int) -> Added | None:
        """The annotations added to an event; None: none."""
        return self._added.get((reader, event_id))

    def forget(self, reader: Hashable, ids: Iterable[int]) -> None:
        """Forget the annotations of events that are not delivered again."""
        for event_id in ids if self._added else ():
            self._bytes -= _size(self._added.pop((reader, event_id), {}))


def _size(added: Added) -> int:
    """About the bytes that annotations take. Names count, too: clients choose them."""
    names = sum(len(key) for key in added if isinstance(key, str))
    return names + sum(map(len, added.values())) + _OVERHEAD * len(added)


def annotated(message: bytes, added: Added) -> bytes:
    """A message with additional annotations; an existing one gets the new value."""
    places = section_offsets(message)
    at = places.get(MESSAGE_ANNOTATIONS)
    kept: dict[Any, bytes] = {}
    if at is not None:
        begin, end = at - 3, skip(message, at)
        kept = _entries(message, at, end)
    else:
        begin = end = skip(message, places[HEADER]) if HEADER in places else 0
    merged = {**kept, **added}
    pairs = [each for key, value in merged.items() for each in (encode(key), value)]
    return message[:begin] + section(MESSAGE_ANNOTATIONS, encode_map(pairs)) + message[end:]


def _entries(message: bytes, at: int, end: int) -> dict[Any, bytes]:
    found: dict[Any, bytes] = {}
    at += 3 if message[at] == 0xC1 else 9
    while at < end:
        key, value_at = read(message, at)
        at = skip(message, value_at)
        found[key] = message[value_at:at]
    return found


def take_delivery_time(added: dict[Any, bytes]) -> int | None:
    """Take out when the receiver wants the message again, in milliseconds since 1970; None: it does
    not say. Other servers know the annotation, too. Raises ``InvalidEvent`` for a value that means
    no time."""
    value, _ = read(added.pop(Symbol(DELIVERY_TIME), _NULL))
    return None if value is None else whole_ms(value, DELIVERY_TIME)


# --- Proton's values --------------------------------------------------------------------------


def added_by(annotations: Any) -> dict[Any, bytes]:
    """Annotations that a receiver has sent, read from Proton's objects. Arrays, and values that
    cannot be read, are left out."""
    found: dict[Any, bytes] = {}
    for key, value in annotations.items() if isinstance(annotations, dict) else ():
        try:
            own = _own(key)
            if type(own) in (Symbol, ULong):
                found[own] = encode(_own(value))
        except (KeyError, OverflowError, RecursionError, TypeError, ValueError):
            continue
    return found


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
    proton.Described: lambda value: Described(_own(value.descriptor), _own(value.value)),
    list: lambda value: [_own(each) for each in value],
    dict: lambda value: {_own(key): _own(each) for key, each in value.items()},
}


def _own(value: Any) -> Any:
    """A Proton value as one of ours. Raises ``KeyError`` for other types than single values, lists
    and maps."""
    return _TYPES[type(value)](value)
