"""Asks whether somebody listens at an address, by connecting to it."""

from __future__ import annotations

import asyncio
from typing import Final

PROBE_S: Final = 1.0
"""How long an owner that is late may take to accept a connection."""


async def failure_at(host: str, port: int, patience_s: float = PROBE_S) -> OSError | None:
    """Why nobody is reached there: ``ConnectionRefusedError`` when the machine says that nobody
    listens, ``TimeoutError`` when it says nothing for so long; None: somebody accepts."""
    try:
        async with asyncio.timeout(patience_s):
            connect = asyncio.get_running_loop().create_connection
            transport, _ = await connect(asyncio.Protocol, host, port)
    except OSError as error:  # a TimeoutError is one, too
        return error
    transport.abort()
    return None


async def is_refused(address: str) -> bool:
    """Whether a machine says that nobody listens there; one that says nothing may be frozen, and
    at what is no address nobody can be asked."""
    host, _, port = address.rpartition(":")
    try:
        return isinstance(await failure_at(host, int(port)), ConnectionRefusedError)
    except (ValueError, OverflowError):  # no number, no port, or no name of a host
        return False
