"""The realm's limits as they hold for AMQP: each told with the condition that is meant for it."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from proton import Connection, ConnectionException, Message, Transport
from proton.utils import BlockingConnection, LinkDetached

import penstock
from packages.amqp.tests.clients import WAIT_S, Client, texts
from packages.amqp.tests.frames import (
    AMQP,
    BEGIN,
    OPEN,
    frame,
    frame_of,
    performative,
)
from packages.server.tests.runtime.living import events, living
from penstock_amqp.connection import AmqpHub
from penstock_amqp.wire.types import UInt, UShort
from penstock_core.vocabulary.definitions import Definition
from penstock_server.frontends.native.listener import NativeLimits, NativeListener
from penstock_server.runtime.access.quota import ConnectionLimits
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import simulated


def answers(url: str, data: bytes) -> bytes:
    """Return all bytes that the realm sends until it closes the connection."""
    where = urlsplit(url)
    assert where.port is not None
    received = b""
    with socket.create_connection(("127.0.0.1", where.port), WAIT_S) as raw:
        raw.sendall(data)
        while part := raw.recv(1 << 16):
            received += part
    return received


def conditions(heard: bytes) -> list[bytes]:
    return re.findall(rb"amqp:[a-z:-]*(?:error|exceeded)", heard)


@pytest.mark.parametrize("signs_in", [True, False])
def test_a_user_with_too_many_connections_is_told_so(*, signs_in: bool) -> None:
    with penstock.Realm(limits__connections_per_user_max=1) as realm:
        url = realm.listen_amqp()
        if signs_in:
            url = url.replace("//", "//bob:any@")
        options = {"timeout": WAIT_S, "sasl_enabled": signs_in, "allowed_mechs": "PLAIN"}
        first = BlockingConnection(url, **options)

        with pytest.raises(ConnectionException, match=r"resource-limit.*connections_per_user_max"):
            BlockingConnection(url, **options)

        first.create_sender("jobs").send(Message(body="a"))
        first.close()
        BlockingConnection(url, **options).close()


def test_a_realm_with_all_connections_it_may_have_hangs_up() -> None:
    with penstock.Realm(listen__connections_max=1) as realm, Client(realm.listen_amqp()) as client:
        with suppress(ConnectionResetError):
            assert answers(realm.listen_amqp(), AMQP) == b""
        client.sender("jobs").send(Message(body="a"))


def test_a_realm_with_all_channels_it_may_have_makes_no_more() -> None:
    with (
        penstock.Realm(limits__channels_max=1) as realm,
        Client(realm.listen_amqp()) as client,
    ):
        client.sender("jobs")

        with pytest.raises(LinkDetached, match=r"resource-limit-exceeded.*limits\.channels_max"):
            client.sender("more")


def test_a_connection_has_no_more_receivers_than_it_may() -> None:
    with (
        penstock.Realm(limits__subscriptions_per_connection_max=2) as realm,
        Client(realm.listen_amqp()) as client,
    ):
        sender = client.sender("jobs")
        client.receiver("jobs", credit=0)
        ended = client.receiver("jobs", credit=0)
        named = r"resource-limit-exceeded.*limits\.subscriptions_per_connection_max"
        with pytest.raises(LinkDetached, match=named):
            client.receiver("jobs")

        ended.close()
        sender.send(Message(body="a"))
        assert texts(client.receiver("jobs", credit=1), 1) == ["a"]


def test_a_channel_with_all_durables_it_may_have_gets_no_more() -> None:
    with (
        penstock.Realm(limits__durables_per_channel_max=1) as realm,
        Client(realm.listen_amqp()) as client,
    ):
        client.receiver("news", "topic", durable=True, name="one")
        with pytest.raises(
            LinkDetached, match=r"resource-limit-exceeded.*limits\.durables_per_channel_max"
        ):
            client.receiver("news", "topic", durable=True, name="two")


class Sending(asyncio.Protocol):
    """A client of Proton's own that sends messages as long as it has credit."""

    def __init__(self, messages: int) -> None:
        self.most_credit = 0
        self.done = asyncio.Event()
        self._left = list(range(messages))
        self._deliveries: list[Any] = []
        self._engine = Transport(Transport.CLIENT)
        connection = Connection()
        self._engine.bind(connection)
        connection.open()
        session = connection.session()
        session.open()
        self._link = session.sender("s")
        self._link.target.address = "jobs"
        self._link.open()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._engine.push(data)
        self._send()

    def _send(self) -> None:
        self.most_credit = max(self.most_credit, self._link.credit)
        while self._left and self._link.credit > 0:
            number = self._left.pop(0)
            self._deliveries.append(self._link.delivery(f"{number}"))
            self._link.send(Message(body=number).encode())
            self._link.advance()
        while (pending := self._engine.pending()) > 0:
            self._transport.write(self._engine.peek(pending))
            self._engine.pop(pending)
        if not self._left and all(delivery.settled for delivery in self._deliveries):
            self.done.set()


@simulated
async def test_who_sends_more_a_second_than_allowed_is_made_to_wait_and_loses_nothing() -> None:
    """A second's worth at once, and then as many a second; what it has credit for may come early,
    and is waited for afterwards."""
    loop = asyncio.get_running_loop()
    per_s, seconds = 100, 10
    count = per_s + per_s * seconds
    limits = NativeLimits(each=ConnectionLimits(requests_per_s_max=per_s))
    async with living(MemoryJournal(), MemoryBlobs()) as realm, asyncio.TaskGroup() as group:
        kept = Definition(type="persistent", retain_consumed=True)
        jobs = (await realm.create_channel("jobs", kept)).channel
        listener, ready = NativeListener(realm, "test", limits), asyncio.Event()
        listening = group.create_task(listener.run(ready))
        await ready.wait()
        await loop.create_server(AmqpHub(listener).connection, "127.0.0.1", 5672)
        began_s = loop.time()

        _, client = await loop.create_connection(lambda: Sending(count), "127.0.0.1", 5672)
        async with asyncio.timeout(60):
            await client.done.wait()

        assert seconds - 1 <= loop.time() - began_s <= seconds + 1
        assert client.most_credit == per_s
        assert len(await events(realm, jobs)) == count
        listening.cancel()


def test_a_frame_larger_than_was_agreed_ends_the_connection() -> None:
    begin = (
        AMQP
        + frame_of(OPEN, "c", "h", UInt(1 << 20))
        + frame_of(BEGIN, None, UInt(0), UInt(9), UInt(9))
    )
    with penstock.Realm() as realm:
        heard = answers(realm.listen_amqp(), begin + frame(bytes(65_529)))

        assert performative(OPEN)[:3] in heard
        assert conditions(heard) == [b"amqp:connection:framing-error"]


def test_a_session_more_than_was_agreed_ends_the_connection() -> None:
    def session(number: int) -> bytes:
        begin = performative(BEGIN, b"\x40", *[b"\x52\x09"] * 3)
        return frame(begin, channel=number)

    opening = AMQP + frame_of(OPEN, "c", "h", UInt(65_536), UShort(65_535))
    with penstock.Realm() as realm:
        heard = answers(realm.listen_amqp(), opening + session(1_999) + session(2_000))

        assert b"channel 2000" in heard
        assert conditions(heard) == [b"amqp:connection:framing-error"]
