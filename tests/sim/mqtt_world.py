"""Devices that speak MQTT to a realm on a failing disk, behind a network that breaks.

A device remembers what the standard has it remember: what it has sent and what was not answered,
and which messages of QoS 2 it holds. It is the oracle: what it was promised is to come true.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import copy_context
from random import Random
from typing import Any, Protocol

from packages.mqtt.tests.internal_stores import number_of
from penstock_core.vocabulary.definitions import Definition
from penstock_mqtt.hub import MqttHub
from penstock_mqtt.wire.framing import PacketReader
from penstock_mqtt.wire.packets import (
    MQTT_5,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    Packet,
    PingreqPacket,
    PubackPacket,
    PubcompPacket,
    PublishPacket,
    PubrecPacket,
    PubrelPacket,
    SubackPacket,
    SubscribePacket,
    TopicSubscription,
    Will,
)
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reading import packet_of
from penstock_mqtt.wire.writing import packet_bytes
from penstock_server.frontends.native.listener import NativeListener
from penstock_testing.loop import SimLoop, pass_time, simulate
from penstock_testing.network import MACHINE
from tests.sim.clients import stored_at
from tests.sim.nemesis import Nemesis
from tests.sim.world import World

HOST = "127.0.0.1"
PORT = 1_883
MESSAGES = 14
"""How many of each QoS."""
PATIENCE_S = 6.0
"""A device that hears nothing for so long connects again."""
KEEP_ALIVE_S = 10
LASTS_S = 100_000


class DeviceWorld(Protocol):
    """What devices know of the world."""

    random: Random
    may_begin: asyncio.Event
    """Set once the reader has subscribed."""
    outside: asyncio.TaskGroup

    @property
    def loop(self) -> SimLoop: ...

    @property
    def port(self) -> int:
        """Where MQTT is spoken, for the next connection."""
        ...

    def note(self, what: str) -> None: ...

    async def prepare(self) -> None:
        """Have the channels of MQTT."""
        ...

    async def rows(self, channel: str) -> list[bytes]:
        """The data of all that a channel holds, in order."""
        ...


class Device(asyncio.Protocol):
    """A client, with one connection after the other."""

    expiry_s = LASTS_S
    away_s = 1 / 3
    """How long it is away between two connections, on average."""
    will: Will | None = None

    def __init__(self, world: DeviceWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.connections = 0
        self.is_welcome = False
        self._transport: asyncio.Transport | None = None
        self._reader = PacketReader()
        self._heard_s = 0.0
        self._complaint: AssertionError | None = None
        """What was wrong with something that it heard: the loop would only log it."""

    @property
    def is_done(self) -> bool:
        raise NotImplementedError

    async def run(self) -> None:
        """Come back until everything is done."""
        while not self.is_done:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self.world.loop.create_connection(lambda: self, HOST, self.world.port)
            except (OSError, TimeoutError):
                await pass_time(0.2)
                continue
            while self._transport is not None and not self.is_done:
                await self._live()
            self.hang_up()
            if self._complaint is not None:
                raise self._complaint
            await pass_time(self.world.random.expovariate(1 / self.away_s))

    async def _live(self) -> None:
        """Do something, once in a while."""
        await pass_time(self.world.random.expovariate(4))
        silent_s = self.world.loop.time() - self._heard_s
        if silent_s > PATIENCE_S:
            self.hang_up()
        elif silent_s > PATIENCE_S / 2:
            self.say(PingreqPacket())
        elif self.is_welcome:
            self.act()

    def act(self) -> None:
        """What it does from time to time."""

    def hang_up(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def say(self, *packets: Packet) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(packet_bytes(each, MQTT_5) for each in packets))

    # --- asyncio -------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport, self._reader = transport, PacketReader()
        self.connections += 1
        self.is_welcome = False
        self._heard_s = self.world.loop.time()
        own = PacketProperties(session_expiry_s=self.expiry_s, receive_maximum=4)
        self.greets()
        self.say(
            ConnectPacket(
                self.name,
                MQTT_5,
                clean_start=False,
                keep_alive_s=KEEP_ALIVE_S,
                will=self.will,
                properties=own,
            )
        )

    def greets(self) -> None:
        """A connection begins."""

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        self._heard_s = self.world.loop.time()
        self._reader.receive(data)
        for first, body in self._reader.packets():
            try:
                self._take(packet_of(first, body, MQTT_5))
            except AssertionError as error:
                self._complaint = error
                self.hang_up()
                return

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, ConnackPacket):
            assert not self.is_welcome, "it was welcome already"
            self.is_welcome = packet.reason == 0
            if self.is_welcome:
                self.welcomed(present=packet.session_present)
        elif isinstance(packet, DisconnectPacket):
            self.world.note(f"{self.name} is told {packet.reason!r}")
        else:
            assert self.is_welcome, f"{packet} comes before the CONNACK"
            self.hears(packet)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def welcomed(self, *, present: bool) -> None:
        """The session goes on, or a new one has begun."""

    def hears(self, packet: Packet) -> None:
        """What the realm says."""


class Thermometer(Device):
    """Publishes with QoS 1 and 2, each message until it is acknowledged to the end."""

    def __init__(self, world: DeviceWorld, name: str) -> None:
        super().__init__(world, name)
        self.to_send = [(qos, number) for number in range(MESSAGES) for qos in (1, 2)]
        self._in_flight: dict[int, PublishPacket | None] = {}
        """Not acknowledged, by id; None: only the release is."""
        self._last_id = 0

    @property
    def is_done(self) -> bool:
        return not self.to_send and not self._in_flight

    def act(self) -> None:
        if not self.to_send or len(self._in_flight) > 5:
            return
        qos, number = self.to_send.pop(0)
        self._last_id = self._last_id % 9 + 1  # ids are used again soon
        while self._last_id in self._in_flight:
            self._last_id = self._last_id % 9 + 1
        text = f"{self.name}/{qos}/{number}"
        packet = self.message(qos, number, text, packet_id=self._last_id)
        self._in_flight[self._last_id] = packet
        self.say(packet)

    def message(self, qos: int, number: int, text: str, packet_id: int) -> PublishPacket:
        return PublishPacket(f"t/{qos}/{self.name}", text.encode(), qos, packet_id=packet_id)

    def welcomed(self, *, present: bool) -> None:
        assert present or self.connections == 1 or not self.was_welcome, "its session is lost"
        self.was_welcome = True
        for packet_id, packet in self._in_flight.items():
            if packet is None:
                self.say(PubrelPacket(packet_id))
            else:
                self.say(
                    PublishPacket(
                        packet.topic,
                        packet.payload,
                        packet.qos,
                        packet_id=packet_id,
                        retain=False,
                        is_duplicate=True,
                    )
                )

    was_welcome = False

    def hears(self, packet: Packet) -> None:
        match packet:
            case PubackPacket(packet_id, reason) if packet_id in self._in_flight:
                if not reason.is_failure:
                    del self._in_flight[packet_id]
                else:
                    self.hang_up()  # the disk is full, maybe: again
            case PubrecPacket(packet_id, reason) if packet_id in self._in_flight:
                if reason.is_failure:
                    self.hang_up()
                    return
                del self._in_flight[packet_id]
                self._in_flight[packet_id] = None
                self.say(PubrelPacket(packet_id))
            case PubcompPacket(packet_id) if self._in_flight.get(packet_id, 0) is None:
                del self._in_flight[packet_id]
            case _:
                self.world.note(f"{self.name} hears what is over")


class Reader(Device):
    """Follows what thermometers say, with QoS 1 and 2."""

    filters = ("t/1/+", "t/2/#")

    def __init__(self, world: DeviceWorld, name: str, told: Sequence[Thermometer]) -> None:
        super().__init__(world, name)
        self._told = told
        self._is_subscribed = False
        self.came: list[str] = []
        """What has come, in order, also what comes again."""
        self.came_by: list[list[str]] = []
        """That of each connection by itself."""
        self.got: list[str] = []
        """What counts as received: QoS 2 once it is released."""
        self._held: dict[int, str] = {}
        """Messages of QoS 2 that are not released, by id."""

    @property
    def wanted(self) -> list[str]:
        return [
            f"{each.name}/{qos}/{number}"
            for each in self._told
            for qos in (1, 2)
            for number in range(MESSAGES)
        ]

    @property
    def is_done(self) -> bool:
        return set(self.wanted) <= set(self.got) and not self._held

    def greets(self) -> None:
        self.came_by.append([])

    def welcomed(self, *, present: bool) -> None:
        assert present or not self._is_subscribed, "its session is lost"
        if not self._is_subscribed:
            self._subscribe()

    def _subscribe(self) -> None:
        one, two = self.filters
        wanted = (TopicSubscription(one, 1), TopicSubscription(two, 2))
        self.say(SubscribePacket(1, wanted))

    def text_of(self, payload: bytes) -> str:
        return payload.decode()

    def hears(self, packet: Packet) -> None:
        match packet:
            case SubackPacket(_, reasons):
                self._is_subscribed = not any(each.is_failure for each in reasons)
                if self._is_subscribed:
                    self.world.may_begin.set()
                else:
                    self.hang_up()
            case PublishPacket(_, payload, 1, packet_id):
                self._note(self.text_of(payload))
                self.got.append(self.text_of(payload))
                if self.world.random.random() < 0.9:
                    self.say(PubackPacket(packet_id))
                else:
                    self.hang_up()
            case PublishPacket(_, payload, 2, packet_id):
                text = self.text_of(payload)
                self._note(text)
                held = self._held.setdefault(packet_id, text)
                assert held == text, f"{packet_id} is {held}, and comes as {text}"
                self.say(PubrecPacket(packet_id))
            case PubrelPacket(packet_id):
                if (text := self._held.pop(packet_id, "")) != "":
                    self.got.append(text)
                self.say(PubcompPacket(packet_id))
            case _:
                self.world.note(f"{self.name} hears that the realm is there")

    def _note(self, text: str) -> None:
        self.came.append(text)
        self.came_by[-1].append(text)


class HastyReader(Reader):
    """Comes again within moments, and subscribes again, as many do."""

    away_s = 0.03

    def welcomed(self, *, present: bool) -> None:
        super().welcomed(present=present)
        if self._is_subscribed:
            self._subscribe()

    def act(self) -> None:
        if self.world.random.random() < 0.5:
            self.hang_up()


class Mortal(Device):
    """Has a will, each connection another, and dies of each."""

    expiry_s = 0

    def __init__(self, world: DeviceWorld, name: str) -> None:
        super().__init__(world, name)
        self.sure: list[int] = []
        """Connections that the realm has welcomed."""

    @property
    def is_done(self) -> bool:
        return len(self.sure) >= 6

    def greets(self) -> None:
        self.will = Will("w", f"{self.name}/{self.connections}".encode(), 1)

    def welcomed(self, *, present: bool) -> None:
        self.sure.append(self.connections)

    def act(self) -> None:
        if self.world.random.random() < 0.3:
            self.hang_up()


def begun(world: DeviceWorld, device: Device, *, waits: bool = False) -> asyncio.Task[None]:
    """Let a device run on a machine of its own; if it ``waits``, once it may begin."""

    async def run() -> None:
        if waits:
            await world.may_begin.wait()
        await device.run()

    context = copy_context()
    context.run(MACHINE.set, device.name)
    return world.outside.create_task(run(), context=context)


class Devices:
    """The scene."""

    def __init__(self, world: DeviceWorld, reader: type[Reader] = Reader) -> None:
        self._world = world
        self._thermometers = [Thermometer(world, name) for name in ("a", "b")]
        self._reader = reader(world, "reader", self._thermometers)
        self._mortals = [Mortal(world, "m")]
        self._running: list[asyncio.Task[None]] = []

    async def prepare(self) -> None:
        await self._world.prepare()

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        if not self._running:
            world = self._world
            self._running = [begun(world, each) for each in (self._reader, *self._mortals)]
            self._running += [begun(world, each, waits=True) for each in self._thermometers]
        if quiet:
            group.create_task(self._all_done())

    async def _all_done(self) -> None:
        await asyncio.wait(self._running)
        await pass_time(3 * KEEP_ALIVE_S)  # the realm has noticed who is gone

    async def check(self) -> None:
        rows = [data.decode() for data in await self._world.rows("mqtt")]
        there, got = Counter(rows), Counter(self._reader.got)
        for name in self._reader.wanted:
            assert there[name], f"{name} was acknowledged, and is not there"
            if name.split("/")[1] == "2":
                assert there[name] == 1, f"{name} is there {there[name]} times"
                assert got[name] == 1, f"{name} has come {got[name]} times"
        for each in self._thermometers:
            for qos in (1, 2):
                came, order = (
                    [name for name in dict.fromkeys(names) if name[:4] == f"{each.name}/{qos}/"]
                    for names in (self._reader.came, rows)
                )
                assert came == order, f"not in order: {came} instead of {order}"
        for came in self._reader.came_by:
            for start in {name[:4] for name in came}:
                there_are = iter(rows)  # what comes again begins anew with each connection
                own = [name for name in came if name[:4] == start]
                assert all(name in there_are for name in own), f"on one connection: {own}"
        for mortal in self._mortals:
            for number in range(1, mortal.connections + 1):
                count = there[f"{mortal.name}/{number}"]
                least = 1 if number in mortal.sure else 0
                assert least <= count <= 1, f"will {number} of {mortal.name}: {count} times"
        await self._nothing_left()

    async def _nothing_left(self) -> None:
        """Entries of what is over are gone; what is stored of sessions is one entry each."""
        rows = await self._world.rows("mqtt-sessions")
        live = [data for data in rows if data]
        sessions = [each for each in live if b"client_id" in each]
        assert len(sessions) == 1 + len(self._thermometers), f"{sessions} are still stored"
        for each in live:  # whether the realm has heard the last of them, its client cannot know
            is_released = b"is_released" in each
            assert each in sessions or is_released, f"{each!r} is still stored"


class CountedDevices(Devices):
    """The scene where the front end can be looked at, too."""

    def __init__(self, world: MqttWorld) -> None:
        super().__init__(world)
        self._server = world

    async def check(self) -> None:
        await super().check()
        hub = self._server.realm.connections.mqtt
        assert isinstance(hub, MqttHub), "it serves MQTT"
        away = hub.sessions.away().values()
        found = tuple(map(sum, zip(*(each.figures for each in away), strict=True)))
        assert hub.sessions.away_figures == found, (
            f"{found} are away, not {hub.sessions.away_figures}"
        )


class MqttWorld(World):
    """A world with nothing but devices."""

    def __init__(self, seed: int, scene: Callable[[Any], Any] = CountedDevices) -> None:
        super().__init__(seed, ["keyed"])
        self.may_begin = asyncio.Event()
        self.names = ["mqtt"]
        self.scenes = [scene(self)]
        self.is_wired, self.is_connected, self.may_jump = True, False, False

    @property
    def port(self) -> int:
        return PORT

    async def prepare(self) -> None:
        await self.create("mqtt", self.realm.definition_of("mqtt") or Definition())

    async def rows(self, channel: str) -> list[bytes]:
        number = number_of(self.realm, channel)
        return [row.data for row in await stored_at(self, number)]

    async def listen(self) -> tuple[NativeListener, asyncio.Task[None]]:
        listener, listening = await super().listen()
        opening = self._on_realm(_open(listener))
        await asyncio.wait([opening])
        opening.result()
        return listener, listening

    async def clients(self, *, quiet: bool) -> None:
        nemesis = Nemesis(self, (HOST, PORT))
        del nemesis.faults["greeted again"]  # against that MQTT has no means
        async with asyncio.TaskGroup() as group:
            task = group.create_task(nemesis.run(5.0 if quiet else None))
            await super().clients(quiet=quiet)
            if quiet:
                await task


async def _open(listener: NativeListener) -> None:
    await MqttHub(listener, "mqtt").listen(HOST, PORT)


def devices_of(seed: int) -> str:
    """The hash of everything that happened. Raises what went wrong."""
    world = MqttWorld(seed)
    return simulate(world.live(), world.random)
