"""Bytes of messages that receivers do not settle are limited, for a connection and for a user."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Message, Timeout

import penstock
from packages.amqp.tests.clients import WAIT_S
from packages.amqp.tests.conftest import Connect
from packages.amqp.tests.serving import listen_with
from penstock_amqp.kept_messages import (
    ConnectionKept,
    KeptMessages,
    LinkRoom,
    UserKept,
)
from penstock_core.ids.ids import IdSet

DATA = "x" * 4_000


def send(client: Any, *numbers: int) -> None:
    sender = client.sender("news", "topic")
    for number in numbers:
        sender.send(Message(body=f"{number} {DATA}", durable=True))
    sender.close()


def received(receiver: Any) -> list[int]:
    """What comes by itself: receivers are told of nothing else, so that the wait is short."""
    event_ids: list[int] = []
    while True:
        try:
            message = receiver.receive(WAIT_S if not event_ids else 0.3)
        except Timeout:
            return event_ids
        event_ids.append(int(message.body.split()[0]))


@pytest.mark.parametrize("durable", [False, True])
def test_a_receiver_gets_no_more_bytes_until_it_settles_some(
    realm: penstock.Realm, connect: Connect, *, durable: bool
) -> None:
    listen_with(realm, kept_bytes_max=64_000)
    client = connect("me")
    receiver = client.receiver("news", "topic", credit=100, name="sub", durable=durable)
    other_receiver = client.receiver("news", "topic", credit=100, name="other", durable=durable)
    send(client, *range(30))

    hoarded = received(receiver)
    assert hoarded == [*range(len(hoarded))]
    assert 3 <= len(hoarded) <= 8, "at most half of the room of its connection"
    for number in range(30):
        assert int(other_receiver.receive(WAIT_S).body.split()[0]) == number
        other_receiver.accept()

    for _ in hoarded:
        receiver.accept()
    for number in range(len(hoarded), 30):
        assert int(receiver.receive(WAIT_S).body.split()[0]) == number
        receiver.accept()


def test_connections_of_a_user_share_their_room_and_each_goes_on(
    realm: penstock.Realm, connect: Connect
) -> None:
    listen_with(realm, user_kept_bytes_max=20_000)
    one, other_client = connect("one"), connect("other")
    hoards = one.receiver("news", "topic", credit=100)
    send(one, *range(10))
    hoarded = received(hoards)
    assert len(hoarded) <= 3

    settles = other_client.receiver("news", "topic", credit=100)
    send(other_client, 10, 11, 12)
    for number in (10, 11, 12):
        assert int(settles.receive(WAIT_S).body.split()[0]) == number
        settles.accept()

    for _ in hoarded:
        hoards.accept()
    assert int(hoards.receive(WAIT_S).body.split()[0]) == len(hoarded)


def test_a_message_larger_than_all_room_comes_when_nothing_else_is_kept(
    realm: penstock.Realm, connect: Connect
) -> None:
    listen_with(realm, kept_bytes_max=1_000)
    client = connect()
    receiver = client.receiver("news", "topic", credit=100)
    send(client, 0, 1, 2)

    for number in range(3):
        assert received(receiver) == [number]
        receiver.accept()


def test_links_and_connections_have_half_of_what_the_others_leave() -> None:
    user, mebibyte = UserKept(), 1 << 20
    woken: list[LinkRoom] = []
    for links in range(12):
        connection = ConnectionKept(user)
        for _ in range(5):
            room = LinkRoom(connection, lambda: None)
            while room.free_bytes >= mebibyte:
                room.kept(mebibyte)
        assert connection.bytes <= 64 * mebibyte, links
    assert 200 * mebibyte < user.bytes <= 256 * mebibyte

    last = LinkRoom(ConnectionKept(user), lambda: woken.append(last))
    assert last.is_half_free, "a connection without any may have a message"
    last.kept(16 * mebibyte)
    last.sent(0)
    assert woken == []
    last.kept(-16 * mebibyte)
    assert woken == [last]


def test_a_link_that_ends_keeps_nothing() -> None:
    user = UserKept()
    connection = ConnectionKept(user)
    room = LinkRoom(connection, lambda: None)
    kept = KeptMessages()
    kept.set_room(room)
    kept.by_id.update({event_id: (None, event_id, 0, 100) for event_id in range(10)})  # type: ignore[misc]
    kept.count_added(1_000)
    kept.forget([3, 99])
    kept.forget_all(IdSet.from_ids([4, 5]))
    assert user.bytes == 700

    kept.close()

    assert (user.bytes, connection.bytes, room.in_flight, len(kept)) == (0, 0, 0, 0)
