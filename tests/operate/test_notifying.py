"""Notifications to systemd, over a socket like its own."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_server.bootstrap import notifying
from penstock_testing.process import ServerProcess


@pytest.fixture
def notify_socket(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket of systemd's, at ``notify`` in the test's folder."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(30)
        yield listening


def test_it_is_told_what_it_knows(notify_socket: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": notify_socket.getsockname()}

    notifying.ready("listening", environment)
    notifying.reloading(environment)
    notifying.stopping(environment)

    assert notify_socket.recv(100) == b"READY=1\nSTATUS=listening"
    assert notify_socket.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
    assert notify_socket.recv(100) == b"STOPPING=1\nSTATUS=stopping"


def test_an_abstract_socket_is_told_too() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("")  # the system makes up an abstract name
        listening.settimeout(30)
        name = listening.getsockname().decode()

        notifying.ready("listening", {"NOTIFY_SOCKET": f"@{name[1:]}"})

        assert listening.recv(100).startswith(b"READY=1")


@pytest.mark.parametrize("address", ["", "nothing", "/missing/socket"])
def test_nobody_to_tell_is_nothing(address: str) -> None:
    notifying.ready("listening", {"NOTIFY_SOCKET": address})


@pytest.mark.process
def test_a_realm_is_ready_when_it_listens_and_not_before(
    tmp_path: Path, notify_socket: socket.socket
) -> None:
    environment = {"NOTIFY_SOCKET": notify_socket.getsockname()}
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        ready = notify_socket.recv(100)
        server.signal(signal.SIGHUP)
        again = [notify_socket.recv(100), notify_socket.recv(100)]
        server.terminate()
        last = notify_socket.recv(100)

    assert ready == f"READY=1\nSTATUS=listening on {server.url}".encode()
    assert again[0].startswith(b"RELOADING=1\n")
    assert again[1].startswith(b"READY=1\n")
    assert last.startswith(b"STOPPING=1\n")
