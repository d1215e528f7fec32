"""Unmodified paho-mqtt through nodes in processes of their own, while the realm changes hands."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client
import pytest
from paho.mqtt.packettypes import PacketTypes

import penstock
from packages.cluster.tests import processes
from packages.cluster.tests.processes import addresses
from penstock_testing.nats_servers import NatsServers
from penstock_testing.process import ServerProcess
from tests.patience import PATIENCE_S, until

pytestmark = [pytest.mark.process, pytest.mark.slow]

mqtt: Any = paho.mqtt.client
"""Its type information leaves out what its pages tell to use."""
EACH: Final = 60
"""Messages of each QoS and version; a third of them with each owner."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    with NatsServers(tmp_path_factory.mktemp("engine")) as running:
        yield running


def node(servers: NatsServers, directory: Path, name: str) -> ServerProcess:
    return processes.node(
        servers.engine,
        directory,
        "--mqtt-port",
        "0",
        name=name,
        monitors=servers.monitors,
    )


def mqtt_port(servers: NatsServers, node: ServerProcess, name: str) -> int:
    """Return the host and port at which a node accepts MQTT clients, as the command ``status``
    shows them."""
    command = processes.command(
        servers.engine, "status", "--format", "json", name=name, monitors=servers.monitors
    )
    members = {
        member_seen["node"]: member_seen["serves"]
        for member_seen in processes.done(command)["members"]
    }
    member = next(serving for serving in members.values() if serving["native"] == node.url)
    return int(member["mqtt"].rpartition(":")[2])


class Lasting:
    """A client with a session that lasts, which connects again by itself."""

    def __init__(self, name: str, version: int, port: int) -> None:
        self.came: queue.Queue[tuple[str, bytes, int]] = queue.Queue()
        self.sessions: list[bool] = []
        """Whether its session was there, for each connection."""
        self._subscribed = threading.Event()
        more = {} if version == mqtt.MQTTv5 else {"clean_session": False}
        api = mqtt.CallbackAPIVersion.VERSION2
        self.client = mqtt.Client(api, f"{name}-{version}", protocol=version, **more)
        self.client.reconnect_delay_set(1, 1)
        self.client.on_connect = self._connected
        self.client.on_subscribe = lambda *_: self._subscribed.set()
        self.client.on_message = lambda _, __, m: self.came.put((m.topic, m.payload, m.qos))
        lasts = {}
        if version == mqtt.MQTTv5:
            properties = mqtt.Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 3_600
            lasts = {"properties": properties, "clean_start": False}
        self.client.connect("127.0.0.1", port, keepalive=10, **lasts)
        self.client.loop_start()
        until(lambda: bool(self.sessions))

    def _connected(self, _: Any, __: Any, flags: Any, reason: Any, ___: Any) -> None:
        if not reason.is_failure:
            self.sessions.append(flags.session_present)

    def subscribe(self, *wanted: tuple[str, int]) -> None:
        self.client.subscribe(list(wanted))
        assert self._subscribed.wait(PATIENCE_S)

    def end(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class Pair:
    """A publisher and a subscriber of one version of MQTT."""

    def __init__(self, version: int, port: int) -> None:
        self.version = version
        self.reader = Lasting("reader", version, port)
        self.reader.subscribe((f"{version}/1/#", 1), (f"{version}/2/#", 2))
        self.writer = Lasting("writer", version, port)
        self.sent: list[Any] = []

    @property
    def clients(self) -> tuple[Lasting, Lasting]:
        return self.reader, self.writer

    def publish(self) -> None:
        """Some of the messages, which nobody waits for yet."""
        begun = len(self.sent) // 2
        for number in range(begun, begun + EACH // 3):
            for qos in (1, 2):
                topic, retain = f"{self.version}/{qos}/t", qos == 1
                sent = self.writer.client.publish(topic, b"%d" % number, qos, retain)
                self.sent.append(sent)

    def check(self) -> dict[str, list[bytes]]:
        """Return the payloads of each QoS. No message of QoS 1 is lost; no message of QoS 2 is lost
        or delivered twice."""
        for item in self.sent:
            item.wait_for_publish(PATIENCE_S)
            assert item.is_published()
        wanted = [b"%d" % number for number in range(EACH)]
        payloads: dict[str, list[bytes]] = {"1": [], "2": []}
        while not (set(payloads["1"]) == set(wanted) and len(payloads["2"]) >= EACH):
            topic, payload, _ = self.reader.came.get(timeout=PATIENCE_S)
            payloads[topic.split("/")[1]].append(payload)
        assert sorted(payloads["2"]) == sorted(wanted)
        for item in self.clients:
            assert item.sessions[0] is False
            assert all(item.sessions[1:])
            item.end()
        return payloads


@pytest.mark.spec("M13", "M6", "M7", "M8", "N1", "N3", "N4")
def test_paho_goes_on_through_a_node_beside_the_owner(servers: NatsServers, tmp_path: Path) -> None:
    name = "paho"
    with (
        node(servers, tmp_path / "n1", name) as first,
        node(servers, tmp_path / "n2", name) as second,
        node(servers, tmp_path / "n3", name) as door,
    ):
        port = mqtt_port(servers, door, name)
        pairs = [Pair(version, port) for version in (mqtt.MQTTv311, mqtt.MQTTv5)]
        heir = Lasting("heir", mqtt.MQTTv5, port)
        heir.subscribe(("w/#", 1))
        mortal = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "mortal", reconnect_on_failure=False)
        mortal.will_set("w/1", b"gone", 1)
        mortal.connect("127.0.0.1", port)
        mortal.loop_start()
        until(mortal.is_connected)

        for pair in pairs:
            pair.publish()
        first.kill()
        for pair in pairs:
            pair.publish()
        until(lambda: second.logged("mqtt.listening") or door.logged("mqtt.listening"))
        until(lambda: all(len(client.sessions) > 1 for pair in pairs for client in pair.clients))
        owner, beside = (second, "n3") if second.logged("mqtt.listening") else (door, "n2")
        for pair in pairs:
            pair.publish()
        moved = processes.command(
            servers.engine, "move", beside, name=name, monitors=servers.monitors
        )
        assert moved.returncode == 0, moved.stderr

        until(lambda: all(len(client.sessions) > 2 for pair in pairs for client in pair.clients))
        payloads_by_version = {version_pair.version: version_pair.check() for version_pair in pairs}
        assert heir.came.get(timeout=PATIENCE_S) == ("w/1", b"gone", 1)
        heir.end()
        mortal.loop_stop()
        assert heir.came.empty()
        assert owner.logged("shard.given_up")
        with penstock.connect(addresses(second, door)) as session:
            channel = session.channels.get("mqtt")
            stored = {
                (version, qos): [
                    event.data for event in channel.browse(selector=f"topic = '{version}/{qos}/t'")
                ]
                for version in payloads_by_version
                for qos in ("1", "2")
            }
            wills = list(channel.browse(selector="topic MATCHES 'w/#'"))
            kept = session.mqtt.retained()
            newest = {event.properties["topic"]: event.data for event in kept}
        for version, heard in payloads_by_version.items():
            assert heard["2"] == stored[version, "2"], "in order, and once"
            assert list(dict.fromkeys(heard["1"])) == list(dict.fromkeys(stored[version, "1"]))
            assert newest[f"{version}/1/t"] == stored[version, "1"][-1]
        assert len(wills) == 1
        assert door.terminate() == 0
