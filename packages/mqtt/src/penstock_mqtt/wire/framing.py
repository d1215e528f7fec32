"""Packets in a stream of bytes: their bounds and their largest size (2.1)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from struct import iter_unpack
from typing import Final

from penstock_mqtt.wire.packets import PACKET_BYTES_MAX
from penstock_mqtt.wire.plain_messages import PlainMessage, plain_messages
from penstock_mqtt.wire.properties import PROPERTIES_BYTES_MAX, PUBLISH, SUBSCRIBE, UNSUBSCRIBE
from penstock_mqtt.wire.reasons import MqttViolation, Reason, malformed

CONTROL_BYTES_MAX: Final = PROPERTIES_BYTES_MAX + 1_024
"""Bytes of the largest packet that a client may send which has neither a payload nor filters."""
FILTERS_BYTES_MAX: Final = 1 << 18
"""Bytes of the largest SUBSCRIBE or UNSUBSCRIBE that a client may send."""
_LENGTH_BYTES_MAX: Final = 4
_PUBACK_BYTES: Final = 4
_PUBACKS: Final = re.compile(rb"(?s:\x40\x02(?:[^\0].|\0[^\0])){1,4096}")
"""Acknowledgements without a reason, as most are, one behind the other."""


class PacketReader:
    """Cuts what is received on one connection into packets."""

    def __init__(self, packet_bytes_max: int = PACKET_BYTES_MAX) -> None:
        self.packet_bytes_max = packet_bytes_max
        """Most bytes of a packet, with its fixed header."""
        self.is_strict = False
        """Whether only a PUBLISH may be as large: other packets are `CONTROL_BYTES_MAX` at most,
        those with filters `FILTERS_BYTES_MAX`."""
        self._data = b""
        self._at = 0
        self._later: list[bytes] = []
        """What has come behind ``_data``; put together once a packet may be complete, so that one
        that comes in many small pieces is not copied with each."""
        self.held_bytes = 0
        """Bytes that were received and are not taken."""
        self._wanted_bytes = 0

    def receive(self, data: bytes) -> None:
        """Add bytes that were received."""
        self._later.append(data)
        self.held_bytes += len(data)

    def publishes(self, version: int, most: int) -> Sequence[PlainMessage]:
        """The messages that come next, at most so many, if they are plain ones."""
        if self.held_bytes < self._wanted_bytes:
            return ()
        self._join()
        found, self._at = plain_messages(self._data, version, most, self.packet_bytes_max)
        self.held_bytes -= self._at
        if found:
            self._wanted_bytes = 0
        return found

    def pubacks(self) -> Sequence[int]:
        """The packet ids of the PUBACKs that come next, if they are many and say nothing more: a
        client that was given many messages at once acknowledges them at once."""
        if self.held_bytes < 2 * _PUBACK_BYTES or self.held_bytes < self._wanted_bytes:
            return ()
        self._join()
        if (found := _PUBACKS.match(self._data)) is None:
            return ()
        self._at = found.end()
        self.held_bytes -= self._at
        self._wanted_bytes = 0
        return [packet_id for (packet_id,) in iter_unpack(">xxH", found[0])]

    def _join(self) -> None:
        if self._at == len(self._data) and len(self._later) == 1:
            self._data = self._later[0]
        else:
            self._data = b"".join((self._data[self._at :], *self._later))
        self._at = 0
        self._later.clear()

    def packets(self) -> Iterator[tuple[int, bytes]]:
        """The first byte and the body of each packet that is complete.

        Raises :class:`~penstock_mqtt.wire.reasons.MqttViolation` with 0x81 for a length that is
        none, and with 0x95, before the packet has come, for one that is too large.
        """
        if self.held_bytes < self._wanted_bytes:
            return
        self._join()
        while True:
            data, at = self._data, self._at
            if at == len(data):  # everything is taken, as at most times
                self._wanted_bytes = 0
                return
            if at + 1 < len(data) and (length := data[at + 1]) < 0x80:  # as of most packets
                begin = at + 2
            else:
                found = self._length(data, at + 1)
                if found is None:
                    self._wanted_bytes = 0
                    return
                length, begin = found
            end = begin + length
            if (size := end - at) > CONTROL_BYTES_MAX or size > self.packet_bytes_max:
                self._check_size(data[at] >> 4, size)
            if end > len(data):
                self._wanted_bytes = end - at
                return
            self._at = end
            self.held_bytes -= end - at
            self._wanted_bytes = 0  # who takes this one may come back for the next much later
            yield data[at], data[begin:end]

    def _check_size(self, kind: int, size: int) -> None:
        most = self.packet_bytes_max
        if self.is_strict and kind != PUBLISH:
            has_filters = kind in (SUBSCRIBE, UNSUBSCRIBE)
            most = min(most, FILTERS_BYTES_MAX if has_filters else CONTROL_BYTES_MAX)
        if size > most:
            raise MqttViolation(
                Reason.PACKET_TOO_LARGE,
                f"a packet of type {kind} has {size} bytes; at most {most} are allowed",
            )

    def _length(self, data: bytes, at: int) -> tuple[int, int] | None:
        """The length of a packet's body, and where it begins."""
        length = 0
        for index in range(_LENGTH_BYTES_MAX):
            if at + index >= len(data):
                return None
            byte = data[at + index]
            length |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                if index and not byte:
                    raise malformed("the length of a packet is written longer than it has to be")
                return length, at + index + 1
        raise malformed("the length of a packet has more than 4 bytes")
