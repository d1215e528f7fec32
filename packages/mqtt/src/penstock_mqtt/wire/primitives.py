"""The data types of MQTT (1.5), read from a packet's body with a place in it, and written."""

from __future__ import annotations

from typing import Final

from penstock_mqtt.wire.reasons import malformed

VARIABLE_MAX: Final = 268_435_455
"""The largest variable byte integer."""
BYTES_MAX: Final = 65_535
"""Bytes of the longest text or binary data."""


class Cursor:
    """A place in the body of a packet. Whatever does not fit into the body is malformed."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at
        self._end = len(data)

    @property
    def left(self) -> int:
        """Bytes behind the place."""
        return self._end - self._at

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        begin, end = self._at, self._at + size
        if end > self._end:
            raise malformed(f"the packet ends {end - self._end} bytes too early")
        self._at = end
        return self._data[begin:end]

    def rest(self) -> bytes:
        return self.take(self.left)

    def byte(self) -> int:
        return self.take(1)[0]

    def two_bytes(self) -> int:
        return int.from_bytes(self.take(2))

    def four_bytes(self) -> int:
        return int.from_bytes(self.take(4))

    def variable(self) -> int:
        """A variable byte integer, in the fewest bytes (1.5.5)."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if shift and not byte:
                    raise malformed("a variable byte integer is longer than it has to be")
                return value
        raise malformed("a variable byte integer has more than 4 bytes")

    def binary(self) -> bytes:
        return self.take(self.two_bytes())

    def text(self) -> str:
        """A UTF-8 string: without surrogates and null characters (1.5.4)."""
        try:
            found = self.binary().decode()
        except UnicodeDecodeError as error:
            raise malformed(f"a text is not UTF-8: {error.reason}") from None
        if "\0" in found:
            raise malformed("a text has a null character")
        return found

    def part(self, size: int) -> Cursor:
        """The next ``size`` bytes, with a place of their own."""
        return Cursor(self.take(size))

    def close(self, what: str) -> None:
        """Raise for bytes that nobody has read."""
        if self.left:
            raise malformed(f"{what} has {self.left} bytes too many")


def variable_bytes(value: int) -> bytes:
    """A variable byte integer. Raises ``ValueError`` for one that is too large."""
    if not 0 <= value <= VARIABLE_MAX:
        raise ValueError(f"{value} is no variable byte integer, which is at most {VARIABLE_MAX}")
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:  # as most that are not shorter
        return bytes((value & 0x7F | 0x80, value >> 7))
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def binary_bytes(value: bytes) -> bytes:
    """Binary data behind its length. Raises ``ValueError`` for more than 65,535 bytes."""
    if len(value) > BYTES_MAX:
        raise ValueError(f"a field has {len(value)} bytes; at most {BYTES_MAX} are possible")
    return len(value).to_bytes(2) + value


def text_fault(value: str) -> str:
    """Return why MQTT cannot express a text; empty: it can."""
    if "\0" in value:
        return "MQTT has no texts with null characters"
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        return "MQTT has no texts with lone surrogates"
    return f"{size} bytes; at most {BYTES_MAX} are possible" if size > BYTES_MAX else ""


def text_bytes(value: str) -> bytes:
    """A UTF-8 string behind its length. Raises ``ValueError`` for what MQTT cannot say."""
    if "\0" in value:
        raise ValueError("MQTT has no texts with null characters")
    return binary_bytes(value.encode())  # a lone surrogate is a UnicodeEncodeError, a ValueError
