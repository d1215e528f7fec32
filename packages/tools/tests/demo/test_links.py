"""A link that is cut stands still, and goes on where it was when it is healed."""

from __future__ import annotations

import select
import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from penstock_tools.demo.links import HOST, DemoLinks


class Echo(socketserver.BaseRequestHandler):
    """Says what it hears, louder."""

    def handle(self) -> None:
        while data := self.request.recv(1 << 16):
            self.request.sendall(data.upper())


class EchoServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@pytest.fixture
def port() -> Iterator[int]:
    with EchoServer((HOST, 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def links() -> Iterator[DemoLinks]:
    made = DemoLinks()
    yield made
    made.close()


def connected(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=60.0)


def heard(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        chunk = connection.recv(count - len(received))
        assert chunk, f"it has ended after {received!r}"
        received += chunk
    return received


def is_silent(connection: socket.socket) -> bool:
    return not select.select([connection], [], [], 0)[0]


def test_bytes_go_both_ways_and_the_end_too(links: DemoLinks, port: int) -> None:
    with connected(links.open("n1", "e1", port)) as connection:
        connection.sendall(b"one")
        assert heard(connection, 3) == b"ONE"
        sending = threading.Thread(target=connection.sendall, args=(b"x" * 9_000_000,))
        sending.start()
        assert heard(connection, 9_000_000) == b"X" * 9_000_000
        sending.join()

        connection.shutdown(socket.SHUT_WR)

        assert connection.recv(1) == b""


def test_nothing_gets_through_a_cut_link_and_what_has_waited_comes_later(
    links: DemoLinks, port: int
) -> None:
    own_link, others = links.open("n1", "e1", port), links.open("n2", "e1", port)
    with connected(own_link) as before, connected(others) as other_connection:
        before.sendall(b"before")
        assert heard(before, 6) == b"BEFORE"

        links.cut("n1")
        assert links.is_cut("n1")
        before.sendall(b"meanwhile")
        with connected(own_link) as new:
            new.sendall(b"new")
            other_connection.sendall(b"other")
            assert heard(other_connection, 5) == b"OTHER", "whoever is not cut goes on"
            assert is_silent(before)
            assert is_silent(new)
            links.heal("n1")

            assert heard(before, 9) == b"MEANWHILE"
            assert heard(new, 3) == b"NEW"


@pytest.mark.parametrize("name", ["n1", "e1"])
def test_who_is_not_heard_hears_and_who_does_not_hear_is_heard(
    links: DemoLinks, port: int, name: str
) -> None:
    with connected(links.open("n1", "e1", port)) as connection:
        connection.sendall(b"before")
        assert heard(connection, 6) == b"BEFORE"
        for lost in ("from", "to"):
            links.cut(name, lost)
            connection.sendall(b"meanwhile")
            with connected(links.open("n2", "e1", port)) as other_connection:
                other_connection.sendall(b"other")
                if name == "n1":
                    assert heard(other_connection, 5) == b"OTHER"
            assert is_silent(connection), f"what is asked, or the answer, is lost: {lost}"
            links.heal(name)

            assert heard(connection, 9) == b"MEANWHILE"


def test_what_is_on_its_way_to_who_is_not_heard_arrives(links: DemoLinks) -> None:
    with socket.create_server((HOST, 0)) as door:
        own_link = links.open("n1", "e1", door.getsockname()[1])
        with connected(own_link) as node:
            node.sendall(b"x")
            engine, _ = door.accept()
            with engine:
                assert heard(engine, 1) == b"x"
                links.cut("n1", "from")
                node.sendall(b"asked")
                engine.sendall(b"told")
                assert heard(node, 4) == b"told"
                assert is_silent(engine)
                links.heal("n1")
                assert heard(engine, 5) == b"asked"

                links.cut("n1", "to")
                engine.sendall(b"answer")
                node.sendall(b"more")
                assert heard(engine, 4) == b"more"
                assert is_silent(node)


def test_whoever_is_cut_on_either_side_hears_nothing(links: DemoLinks, port: int) -> None:
    with (
        connected(links.open("e2", "e1", port)) as connection,
        connected(links.open("n1", "n2", port)) as other_connection,
    ):
        links.cut("e1")
        links.cut("e2")
        connection.sendall(b"one")
        links.heal("e1")
        other_connection.sendall(b"other")
        assert heard(other_connection, 5) == b"OTHER"
        assert is_silent(connection), "the other one is cut still"

        links.heal("e2")

        assert heard(connection, 3) == b"ONE"


def test_where_nobody_listens_a_connection_ends(links: DemoLinks) -> None:
    with socket.create_server((HOST, 0)) as closed:
        port = closed.getsockname()[1]

    with connected(links.open("n1", "e1", port)) as connection:
        assert connection.recv(1) == b""


def test_the_end_of_links_ends_every_connection_and_the_thread(port: int) -> None:
    before = threading.enumerate()
    made = DemoLinks()
    (thread,) = (thread for thread in threading.enumerate() if thread not in before)
    with connected(made.open("n1", "e1", port)) as connection:
        connection.sendall(b"one")
        assert heard(connection, 3) == b"ONE"

        made.close()

        assert connection.recv(1) == b""
    assert not thread.is_alive()
