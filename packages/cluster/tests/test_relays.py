"""Relayed connections over real sockets, with TLS and without, on both kinds of loops."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from penstock_cluster.relay import RelayChooser, Relays, relay_before_tls
from penstock_core.wire.relay_preface import (
    SIGNATURE,
    Place,
    RelayOrigin,
    relay_preface,
    secret_name,
)
from penstock_server.frontends.shared.handshakes import TlsServer
from penstock_server.frontends.shared.ports import HeldPorts, open_server
from penstock_server.frontends.shared.relayed import PrefaceSniffer, RelayGate
from penstock_server.frontends.shared.serving_node import ServingNode
from penstock_server.frontends.shared.tls import Tls
from penstock_server.runtime.writer.clock import SystemClock
from tests.access.certificates import Authority
from tests.access.realms import authority_in
from tests.loops import on_each_loop

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"
SECRET = b"s" * 32
PATIENT_S = 3_600.0
LARGE = bytes(range(256)) * 20_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return authority_in(folder)


def tls(folder: Path, authority: Authority) -> Tls:
    return Tls(str(folder / "realm.pem"), str(folder / "realm.key"), str(authority.file))


class Echo(asyncio.Protocol):
    """The owner's side: it says who has come, and everything that it hears."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer, local = (transport.get_extra_info(name)[:2] for name in ("peername", "sockname"))
        shown = transport.get_extra_info("peercert") or {}
        name = dict(part[0] for part in shown.get("subject", ())).get("commonName", "")
        self._transport.write(f"{peer[0]}:{peer[1]} at {local[1]} as {name or 'nobody'}\n".encode())

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def eof_received(self) -> bool:
        self._transport.close()
        return False


def serving(port: int, process: str = "start 1", secret: bytes = SECRET) -> ServingNode:
    return ServingNode(
        "n1", {"amqp": f"amqp://{HOST}:{port}"}, process, secret_name=secret_name(secret)
    )


class Waiting:
    """Admits all waiting clients, except those from one address."""

    patience_s = PATIENT_S

    def __init__(self) -> None:
        self.counted: list[str] = []
        """The addresses of those that have waited."""
        self.here = 0
        self.full_for = ""

    def enter(self, waiting: Any) -> bool:
        address = getattr(waiting, "address", "")
        if address and address == self.full_for:
            return False
        self.counted.append(address)
        self.here += 1
        return True

    def leave(self, _: object) -> None:
        self.here -= 1


class Nodes:
    """An owner and a node that stands by, of one front end."""

    def __init__(self, certificate: Tls | None) -> None:
        self.tls = certificate
        self.gate = RelayGate(SECRET, "start 1", SystemClock())
        self.owner: ServingNode | None = None
        self.relays = Relays(lambda: self.owner, SECRET, "n2", clock=SystemClock(), relays_max=10)
        self.waiting = Waiting()
        """Those that wait at the owner."""
        self._servers: list[Any] = []
        self._ports = HeldPorts()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[int, int]]:
        """The ports of the owner and of the other node."""
        nobody = Waiting()
        counts = [(protocol.enter, protocol.leave) for protocol in (self.waiting, nobody)]
        owner, standby_port = [await self._ports.hold(HOST, 0) for _ in range(2)]
        self.owner = serving(owner, "start 1")
        if self.tls is None:
            make: Any = partial(PrefaceSniffer, self.gate, Echo, PATIENT_S, *counts[0])
            self._servers.append(await open_server(make, HOST, owner, held_ports=self._ports))
            make = partial(RelayChooser, self.relays, "amqp", lambda _: True, Echo, nobody)
            self._servers.append(
                await open_server(make, HOST, standby_port, held_ports=self._ports)
            )
        else:
            before: Any = self.gate.before_tls
            for port, count in zip((owner, standby_port), counts, strict=True):
                server = TlsServer(self.tls.context, PATIENT_S, Echo, *count, before)
                await server.listen(HOST, port, self._ports)
                self._servers.append(server)
                before = partial(relay_before_tls, self.relays, "amqp")
        try:
            yield owner, standby_port
        finally:
            self.relays.cut(all_of_them=True)
            for open_server_ in self._servers:
                open_server_.close()
            self._ports.close()


def context(folder: Path, authority: Authority) -> ssl.SSLContext:
    """Return a TLS context with the certificate of ``alice``."""
    made = ssl.create_default_context(cafile=str(authority.file))
    made.check_hostname = False
    made.load_cert_chain(folder / "alice.pem", folder / "alice.key")
    return made


async def read_text_line(reader: asyncio.StreamReader) -> str:
    return (await reader.readline()).decode().strip()


@pytest.mark.parametrize("is_safe", [False, True], ids=["plain", "tls"])
@on_each_loop
async def test_the_owner_sees_the_client_and_every_byte_of_it(
    folder: Path, authority: Authority, is_safe: bool
) -> None:
    nodes = Nodes(tls(folder, authority) if is_safe else None)
    secure = context(folder, authority) if is_safe else None
    async with nodes.running() as (_, standby_port):
        reader, writer = await asyncio.open_connection(HOST, standby_port, ssl=secure)
        writer.write(b"begin\n")
        host, port = writer.get_extra_info("sockname")[:2]
        who = "alice" if is_safe else "nobody"

        assert await read_text_line(reader) == f"{host}:{port} at {standby_port} as {who}"
        assert await reader.readexactly(6) == b"begin\n"
        assert nodes.gate.open_by_node() == {"n2": 1}
        assert len(nodes.relays) == 1
        writer.write(LARGE)
        assert await reader.readexactly(len(LARGE)) == LARGE
        if not is_safe:
            writer.write_eof()
            assert await reader.read() == b""
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
        while len(nodes.relays):
            await asyncio.to_thread(int)  # turns of the loop


