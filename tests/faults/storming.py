"""Hundreds of connections at once: ``python -m tests.faults.storming URL COUNT``.

A third of them disappear after their hello, a third send only a part of it and wait until the
server closes them, and a third close in order. Prints how many the realm has accepted.
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
    """Open ``count`` connections; return how many were accepted."""
    address = parse_url(url).addresses[0]

    async def guest(number: int) -> bool:
        with contextlib.suppress(OSError, TimeoutError, PenstockError):
            async with asyncio.timeout(WAIT_S):
                return await _visit(address.host, address.port, number)
        return False

    async with asyncio.TaskGroup() as group:
        guests = [group.create_task(guest(number)) for number in range(count)]
    return sum(guest_task.result() for guest_task in guests)


async def _visit(host: str, port: int, number: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        hello = PREFACE + b"".join(frame(wire.encode(wire.Hello("storm", f"storm-{number}"))))
        if number % 3 == 1:
            writer.write(hello[: 1 + number % (len(hello) - 1)])
            await reader.read()
            return False
        writer.write(hello)
        welcomed = await _is_welcomed(reader)
        if number % 3 == 0:
            writer.write(b"".join(frame(wire.encode(wire.Bye()))))
            await writer.drain()
        return welcomed
    finally:
        writer.transport.abort()


async def _is_welcomed(reader: asyncio.StreamReader) -> bool:
    frames = FrameReader()
    while chunk := await reader.read(1 << 16):
        frames.receive(chunk)
        for header, _ in frames.frames():
            return isinstance(wire.decode_from_server(header), wire.Welcome)
    return False


if __name__ == "__main__":
    sys.stdout.write(f"{asyncio.run(storm(sys.argv[1], int(sys.argv[2])))}\n")
