"""Which protocol a connection speaks, from its first bytes, however they come."""

from __future__ import annotations

import asyncio

import pytest

from penstock_server.frontends.shared.protocol_detection import ProtocolSniffer
from tests.loops import on_a_loop


class Native(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.received = b""
        self._room = bytearray(3)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._room)

    def buffer_updated(self, count: int) -> None:
        self.received += bytes(self._room[:count])


class Amqp(asyncio.Protocol):
    received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data


class Wire(asyncio.Transport):
    """A transport that keeps whom it is handed to."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = asyncio.Event()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def abort(self) -> None:
        self.aborted.set()


@pytest.mark.parametrize(
    ("data", "kind"), [(b"AMQP\x00\x01\x00\x00", Amqp), (b"PENSTK\x00\x01more", Native)]
)
@pytest.mark.parametrize("step", [1, 4, 100])
@on_a_loop
async def test_the_first_bytes_decide_and_none_is_lost(data: bytes, kind: type, step: int) -> None:
    wire = Wire()
    either = ProtocolSniffer(Native, {b"AMQP": Amqp}, 9.0)
    either.connection_made(wire)
    for offset in range(0, len(data), step):
        part = data[offset : offset + step]
        taker = getattr(wire, "protocol", None)
        if isinstance(taker, Native):
            for byte in part:
                taker.get_buffer(1)[0] = byte
                taker.buffer_updated(1)
        else:
            (taker or either).data_received(part)

    assert type(wire.protocol) is kind
    assert isinstance(wire.protocol, Native | Amqp)
    assert wire.protocol.received == data


@on_a_loop
async def test_a_peer_that_sends_too_few_bytes_is_dropped() -> None:
    wire = Wire()
    either = ProtocolSniffer(Native, {b"AMQP": Amqp}, 0.0)
    either.connection_made(wire)
    either.data_received(b"AM")
    async with asyncio.timeout(9):
        await wire.aborted.wait()
    either.connection_lost(None)


@on_a_loop
async def test_a_connection_that_is_not_admitted_is_dropped() -> None:
    wire = Wire()
    either = ProtocolSniffer(
        Native,
        {b"AMQP": Amqp},
        9.0,
        enter=lambda _: False,
        leave=lambda _: pytest.fail("it had none"),
    )
    either.connection_made(wire)
    either.connection_lost(None)

    assert wire.aborted.is_set()


@pytest.mark.parametrize("data", [b"AMQP\x00\x01\x00\x00", b"PENSTK\x00\x01", b"A"])
@on_a_loop
async def test_a_place_to_wait_in_is_given_back_once(data: bytes) -> None:
    calls: list[str] = []

    def enter(_: ProtocolSniffer) -> bool:
        calls.append("in")
        return True

    either = ProtocolSniffer(
        Native, {b"AMQP": Amqp}, 9.0, enter=enter, leave=lambda _: calls.append("out")
    )
    either.connection_made(Wire())
    either.data_received(data)
    either.connection_lost(None)

    assert calls == ["in", "out"]
