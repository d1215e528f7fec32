"""Peers that do not keep to the protocol: their connections end, and nothing else does."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proton import Message

import penstock
from packages.amqp.tests.clients import WAIT_S, Client, texts
from penstock_amqp.wire import sasl

OPEN = bytes.fromhex("0000001102000000005310c0040 1a10178".replace(" ", ""))
"""A frame that opens a connection."""
BEGIN = bytes.fromhex("0000001602000000005311c00904 40435240524 0ff".replace(" ", ""))


@contextmanager
def raw(realm: penstock.Realm) -> Iterator[socket.socket]:
    port = int(realm.listen_amqp().rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as connected:
        yield connected


def until_closed(connection: socket.socket) -> bytes:
    """All it still says."""
    received = b""
    while part := connection.recv(65_536):
        received += part
    return received


def check_lives(realm: penstock.Realm) -> None:
    """Others are served."""
    with Client(realm.listen_amqp()) as client:
        client.sender("alive").send(Message(body="a"))
        assert texts(client.receiver("alive"), 1) == ["a"]


FRAMES = {
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "another version": b"AMQP\x00\x00\x09\x01",
    "a frame that is too short": sasl.PROTOCOL + b"\x00\x00\x00\x04\x02\x00\x00\x00",
    "a frame that is too large": sasl.PROTOCOL + OPEN + b"\x7f\xff\xff\xff\x02\x00\x00\x00",
    "a transfer on no link": sasl.PROTOCOL
    + OPEN
    + b"\x00\x00\x00\x10\x02\x00\x00\x00\x00\x53\x14\xc0\x03\x01\x43\x40",
    "a performative described by a list": sasl.PROTOCOL
    + OPEN
    + b"\x00\x00\x00\x0e\x02\x00\x00\x00\x00\xc0\x02\x01\x40\x45",
    "a sign-in of nothing": sasl.SASL_PROTOCOL + b"\x00\x00\x00\x08\x02\x01\x00\x00",
    "zeros": bytes(1_000),
}


@pytest.mark.parametrize("data", FRAMES.values(), ids=list(FRAMES))
def test_what_is_no_amqp_ends_its_connection_alone(data: bytes) -> None:
    with penstock.Realm() as realm:
        with raw(realm) as connection:
            connection.sendall(data)
            until_closed(connection)

        check_lives(realm)


def test_a_frame_that_makes_no_sense_is_answered_with_the_reason() -> None:
    with penstock.Realm() as realm, raw(realm) as connection:
        connection.sendall(sasl.PROTOCOL + b"\x00\x00\x00\x04\x02\x00\x00\x00")

        assert b"amqp:connection:framing-error" in until_closed(connection)


def test_a_peer_that_says_nothing_is_dropped() -> None:
    with penstock.Realm(listen__hello_timeout_s=0.2) as realm, raw(realm) as connection:
        connection.sendall(sasl.SASL_PROTOCOL)

        assert until_closed(connection).startswith(sasl.SASL_PROTOCOL)


def test_a_peer_that_has_gone_silent_is_dropped() -> None:
    with penstock.Realm(listen__idle_timeout_s=0.4) as realm, raw(realm) as connection:
        connection.sendall(sasl.PROTOCOL + OPEN)

        assert b"local-idle-timeout expired" in until_closed(connection)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=200), opened=st.booleans())
def test_bytes_of_strangers_do_no_harm(realm: penstock.Realm, data: bytes, opened: bool) -> None:
    with raw(realm) as connection:
        connection.sendall(sasl.PROTOCOL + (OPEN + BEGIN if opened else b"") + data)
        connection.shutdown(socket.SHUT_WR)
        until_closed(connection)

    check_lives(realm)
