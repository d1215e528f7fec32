"""The data types of MQTT (1.5): reading them from a packet's body, and writing them."""

from __future__ import annotations

from typing import Final

from penstock_mqtt.wire.reasons import malformed

VARIABLE_MAX: Final = 268_435_455
"""The largest variable byte integer."""
BYTES_MAX: Final = 65_535
"""Maximum number of bytes of text or binary data."""


class Cursor:
    """A read position in the body of a packet. Reading past its end raises the error for a
    malformed packet."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at
        self._end = len(data)

    @property
    def remaining(self) -> int:
        """Bytes after the position."""
        return self._end - self._at

    def take(self, size: int) -> bytes:
        """Read ``size`` bytes."""
        begin, end = self._at, self._at + size
        if end > self._end:
            raise malformed(f"the packet ends {end - self._end} bytes too early")
        self._at = end
        return self._data[begin:end]

    def rest(self) -> bytes:
        """Read all remaining bytes."""
        return self.take(self.remaining)

    def byte(self) -> int:
        return self.take(1)[0]

    def two_bytes(self) -> int:
        return int.from_bytes(self.take(2))

    def four_bytes(self) -> int:
        return int.from_bytes(self.take(4))

    def variable(self) -> int:
        """Read a variable byte integer, which must have the shortest form (1.5.5)."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if shift and not byte:
                    raise malformed("a variable byte integer does not have its shortest form")
                return value
        raise malformed("a variable byte integer has more than 4 bytes")

    def binary(self) -> bytes:
        """Read binary data after its length of two bytes."""
        return self.take(self.two_bytes())

    def text(self) -> str:
        """Read a UTF-8 string without surrogates and null characters (1.5.4)."""
        try:
            text = self.binary().decode()
        except UnicodeDecodeError as error:
            raise malformed(f"a text is not UTF-8: {error.reason}") from None
        if "\0" in text:
            raise malformed("a text has a null character")
        return text

    def part(self, size: int) -> Cursor:
        """Read ``size`` bytes as a separate cursor."""
        return Cursor(self.take(size))

    def close(self, packet_name: str) -> None:
        """Raise an error if bytes remain unread."""
        if self.remaining:
            raise malformed(f"{packet_name} has {self.remaining} bytes too many")


def variable_bytes(value: int) -> bytes:
    """Return a variable byte integer. Raises ``ValueError`` if the value is too large."""
    if not 0 <= value <= VARIABLE_MAX:
        raise ValueError(f"{value} is not a variable byte integer; allowed are 0 to {VARIABLE_MAX}")
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:  # two bytes, the most frequent length after one
        return bytes((value & 0x7F | 0x80, value >> 7))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def binary_bytes(value: bytes) -> bytes:
    """Return binary data after its length. Raises ``ValueError`` for more than 65,535 bytes."""
    if len(value) > BYTES_MAX:
        raise ValueError(f"a field has {len(value)} bytes; at most {BYTES_MAX} are allowed")
    return len(value).to_bytes(2) + value


def text_fault(value: str) -> str:
    """Return why MQTT cannot express a text, or an empty text if it can."""
    if "\0" in value:
        return "MQTT cannot express texts with null characters"
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        return "MQTT cannot express texts with lone surrogates"
    return f"{size} bytes; at most {BYTES_MAX} are allowed" if size > BYTES_MAX else ""


def text_bytes(value: str) -> bytes:
    """Return a UTF-8 string after its length. Raises ``ValueError`` if MQTT cannot express it."""
    if "\0" in value:
        raise ValueError("MQTT cannot express texts with null characters")
    return binary_bytes(value.encode())  # a lone surrogate is a UnicodeEncodeError, a ValueError
