"""AMQP over TLS: the certificate of a client is who it is (SEM A5)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from packages.amqp.tests.clients import WAIT_S
from penstock_amqp.wire import sasl
from penstock_amqp.wire.types import Described, Symbol, ULong, encode, read
from tests.access.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.fixture
def realm(tmp_path: Path, authority: Authority) -> Iterator[penstock.Realm]:
    certificate, key = authority.certificate("localhost", "realm")
    with penstock.Realm(
        access__mode="mandatory",
        access__password_rounds=4_096,
        access__password_length_min=1,
        access__failure_delay_s=0.0,
        listen__tls_certificate=str(certificate),
        listen__tls_key=str(key),
        listen__tls_client_ca=str(authority.file),
    ) as running:
        with running.connect() as root:
            root.access.grant("certificate:alice@*", "access")
        yield running


def connected(realm: penstock.Realm, authority: Authority, user: str = "") -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(authority.file))
    if user:
        context.load_cert_chain(*authority.certificate(user))
    url = realm.listen_amqp("localhost")
    assert url.startswith("amqps://")
    port = int(url.rpartition(":")[2])
    raw = socket.create_connection(("localhost", port), WAIT_S)
    return context.wrap_socket(raw, server_hostname="localhost")


def frame(data: ssl.SSLSocket) -> tuple[int, list[object]]:
    """Code and fields of the next SASL frame."""
    size = int.from_bytes(exactly(data, 4), "big")
    body = exactly(data, size - 4)
    performative, _ = read(body, 4)
    return int(performative.descriptor), performative.value


def exactly(data: ssl.SSLSocket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = data.recv(count - len(received))
        assert part, "the realm has closed"
        received += part
    return received


def mechanisms_for(data: ssl.SSLSocket) -> bytes:
    data.sendall(sasl.SASL_PROTOCOL)
    assert exactly(data, 8) == sasl.SASL_PROTOCOL
    size = int.from_bytes(exactly(data, 4), "big")
    return exactly(data, size - 4)


def signed_in(data: ssl.SSLSocket, mechanism: str, response: bytes) -> object:
    """The code of the outcome."""
    body = encode(Described(ULong(0x41), [Symbol(mechanism), response]))
    data.sendall((len(body) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body)
    code, fields = frame(data)
    assert code == 0x44
    return fields[0]


@pytest.mark.spec("A5")
@pytest.mark.parametrize("wanted", [b"", b"alice"])
def test_a_certificate_says_who_it_is(
    realm: penstock.Realm, authority: Authority, wanted: bytes
) -> None:
    with connected(realm, authority, "alice") as data:
        assert b"EXTERNAL" in mechanisms_for(data)
        assert signed_in(data, "EXTERNAL", wanted) == sasl.OK
        data.sendall(sasl.PROTOCOL)

        assert exactly(data, 8) == sasl.PROTOCOL


@pytest.mark.spec("A5")
def test_without_one_there_is_nothing_to_be_known_by(
    realm: penstock.Realm, authority: Authority
) -> None:
    with connected(realm, authority) as data:
        offered = mechanisms_for(data)

        assert b"EXTERNAL" not in offered
        assert b"PLAIN" in offered
        assert signed_in(data, "EXTERNAL", b"alice") == sasl.AUTH


@pytest.mark.spec("A5")
def test_a_certificate_is_enough_without_a_sign_in(
    realm: penstock.Realm, authority: Authority
) -> None:
    with connected(realm, authority, "alice") as data:
        data.sendall(sasl.PROTOCOL)
        assert exactly(data, 8) == sasl.PROTOCOL
    with connected(realm, authority) as data:
        data.sendall(sasl.PROTOCOL)
        assert exactly(data, 8) == sasl.SASL_PROTOCOL


@pytest.mark.spec("A5")
def test_a_certificate_is_nobody_elses(realm: penstock.Realm, authority: Authority) -> None:
    with connected(realm, authority, "alice") as data:
        mechanisms_for(data)

        assert signed_in(data, "EXTERNAL", b"root") == sasl.AUTH


@pytest.mark.spec("A3")
def test_a_certificate_of_nobody_who_may_come_in_is_refused(
    realm: penstock.Realm, authority: Authority
) -> None:
    with connected(realm, authority, "mallory") as data:
        mechanisms_for(data)

        assert signed_in(data, "EXTERNAL", b"") == sasl.AUTH


@pytest.mark.parametrize("beginning", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half"])
def test_a_handshake_that_does_not_end_is_hung_up_on(
    tmp_path: Path, authority: Authority, beginning: bytes
) -> None:
    """Within ``listen.hello_timeout_s``; the test waits for the hanging up itself."""
    certificate, key = authority.certificate("localhost", "realm")
    with penstock.Realm(
        listen__tls_certificate=str(certificate),
        listen__tls_key=str(key),
        listen__hello_timeout_s=0.2,
    ) as realm:
        for url in (realm.listen_amqp(), realm.listen()):
            port = int(url.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), WAIT_S) as raw:
                raw.sendall(beginning)

                try:
                    assert raw.recv(10) == b""
                except ConnectionResetError:
                    continue
