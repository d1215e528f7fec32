"""Turns between a flood over AMQP and others, counted in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from packages.amqp.tests.dialogue import attach_sender
from packages.amqp.tests.frames import AMQP, BEGIN, OPEN, TRANSFER, frame_of, terminus
from packages.client.tests.simulated import World, in_world
from packages.server.tests.frontends.publishers import Publisher, watched
from packages.server.tests.frontends.wires import Wire
from penstock_amqp.connection import LATELY_S, TURN_BYTES, AmqpHub
from penstock_amqp.wire.types import UInt, UShort
from penstock_core.vocabulary.definitions import Definition
from penstock_testing.loop import pass_time, simulated

MESSAGES = 2_000
MESSAGE = b"\x00\x53\x75\xa0\x64" + b"x" * 100


class AmqpWire(Wire):
    """Keeps nothing of what a connection writes."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass


class AmqpPublisher:
    """A client of AMQP that sends messages and wants no answers."""

    def __init__(self, hub: AmqpHub, container: str, channel: str) -> None:
        self.wire = AmqpWire()
        self.connection = hub.connection()
        self.connection.connection_made(self.wire)
        self._sent = 0
        window = UInt(1 << 20)
        target = terminus(0x29, channel, capability="topic")
        opened = frame_of(OPEN, container, "host", UInt(65_536), UShort(10), UInt(30_000))
        self.say(AMQP + opened + frame_of(BEGIN, None, UInt(0), window, window))
        self.say(attach_sender("s", 0, target=target))

    def say(self, data: bytes) -> None:
        self.connection.data_received(data)

    def publish(self, count: int) -> None:
        """In one piece, settled already."""
        first, self._sent = self._sent, self._sent + count
        self.say(
            b"".join(
                frame_of(TRANSFER, UInt(0), UInt(n), b"%d" % n, UInt(0), True, payload=MESSAGE)
                for n in range(first, first + count)
            )
        )


async def publishers(world: World) -> tuple[AmqpPublisher, AmqpPublisher, Publisher]:
    realm = world.listener.realm
    for name in ("flooded", "quiet"):
        await realm.create_channel(name, Definition(type="reliable"))
    hub = AmqpHub(world.listener)
    both_publishers = (
        AmqpPublisher(hub, "flooding", "flooded"),
        AmqpPublisher(hub, "other", "quiet"),
    )
    native = Publisher(world, "native", 2)
    await pass_time(1.0)
    return *both_publishers, native


async def stored(world: World, name: str) -> int:
    return (await world.listener.realm.describe_channel(name, "channel")).events


@pytest.mark.parametrize("kind", ["amqp", "native"])
@simulated
async def test_others_have_their_turn_between_pieces_of_a_flood(kind: str) -> None:
    async with watched() as (world, realm):
        flooding, amqp, native = await publishers(world)
        quiet = amqp if kind == "amqp" else native
        quiet.publish(1)
        flooding.publish(MESSAGES)
        assert not flooding.wire.is_read, "it is not read while there is a rest"
        quiet.publish(1)
        await pass_time(1.0)

        order = realm.arrivals
        events = [count for number, count in order if number == 1]
        assert sum(events) == MESSAGES
        assert max(events) <= TURN_BYTES // len(MESSAGE)
        second = [number for number, _ in order].index(2, 1)
        overtaking = sum(count for number, count in order[:second] if number == 1)
        assert overtaking <= 2 * TURN_BYTES // len(MESSAGE)
        assert flooding.wire.is_read
        assert (await stored(world, "flooded"), await stored(world, "quiet")) == (MESSAGES, 2)


@simulated
async def test_where_nobody_else_is_heard_all_is_taken_in_at_once() -> None:
    async with watched() as (world, realm):
        flooding, quiet, _ = await publishers(world)
        quiet.publish(1)
        await pass_time(2 * LATELY_S)
        flooding.publish(MESSAGES)
        await asyncio.sleep(0)

        assert realm.arrivals == [(2, 1), (1, MESSAGES)]
        assert flooding.wire.is_read


@in_world
async def test_a_rest_is_taken_in_when_the_connection_is_lost(world: World) -> None:
    flooding, quiet, _ = await publishers(world)
    quiet.publish(1)
    flooding.publish(MESSAGES)
    flooding.connection.connection_lost(None)
    await pass_time(1.0)

    assert await stored(world, "flooded") == MESSAGES
