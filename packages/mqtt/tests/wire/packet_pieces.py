"""Packets that arrive in pieces."""

from __future__ import annotations

from itertools import pairwise

from penstock_mqtt.wire.framing import PacketReader
from penstock_mqtt.wire.packets import (
    Packet,
)
from penstock_mqtt.wire.reading import packet_of


def read(data: bytes, version: int, pieces: list[int] | None = None) -> list[Packet]:
    reader, packets = PacketReader(), []
    places = [0, *sorted(cut for cut in pieces or [] if cut <= len(data)), len(data)]
    for begin, end in pairwise(places):
        reader.receive(data[begin:end])
        packets += [packet_of(first, body, version) for first, body in reader.packets()]
    assert reader.held_bytes == 0
    return packets
