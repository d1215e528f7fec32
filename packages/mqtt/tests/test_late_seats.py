"""A seat that is taken so late that its connection has ended, and its client has come again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import pytest

from packages.cluster.tests.machines import until
from packages.cluster.tests.mqtt_clients import HOUR, Client, reach, subscribe
from packages.cluster.tests.serving import HOST
from packages.server.tests.runtime.living import living, publish
from penstock_core.vocabulary.ports import Buffer
from penstock_mqtt.hub import MqttHub
from penstock_mqtt.messages import Received, body_of_messages
from penstock_mqtt.wire.packets import (
    ConnackPacket,
    ConnectPacket,
    PubackPacket,
    PublishPacket,
    SubscribePacket,
    TopicSubscription,
)
from penstock_server.frontends.native.listener import NativeLimits, NativeListener
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.bodies import body_from
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import pass_time, simulated
from tests.loops import the_loop

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

    hub: MqttHub

    def __init__(
        self, realm: RunningRealm, journal: StepwiseJournal, qos: int, filters: Sequence[str]
    ) -> None:
        self.journal = journal
        self._realm = realm
        self._qos = qos
        self._filters = filters
        self._port = PORT
        self._aside: list[tuple[NativeListener, asyncio.Task[None]]] = []
        self._publishing: list[asyncio.Task[object]] = []

    def publish(self, payload: bytes) -> None:
        """Have a message stored with the next block."""
        message = Received("t", PublishPacket("t", payload, self._qos, packet_id=1), "writer")
        event = body_from(body_of_messages([message]))
        work = publish(self._realm, self.hub.mqtt.topics.channel_id(), event)
        self._publishing.append(the_loop().create_task(work))

    async def begin(self) -> None:
        """Speak MQTT; if it does already, anew, as the next owner would."""
        listener, ready = NativeListener(self._realm, "1", NativeLimits()), asyncio.Event()
        self._aside.append((listener, the_loop().create_task(listener.run(ready))))
        await ready.wait()
        self._port += 1
        self.hub = MqttHub(listener, "mqtt")
        await self.hub.listen(HOST, self._port)

    async def end(self) -> None:
        for listener, running in self._aside:
            await listener.close()
            running.cancel()

    async def leave(self, client: Client) -> None:
        client.transport.abort()
        await until(lambda: not self.hub.connections())

    async def come(self) -> Client:
        """A connection of the client whose session is about to be stored."""
        client = await reach(self._port)
        client.say(ConnectPacket("reader", clean_start=False, properties=HOUR))
        await pass_time(0.1)
        return client

    async def subscribed(self) -> None:
        """Have the client's session be there, and the client away."""
        client = await self.come()
        await client.hears(ConnackPacket)
        await subscribe(client, *self._filters, qos=self._qos)
        await self.leave(client)

    async def let_in(self) -> Client:
        """A connection that is let in, and for which nothing else is done before the next block but
        one is stored."""
        self.journal.hold()
        client = await self.come()
        self.publish(b"0")
        await self.journal.step()
        await client.hears(ConnackPacket)
        return client


@asynccontextmanager
async def stage(qos: int, filters: Sequence[str] = ("t",)) -> AsyncIterator[Stage]:
    journal = StepwiseJournal()
    async with living(journal, MemoryBlobs()) as realm:
        late = Stage(realm, journal, qos, filters=filters)
        await late.begin()
        await late.subscribed()
        yield late
        journal.go_on()
        await late.end()


def heard(client: Client, qos: int) -> list[bytes]:
    """The messages that a client has heard behind its CONNACK, none of which it had heard of."""
    answer, *messages = client.heard
    assert isinstance(answer, ConnackPacket)
    assert not any(message.is_duplicate or message.qos != qos for message in messages)
    return [message.payload for message in messages]


@pytest.mark.spec("M6")
@pytest.mark.parametrize("qos", [1, 2])
@simulated
async def test_a_client_that_comes_again_gets_nothing_from_a_seat_that_it_has_left(
    qos: int,
) -> None:
    """What the seat is given while nobody is there would come behind what it is given later."""
    async with stage(qos) as late:
        client = await late.let_in()
        await late.leave(client)
        late.publish(b"1")
        await late.journal.step()  # the seat is given the first message, and its block waits
        client = await late.come()
        late.journal.go_on()
        await pass_time(1)

        assert heard(client, qos) == [b"0", b"1"]


@pytest.mark.spec("M6", "M13")
@pytest.mark.parametrize("qos", [1, 2])
@simulated
async def test_a_session_goes_on_by_the_connection_that_it_has_and_once(qos: int) -> None:
    """The first client of an owner waits for what it follows; it may be gone by then."""
    async with stage(qos) as late:
        await late.begin()
        client = await late.let_in()
        await late.leave(client)
        client = await late.come()
        late.journal.go_on()
        await pass_time(1)

        assert heard(client, qos) == [b"0"]


@pytest.mark.spec("M6")
@simulated
async def test_a_client_that_subscribes_again_before_its_seat_is_taken_has_one_seat() -> None:
    """As many do whenever they have connected. Of another seat nobody would know."""
    async with stage(1, ("a", "t")) as late:
        client = await late.let_in()  # the seat of the first filter is about to be taken
        client.say(SubscribePacket(1, (TopicSubscription("t", 1),)))
        await pass_time(0.1)
        late.journal.go_on()
        message = await client.hears(PublishPacket)
        client.say(PubackPacket(message.packet_id))
        await pass_time(1)
        await late.leave(client)
        client = await late.come()
        late.publish(b"1")
        await pass_time(1)

        assert heard(client, 1) == [b"1"]


@pytest.mark.spec("M6", "M3")
@simulated
async def test_what_a_lost_connection_has_not_subscribed_to_yet_the_next_one_does_not() -> None:
    async with stage(1) as late:
        client = await late.come()
        await client.hears(ConnackPacket)
        await pass_time(1)
        late.journal.hold()
        wanted = tuple(TopicSubscription(text, 1) for text in ("u", "v"))
        client.say(SubscribePacket(1, wanted))
        await pass_time(0.1)
        await late.leave(client)
        client = await late.come()
        late.journal.go_on()
        await client.hears(ConnackPacket)
        await pass_time(1)

        (connection,) = late.hub.connections()
        assert "v" not in connection.client.filters
        assert not client.heard
