"""Sends two messages through every pair of protocols, and compares what arrives with the tables of
`docs/guide/mqtt.md#round-trips`.

There is a table for each sending protocol. A row stands for a part of a message, a column for a
receiving protocol. ``—`` means that the part does not arrive; the same holds for parts without a
row.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import penstock
from packages.mqtt.tests.clients import PacketClient, connected
from packages.server.tests.frontends.http.asking import Web
from penstock_mqtt.wire.packets import PublishPacket, SubscribePacket, TopicSubscription
from penstock_mqtt.wire.properties import PacketProperties

PAGE: Final = Path(__file__).parents[1] / "docs" / "guide" / "mqtt.md"
NOTHING: Final = "—"
Parts = dict[str, str]
"""The values of the parts of a message, as in the cells of a column."""

CHANNEL: Final = "mqtt"
TOPIC: Final = "plant/3/temp"
PAYLOAD: Final = "21.5"
TTL_S: Final = 600
TAGS: Final = ["a", "b"]
SINGLE: Final[dict[str, Any]] = {"unit": "C", "n": 5, "celsius": 21.5, "ok": True}
NESTED: Final[dict[str, Any]] = {"tags": TAGS, "place": {"line": 3}}
NAMES: Final = (*SINGLE, *NESTED)
BYTES: Final = b"\x00\xff"
REPLY_TO: Final = "answers/7"
CORRELATION: Final = "c-17"
CONTENT_TYPE: Final = "text/plain"
AS_EVENT: Final[dict[str, Any]] = {
    "tag": "t",
    "properties": {"topic": TOPIC, **SINGLE, **NESTED},
    "headers": {
        "reply_to": REPLY_TO,
        "correlation_id": CORRELATION,
        "mqtt": json.dumps({"content_type": CONTENT_TYPE, "payload_format": 1}),
    },
    "ttl": 1_000 * TTL_S,
}
"""The arguments, except for the data, of a publish by native clients, HTTP and Spark."""
SECOND: Final[dict[str, Any]] = {"properties": {"topic": TOPIC}, "persistent": False}


def tables() -> dict[str, list[list[str]]]:
    """Return the cells of each table in the section, without backquotes, by the table's heading."""
    section = PAGE.read_text(encoding="utf-8").split("\n## Round trips\n")[1].split("\n## ")[0]
    columns = {}
    for part in section.split("\n### From ")[1:]:
        heading, _, text = part.partition("\n")
        lines = [line for line in text.splitlines() if line.startswith("|")]
        rows = [[cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in lines]
        columns[heading] = [rows[0], *rows[2:]]
    return columns


def documented_parts(source: str, sink: str) -> Parts:
    """Return the documented parts of messages from ``source`` to ``sink``. Raises ``ValueError`` if
    there is no table or no column."""
    (rows,) = [rows for heading, rows in tables().items() if source in _names(heading)]
    head, *rest = rows
    (column,) = [index for index, names in enumerate(head) if sink in _names(names)]
    return {row[0]: row[column] for row in rest}


def _names(text: str) -> list[str]:
    return re.split(", | and ", text.removeprefix("to "))


def assert_as_told(parts: Parts, source: str, sink: str) -> None:
    """Check that the parts that arrived are those of the documentation."""
    wanted = documented_parts(source, sink)
    assert parts == dict.fromkeys(parts, NOTHING) | wanted, (source, sink)
    assert wanted.keys() <= parts.keys()


class World:
    """A realm with clients of each protocol."""

    def __init__(self, realm: penstock.Realm, stack: ExitStack, *, is_amqp: bool) -> None:
        self.session = stack.enter_context(realm.connect("native"))
        self.mqtt_url = realm.listen_mqtt()
        self.web = Web(realm.listen_http())
        self.amqp: Any = None
        if is_amqp:
            from packages.amqp.tests.clients import Client

            self.amqp = stack.enter_context(Client(realm.listen_amqp(), "container"))
        self._stack = stack

    def channel(self) -> Any:
        return self.session.channels.get(CHANNEL)

    def device(self, name: str) -> PacketClient:
        return self._stack.enter_context(connected(self.mqtt_url, name))


@contextmanager
def world(realm: penstock.Realm, *, is_amqp: bool) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(realm, stack, is_amqp=is_amqp)


# --- sources -----------------------------------------------------------------------------


def from_mqtt(world: World) -> None:
    user = (("unit", "C"), *(("tags", tag) for tag in TAGS))
    properties = PacketProperties(
        payload_format=1,
        message_expiry_s=TTL_S,
        content_type=CONTENT_TYPE,
        response_topic=REPLY_TO,
        correlation_data=CORRELATION.encode(),
        user_properties=user,
    )
    device = world.device("device")
    device.publish(TOPIC, PAYLOAD.encode(), retain=True, properties=properties)
    odd = PacketProperties(correlation_data=BYTES)
    device.send(PublishPacket(TOPIC, BYTES, properties=odd))


def from_amqp(world: World) -> None:
    from proton import Message, symbol

    sender = world.amqp.sender(CHANNEL, "topic")
    message = Message(
        PAYLOAD,
        durable=True,
        ttl=TTL_S,
        content_type=symbol(CONTENT_TYPE),
        reply_to=REPLY_TO,
        correlation_id=CORRELATION,
        properties={"topic": TOPIC, **SINGLE},
    )
    sender.send(message)
    odd = Message(BYTES, correlation_id=BYTES, properties={"topic": TOPIC}, inferred=True)
    sender.send(odd)


def from_native(world: World) -> None:
    world.channel().publish(PAYLOAD.encode(), **AS_EVENT)
    world.channel().publish(BYTES, **SECOND)


def from_http(world: World) -> None:
    world.web.send("POST", f"channels/{CHANNEL}/events", {"data": PAYLOAD, **AS_EVENT})
    coded = base64.b64encode(BYTES).decode()
    world.web.send("POST", f"channels/{CHANNEL}/events", {"data_base64": coded, **SECOND})


# --- sinks: called before messages are sent; each returns a function that receives them -------


def to_mqtt(world: World) -> Callable[[], Parts]:
    listener = world.device("listener")
    wanted = TopicSubscription("plant/#", 2, retain_as_published=True, retain_handling=2)
    listener.send(SubscribePacket(1, (wanted,)))
    listener.receive()

    def heard() -> Parts:
        message, odd = listener.receive(), listener.receive()
        properties = message.properties
        user: dict[str, list[str]] = {}
        for name, value in properties.user_properties:
            user.setdefault(name, []).append(value)
        return {
            "topic": message.topic,
            "payload": _shown(message.payload),
            "whether it is text": NOTHING if properties.payload_format is None else "yes",
            "persistence": f"QoS {message.qos}",
            "content type": properties.content_type or NOTHING,
            "reply to": properties.response_topic or NOTHING,
            "correlation": _shown(properties.correlation_data),
            **{_property(name): _values(user.get(name, [])) for name in NAMES},
            "tag": NOTHING,
            "expiry": _expiry(properties.message_expiry_s),
            "client id": NOTHING,
            "retained": "yes" if message.retain else NOTHING,
            "second payload": _shown(odd.payload),
            "second persistence": f"QoS {odd.qos}",
            "second correlation": _shown(odd.properties.correlation_data),
        }

    return heard


def to_amqp(world: World) -> Callable[[], Parts]:
    from packages.amqp.tests.clients import WAIT_S

    receiver = world.amqp.receiver(CHANNEL, "topic")

    def heard() -> Parts:
        messages = []
        for _ in range(2):
            messages.append(receiver.receive(WAIT_S))
            receiver.accept()
        message, odd = messages
        receiver.close()
        annotations = message.annotations or {}
        applied = dict(message.properties)
        others = {**applied, **annotations.get("x-opt-penstock-properties", {})}
        return {
            "topic": others.pop("topic"),
            "payload": _shown(message.body),
            "whether it is text": "yes" if isinstance(message.body, str) else NOTHING,
            "persistence": _durable(message),
            "content type": str(message.content_type or NOTHING),
            "reply to": message.reply_to or NOTHING,
            "correlation": _shown(message.correlation_id),
            **_properties(others),
            "tag": annotations.get("x-opt-penstock-tag", NOTHING),
            "expiry": _expiry(message.ttl),
            "client id": NOTHING,
            "retained": NOTHING,
            "second payload": _shown(odd.body),
            "second persistence": _durable(odd),
            "second correlation": _shown(odd.correlation_id),
        }

    return heard


def to_native(world: World) -> Callable[[], Parts]:
    stream = world.channel().subscribe(timeout=20.0)
    messages = iter(stream.__enter__())

    def heard() -> Parts:
        events = [next(messages), next(messages)]
        stream.__exit__(None, None, None)
        return parts_of_events(
            [
                {
                    "data": event.data,
                    "properties": event.properties,
                    "headers": event.headers,
                    "persistent": event.persistent,
                    "ttl": event.ttl,
                    "tag": event.tag,
                }
                for event in events
            ]
        )

    return heard


def to_http(world: World) -> Callable[[], Parts]:
    last = max((event.event_id for event in world.channel().browse()), default=-1)

    def heard() -> Parts:
        path = f"channels/{CHANNEL}/events?start={last + 1}"
        events = world.web.send("GET", path)["items"]
        for event in events:
            text, coded = event.get("data"), event.get("data_base64")
            event["data"] = base64.b64decode(coded) if coded else text.encode()
        return parts_of_events(events)

    return heard


def parts_of_events(events: Iterable[Mapping[str, Any]]) -> Parts:
    """Return the parts of two events, whose fields have the same names in native clients, HTTP and
    Spark."""
    event, odd = events
    headers = {name: value for name, value in event["headers"].items() if value is not None}
    of_mqtt, of_amqp = (json.loads(headers.get(protocol, "{}")) for protocol in ("mqtt", "amqp"))
    odd_headers = odd["headers"]
    is_hex = json.loads(odd_headers.get("mqtt") or "{}").get("hex")
    is_hex = is_hex or "binary" in (odd_headers.get("amqp") or "")
    is_text = of_mqtt.get("payload_format") == 1 or of_amqp.get("body") == "text"
    properties = dict(event["properties"])
    odd_id = odd_headers.get("correlation_id")
    return {
        "topic": properties.pop("topic"),
        "payload": _shown(event["data"]),
        "whether it is text": "yes" if is_text else NOTHING,
        "persistence": _persistent(event),
        "content type": of_mqtt.get("content_type") or of_amqp.get("content_type") or NOTHING,
        "reply to": headers.get("reply_to", NOTHING),
        "correlation": headers.get("correlation_id", NOTHING),
        **_properties(properties),
        "tag": event.get("tag") or NOTHING,
        "expiry": _expiry((event.get("ttl") or 0) / 1_000),
        "client id": headers.get("application_id", NOTHING),
        "retained": "yes" if of_mqtt.get("retain") else NOTHING,
        "second payload": _shown(odd["data"]),
        "second persistence": _persistent(odd),
        "second correlation": f"0x{odd_id}" if is_hex else odd_id or NOTHING,
    }


SOURCES: Final = {"MQTT": from_mqtt, "AMQP": from_amqp, "native": from_native, "HTTP": from_http}
SINKS: Final = {"MQTT": to_mqtt, "AMQP": to_amqp, "native": to_native, "HTTP": to_http}


def _property(name: str) -> str:
    return f"property {name}"


def _properties(properties: Mapping[str, Any]) -> Parts:
    return {_property(n): json.dumps(properties[n]) if n in properties else NOTHING for n in NAMES}


def _durable(message: Any) -> str:
    return "durable" if message.durable else "not durable"


def _persistent(event: Mapping[str, Any]) -> str:
    return "persistent" if event.get("persistent") is not False else "not persistent"


def _shown(value: Any) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return value
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return f"0x{bytes(value).hex()}"


def _values(values: list[str]) -> str:
    return ", ".join(map(json.dumps, values)) or NOTHING


def _expiry(seconds: float | None) -> str:
    """Return the original expiry, if the remaining one is at most 300 s shorter."""
    return f"{TTL_S} s" if seconds and TTL_S - 300 < seconds <= TTL_S else NOTHING
