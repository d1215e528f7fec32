"""WebSocket frames as clients send them."""

from __future__ import annotations

from penstock_core.wire.websocket import (
    frame_bytes,
)

MASK = b"\x01\x02\xf3\x04"


def masked(opcode: int, payload: bytes, *, is_last: bool = True) -> bytes:
    """Return a masked frame, as clients have to send it."""
    plain = frame_bytes(opcode, payload)
    head = bytes((plain[0] if is_last else plain[0] & 0x7F, plain[1] | 0x80))
    extra = plain[2 : len(plain) - len(payload)]
    hidden = bytes(byte ^ MASK[offset % 4] for offset, byte in enumerate(payload))
    return head + extra + MASK + hidden
