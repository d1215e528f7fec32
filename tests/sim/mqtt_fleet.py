"""A fleet of MQTT devices whose operator changes settings meanwhile: a channel gains and loses
topics, a connected client loses a right, and the newest message of each topic is retained.

The realm, its disk and the network are those of :mod:`tests.sim.mqtt_world`.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from packages.mqtt.tests.internal_stores import number_of
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.ports import inline
from penstock_mqtt.wire.packets import (
    Packet,
    PubackPacket,
    PublishPacket,
    PubrecPacket,
    SubackPacket,
    SubscribePacket,
    TopicSubscription,
)
from penstock_server.runtime.access.access import AccessControl, AccessRules
from penstock_server.runtime.access.accounts import Accounts
from penstock_server.runtime.access.audit import Audit
from penstock_server.runtime.access.logins import Logins
from penstock_server.runtime.access.tokens import TokenRules, Tokens
from penstock_server.runtime.reading.stretches import pages_of
from penstock_server.runtime.realm import RunningRealm
from penstock_server.storage.embedded import Embedded
from penstock_server.storage.memory import MemoryRegistry
from penstock_testing.loop import pass_time, simulate
from tests.sim.mqtt_world import KEEP_ALIVE_S, Device, MqttWorld, Reader, Thermometer, start_device

TOPICS = ("j/{line}/{qos}",)
STATES = 16
"""Number of states that each device retains, one after the other."""
EMPTY_EVERY = 5
"""One in this many states is empty, which removes the retained message."""
EDITS = 4
"""Number of times that the channel gains or loses topics."""
TURNS = 3
"""Number of times that a right is revoked and granted again."""
LATE_S = 15.0
"""Longest delay of data that a device tolerates."""
ANYBODY = "*@*"


class Line(Thermometer):
    """Publishes its measurements as JSON, with QoS 1 and 2."""

    def __init__(self, world: FleetWorld, name: str) -> None:
        super().__init__(world, name)
        self._fleet = world
        self._edits_before: dict[str, int] = {}
        """Number of edits at each publish, by text, of those published while the channel certainly
        had topics."""
        self.in_channel: set[str] = set()
        """Texts published and acknowledged between the same two edits."""

    def message(self, qos: int, number: int, text: str, packet_id: int) -> PublishPacket:
        payload = json.dumps({"text": text, "value": number + 0.5}).encode()
        if self._fleet.has_topics:
            self._edits_before[text] = self._fleet.edits
        return PublishPacket(f"j/{self.name}/{qos}", payload, qos, packet_id=packet_id)

    def receive(self, packet: Packet) -> None:
        if isinstance(packet, PubackPacket | PubrecPacket) and not packet.reason.is_failure:
            message = self._in_flight.get(packet.packet_id)
            if message is not None:
                text = str(json.loads(message.payload)["text"])
                if self._edits_before.get(text) == self._fleet.edits:
                    self.in_channel.add(text)
        super().receive(packet)


class LineReader(Reader):
    """Receives the messages of the lines, in whichever channel they are stored."""

    filters = ("j/+/1", "j/+/2")

    def text_of(self, payload: bytes) -> str:
        return str(json.loads(payload)["text"])


class StatePublisher(Device):
    """Retains one state after the other; some states are empty."""

    def __init__(self, world: Any, name: str, states: int) -> None:
        super().__init__(world, name)
        self._states = states
        self.published = 0
        """The newest state that it has start_device to publish."""
        self.acknowledged = 0
        """The newest state that was acknowledged."""

    @property
    def is_done(self) -> bool:
        return self.acknowledged == self._states

    def act(self) -> None:
        if self.published == self.acknowledged and not self.is_done:
            self.published += 1
            self._publish_state()

    def accepted(self, *, present: bool) -> None:
        if self.published > self.acknowledged:
            self._publish_state()

    def _publish_state(self) -> None:
        payload = str(self.published).encode() if self.published % EMPTY_EVERY else b""
        packet_id = 1 + self.published % 7
        self.send(PublishPacket(f"s/{self.name}", payload, 1, packet_id=packet_id, retain=True))

    def receive(self, packet: Packet) -> None:
        if isinstance(packet, PubackPacket) and packet.packet_id == 1 + self.published % 7:
            if packet.reason.is_failure:
                self.hang_up()  # the disk may be full: publish again
            else:
                self.acknowledged = self.published


class Sessionless(Device):
    """A device whose session ends with its connection."""

    expiry_s = 0
    is_finished = False

    @property
    def is_done(self) -> bool:
        return self.is_finished


class RetainedReader(Sessionless):
    """Connects, receives the retained messages, and disconnects."""

    def __init__(self, world: Any, name: str, publishers: list[StatePublisher]) -> None:
        super().__init__(world, name)
        self._publishers = publishers
        self._floors: dict[str, int] = {}
        """The newest acknowledged state of each topic before it subscribed."""
        self._seen: dict[str, int] = {}
        self._is_last = False

    def accepted(self, *, present: bool) -> None:
        self._floors = {
            f"s/{publisher.name}": publisher.acknowledged for publisher in self._publishers
        }
        self._seen = {}
        self._is_last = all(publisher.is_done for publisher in self._publishers)
        self.send(SubscribePacket(1, (TopicSubscription("s/+", 1),)))

    def receive(self, packet: Packet) -> None:
        if not isinstance(packet, PublishPacket):
            return
        self.send(PubackPacket(packet.packet_id))
        if packet.payload:
            number, floor = int(packet.payload), self._floors[packet.topic]
            message = f"{packet.topic} is {number}, and was {floor} before"
            assert number >= floor, message
            assert number >= self._seen.get(packet.topic, 0), f"{message}; it goes back"
            self._seen[packet.topic] = number

    def act(self) -> None:
        if not self._is_last and self.world.random.random() < 0.4:
            self.hang_up()
        newest = {topic: number for topic, number in self._floors.items() if number % EMPTY_EVERY}
        if self._is_last and self._seen == newest:
            self.is_finished = True


class NumberPublisher(Sessionless):
    """Publishes increasing numbers."""

    def __init__(self, world: Any, name: str) -> None:
        super().__init__(world, name)
        self.published = 0

    def act(self) -> None:
        self.published += 1
        self.send(
            PublishPacket("w/x", str(self.published).encode(), 1, packet_id=1 + self.published % 99)
        )


class RestrictedReader(Sessionless):
    """Receives the numbers while it has the right to."""

    def __init__(self, world: Any, name: str, teller: NumberPublisher) -> None:
        super().__init__(world, name)
        self._number_publisher = teller
        self._is_subscribed = False
        self.last_allowed: int | None = None
        """The last number published before its right was revoked; None while it has the right."""
        self.revoked_at_s = 0.0
        self.received_since_grant = 0
        """Number of messages received since the right was granted again."""

    def accepted(self, *, present: bool) -> None:
        self._is_subscribed = False
        self.send(SubscribePacket(1, (TopicSubscription("w/+", 1),)))

    def receive(self, packet: Packet) -> None:
        match packet:
            case SubackPacket(_, reasons):
                self._is_subscribed = not any(reason.is_failure for reason in reasons)
                if not self._is_subscribed:
                    self.hang_up()
            case PublishPacket(_, payload, _, packet_id):
                self.send(PubackPacket(packet_id))
                number, last = int(payload), self.last_allowed
                self.received_since_grant += 1
                assert last is None or number <= last, f"{number} came, it might until {last}"
            case _ if self.last_allowed is not None and self._is_subscribed:
                late_s = self.world.loop.time() - self.revoked_at_s
                assert late_s < LATE_S, f"its subscription lives {late_s:.1f} s without the right"


class Fleet:
    """The scene of the fleet."""

    def __init__(self, world: FleetWorld) -> None:
        self._world = world
        self._lines = [Line(world, name) for name in ("k", "l")]
        self._reader = LineReader(world, "reader", self._lines)
        self._state_publishers = [
            StatePublisher(world, "p", STATES),
            StatePublisher(world, "q", 3 * EMPTY_EVERY),
        ]
        self._retained_readers = [RetainedReader(world, "o", self._state_publishers)]
        self._number_publisher = NumberPublisher(world, "teller")
        self._restricted = RestrictedReader(world, "watched", self._number_publisher)
        self._running: list[asyncio.Task[None]] = []

    async def prepare(self) -> None:
        await self._world.prepare()
        definition = self._world.realm.definition_of("lines")
        await self._world.create("lines", definition or Definition(retain_consumed=True))

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        if not self._running:
            world = self._world
            other_devices = (
                *self._state_publishers,
                *self._retained_readers,
                self._number_publisher,
                self._restricted,
            )
            self._running = [
                start_device(world, device) for device in (self._reader, *other_devices)
            ]
            self._running += [start_device(world, device, waits=True) for device in self._lines]
            outside = self._world.outside
            self._running += [
                outside.create_task(self._edit_topics()),
                outside.create_task(self._toggle_right()),
            ]
        if quiet:
            group.create_task(self._all_done())

    async def _all_done(self) -> None:
        await asyncio.wait(self._running)
        await pass_time(3 * KEEP_ALIVE_S)

    # --- the operator's changes ----------------------------------------------------------

    async def _edit_topics(self) -> None:
        """Add topics to the channel and remove them, in turn."""
        await self._world.may_begin.wait()
        for edit in range(EDITS):
            await pass_time(self._world.random.expovariate(1 / 3))
            definition = Definition(retain_consumed=True)
            if edit % 2 == 0:
                definition = Definition(retain_consumed=True, topics=TOPICS, payload="json")
            self._world.edits, self._world.has_topics = edit, False
            await self._do(
                lambda realm, definition=definition: realm.edit_channel("lines", definition)
            )
            self._world.has_topics = bool(definition.topics)

    async def _toggle_right(self) -> None:
        """Grant and revoke a right in turn."""
        restricted = self._restricted
        for _ in range(TURNS):
            await self._do(lambda realm: realm.access.accounts.grant(*_SUBSCRIBE_RIGHT))
            restricted.received_since_grant = 0
            while restricted.received_since_grant < 2:
                await pass_time(0.2)
            await self._do(lambda realm: realm.access.accounts.revoke(*_SUBSCRIBE_RIGHT))
            restricted.last_allowed, restricted.revoked_at_s = (
                self._number_publisher.published,
                self._world.loop.time(),
            )
            await pass_time(self._world.random.uniform(1, 2 * LATE_S))
            restricted.last_allowed = None
        self._number_publisher.is_finished = restricted.is_finished = True

    async def _do(self, act: Any) -> None:
        """Repeat an operation until it succeeds, in whichever life of the realm."""
        while True:
            world = self._world
            if not world.is_dark and hasattr(world, "realm"):
                try:
                    async with asyncio.timeout(5):
                        await act(world.realm)
                except (PenstockError, TimeoutError):
                    pass
                else:
                    return
            await pass_time(0.3)

    # --- checks at the end ---------------------------------------------------------------

    async def check(self) -> None:
        channels = {name: await self._world.events(name) for name in ("mqtt", "lines")}
        texts = {
            name: [
                str(json.loads(event.data)["text"])
                for event in events
                if str(event.properties.get("topic")).startswith("j/")
            ]
            for name, events in channels.items()
        }
        stored = Counter(texts["mqtt"] + texts["lines"])
        received = Counter(self._reader.received)
        for name in self._reader.expected:
            assert stored[name], f"{name} was acknowledged, and is not there"
            assert received[name], f"{name} has not come"
            if name.split("/")[1] == "2":
                assert stored[name] == 1, f"{name} is there {stored[name]} times"
                assert received[name] == 1, f"{name} has come {received[name]} times"
        for line in self._lines:
            missing = line.in_channel - set(texts["lines"])
            assert not missing, f"{missing} were said while the channel had topics"
        for event in channels["lines"]:
            text = json.loads(event.data)["text"]
            name, qos, number = text.split("/")
            assert event.properties == {
                "topic": f"j/{name}/{qos}",
                "line": name,
                "qos": qos,
                "text": text,
                "value": int(number) + 0.5,
            }
        for event in channels["mqtt"]:
            assert "value" not in event.properties, "the channel of all topics has no columns of it"
        retained = {
            str(event.properties["topic"]): event.data
            for event in await self._world.events("mqtt-retained")
            if event.data
        }
        assert retained == {f"s/{self._state_publishers[0].name}": str(STATES).encode()}


_SUBSCRIBE_RIGHT = ("topic", "w/#", ANYBODY, ["subscribe"])


class FleetWorld(MqttWorld):
    """A world with a fleet and access rights. The rights are not stored on the failing disk."""

    def __init__(self, seed: int) -> None:
        self.edits = 0
        self.has_topics = False
        """Whether the channel of the lines certainly has topics."""
        super().__init__(seed, Fleet)
        self._records = MemoryRegistry()

    async def open_realm(self, store: Embedded) -> RunningRealm:
        realm = await super().open_realm(store)
        access = realm.access = AccessControl(
            Accounts(self._records, self.clock, inline),
            Tokens(TokenRules(), lambda _: b"", self.clock, offload=inline),
            Audit(self.clock),
            logins=Logins(self.clock),
            offload=inline,
            rules=AccessRules("optional"),
            clock=self.clock,
        )
        access.definition_of = realm.definition_of
        await access.begin()
        await access.accounts.grant("realm", "", ANYBODY, rights=["access"])
        for topic in ("j/#", "s/#"):
            await access.accounts.grant("topic", topic, ANYBODY, rights=["full"])
        await access.accounts.grant("topic", "w/#", ANYBODY, rights=["publish"])
        return realm

    async def events(self, name: str) -> list[Any]:
        """Return all events of a channel in order."""
        number = number_of(self.realm, name)
        pages = pages_of(self.realm, number)
        return [event async for page in pages for event in page]


def fleet_of(seed: int) -> str:
    """Return the hash of the trace. Raises the error of a failed life."""
    world = FleetWorld(seed)
    return simulate(world.live(), world.random)
