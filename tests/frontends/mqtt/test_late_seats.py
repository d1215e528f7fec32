"""A seat that is taken so late that its connection has ended, and its client has come again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import pytest

from penstock.core.vocabulary.ports import Buffer
from penstock.frontends.mqtt.hub import MqttHub
from penstock.frontends.mqtt.messages import Received, body_of_messages
from penstock.frontends.native.listener import NativeLimits, NativeListener
from penstock.runtime.store.bodies import body_from
from penstock.storage.memory import MemoryBlobs, MemoryJournal
from penstock.testing.loop import pass_time, simulated
from penstock.wire.mqtt.packets import (
    ConnackPacket,
    ConnectPacket,
    PublishPacket,
)
from tests.cluster.machines import the_loop, until
from tests.cluster.serving import HOST
from tests.cluster.test_mqtt import HOUR, Client, reach, subscribe
from tests.runtime.living import living, publish

PORT: Final = 1_883
_ALL: Final = 1_000
"""More blocks than are written."""


class StepwiseJournal(MemoryJournal):
    """From the moment on when it is held, each block waits until it may be stored."""

    def __init__(self) -> None:
        super().__init__()
        self._may = asyncio.Semaphore(_ALL)
        self._waiting = 0

    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        self._waiting += 1
        await self._may.acquire()
        self._waiting -= 1
        return await super().append(expected, block, sync=sync)

    def hold(self) -> None:
        self._may = asyncio.Semaphore(0)

    def go_on(self) -> None:
        for _ in range(_ALL):
            self._may.release()

    async def step(self) -> None:
        """Have a block stored, and the next one wait."""
        await until(lambda: self._waiting > 0)
        self._may.release()
        await pass_time(0.1)


class Stage:
    """A realm that speaks MQTT, and stores when it is told to."""

    def __init__(self, hub: MqttHub, journal: StepwiseJournal, qos: int) -> None:
        self.hub = hub
        self.journal = journal
        self._qos = qos
        self._publishing: list[asyncio.Task[object]] = []

    def publish(self, payload: bytes) -> None:
        """Have a message stored with the next block."""
        message = Received("t", PublishPacket("t", payload, self._qos, 1), "writer")
        event = body_from(body_of_messages([message]))
        work = publish(self.hub.realm, self.hub.channel_id(), event)
        self._publishing.append(the_loop().create_task(work))

    async def leave(self, client: Client) -> None:
        client.transport.abort()
        await until(lambda: not self.hub.connections())

    async def come(self) -> Client:
        """A connection of the client whose session is about to be stored."""
        client = await reach(PORT)
        client.say(ConnectPacket("reader", clean_start=False, properties=HOUR))
        await pass_time(0.1)
        return client

    async def with_a_late_seat(self) -> Client:
        """A connection that waits for its seat, which is taken with the next block but one."""
        client = await self.come()
        await client.hears(ConnackPacket)
        await subscribe(client, "t", qos=self._qos)
        await self.leave(client)
        self.journal.hold()
        client = await self.come()
        self.publish(b"0")
        await self.journal.step()
        await client.hears(ConnackPacket)
        return client


@asynccontextmanager
async def stage(qos: int) -> AsyncIterator[Stage]:
    journal = StepwiseJournal()
    async with living(journal, MemoryBlobs()) as realm:
        listener, ready = NativeListener(realm, "1", NativeLimits()), asyncio.Event()
        running = the_loop().create_task(listener.run(ready))
        await ready.wait()
        hub = MqttHub(listener, "mqtt")
        await hub.listen(HOST, PORT)
        yield Stage(hub, journal, qos)
        journal.go_on()
        await listener.close()
        running.cancel()


@pytest.mark.spec("M6")
@pytest.mark.parametrize("qos", [1, 2])
@simulated
async def test_a_client_that_comes_again_gets_nothing_from_a_seat_that_it_has_left(
    qos: int,
) -> None:
    """What the seat is given while nobody is there would come behind what it is given later."""
    async with stage(qos) as found:
        client = await found.with_a_late_seat()
        await found.leave(client)
        found.publish(b"1")
        await found.journal.step()  # the seat is given the first message, and its block waits
        client = await found.come()
        found.journal.go_on()
        await pass_time(1)

        assert [type(each) for each in client.heard] == [ConnackPacket, *[PublishPacket] * 2]
        first, second = client.heard[1:]
        assert (first.payload, second.payload) == (b"0", b"1")
        assert (first.qos, first.is_duplicate, second.is_duplicate) == (qos, False, False)
