"""Check whether a process listens at an address, by connecting to it."""

from __future__ import annotations

import asyncio
from typing import Final

PROBE_S: Final = 1.0
"""Seconds within which a late owner has to accept a connection."""


async def failure_at(host: str, port: int, patience_s: float = PROBE_S) -> OSError | None:
    """Return why an address cannot be reached: ``ConnectionRefusedError`` if no process listens
    there, ``TimeoutError`` if the machine does not answer in time; None if it accepts."""
    try:
        async with asyncio.timeout(patience_s):
            connect = asyncio.get_running_loop().create_connection
            transport, _ = await connect(asyncio.Protocol, host, port)
    except OSError as error:  # a TimeoutError is also one
        return error
    transport.abort()
    return None


async def is_refused(address: str) -> bool:
    """Return whether a machine reports that no process listens at an address. False if the machine
    does not answer (it may be frozen), or the text is not an address."""
    host, _, port = address.rpartition(":")
    try:
        return isinstance(await failure_at(host, int(port)), ConnectionRefusedError)
    except (ValueError, OverflowError):  # not a number, not a port, or not a host name
        return False
