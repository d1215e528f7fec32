"""Handshakes of TLS are counted from their first moment, like connections (real sockets)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import penstock
from packages.client.tests.patience import eventually
from packages.server.tests.frontends.http.asking import Web
from penstock.client.sync.sync import Session
from penstock_core.vocabulary.errors import CannotConnect
from penstock_server.frontends.http.server import HttpServer
from penstock_server.frontends.native.listener import REFUSABLE_MAX
from penstock_server.frontends.shared.handshakes import Handshake, TlsServer
from penstock_server.frontends.shared.tls import Tls
from tests.access.certificates import Authority
from tests.access.realms import authority_in
from tests.loops import on_a_loop, on_each_loop

HALF = b"\x16\x03\x01\x02\x00\x01"
"""A handshake that has begun."""
PATIENT_S = 3_600.0
"""Whoever is hung up on in these tests, it is not for taking too long; nor does anybody else give
up, however busy the machine is."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return authority_in(folder)


@pytest.fixture
def realm(folder: Path, authority: Authority, settings: dict[str, Any]) -> Iterator[penstock.Realm]:
    with penstock.Realm(
        listen__tls_certificate=str(folder / "realm.pem"),
        listen__tls_key=str(folder / "realm.key"),
        listen__hello_timeout_s=PATIENT_S,
        http__head_timeout_s=PATIENT_S,
        **settings,
    ) as running:
        yield running


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def dialled(url: str, stack: ExitStack) -> socket.socket:
    """A connection that has begun a handshake and says no more."""
    address = urlsplit(url).hostname or "", urlsplit(url).port or 0
    raw = stack.enter_context(socket.create_connection(address, timeout=30))
    with suppress(ConnectionError):  # it may have been refused meanwhile
        raw.sendall(HALF)
    return raw


def connected(url: str) -> Session:
    """Connect, again if the handshake takes too long beside seventy others."""
    sessions: list[Session] = []

    def connects() -> bool:
        with suppress(CannotConnect):
            sessions.append(penstock.connect(url))
        return bool(sessions)

    eventually(connects)
    return sessions[0]


def server_of(realm: penstock.Realm) -> HttpServer:
    service = realm.listener.services["http"]
    assert isinstance(service, HttpServer)
    return service


def is_hung_up_on(raw: socket.socket) -> bool:
    """Waits for it."""
    try:
        return raw.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("settings", [{"listen__connections_max": REFUSABLE_MAX + 6}], ids=[""])
@pytest.mark.parametrize("listens", ["listen", "listen_amqp"])
def test_handshakes_are_counted_and_refused_beyond_connections_max(
    realm: penstock.Realm, authority: Authority, stack: ExitStack, listens: str
) -> None:
    url: str = getattr(realm, listens)()
    native = realm.listen()
    arriving = realm.listener.arriving
    first = dialled(url, stack)
    for _ in range(REFUSABLE_MAX + 5):
        dialled(url, stack)
    eventually(lambda: len(arriving) == REFUSABLE_MAX + 6)

    assert is_hung_up_on(dialled(url, stack))
    with pytest.raises(CannotConnect):
        penstock.connect(f"{native}?ca={authority.file}")
    assert len(arriving) == REFUSABLE_MAX + 6

    first.close()
    eventually(lambda: len(arriving) == REFUSABLE_MAX + 5)
    with connected(f"{native}?ca={authority.file}") as session:
        session.info()
        eventually(lambda: len(arriving) == REFUSABLE_MAX + 5)
        assert is_hung_up_on(_one_too_many(realm, url, stack))


def _one_too_many(realm: penstock.Realm, url: str, stack: ExitStack) -> socket.socket:
    """Who is connected is counted together with who shakes hands."""
    assert len(realm.listener.connections) == 1
    return dialled(url, stack)


