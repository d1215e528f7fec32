"""Functions for the transports of connections of all protocols."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock_core.wire.relay_preface import Place

LINGER_S: Final = 2.0
"""Seconds in which a peer may read the last bytes of a closed connection."""


def host_of(transport: asyncio.BaseTransport | None) -> str:
    """Return the peer's address; ``localhost`` for connections inside this process."""
    peer = transport.get_extra_info("peername") if transport is not None else None
    host = str(peer[0]) if isinstance(peer, tuple) and peer else "localhost"
    return host.removeprefix("::ffff:")


def place_of(transport: asyncio.BaseTransport, end: str) -> Place:
    """Return the address at one end of a connection, ``peername`` or ``sockname``."""
    address = transport.get_extra_info(end)
    if not isinstance(address, tuple) or len(address) < 2:
        return Place("127.0.0.1", 0)
    return Place(str(address[0]), int(address[1]))


def close(transport: asyncio.Transport | None, linger_s: float = LINGER_S) -> None:
    """Close a transport after its peer has read all sent data; drop it if that takes longer than
    ``linger_s``."""
    if transport is None or transport.is_closing():
        return
    transport.close()
    if transport.get_write_buffer_size():
        asyncio.get_running_loop().call_later(linger_s, transport.abort)
