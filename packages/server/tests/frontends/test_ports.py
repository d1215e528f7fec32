"""Ports that a process holds, whichever front end serves them at the time."""

from __future__ import annotations

import asyncio
import socket

import pytest

from penstock_core.vocabulary.errors import AddressInUse, InvalidArgument
from penstock_server.frontends.shared.ports import HeldPorts, open_server
from tests.loops import on_a_loop


class Greeter(asyncio.Protocol):
    def __init__(self, word: bytes) -> None:
        self._word = word

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._word)
        transport.close()


async def greeting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    word = await reader.read()
    writer.close()
    await writer.wait_closed()
    return word


@on_a_loop
async def test_services_follow_each_other_at_a_port_without_refused_connections() -> None:
    ports = HeldPorts()
    port = await ports.hold("127.0.0.1", 0)
    first = await open_server(lambda: Greeter(b"first"), "127.0.0.1", port, held_ports=ports)
    assert await greeting(*await asyncio.open_connection("127.0.0.1", port)) == b"first"
    assert first.sockets[0].getsockname()[1] == port

    first.close()
    waiting = await asyncio.open_connection("127.0.0.1", port)
    second = await open_server(lambda: Greeter(b"second"), "127.0.0.1", port, held_ports=ports)

    assert await greeting(*waiting) == b"second"
    second.close()
    ports.close()


@on_a_loop
async def test_connections_are_refused_after_the_ports_are_closed() -> None:
    ports = HeldPorts()
    port = await ports.hold("127.0.0.1", 0)
    server = await open_server(lambda: Greeter(b"here"), "127.0.0.1", port, held_ports=ports)

    server.close()
    ports.close()
    await asyncio.sleep(0)  # the loop's own server closes its socket a turn later

    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


@on_a_loop
async def test_a_port_that_is_taken_is_not_held() -> None:
    with socket.socket() as other_socket:
        other_socket.bind(("127.0.0.1", 0))
        other_socket.listen()
        with pytest.raises(AddressInUse, match="0 takes any free port"):
            await HeldPorts().hold("127.0.0.1", other_socket.getsockname()[1])


@on_a_loop
async def test_an_address_of_another_machine_is_not_held() -> None:
    with pytest.raises(InvalidArgument, match=r"cannot listen on 192\.0\.2\.1:9000"):
        await HeldPorts().hold("192.0.2.1", 9_000)