@pytest.mark.parametrize("settings", [{"http__connections_max": 3}], ids=["3"])
def test_handshakes_of_http_have_places_and_give_way(
    realm: penstock.Realm, authority: Authority, stack: ExitStack
) -> None:
    url = realm.listen_http()
    half = [dialled(url, stack) for _ in range(3)]
    server = server_of(realm)
    eventually(lambda: len(server.arriving) == 3)

    tls = ssl.create_default_context(cafile=str(authority.file))
    assert Web(url, tls).ask("GET", "/health").status == 200

    assert is_hung_up_on(half[0]), "the one that was waited for longest"
    for connection in half[1:]:
        connection.close()
    eventually(lambda: not server.arriving and not server.places.connections)


@pytest.mark.parametrize("settings", [{"http__connections_per_address_max": 2}], ids=["2"])
def test_handshakes_of_http_are_counted_for_their_address(
    realm: penstock.Realm, stack: ExitStack
) -> None:
    url = realm.listen_http()
    half = [dialled(url, stack) for _ in range(5)]

    assert all(is_hung_up_on(connection) for connection in half[:3])
    eventually(lambda: len(server_of(realm).arriving) == 2)


@pytest.mark.parametrize("settings", [{}], ids=[""])
def test_a_realm_that_ends_hangs_up_on_handshakes(realm: penstock.Realm, stack: ExitStack) -> None:
    half = [dialled(url, stack) for url in (realm.listen(), realm.listen_http())]
    listener, server = realm.listener, server_of(realm)
    eventually(lambda: bool(listener.arriving and server.arriving))

    realm.close()

    assert all(map(is_hung_up_on, half))


# --- the server itself ------------------------------------------------------------------


class Greeter(asyncio.Protocol):
    """Says one word, and whatever it hears."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(b"welcome")

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


@on_each_loop
async def test_what_comes_with_the_end_of_a_handshake_is_for_whoever_serves(
    folder: Path, authority: Authority
) -> None:
    context = Tls(str(folder / "realm.pem"), str(folder / "realm.key")).context
    trusting = ssl.create_default_context(cafile=str(authority.file))
    held: list[Handshake] = []

    def enter(handshake: Handshake) -> bool:
        held.append(handshake)
        return True

    server = TlsServer(context, PATIENT_S, Greeter, enter=enter, leave=held.remove)
    await server.listen("127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("localhost", port, ssl=trusting)
    writer.write(b", stranger")

    assert await reader.readexactly(len("welcome, stranger")) == b"welcome, stranger"
    assert held == []
    writer.close()
    server.close()


@on_a_loop
async def test_a_connection_that_cannot_be_counted_is_told_of_and_hung_up_on_and_the_next_comes_in(
    folder: Path, authority: Authority
) -> None:
    context = Tls(str(folder / "realm.pem"), str(folder / "realm.key")).context
    trusting = ssl.create_default_context(cafile=str(authority.file))
    places: list[LookupError | None] = [LookupError("no such place"), None]
    failures: list[Any] = []

    def enter(_: Handshake) -> bool:
        failure = places.pop(0)
        if failure is not None:
            raise failure
        return True

    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    server = TlsServer(context, PATIENT_S, Greeter, enter=enter, leave=lambda _: None)
    await server.listen("127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(OSError):  # noqa: PT011  of TLS or of the connection, as it comes
        await asyncio.open_connection("localhost", port, ssl=trusting)
    reader, writer = await asyncio.open_connection("localhost", port, ssl=trusting)
    heard = await reader.readexactly(len("welcome"))
    writer.close()
    server.close()

    assert heard == b"welcome"
    assert [repr(failure["exception"]) for failure in failures] == ["LookupError('no such place')"]
    assert "has failed" in failures[0]["message"]


@on_a_loop
async def test_a_port_that_is_taken_is_said_and_nothing_is_left_open(folder: Path) -> None:
    context = Tls(str(folder / "realm.pem"), str(folder / "realm.key")).context

    first = TlsServer(context, PATIENT_S, Greeter, enter=lambda _: True, leave=lambda _: None)
    await first.listen("127.0.0.1", 0)
    second = TlsServer(context, PATIENT_S, Greeter, enter=lambda _: True, leave=lambda _: None)
    with pytest.raises(OSError, match="in use"):
        await second.listen("127.0.0.1", first.sockets[0].getsockname()[1])
    assert second.sockets == []
    first.close()
