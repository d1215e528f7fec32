"""An edge node of Sparkplug B, simulated: ``python -m examples.sparkplug.edge_node``.

It begins with a birth certificate, says what has changed, gives birth again when a host application
asks for it, and has its death certificate published when its connection is lost. The program has a
realm in its own process; ``docs/howto/sparkplug.md`` does the same with a server, step by step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import penstock

DESCRIPTORS: Final = Path(__file__).with_name("sparkplug.pb")
"""Made of ``sparkplug.proto`` by ``protoc --include_imports --descriptor_set_out=sparkplug.pb``."""
TOPICS: Final = ["spBv1.0/{group}/{type}/{node}", "spBv1.0/{group}/{type}/{node}/{device}"]
REBIRTH: Final = "Node Control/Rebirth"
WAIT_S: Final = 30.0
INT64, DOUBLE, BOOLEAN = 4, 10, 11
_KINDS: Final = {INT64: "long_value", DOUBLE: "double_value", BOOLEAN: "boolean_value"}

Metric = tuple[str, int, object]
"""Name, data type and value."""
mqtt: Any = paho


def _payload_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("spb.Payload"))


Payload: Any = _payload_class()


class EdgeNode:
    """One edge node with its devices."""

    def __init__(self, url: str, group: str, name: str, births: int = 0) -> None:
        """``births``: how often it was born before, which is what its certificates count."""
        self._group, self._name = group, name
        self._births = births
        self._seq = 0
        self._devices: dict[str, dict[str, Metric]] = {}
        """The newest metrics of each device."""
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, f"edge-{group}-{name}")
        death = Payload(metrics=[self._metric(("bdSeq", INT64, births))]).SerializeToString()
        self._client.will_set(self._topic("NDEATH"), death, qos=1)
        self._client.on_message = self._asked
        host, _, port = url.rpartition("//")[2].rpartition(":")
        self._client.connect(host, int(port))
        self._client.subscribe(self._topic("NCMD"), qos=1)
        self._client.loop_start()
        self.give_birth()

    def give_birth(self) -> None:
        """Say everything that there is: of the node, and of each device."""
        self._seq = 0
        self._say("NBIRTH", [("bdSeq", INT64, self._births), (REBIRTH, BOOLEAN, False)])
        for device, metrics in self._devices.items():
            self._say("DBIRTH", list(metrics.values()), device)

    def add(self, device: str, *metrics: Metric) -> None:
        """Have a device, with all its metrics."""
        self._devices[device] = {name: (name, *rest) for name, *rest in metrics}  # type: ignore[misc]
        self._say("DBIRTH", list(metrics), device).wait_for_publish(WAIT_S)

    def report(self, device: str, *metrics: Metric) -> None:
        """Say what has changed of a device, and wait until it is stored."""
        for each in metrics:
            self._devices[device][each[0]] = each
        self._say("DDATA", list(metrics), device).wait_for_publish(WAIT_S)

    def lose_connection(self) -> None:
        """End without saying so."""
        self._client.socket().close()
        self._client.loop_stop()

    def _asked(self, client: Any, given: object, message: Any) -> None:
        wanted = Payload.FromString(message.payload).metrics
        if any(each.name == REBIRTH and each.boolean_value for each in wanted):
            self.give_birth()

    def _say(self, kind: str, metrics: list[Metric], device: str = "") -> Any:
        payload = Payload(seq=self._seq, metrics=[self._metric(each) for each in metrics])
        self._seq = (self._seq + 1) % 256
        return self._client.publish(self._topic(kind, device), payload.SerializeToString(), qos=1)

    def _topic(self, kind: str, device: str = "") -> str:
        return "/".join(filter(None, ("spBv1.0", self._group, kind, self._name, device)))

    def _metric(self, metric: Metric) -> Any:
        name, datatype, value = metric
        return Payload.Metric(name=name, datatype=datatype, **{_KINDS[datatype]: value})


def prepare(session: penstock.Session) -> None:
    """Make a channel for all of it, and one with the newest of each topic."""
    descriptors = DESCRIPTORS.read_bytes()
    session.channels.create(
        "sparkplug", topics=TOPICS, descriptors=descriptors, retain_consumed=True
    )
    session.channels.create("sparkplug-last", keys={"topic": 1}, descriptors=descriptors)
    session.joins.create("sparkplug", "sparkplug-last")


def play(url: str, session: penstock.Session) -> list[str]:
    """The life of an edge node; gives what a host application hears of it, a line an event."""
    told: list[str] = []
    channel = session.channels.get("sparkplug")
    with channel.subscribe(start="earliest", timeout=WAIT_S) as events:
        press = EdgeNode(url, "ulm", "press", births=7)
        press.add("oven", ("celsius", DOUBLE, 20.0), ("running", BOOLEAN, True))
        press.report("oven", ("celsius", DOUBLE, 96.5))
        rebirth = Payload(metrics=[{"name": REBIRTH, "boolean_value": True}])
        for event in events:
            kind = event.properties["type"]
            told.append(f"{kind} {channel.messages().decode(event).get('metrics')}")
            if kind == "DDATA":  # whoever comes late asks for all there is
                channel.publish(
                    rebirth.SerializeToString(),
                    properties={"group": "ulm", "type": "NCMD", "node": "press"},
                    headers={"message_type": "spb.Payload"},
                )
            elif kind == "DBIRTH" and len(told) > 3:
                press.lose_connection()
            elif kind == "NDEATH":
                return told
    return told


def main() -> None:
    """Play it in a realm of its own, and print what a host application hears."""
    with penstock.Realm() as realm, realm.connect() as session:
        prepare(session)
        for line in play(realm.listen_mqtt(), session):
            print(line)


if __name__ == "__main__":
    main()
