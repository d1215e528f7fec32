"""One port for both: the first bytes say what a connection speaks."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from msgspec.structs import replace
from proton import Message

import penstock
from packages.amqp.tests.clients import WAIT_S, Client, texts


def test_the_native_port_understands_amqp() -> None:
    with penstock.Realm() as realm:
        realm.listen_amqp()
        url = realm.listen()
        with Client(url.replace("penstock://", "amqp://")) as client:
            client.sender("jobs").send(Message(body="a"))
            assert texts(client.receiver("jobs"), 1) == ["a"]
        with penstock.connect(url) as session:
            session.queues.get("jobs").push(b"native")
            assert session.queues.get("jobs").pop(5) is not None


def test_whoever_says_nothing_there_is_dropped() -> None:
    with penstock.Realm(listen__hello_timeout_s=0.2) as realm:
        realm.listen_amqp()
        port = int(realm.listen().rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as silent:
            silent.sendall(b"AM")

            try:
                assert silent.recv(10) == b""
            except ConnectionResetError:
                return


def test_without_amqp_the_native_port_speaks_its_own_language_only() -> None:
    with penstock.Realm() as realm:
        port = int(realm.listen().rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as stranger:
            stranger.sendall(b"AMQP\x00\x01\x00\x00")

            assert b"native Penstock port" in stranger.recv(4_096)


def test_who_has_not_said_what_it_speaks_takes_a_place() -> None:
    """Who comes beyond that is dropped at once, not after its time to say something."""
    with penstock.Realm(listen__connections_max=1, listen__hello_timeout_s=600.0) as realm:
        realm.listener.limits = replace(realm.listener.limits, refusable_max=2)
        realm.listen_amqp()
        address = "127.0.0.1", int(realm.listen().rpartition(":")[2])
        with ExitStack() as stack:
            first, second, third = (
                stack.enter_context(socket.create_connection(address, WAIT_S)) for _ in range(3)
            )

            assert is_hung_up_on(third)
            second.sendall(b"AMQP\x00\x01\x00\x00")
            assert second.recv(8) == b"AMQP\x00\x01\x00\x00"
            realm.close()
            assert is_hung_up_on(first), "nobody waits for it"


def is_hung_up_on(connection: socket.socket) -> bool:
    try:
        return connection.recv(10) == b""
    except ConnectionResetError:
        return True
