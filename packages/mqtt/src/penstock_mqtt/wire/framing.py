"""Packets in a stream of bytes: their bounds and their largest size (2.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from penstock_mqtt.wire.packets import PACKET_BYTES_MAX
from penstock_mqtt.wire.plain_messages import PlainMessage, plain_messages, plain_pubacks
from penstock_mqtt.wire.properties import PROPERTIES_BYTES_MAX, PUBLISH, SUBSCRIBE, UNSUBSCRIBE
from penstock_mqtt.wire.reasons import MqttViolation, Reason, malformed

CONTROL_BYTES_MAX: Final = PROPERTIES_BYTES_MAX + 1_024
"""Maximum number of bytes of a packet from a client that has neither a payload nor filters."""
FILTERS_BYTES_MAX: Final = 1 << 18
"""Maximum number of bytes of a SUBSCRIBE or UNSUBSCRIBE from a client."""
_LENGTH_BYTES_MAX: Final = 4
_PUBACK_BYTES: Final = 4


class PacketReader:
    """Splits the received bytes of one connection into packets."""

    def __init__(self, packet_bytes_max: int = PACKET_BYTES_MAX) -> None:
        self.packet_bytes_max = packet_bytes_max
        """Maximum number of bytes of a packet including its fixed header."""
        self.is_strict = False
        """Whether the size limit is for PUBLISH only. Other packets then have at most
        `CONTROL_BYTES_MAX`, those with filters `FILTERS_BYTES_MAX`."""
        self._data = b""
        self._at = 0
        """Offset of the first unread byte in ``_data``."""
        self._unjoined: list[bytes] = []
        """Received bytes after ``_data``. They are joined once a packet may be complete, so that a
        packet in many small pieces is not copied with each piece."""
        self.held_bytes = 0
        """Bytes that were received and not read yet."""
        self._needed_bytes = 0
        """Size of the next packet if it is known, otherwise 0. Fewer bytes are not parsed again."""

    def receive(self, data: bytes) -> None:
        """Add received bytes."""
        self._unjoined.append(data)
        self.held_bytes += len(data)

    def publishes(self, version: int, count_max: int) -> Sequence[PlainMessage]:
        """Return the next messages, at most ``count_max``, as long as they are plain."""
        if self.held_bytes < self._needed_bytes:
            return ()
        self._join()
        messages, self._at = plain_messages(self._data, version, count_max, self.packet_bytes_max)
        self.held_bytes -= self._at
        if messages:
            self._needed_bytes = 0
        return messages

    def pubacks(self) -> Sequence[int]:
        """Return the packet ids of the next PUBACKs if several plain ones follow each other.
        Clients acknowledge many messages at once if they receive many at once."""
        if self.held_bytes < 2 * _PUBACK_BYTES or self.held_bytes < self._needed_bytes:
            return ()
        self._join()
        packet_ids, end = plain_pubacks(self._data)
        if packet_ids:
            self._at = end
            self.held_bytes -= end
            self._needed_bytes = 0
        return packet_ids

    def _join(self) -> None:
        """Append the received bytes to ``_data``, and drop the bytes that were read."""
        if self._at == len(self._data) and len(self._unjoined) == 1:
            self._data = self._unjoined[0]
        else:
            self._data = b"".join((self._data[self._at :], *self._unjoined))
        self._at = 0
        self._unjoined.clear()

    def packets(self) -> Iterator[tuple[int, bytes]]:
        """Yield the first byte and the body of each complete packet.

        Raises :class:`~penstock_mqtt.wire.reasons.MqttViolation` with 0x81 for an invalid length,
        and with 0x95 for a packet that is too large, before it is received.
        """
        if self.held_bytes < self._needed_bytes:
            return
        self._join()
        while True:
            data, start = self._data, self._at
            if start == len(data):  # all bytes are read, the usual case
                self._needed_bytes = 0
                return
            if start + 1 < len(data) and (length := data[start + 1]) < 0x80:  # the usual case
                begin = start + 2
            else:
                length_and_begin = self._read_length(data, start + 1)
                if length_and_begin is None:
                    self._needed_bytes = 0
                    return
                length, begin = length_and_begin
            end = begin + length
            if (size := end - start) > CONTROL_BYTES_MAX or size > self.packet_bytes_max:
                self._check_size(data[start] >> 4, size)
            if end > len(data):
                self._needed_bytes = end - start
                return
            self._at = end
            self.held_bytes -= end - start
            self._needed_bytes = 0  # the caller may request the next packet much later
            yield data[start], data[begin:end]

    def _check_size(self, kind: int, size: int) -> None:
        """Raise :class:`MqttViolation` if a packet of type ``kind`` is too large."""
        size_max = self.packet_bytes_max
        if self.is_strict and kind != PUBLISH:
            has_filters = kind in (SUBSCRIBE, UNSUBSCRIBE)
            size_max = min(size_max, FILTERS_BYTES_MAX if has_filters else CONTROL_BYTES_MAX)
        if size > size_max:
            raise MqttViolation(
                Reason.PACKET_TOO_LARGE,
                f"a packet of type {kind} has {size} bytes; at most {size_max} are allowed",
            )

    def _read_length(self, data: bytes, at: int) -> tuple[int, int] | None:
        """Return the length of a packet's body and its offset, or None if the length is
        incomplete."""
        length = 0
        for index in range(_LENGTH_BYTES_MAX):
            if at + index >= len(data):
                return None
            byte = data[at + index]
            length |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                if index and not byte:
                    raise malformed("the length of a packet does not have its shortest form")
                return length, at + index + 1
        raise malformed("the length of a packet has more than 4 bytes")
