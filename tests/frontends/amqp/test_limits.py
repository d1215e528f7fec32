"""The realm's limits as they hold for AMQP: each told with the condition that is meant for it."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from time import perf_counter
from urllib.parse import urlsplit

import pytest
from proton import ConnectionException, Message
from proton.utils import BlockingConnection, LinkDetached

import penstock
from penstock.wire.amqp.types import UInt, UShort
from tests.frontends.amqp.clients import WAIT_S, Client, texts
from tests.frontends.amqp.frames import (
    AMQP,
    BEGIN,
    OPEN,
    frame,
    performative,
    said,
)


def answers(url: str, data: bytes) -> bytes:
    """All the realm says to somebody until it hangs up."""
    where = urlsplit(url)
    assert where.port is not None
    found = b""
    with socket.create_connection(("127.0.0.1", where.port), WAIT_S) as raw:
        raw.sendall(data)
        while part := raw.recv(1 << 16):
            found += part
    return found


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


def test_who_sends_more_a_second_than_allowed_is_made_to_wait_and_loses_nothing() -> None:
    """A second's worth at once, and then as many a second."""
    per_s, seconds = 100, 1.5
    count = per_s + int(per_s * seconds)
    with (
        penstock.Realm(limits__requests_per_s_max=per_s) as realm,
        Client(realm.listen_amqp()) as client,
    ):
        begun_s = perf_counter()
        sender = client.sender("jobs")
        assert sender.credit <= per_s
        for number in range(count):
            sender.send(Message(body=number))
        took_s = perf_counter() - begun_s

        assert took_s >= seconds
        assert texts(client.receiver("jobs", credit=count), count) == list(range(count))


def test_a_frame_larger_than_was_agreed_ends_the_connection() -> None:
    begin = (
        AMQP + said(OPEN, "c", "h", UInt(1 << 20)) + said(BEGIN, None, UInt(0), UInt(9), UInt(9))
    )
    with penstock.Realm() as realm:
        heard = answers(realm.listen_amqp(), begin + frame(bytes(65_529)))

        assert performative(OPEN)[:3] in heard
        assert conditions(heard) == [b"amqp:connection:framing-error"]


def test_a_session_more_than_was_agreed_ends_the_connection() -> None:
    def session(number: int) -> bytes:
        begin = performative(BEGIN, b"\x40", *[b"\x52\x09"] * 3)
        return frame(begin, channel=number)

    opening = AMQP + said(OPEN, "c", "h", UInt(65_536), UShort(65_535))
    with penstock.Realm() as realm:
        heard = answers(realm.listen_amqp(), opening + session(1_999) + session(2_000))

        assert b"channel 2000" in heard
        assert conditions(heard) == [b"amqp:connection:framing-error"]
