"""Bridges over MQTT from a realm and from mosquitto: each message of QoS 2 once, over kills."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

import penstock
from bench import mqtt_peers
from packages.client.tests.patience import eventually
from packages.mqtt.tests.clients import PacketClient
from packages.tools.tests.bridge.mqtt_messages import bridged, messages, numbers_in
from penstock_mqtt.wire.packets import PublishPacket, PubrelPacket
from penstock_testing.ports import free_port
from penstock_testing.process import ServerProcess, search_path

pytestmark = pytest.mark.slow


@pytest.fixture
def source() -> Iterator[str]:
    """The URL of another realm with MQTT."""
    with penstock.Realm() as realm:
        yield realm.listen_mqtt()


def send(url: str, packets: list[PublishPacket]) -> None:
    """Publish, and release what has QoS 2."""
    with PacketClient(url) as client:
        client.connect("sensor")
        for packet in packets:
            client.send(packet)
            client.receive()
            if packet.qos == 2:
                client.send(PubrelPacket(packet.packet_id))
                client.receive()


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_realm_keeps_messages_while_the_bridge_is_away(
    source: str, session: penstock.Session, version: str
) -> None:
    new = session.channels.create("new", type="persistent")
    url = f"{source}/t/+?version={version}"
    assert bridged(session, url) == []
    send(source, [*messages(2, 30), PublishPacket("other", b"-1", 1, packet_id=99)])
    steps = bridged(session, url)
    send(source, messages(1, 5))
    bridged(session, url)

    assert numbers_in(new) == [*range(30), *range(5)]
    assert sum(step.stored for step in steps) == 30


def test_a_retained_message_is_stored_once(source: str, session: penstock.Session) -> None:
    new = session.channels.create("new", type="persistent")
    retained = PublishPacket("t/1", b"1", 2, packet_id=1, retain=True)
    send(source, [retained])
    for _ in range(3):
        bridged(session, f"{source}/%23")

    assert numbers_in(new) == [1]


# --- kills -------------------------------------------------------------------------------

EVENTS = 400


class Route:
    """A source, a destination and a bridge between them, each in a process that may be killed."""

    def __init__(self, folder: Path, start_source: Callable[[ExitStack], str]) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._start_source = start_source
        self.new = self._destination()
        with penstock.connect(self.new.url) as session:
            session.channels.create("new", type="persistent")
        self.source_url = start_source(self._stack)
        self.bridge = self._started_bridge("100ms")
        self.bridge.wait(60)  # its session at the source exists now
        send(self.source_url, messages(2, EVENTS))
        self.bridge = self._started_bridge()

    def _destination(self, port: int = 0) -> ServerProcess:
        options = ("--port", f"{port}")
        return self._stack.enter_context(ServerProcess(self._folder / "new", *options))

    def _started_bridge(self, idle: str = "1s") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "penstock", "bridge", f"{self.source_url}/t/+", "new"]
        command += ["--name", "old", "--until-empty", "--idle", idle, "--window", "20"]
        environment = {**os.environ, "PYTHONPATH": search_path(), "PENSTOCK_URL": self.new.url}
        return subprocess.Popen(command, env=environment)

    def kill(self, victim: str) -> None:
        """Kill the bridge or a server, and start it again."""
        if victim == "bridge":
            self.bridge.kill()
            self.bridge.wait()
            self.bridge = self._started_bridge()
        elif victim == "new":
            port = self.new.port
            self.new.kill()
            self.new = self._destination(port)
        else:
            self._start_source(self._stack)

    def finish(self) -> list[int]:
        """Return what is stored once a bridge has found the source empty."""
        while self.bridge.wait(120) != 0:
            self.bridge = self._started_bridge()
        with penstock.connect(self.new.url) as session:
            data = session.channels.get("new").read(columns=["data"])["data"].to_pylist()
        return [int(number) for number in data]

    def has_stored_more_than(self, count: int) -> bool:
        """Whether so many messages are stored. Starts the bridge again if it has ended because it
        was started while a server was away."""
        if self.bridge.poll() is not None:
            self.bridge = self._started_bridge()
        with penstock.connect(self.new.url) as session:
            return session.channels.get("new").info().events > count

    def close(self) -> None:
        self.bridge.kill()
        self.bridge.wait()
        self._stack.close()


@pytest.fixture
def routes(tmp_path: Path) -> Iterator[Callable[[Callable[[ExitStack], str]], Route]]:
    with ExitStack() as stack:

        def make(start_source: Callable[[ExitStack], str]) -> Route:
            route = Route(tmp_path, start_source)
            stack.callback(route.close)
            return route

        yield make


def kill_often(route: Route, seed: int, victims: tuple[str, ...]) -> None:
    chance = random.Random(seed)
    for kill in range(3):
        # Each kill meets a bridge that works: it has stored more than at the last one.
        eventually(partial(route.has_stored_more_than, kill * 100 + chance.randrange(100)))
        route.kill(chance.choice(victims))


@pytest.mark.process
def test_a_realm_is_drained_once_whoever_is_killed(
    routes: Callable[[Callable[[ExitStack], str]], Route], tmp_path: Path
) -> None:
    port = free_port()
    servers: list[ServerProcess] = []

    def start_source(stack: ExitStack) -> str:
        for server in servers:
            server.kill()
        server = ServerProcess(tmp_path / "old", "--port", "0", "--mqtt-port", f"{port}")
        servers[:] = [stack.enter_context(server)]
        return f"mqtt://127.0.0.1:{port}"

    route = routes(start_source)
    kill_often(route, 1, ("bridge", "new", "old"))
    stored = Counter(route.finish())

    assert {number: times for number, times in stored.items() if times > 1} == {}
    assert stored.keys() == set(range(EVENTS))


@pytest.mark.process
@pytest.mark.peer
@pytest.mark.skipif(bool(mqtt_peers.missing("mosquitto")), reason="mosquitto is not installed")
def test_mosquitto_is_drained_once_when_the_bridge_and_the_realm_are_killed(
    routes: Callable[[Callable[[ExitStack], str]], Route], tmp_path: Path
) -> None:
    """It is not restarted itself: then it repeats messages in flight with other packet ids."""

    def start_source(stack: ExitStack) -> str:
        folder = tmp_path / "mosquitto"
        folder.mkdir()
        server = stack.enter_context(mqtt_peers.served("mosquitto", folder, "D2", keeps=True))
        return f"mqtt://127.0.0.1:{server.port}"

    route = routes(start_source)
    kill_often(route, 2, ("bridge", "bridge", "new"))
    stored = Counter(route.finish())

    assert {number: times for number, times in stored.items() if times > 1} == {}
    assert stored.keys() == set(range(EVENTS))
