"""Hundreds of connections at once: ``python -m tests.faults.storming URL COUNT``.

Some say hello and vanish, some say half of it and wait to be shut out, some take their leave.
What it prints is how many the realm has welcomed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from penstock.client.connection.urls import parse_url
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, FrameReader, frame

WAIT_S = 20.0


async def storm(url: str, count: int) -> int:
    """Open ``count`` connections; gives how many were welcomed."""
    address = parse_url(url).addresses[0]

    async def guest(number: int) -> bool:
        with contextlib.suppress(OSError, TimeoutError, PenstockError):
            async with asyncio.timeout(WAIT_S):
                return await _visit(address.host, address.port, number)
        return False

    async with asyncio.TaskGroup() as all_at_once:
        guests = [all_at_once.create_task(guest(number)) for number in range(count)]
    return sum(each.result() for each in guests)


async def _visit(host: str, port: int, number: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        hello = PREFACE + b"".join(frame(wire.encode(wire.Hello("storm", f"storm-{number}"))))
        if number % 3 == 1:
            writer.write(hello[: 1 + number % (len(hello) - 1)])
            await reader.read()
            return False
        writer.write(hello)
        welcomed = await _welcomed(reader)
        if number % 3 == 0:
            writer.write(b"".join(frame(wire.encode(wire.Bye()))))
            await writer.drain()
        return welcomed
    finally:
        writer.transport.abort()


async def _welcomed(reader: asyncio.StreamReader) -> bool:
    frames = FrameReader()
    while piece := await reader.read(1 << 16):
        frames.receive(piece)
        for header, _ in frames.frames():
            return isinstance(wire.decode_from_server(header), wire.Welcome)
    return False


if __name__ == "__main__":
    sys.stdout.write(f"{asyncio.run(storm(sys.argv[1], int(sys.argv[2])))}\n")
