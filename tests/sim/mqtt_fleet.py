"""A fleet that speaks MQTT while its operator changes what holds for it: a channel gets topics and
loses them, rights are taken from who is connected, and the newest of each topic is retained.

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
from tests.sim.mqtt_world import KEEP_ALIVE_S, Device, MqttWorld, Reader, Thermometer, begun

TOPICS = ("j/{line}/{qos}",)
STATES = 16
"""How many states of each device are retained, one after the other."""
GONE = 5
"""One in so many states is empty: what is retained is removed."""
EDITS = 4
"""How often the channel gets topics, or loses them."""
TURNS = 3
"""How often a right is taken, and given again."""
LATE_S = 15.0
"""What the network holds up for longer no device waits for."""
ANYBODY = "*@*"


class Line(Thermometer):
    """Says in JSON what it measures, with QoS 1 and 2."""

    def __init__(self, world: FleetWorld, name: str) -> None:
        super().__init__(world, name)
        self._fleet = world
        self._begun_in: dict[str, int] = {}
        """What was said while the channel had topics for sure, and how often it was edited then."""
        self.in_channel: set[str] = set()
        """What was said and acknowledged between the same two edits."""

    def message(self, qos: int, number: int, text: str, packet_id: int) -> PublishPacket:
        payload = json.dumps({"text": text, "value": number + 0.5}).encode()
        if self._fleet.has_topics:
            self._begun_in[text] = self._fleet.edits
        return PublishPacket(f"j/{self.name}/{qos}", payload, qos, packet_id=packet_id)

    def hears(self, packet: Packet) -> None:
        if isinstance(packet, PubackPacket | PubrecPacket) and not packet.reason.is_failure:
            said = self._in_flight.get(packet.packet_id)
            if said is not None:
                text = str(json.loads(said.payload)["text"])
                if self._begun_in.get(text) == self._fleet.edits:
                    self.in_channel.add(text)
        super().hears(packet)


class LineReader(Reader):
    """Follows what lines say, in whichever channel it is."""

    filters = ("j/+/1", "j/+/2")

    def text_of(self, payload: bytes) -> str:
        return str(json.loads(payload)["text"])


class Stater(Device):
    """Retains one state after the other; some are none."""

    def __init__(self, world: Any, name: str, states: int) -> None:
        super().__init__(world, name)
        self._states = states
        self.said = 0
        """The newest state that it has begun to say."""
        self.sure = 0
        """The newest one that was acknowledged."""

    @property
    def is_done(self) -> bool:
        return self.sure == self._states

    def act(self) -> None:
        if self.said == self.sure and not self.is_done:
            self.said += 1
            self._say()

    def welcomed(self, *, present: bool) -> None:
        if self.said > self.sure:
            self._say()

    def _say(self) -> None:
        payload = str(self.said).encode() if self.said % GONE else b""
        packet_id = 1 + self.said % 7
        self.say(PublishPacket(f"s/{self.name}", payload, 1, packet_id=packet_id, retain=True))

    def hears(self, packet: Packet) -> None:
        if isinstance(packet, PubackPacket) and packet.packet_id == 1 + self.said % 7:
            if packet.reason.is_failure:
                self.hang_up()  # the disk is full, maybe: again
            else:
                self.sure = self.said


class Passing(Device):
    """One without a session that lasts, until it is over."""

    expiry_s = 0
    is_over = False

    @property
    def is_done(self) -> bool:
        return self.is_over


class Onlooker(Passing):
    """Comes, looks at what is retained, and goes again."""

    def __init__(self, world: Any, name: str, told: list[Stater]) -> None:
        super().__init__(world, name)
        self._told = told
        self._floors: dict[str, int] = {}
        """By topic the newest state that was acknowledged before it has asked."""
        self._seen: dict[str, int] = {}
        self._is_last = False

    def welcomed(self, *, present: bool) -> None:
        self._floors = {f"s/{each.name}": each.sure for each in self._told}
        self._seen = {}
        self._is_last = all(each.is_done for each in self._told)
        self.say(SubscribePacket(1, (TopicSubscription("s/+", 1),)))

    def hears(self, packet: Packet) -> None:
        if not isinstance(packet, PublishPacket):
            return
        self.say(PubackPacket(packet.packet_id))
        if packet.payload:
            number, floor = int(packet.payload), self._floors[packet.topic]
            what = f"{packet.topic} is {number}, and was {floor} before"
            assert number >= floor, what
            assert number >= self._seen.get(packet.topic, 0), f"{what}; it goes back"
            self._seen[packet.topic] = number

    def act(self) -> None:
        if not self._is_last and self.world.random.random() < 0.4:
            self.hang_up()
        newest = {topic: number for topic, number in self._floors.items() if number % GONE}
        if self._is_last and self._seen == newest:
            self.is_over = True


class Teller(Passing):
    """Says number after number to whoever may hear them."""

    def __init__(self, world: Any, name: str) -> None:
        super().__init__(world, name)
        self.said = 0

    def act(self) -> None:
        self.said += 1
        self.say(PublishPacket("w/x", str(self.said).encode(), 1, packet_id=1 + self.said % 99))


class Watched(Passing):
    """Hears what the teller says, for as long as it may."""

    def __init__(self, world: Any, name: str, teller: Teller) -> None:
        super().__init__(world, name)
        self._teller = teller
        self._is_subscribed = False
        self.may_until: int | None = None
        """The last number that was said before its right was taken; None: it has the right."""
        self.taken_s = 0.0
        self.heard_since = 0
        """How much it has heard since it was given the right again."""

    def welcomed(self, *, present: bool) -> None:
        self._is_subscribed = False
        self.say(SubscribePacket(1, (TopicSubscription("w/+", 1),)))

    def hears(self, packet: Packet) -> None:
        match packet:
            case SubackPacket(_, reasons):
                self._is_subscribed = not any(each.is_failure for each in reasons)
                if not self._is_subscribed:
                    self.hang_up()
            case PublishPacket(_, payload, _, packet_id):
                self.say(PubackPacket(packet_id))
                number, last = int(payload), self.may_until
                self.heard_since += 1
                assert last is None or number <= last, f"{number} came, it might until {last}"
            case _ if self.may_until is not None and self._is_subscribed:
                late_s = self.world.loop.time() - self.taken_s
                assert late_s < LATE_S, f"its subscription lives {late_s:.1f} s without the right"


class Fleet:
    """The scene."""

    def __init__(self, world: FleetWorld) -> None:
        self._world = world
        self._lines = [Line(world, name) for name in ("k", "l")]
        self._reader = LineReader(world, "reader", self._lines)
        self._staters = [Stater(world, "p", STATES), Stater(world, "q", 3 * GONE)]
        self._onlookers = [Onlooker(world, "o", self._staters)]
        self._teller = Teller(world, "teller")
        self._watched = Watched(world, "watched", self._teller)
        self._running: list[asyncio.Task[None]] = []

    async def prepare(self) -> None:
        await self._world.prepare()
        known = self._world.realm.definition_of("lines")
        await self._world.create("lines", known or Definition(retain_consumed=True))

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        if not self._running:
            world = self._world
            others = (*self._staters, *self._onlookers, self._teller, self._watched)
            self._running = [begun(world, each) for each in (self._reader, *others)]
            self._running += [begun(world, each, waits=True) for each in self._lines]
            outside = self._world.outside
            self._running += [
                outside.create_task(self._edits()),
                outside.create_task(self._turns()),
            ]
        if quiet:
            group.create_task(self._all_done())

    async def _all_done(self) -> None:
        await asyncio.wait(self._running)
        await pass_time(3 * KEEP_ALIVE_S)

    # --- what the operator does ----------------------------------------------------------

    async def _edits(self) -> None:
        """Give the channel its topics, and take them, until each line has said everything."""
        await self._world.may_begin.wait()
        for number in range(EDITS):
            await pass_time(self._world.random.expovariate(1 / 3))
            definition = Definition(retain_consumed=True)
            if number % 2 == 0:
                definition = Definition(retain_consumed=True, topics=TOPICS, payload="json")
            self._world.edits, self._world.has_topics = number, False
            await self._do(lambda realm, it=definition: realm.edit_channel("lines", it))
            self._world.has_topics = bool(definition.topics)

    async def _turns(self) -> None:
        """Take a right, and give it again."""
        watched = self._watched
        for _ in range(TURNS):
            await self._do(lambda realm: realm.access.accounts.grant(*_HEARS))
            watched.heard_since = 0
            while watched.heard_since < 2:
                await pass_time(0.2)
            await self._do(lambda realm: realm.access.accounts.revoke(*_HEARS))
            watched.may_until, watched.taken_s = self._teller.said, self._world.loop.time()
            await pass_time(self._world.random.uniform(1, 2 * LATE_S))
            watched.may_until = None
        self._teller.is_over = watched.is_over = True

    async def _do(self, act: Any) -> None:
        """Have something done, in whichever life of the realm that is."""
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

    # --- what has come of it -------------------------------------------------------------

    async def check(self) -> None:
        channels = {name: await self._world.events(name) for name in ("mqtt", "lines")}
        texts = {
            name: [
                str(json.loads(each.data)["text"])
                for each in events
                if str(each.properties.get("topic")).startswith("j/")
            ]
            for name, events in channels.items()
        }
        there = Counter(texts["mqtt"] + texts["lines"])
        got = Counter(self._reader.got)
        for name in self._reader.wanted:
            assert there[name], f"{name} was acknowledged, and is not there"
            assert got[name], f"{name} has not come"
            if name.split("/")[1] == "2":
                assert there[name] == 1, f"{name} is there {there[name]} times"
                assert got[name] == 1, f"{name} has come {got[name]} times"
        for line in self._lines:
            missing = line.in_channel - set(texts["lines"])
            assert not missing, f"{missing} were said while the channel had topics"
        for each in channels["lines"]:
            text = json.loads(each.data)["text"]
            name, qos, number = text.split("/")
            assert each.properties == {
                "topic": f"j/{name}/{qos}",
                "line": name,
                "qos": qos,
                "text": text,
                "value": int(number) + 0.5,
            }
        for each in channels["mqtt"]:
            assert "value" not in each.properties, "the channel of all topics has no columns of it"
        retained = {
            str(each.properties["topic"]): each.data
            for each in await self._world.events("mqtt-retained")
            if each.data
        }
        assert retained == {f"s/{self._staters[0].name}": str(STATES).encode()}


_HEARS = ("topic", "w/#", ANYBODY, ["subscribe"])


class FleetWorld(MqttWorld):
    """A world with a fleet, in which rights count. Who has them is not on the disk that fails."""

    def __init__(self, seed: int) -> None:
        self.edits = 0
        self.has_topics = False
        """Whether the channel of the lines has topics for sure."""
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
        """All that a channel holds, in order."""
        number = number_of(self.realm, name)
        found = pages_of(self.realm, number)
        return [each async for page in found for each in page]


def fleet_of(seed: int) -> str:
    """The hash of everything that happened. Raises what went wrong."""
    world = FleetWorld(seed)
    return simulate(world.live(), world.random)
