"""``penstock health``: every port of a realm, over TLS or not, and what is no realm's."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner, Result

import penstock
from penstock_core.api.channels import ListChannels
from penstock_core.api.realm import Ping
from penstock_server.cli.program import app
from tests.access.certificates import Authority
from tests.access.realms import QUICK, authority_in


def health(*flags: object) -> Result:
    return CliRunner().invoke(app, ["health", *map(str, flags)])


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def flags_of(realm: penstock.Realm) -> tuple[object, ...]:
    """Listen for all protocols of a realm; return the command flags with their ports."""
    amqp = port_of(realm.listen_amqp())
    native, http = port_of(realm.listen()), port_of(realm.listen_http())
    return "--port", native, "--http-port", http, "--amqp-port", amqp


def reports_by_port(result: Result) -> dict[str, tuple[bool, str]]:
    ports = json.loads(result.stdout)["ports"]
    return {port["port"]: (port["ok"], port["said"]) for port in ports}


def test_every_port_of_a_realm_answers_without_a_sign_in() -> None:
    with penstock.Realm(access__mode="mandatory", **QUICK) as realm:
        result = health(*flags_of(realm), "--format", "json")

    assert result.exit_code == 0
    assert reports_by_port(result) == {
        "native": (True, "answers"),
        "http": (True, '{"status":"ok"}'),
        "amqp": (True, "answers"),
    }


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return authority_in(tmp_path)


def settings_file(folder: Path, *, required: bool) -> Path:
    """Beside the certificates it names."""
    file = folder / "realm.toml"
    file.write_text(
        "[listen]\ntls_certificate = 'realm.pem'\ntls_key = 'realm.key'\n"
        f"tls_client_ca = 'authority.pem'\ntls_client_required = {str(required).lower()}\n"
    )
    return file


@pytest.mark.parametrize("required", [False, True])
def test_over_tls_it_needs_no_authority_and_no_certificate_of_its_own(
    tmp_path: Path, authority: Authority, required: bool
) -> None:
    file = settings_file(tmp_path, required=required)
    with penstock.Realm(
        access__mode="mandatory",
        listen__tls_certificate=str(tmp_path / "realm.pem"),
        listen__tls_key=str(tmp_path / "realm.key"),
        listen__tls_client_ca=str(authority.file),
        listen__tls_client_required=required,
        **QUICK,
    ) as realm:
        flags = flags_of(realm)
        result = health("--settings", file, *flags, "--ready", "--format", "json")
        in_the_open = health(*flags)

    assert result.exit_code == 0, result.output
    wanting = (True, "speaks TLS and requires a client certificate")
    assert reports_by_port(result)["native"] == (wanting if required else (True, "answers"))
    assert reports_by_port(result).keys() == {"native", "http", "amqp"}
    assert in_the_open.exit_code == 1


def test_nobody_there_is_unhealthy(unused_port: int) -> None:
    result = health("--port", unused_port, "--no-http")

    assert result.exit_code == 1
    assert f"failed  native  127.0.0.1:{unused_port}  " in result.stdout
    assert "refused" in result.stdout


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


@pytest.fixture
def stranger() -> Iterator[Callable[[bytes], int]]:
    """Return a function that listens on a free port and greets one client with the given bytes. It
    returns the port."""
    open_ = []

    def listen(greeting: bytes) -> int:
        listening = socket.create_server(("127.0.0.1", 0))
        open_.append(listening)

        def greet() -> None:
            line, _ = listening.accept()
            with closing(line):
                line.recv(8)
                line.sendall(greeting)

        threading.Thread(target=greet, daemon=True).start()
        port: int = listening.getsockname()[1]
        return port

    yield listen
    for listening in open_:
        listening.close()


@pytest.mark.parametrize(
    "greeting", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"\x10\x00\x00\x00\x08\x00\x00\x00nonsense"]
)
def test_who_is_no_realm_is_unhealthy(stranger: Callable[[bytes], int], greeting: bytes) -> None:
    result = health("--port", stranger(greeting), "--no-http", "--timeout", "5")

    assert result.exit_code == 1


def test_another_server_on_the_http_port_is_unhealthy(stranger: Callable[[bytes], int]) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    with penstock.Realm() as realm:
        native = port_of(realm.listen())
        result = health("--port", native, "--http-port", stranger(answer), "--format", "json")

    assert result.exit_code == 1
    assert reports_by_port(result)["http"] == (False, "is not a realm's answer: status 200")


def test_a_port_that_only_the_realm_knows_has_to_be_told() -> None:
    result = health("--port", 0)

    assert result.exit_code == 1
    assert "listen.port is 0" in result.output
    assert "--port N" in result.output


def test_a_stranger_may_ask_whether_somebody_is_there_and_nothing_else() -> None:
    from penstock_core.wire.native import messages as wire
    from penstock_core.wire.native.frames import PREFACE, FrameReader, frame

    def answers(port: int, *requests: wire.Message) -> list[wire.FromServer]:
        reader = FrameReader()
        sent = PREFACE + b"".join(
            bytes(part) for request in requests for part in frame(wire.encode(request))
        )
        with socket.create_connection(("127.0.0.1", port), 5) as line:
            line.sendall(sent)
            line.shutdown(socket.SHUT_WR)
            while received := line.recv(4_096):
                reader.receive(received)
        return [wire.decode_from_server(header) for header, _ in reader.frames()]

    with penstock.Realm(access__mode="mandatory", **QUICK) as realm:
        port = port_of(realm.listen())
        pinged = answers(port, wire.Asked(7, Ping()))
        (refused,) = answers(port, wire.Asked(1, ListChannels()))

    assert pinged == [wire.Done(7, None)]
    assert isinstance(refused, wire.Goodbye)
    assert refused.code == "remote-protocol-violation"
