"""What connections of every protocol ask of their transport."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock_core.wire.relay_preface import Place

LINGER_S: Final = 2.0
"""Seconds that a peer has to read the last bytes of a closed connection."""


def host_of(transport: asyncio.BaseTransport | None) -> str:
    """The peer's address; ``localhost`` inside this process."""
    peer = transport.get_extra_info("peername") if transport is not None else None
    found = str(peer[0]) if isinstance(peer, tuple) and peer else "localhost"
    return found.removeprefix("::ffff:")


def place_of(transport: asyncio.BaseTransport, end: str) -> Place:
    """The address at one end of a connection: ``peername`` or ``sockname``."""
    found = transport.get_extra_info(end)
    if not isinstance(found, tuple) or len(found) < 2:
        return Place("127.0.0.1", 0)
    return Place(str(found[0]), int(found[1]))


def close(transport: asyncio.Transport | None, linger_s: float = LINGER_S) -> None:
    """Close a transport once its peer has read what was sent; drop it if that takes too long."""
    if transport is None or transport.is_closing():
        return
    transport.close()
    if transport.get_write_buffer_size():
        asyncio.get_running_loop().call_later(linger_s, transport.abort)
