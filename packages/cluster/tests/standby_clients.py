"""Clients of a node that does not serve."""

from __future__ import annotations

import asyncio

import msgspec

from packages.cluster.tests.machines import NodeMachine
from packages.cluster.tests.serving import HOST
from penstock_amqp.wire import sasl
from penstock_amqp.wire.types import Described, read
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, FrameReader, frame
from tests.loops import the_loop


class Caller(asyncio.Protocol):
    """Sends bytes, and records the answer until the other side disconnects."""

    def __init__(self, said: bytes) -> None:
        self._said = said
        self.heard = b""
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._said)

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


async def call(port: int, said: bytes) -> bytes:
    """Send bytes to a port; return the answer."""
    caller = Caller(said)
    await the_loop().create_connection(lambda: caller, HOST, port)
    await caller.ended.wait()
    return caller.heard


async def say_hello(machine: NodeMachine) -> wire.FromServer:
    hello = wire.Hello("an old client", "session")
    heard = await call(machine.native, PREFACE + b"".join(map(bytes, frame(wire.encode(hello)))))
    reader = FrameReader()
    reader.receive(heard)
    ((header, _),) = reader.frames()
    return wire.decode_from_server(header)


async def ask(port: int, line: str) -> tuple[str, dict[str, str], dict[str, object]]:
    """Send a request; return the status line, headers and document of the answer."""
    heard = await call(port, f"{line} HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode())
    head, _, body = heard.decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert int(headers["content-length"]) == len(body) or line.startswith("HEAD")
    return first, headers, msgspec.json.decode(body) if body else {}


def performatives(heard: bytes) -> list[Described]:
    """Return the performatives of the AMQP frames in the received bytes, without the protocol
    header."""
    frames, offset = [], heard.rindex(sasl.PROTOCOL) + len(sasl.PROTOCOL)
    while offset < len(heard):
        value, _ = read(heard, offset + 8)
        assert isinstance(value, Described)
        frames.append(value)
        offset += int.from_bytes(heard[offset : offset + 4], "big")
    return frames
