"""While the realm has too much to store or to seal, publishers wait. Others do not: consumers
acknowledge, and an administrator is answered."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Final, NamedTuple

import pytest

from packages.amqp.tests.frames import (
    message,
    opened,
    receiver,
    sender,
    terminus,
    transfer,
)
from penstock_amqp.connection import AmqpConnection, AmqpHub
from penstock_mqtt.wire.packets import PublishPacket, SubscribePacket, TopicSubscription
from penstock_server.frontends.native.connection import Connection
from tests.fuzz import connections
from tests.fuzz.amqp import AmqpServed, pieces
from tests.fuzz.connections import TURNS_MAX, Served, Wire
from tests.fuzz.mqtt_connections import MqttServed, conversation


class Case(NamedTuple):
    kind: type[Served]
    publisher: bytes
    reader: bytes


CASES: Final = {
    "native": Case(Served, connections.conversations()[0], connections.conversations()[4]),
    "amqp": Case(
        AmqpServed,
        opened()
        + sender("s", 0, terminus(0x29, "work", capability="queue"))
        + transfer(0, 0, message()),
        opened() + receiver("r", 0, terminus(0x28, "work", capability="queue")),
    ),
    "mqtt": Case(
        MqttServed,
        conversation(PublishPacket("a/b", b"x", 1, packet_id=1)),
        conversation(SubscribePacket(2, (TopicSubscription("a/#", 1),))),
    ),
}


class Transport(Wire):
    """A transport that notes whether it is read."""

    is_read = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


def amqp_peer(served: Served) -> AmqpConnection:
    return AmqpHub(served.listener).connection()


async def talk(served: Served, data: bytes) -> Transport:
    """Say something on a connection of its own, which stays."""
    transport = Transport()
    if type(served) is Served:
        connection = Connection(served.listener)
        connection.connection_made(transport)
        room = connection.get_buffer(-1)
        room[: len(data)] = data
        connection.buffer_updated(len(data))
    else:
        peer = served.hub.connection() if isinstance(served, MqttServed) else amqp_peer(served)
        peer.connection_made(transport)
        for chunk in pieces(data) if isinstance(served, AmqpServed) else [data]:
            peer.data_received(chunk)
            await turns()
    await turns()
    return transport


async def turns() -> None:
    for _ in range(TURNS_MAX):
        await asyncio.sleep(0)


@pytest.mark.parametrize("protocol", CASES)
def test_who_sends_no_events_is_read_while_publishers_wait(protocol: str) -> None:
    case = CASES[protocol]
    with closing(case.kind()) as served:
        served.handle(case.reader)  # there is a realm from now on
        served.listener.pending_bytes = served.listener.realm.limits.backlog_bytes_max + 1
        publisher = served.loop.run_until_complete(talk(served, case.publisher))
        outcome = served.loop.run_until_complete(talk(served, case.reader))

        assert not publisher.is_read
        assert outcome.is_read
