"""MQTT devices of a realm on a failing disk, behind a network that breaks.

A device remembers what the standard requires: its unacknowledged messages, and the ids of QoS 2
messages that it holds. It is the oracle: what was promised to it must hold.
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
"""Number of messages of each QoS."""
PATIENCE_S = 6.0
"""A device that receives nothing for this long reconnects."""
KEEP_ALIVE_S = 10
LASTS_S = 100_000


class DeviceWorld(Protocol):
    """The part of a world that devices use."""

    random: Random
    may_begin: asyncio.Event
    """Set once the reader has subscribed."""
    outside: asyncio.TaskGroup

    @property
    def loop(self) -> SimLoop: ...

    @property
    def port(self) -> int:
        """The port for the next MQTT connection."""
        ...

    def note(self, what: str) -> None: ...

    async def prepare(self) -> None:
        """Wait until the channels of MQTT exist."""
        ...

    async def rows(self, channel: str) -> list[bytes]:
        """Return the data of all events of a channel in order."""
        ...


class Device(asyncio.Protocol):
    """A client that opens one connection after the other."""

    expiry_s = LASTS_S
    away_s = 1 / 3
    """Mean time between two connections."""
    will: Will | None = None

    def __init__(self, world: DeviceWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.connections = 0
        self.is_accepted = False
        self._transport: asyncio.Transport | None = None
        self._reader = PacketReader()
        self._heard_s = 0.0
        self._complaint: AssertionError | None = None
        """The first violation that it noticed. It is raised later, because the loop would only log
        it."""

    @property
    def is_done(self) -> bool:
        raise NotImplementedError

    async def run(self) -> None:
        """Reconnect until everything is done."""
        while not self.is_done:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self.world.loop.create_connection(lambda: self, HOST, self.world.port)
            except (OSError, TimeoutError):
                await pass_time(0.2)
                continue
            while self._transport is not None and not self.is_done:
                await self._act_once()
            self.hang_up()
            if self._complaint is not None:
                raise self._complaint
            await pass_time(self.world.random.expovariate(1 / self.away_s))

    async def _act_once(self) -> None:
        """Wait a moment, then act, ping, or end a silent connection."""
        await pass_time(self.world.random.expovariate(4))
        silent_s = self.world.loop.time() - self._heard_s
        if silent_s > PATIENCE_S:
            self.hang_up()
        elif silent_s > PATIENCE_S / 2:
            self.send(PingreqPacket())
        elif self.is_accepted:
            self.act()

    def act(self) -> None:
        """Do something; called from time to time."""

    def hang_up(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def send(self, *packets: Packet) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(packet_bytes(packet, MQTT_5) for packet in packets))

    # --- asyncio -------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport, self._reader = transport, PacketReader()
        self.connections += 1
        self.is_accepted = False
        self._heard_s = self.world.loop.time()
        properties = PacketProperties(session_expiry_s=self.expiry_s, receive_maximum=4)
        self.begin_connection()
        self.send(
            ConnectPacket(
                self.name,
                MQTT_5,
                clean_start=False,
                keep_alive_s=KEEP_ALIVE_S,
                will=self.will,
                properties=properties,
            )
        )

    def begin_connection(self) -> None:
        """Called at the start of a connection, before its CONNECT."""

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
            assert not self.is_accepted, "it was welcome already"
            self.is_accepted = packet.reason == 0
            if self.is_accepted:
                self.accepted(present=packet.session_present)
        elif isinstance(packet, DisconnectPacket):
            self.world.note(f"{self.name} is told {packet.reason!r}")
        else:
            assert self.is_accepted, f"{packet} comes before the CONNACK"
            self.receive(packet)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def accepted(self, *, present: bool) -> None:
        """Called when the realm has accepted the connection, with the old or a new session."""

    def receive(self, packet: Packet) -> None:
        """Handle a packet of the realm."""


class Thermometer(Device):
    """Publishes with QoS 1 and 2, each message until its acknowledgement is complete."""

    def __init__(self, world: DeviceWorld, name: str) -> None:
        super().__init__(world, name)
        self.to_send = [(qos, number) for number in range(MESSAGES) for qos in (1, 2)]
        self._in_flight: dict[int, PublishPacket | None] = {}
        """Unacknowledged messages by packet id; None: only the release is unacknowledged."""
        self._last_id = 0

    @property
    def is_done(self) -> bool:
        return not self.to_send and not self._in_flight

    def act(self) -> None:
        if not self.to_send or len(self._in_flight) > 5:
            return
        qos, number = self.to_send.pop(0)
        self._last_id = self._last_id % 9 + 1  # a small range, so that ids are reused soon
        while self._last_id in self._in_flight:
            self._last_id = self._last_id % 9 + 1
        text = f"{self.name}/{qos}/{number}"
        packet = self.message(qos, number, text, packet_id=self._last_id)
        self._in_flight[self._last_id] = packet
        self.send(packet)

    def message(self, qos: int, number: int, text: str, packet_id: int) -> PublishPacket:
        return PublishPacket(f"t/{qos}/{self.name}", text.encode(), qos, packet_id=packet_id)

    def accepted(self, *, present: bool) -> None:
        assert present or self.connections == 1 or not self.was_accepted, "its session is lost"
        self.was_accepted = True
        for packet_id, packet in self._in_flight.items():
            if packet is None:
                self.send(PubrelPacket(packet_id))
            else:
                self.send(
                    PublishPacket(
                        packet.topic,
                        packet.payload,
                        packet.qos,
                        packet_id=packet_id,
                        retain=False,
                        is_duplicate=True,
                    )
                )

    was_accepted = False

    def receive(self, packet: Packet) -> None:
        match packet:
            case PubackPacket(packet_id, reason) if packet_id in self._in_flight:
                if not reason.is_failure:
                    del self._in_flight[packet_id]
                else:
                    self.hang_up()  # the disk may be full: publish again
            case PubrecPacket(packet_id, reason) if packet_id in self._in_flight:
                if reason.is_failure:
                    self.hang_up()
                    return
                del self._in_flight[packet_id]
                self._in_flight[packet_id] = None
                self.send(PubrelPacket(packet_id))
            case PubcompPacket(packet_id) if self._in_flight.get(packet_id, 0) is None:
                del self._in_flight[packet_id]
            case _:
                self.world.note(f"{self.name} hears what is over")


class Reader(Device):
    """Receives the messages of thermometers with QoS 1 and 2."""

    filters = ("t/1/+", "t/2/#")

    def __init__(self, world: DeviceWorld, name: str, publishers: Sequence[Thermometer]) -> None:
        super().__init__(world, name)
        self._publishers = publishers
        self._is_subscribed = False
        self.arrivals: list[str] = []
        """All received texts in order, including repeated ones."""
        self.arrivals_by_connection: list[list[str]] = []
        """Received texts of each connection, in order."""
        self.received: list[str] = []
        """Texts that count as received; those of QoS 2 once they are released."""
        self._held: dict[int, str] = {}
        """Texts of QoS 2 messages that are not released, by packet id."""

    @property
    def expected(self) -> list[str]:
        return [
            f"{publisher.name}/{qos}/{number}"
            for publisher in self._publishers
            for qos in (1, 2)
            for number in range(MESSAGES)
        ]

    @property
    def is_done(self) -> bool:
        return set(self.expected) <= set(self.received) and not self._held

    def begin_connection(self) -> None:
        self.arrivals_by_connection.append([])

    def accepted(self, *, present: bool) -> None:
        assert present or not self._is_subscribed, "its session is lost"
        if not self._is_subscribed:
            self._subscribe()

    def _subscribe(self) -> None:
        one, two = self.filters
        expected = (TopicSubscription(one, 1), TopicSubscription(two, 2))
        self.send(SubscribePacket(1, expected))

    def text_of(self, payload: bytes) -> str:
        return payload.decode()

    def receive(self, packet: Packet) -> None:
        match packet:
            case SubackPacket(_, reasons):
                self._is_subscribed = not any(reason.is_failure for reason in reasons)
                if self._is_subscribed:
                    self.world.may_begin.set()
                else:
                    self.hang_up()
            case PublishPacket(_, payload, 1, packet_id):
                self._note(self.text_of(payload))
                self.received.append(self.text_of(payload))
                if self.world.random.random() < 0.9:
                    self.send(PubackPacket(packet_id))
                else:
                    self.hang_up()
            case PublishPacket(_, payload, 2, packet_id):
                text = self.text_of(payload)
                self._note(text)
                held = self._held.setdefault(packet_id, text)
                assert held == text, f"{packet_id} is {held}, and comes as {text}"
                self.send(PubrecPacket(packet_id))
            case PubrelPacket(packet_id):
                if (text := self._held.pop(packet_id, "")) != "":
                    self.received.append(text)
                self.send(PubcompPacket(packet_id))
            case _:
                self.world.note(f"{self.name} hears that the realm is there")

    def _note(self, text: str) -> None:
        self.arrivals.append(text)
        self.arrivals_by_connection[-1].append(text)


class HastyReader(Reader):
    """Reconnects within moments and subscribes again, as many real clients do."""

    away_s = 0.03

    def accepted(self, *, present: bool) -> None:
        super().accepted(present=present)
        if self._is_subscribed:
            self._subscribe()

    def act(self) -> None:
        if self.world.random.random() < 0.5:
            self.hang_up()


class Mortal(Device):
    """A device with a different will in each connection, which it ends without DISCONNECT."""

    expiry_s = 0

    def __init__(self, world: DeviceWorld, name: str) -> None:
        super().__init__(world, name)
        self.accepted_connections: list[int] = []
        """Connections that the realm has accepted."""

    @property
    def is_done(self) -> bool:
        return len(self.accepted_connections) >= 6

    def begin_connection(self) -> None:
        self.will = Will("w", f"{self.name}/{self.connections}".encode(), 1)

    def accepted(self, *, present: bool) -> None:
        self.accepted_connections.append(self.connections)

    def act(self) -> None:
        if self.world.random.random() < 0.3:
            self.hang_up()


def start_device(world: DeviceWorld, device: Device, *, waits: bool = False) -> asyncio.Task[None]:
    """Run a device on a separate machine; if it ``waits``, only after the reader has subscribed."""

    async def run() -> None:
        if waits:
            await world.may_begin.wait()
        await device.run()

    context = copy_context()
    context.run(MACHINE.set, device.name)
    return world.outside.create_task(run(), context=context)


class Devices:
    """The scene of the devices."""

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
            self._running = [
                start_device(world, device) for device in (self._reader, *self._mortals)
            ]
            self._running += [
                start_device(world, device, waits=True) for device in self._thermometers
            ]
        if quiet:
            group.create_task(self._all_done())

    async def _all_done(self) -> None:
        await asyncio.wait(self._running)
        # long enough that the realm notices clients that are gone
        await pass_time(3 * KEEP_ALIVE_S)

    async def check(self) -> None:
        rows = [data.decode() for data in await self._world.rows("mqtt")]
        stored, received = Counter(rows), Counter(self._reader.received)
        for name in self._reader.expected:
            assert stored[name], f"{name} was acknowledged, and is not there"
            if name.split("/")[1] == "2":
                assert stored[name] == 1, f"{name} is there {stored[name]} times"
                assert received[name] == 1, f"{name} has come {received[name]} times"
        for thermometer in self._thermometers:
            for qos in (1, 2):
                arrivals, order = (
                    [
                        name
                        for name in dict.fromkeys(names)
                        if name[:4] == f"{thermometer.name}/{qos}/"
                    ]
                    for names in (self._reader.arrivals, rows)
                )
                assert arrivals == order, f"not in order: {arrivals} instead of {order}"
        for arrivals in self._reader.arrivals_by_connection:
            for start in {name[:4] for name in arrivals}:
                # a repeated message may start a new pass over the stored ones with each connection
                stored_texts = iter(rows)
                of_publisher = [name for name in arrivals if name[:4] == start]
                assert all(name in stored_texts for name in of_publisher), (
                    f"on one connection: {of_publisher}"
                )
        for mortal in self._mortals:
            for number in range(1, mortal.connections + 1):
                count = stored[f"{mortal.name}/{number}"]
                least = 1 if number in mortal.accepted_connections else 0
                assert least <= count <= 1, f"will {number} of {mortal.name}: {count} times"
        await self._check_leftovers()

    async def _check_leftovers(self) -> None:
        """Check that entries of ended deliveries are removed, and that each stored session has one
        entry."""
        rows = await self._world.rows("mqtt-sessions")
        entries = [data for data in rows if data]
        sessions = [entry for entry in entries if b"client_id" in entry]
        assert len(sessions) == 1 + len(self._thermometers), f"{sessions} are still stored"
        # the client cannot know whether the realm has received its last release
        for entry in entries:
            is_released = b"is_released" in entry
            assert entry in sessions or is_released, f"{entry!r} is still stored"


class CountedDevices(Devices):
    """The scene of the devices, which also checks the counters of the front end."""

    def __init__(self, world: MqttWorld) -> None:
        super().__init__(world)
        self._server = world

    async def check(self) -> None:
        await super().check()
        hub = self._server.realm.connections.mqtt
        assert isinstance(hub, MqttHub), "it serves MQTT"
        away = hub.sessions.away().values()
        figures = tuple(map(sum, zip(*(session.figures for session in away), strict=True)))
        assert hub.sessions.away_figures == figures, (
            f"{figures} are away, not {hub.sessions.away_figures}"
        )


class MqttWorld(World):
    """A world with devices only."""

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