@pytest.mark.parametrize("is_full", [False, True], ids=["room", "full"])
@on_each_loop
async def test_a_handshake_that_is_relayed_is_counted_for_the_client(
    folder: Path, authority: Authority, is_full: bool
) -> None:
    """Otherwise all clients of a node would share the places of one address."""
    client = "127.0.0.7"

    nodes = Nodes(tls(folder, authority))
    nodes.waiting.full_for = client if is_full else ""
    secure, port = context(folder, authority), (client, 0)
    async with nodes.running() as (_, standby_port):
        if is_full:
            with pytest.raises((OSError, EOFError)):
                await asyncio.open_connection(HOST, standby_port, ssl=secure, local_addr=port)
            assert nodes.waiting.counted == [HOST]
        else:
            reader, writer = await asyncio.open_connection(
                HOST, standby_port, ssl=secure, local_addr=port
            )
            assert (await read_text_line(reader)).startswith(client)
            assert nodes.waiting.counted == [HOST, client]
            writer.close()
        assert nodes.waiting.here == 0


@pytest.mark.parametrize("is_safe", [False, True], ids=["plain", "tls"])
@on_each_loop
async def test_who_comes_without_a_preface_is_served_as_ever(
    folder: Path, authority: Authority, is_safe: bool
) -> None:
    nodes = Nodes(tls(folder, authority) if is_safe else None)
    secure = context(folder, authority) if is_safe else None
    async with nodes.running() as (owner, _):
        reader, writer = await asyncio.open_connection(HOST, owner, ssl=secure)
        writer.write(b"begin\n")

        assert (await read_text_line(reader)).startswith(f"{HOST}:")
        assert await reader.readexactly(6) == b"begin\n"
        assert nodes.gate.open_by_node() == {}
        writer.close()


@pytest.mark.parametrize("is_safe", [False, True], ids=["plain", "tls"])
@on_each_loop
async def test_a_preface_that_nobody_has_signed_and_one_that_is_relayed_on_are_refused(
    folder: Path, authority: Authority, is_safe: bool
) -> None:
    origin = RelayOrigin(Place("10.0.0.1", 1), Place("10.0.0.2", 2), "n9")
    now_s = SystemClock().now_us() // 1_000_000
    good = relay_preface(origin, SECRET, process="start 1", now_s=now_s)
    forged = relay_preface(origin, b"t" * 32, process="start 1", now_s=now_s)
    unsigned = SIGNATURE + b"\x21\x11\x00\x0c" + bytes(12)

    nodes = Nodes(tls(folder, authority) if is_safe else None)
    async with nodes.running() as (owner, standby_port):
        attempts = [(owner, forged), (owner, unsigned), (owner, SIGNATURE + b"\xff" * 4)]
        assert nodes.gate.admit(good, HOST) == origin
        attempts += [(owner, good)]  # a second time
        for port, preface in (*attempts, (standby_port, good)):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(preface)
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        assert len(nodes.relays) == 0


@pytest.mark.parametrize("is_safe", [False, True], ids=["plain", "tls"])
@on_each_loop
async def test_where_the_owner_cannot_be_reached_the_node_answers_itself(
    folder: Path, authority: Authority, is_safe: bool
) -> None:
    nodes = Nodes(tls(folder, authority) if is_safe else None)
    secure = context(folder, authority) if is_safe else None
    async with nodes.running() as (_, standby_port):
        nodes.owner = serving(1, "start 1")
        reader, writer = await asyncio.open_connection(HOST, standby_port, ssl=secure)
        writer.write(b"begin\n")

        assert (await read_text_line(reader)).startswith(f"{HOST}:")
        assert await reader.readexactly(6) == b"begin\n"
        assert len(nodes.relays) == 0
        writer.close()


@on_each_loop
async def test_a_relay_is_cut_when_its_owner_owns_no_more() -> None:
    nodes = Nodes(None)
    async with nodes.running() as (owner, standby_port):
        reader, writer = await asyncio.open_connection(HOST, standby_port)
        writer.write(b"begin\n")
        await read_text_line(reader)
        assert await reader.readexactly(6) == b"begin\n"

        nodes.relays.cut()
        assert len(nodes.relays) == 1, "it leads to the owner"
        nodes.owner = serving(owner, "start 2")
        nodes.relays.cut()

        assert len(nodes.relays) == 0
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("is_safe", [False, True], ids=["plain", "tls"])
@on_each_loop
async def test_a_connection_that_says_nothing_is_not_logged_as_refused(
    folder: Path, authority: Authority, is_safe: bool
) -> None:
    """Health checks and load balancers connect and leave."""
    nodes = Nodes(tls(folder, authority) if is_safe else None)
    secure = context(folder, authority) if is_safe else None
    with capture_logs() as logs:
        async with nodes.running() as (_, standby_port):
            for _ in range(3):
                reader, writer = await asyncio.open_connection(HOST, standby_port)
                writer.write_eof()
                with suppress(ConnectionError):
                    await reader.read()
                writer.close()
            reader, writer = await asyncio.open_connection(HOST, standby_port, ssl=secure)
            writer.write(b"begin\n")
            assert await read_text_line(reader)
            writer.close()

    assert not [line for line in logs if line["event"] == "relay.refused"]
