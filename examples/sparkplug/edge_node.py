"""Simulates an edge node of Sparkplug B: ``python -m examples.sparkplug.edge_node``.

The node publishes a birth certificate at the start and whenever a host application requests it, and
then the metrics that have changed. When its connection is lost, the realm publishes its death
certificate. The program runs a realm in its own process; ``docs/howto/sparkplug.md`` does the same
with a server, step by step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import penstock

DESCRIPTORS: Final = Path(__file__).with_name("sparkplug.pb")
"""Compiled from ``sparkplug.proto`` with ``protoc --include_imports
--descriptor_set_out=sparkplug.pb``."""
TOPICS: Final = ["spBv1.0/{group}/{type}/{node}", "spBv1.0/{group}/{type}/{node}/{device}"]
REBIRTH: Final = "Node Control/Rebirth"
"""Metric by which a host application requests a new birth certificate."""
WAIT_S: Final = 30.0
# Numbers of data types in Sparkplug B.
INT64, DOUBLE, BOOLEAN = 4, 10, 11
_KINDS: Final = {INT64: "long_value", DOUBLE: "double_value", BOOLEAN: "boolean_value"}

Metric = tuple[str, int, object]
"""Name, data type and value."""
mqtt: Any = paho


def _payload_class() -> Any:
    """Return the class of Sparkplug payloads, made from the descriptors."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("spb.Payload"))


Payload: Any = _payload_class()


class EdgeNode:
    """One edge node with its devices."""

    def __init__(self, url: str, group: str, name: str, births: int = 0) -> None:
        """``births`` is the number of earlier birth certificates, which each certificate
        contains."""
        self._group, self._name = group, name
        self._births = births
        self._seq = 0
        """Sequence number of the next message."""
        self._devices: dict[str, dict[str, Metric]] = {}
        """The newest metrics of each device."""
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, f"edge-{group}-{name}")
        # The will is set before the connection, because the realm gets it with the first packet.
        death = Payload(metrics=[self._metric(("bdSeq", INT64, births))]).SerializeToString()
        self._client.will_set(self._topic("NDEATH"), death, qos=1)
        self._client.on_message = self._on_command
        host, _, port = url.rpartition("//")[2].rpartition(":")
        self._client.connect(host, int(port))
        self._client.subscribe(self._topic("NCMD"), qos=1)
        self._client.loop_start()
        self.give_birth()

    def give_birth(self) -> None:
        """Publish all metrics: those of the node, and those of each device."""
        self._seq = 0
        self._publish("NBIRTH", [("bdSeq", INT64, self._births), (REBIRTH, BOOLEAN, False)])
        for device, metrics in self._devices.items():
            self._publish("DBIRTH", list(metrics.values()), device)

    def add(self, device: str, *metrics: Metric) -> None:
        """Add a device with all its metrics."""
        self._devices[device] = {name: (name, *rest) for name, *rest in metrics}  # type: ignore[misc]
        self._publish("DBIRTH", list(metrics), device).wait_for_publish(WAIT_S)

    def report(self, device: str, *metrics: Metric) -> None:
        """Publish metrics of a device that have changed, and wait until they are stored."""
        for each in metrics:
            self._devices[device][each[0]] = each
        self._publish("DDATA", list(metrics), device).wait_for_publish(WAIT_S)

    def lose_connection(self) -> None:
        """Close the socket without a DISCONNECT packet, as if the network had failed."""
        self._client.socket().close()
        self._client.loop_stop()

    def _on_command(self, client: Any, user_data: object, message: Any) -> None:
        """Execute a command of a host application: a request for a new birth certificate."""
        metrics = Payload.FromString(message.payload).metrics
        if any(metric.name == REBIRTH and metric.boolean_value for metric in metrics):
            self.give_birth()

    def _publish(self, kind: str, metrics: list[Metric], device: str = "") -> Any:
        """Publish a message of the node, or of one of its devices."""
        payload = Payload(seq=self._seq, metrics=[self._metric(each) for each in metrics])
        self._seq = (self._seq + 1) % 256
        return self._client.publish(self._topic(kind, device), payload.SerializeToString(), qos=1)

    def _topic(self, kind: str, device: str = "") -> str:
        return "/".join(filter(None, ("spBv1.0", self._group, kind, self._name, device)))

    def _metric(self, metric: Metric) -> Any:
        name, datatype, value = metric
        return Payload.Metric(name=name, datatype=datatype, **{_KINDS[datatype]: value})


def prepare(session: penstock.Session) -> None:
    """Create a channel for all messages, and one that keeps the newest message of each topic."""
    descriptors = DESCRIPTORS.read_bytes()
    session.channels.create(
        "sparkplug", topics=TOPICS, descriptors=descriptors, retain_consumed=True
    )
    session.channels.create("sparkplug-last", keys={"topic": 1}, descriptors=descriptors)
    session.joins.create("sparkplug", "sparkplug-last")


def play(url: str, session: penstock.Session) -> list[str]:
    """Run an edge node from its birth to its death. Return the messages that a host application
    received, one line for each."""
    received: list[str] = []
    channel = session.channels.get("sparkplug")
    with channel.subscribe(start="earliest", timeout=WAIT_S) as events:
        press = EdgeNode(url, "ulm", "press", births=7)
        press.add("oven", ("celsius", DOUBLE, 20.0), ("running", BOOLEAN, True))
        press.report("oven", ("celsius", DOUBLE, 96.5))
        rebirth = Payload(metrics=[{"name": REBIRTH, "boolean_value": True}])
        for event in events:
            kind = event.properties["type"]
            received.append(f"{kind} {channel.messages().decode(event).get('metrics')}")
            if kind == "DDATA":
                # A host application that starts late requests all metrics.
                channel.publish(
                    rebirth.SerializeToString(),
                    properties={"group": "ulm", "type": "NCMD", "node": "press"},
                    headers={"message_type": "spb.Payload"},
                )
            elif kind == "DBIRTH" and len(received) > 3:
                press.lose_connection()
            elif kind == "NDEATH":
                return received
    return received


def main() -> None:
    """Run the node with a realm in this process, and print the messages that a host application
    receives."""
    with penstock.Realm() as realm, realm.connect() as session:
        prepare(session)
        for line in play(realm.listen_mqtt(), session):
            print(line)


if __name__ == "__main__":
    main()
