"""A trace context goes in by each protocol and comes out by each, untouched."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import paho.mqtt.client
import pytest
from paho.mqtt.packettypes import PacketTypes

import penstock
from packages.server.tests.frontends.http.asking import Web
from penstock_testing.process import ServerProcess

pytest.importorskip("proton", reason="python-qpid-proton is not installed: `make setup` says why")

from proton import Message
from proton.utils import BlockingConnection

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.spec("E13")]

mqtt: Any = paho.mqtt.client
"""Its type information leaves out what its pages tell to use."""
PATIENCE_S: Final = 60.0
PROTOCOLS: Final = ("native", "http", "amqp", "mqtt")
STATE: Final = "congo=t61rcWkgMzE,rojo@vendor=00f067aa0ba902b7"
CHANNEL: Final = "mqtt"
"""The channel of MQTT messages; every protocol reads and writes it."""
TOPIC: Final = "traces"

Context = Mapping[str, str]
Contexts = dict[str, tuple[str, str]]
"""Parent and state of the received contexts, by the protocol that published."""


def context_of(protocol: str) -> Context:
    """A context that no other protocol sends."""
    span = f"{PROTOCOLS.index(protocol) + 1:016x}"
    return {"traceparent": f"00-0af7651916cd43dd8448eb211c80319c-{span}-01", "tracestate": STATE}


class Ports:
    """The ports of the realm, one for each protocol."""

    def __init__(self, server: ServerProcess) -> None:
        self.native = server.url
        self.http = Web(server.http_url)
        self.amqp = str(server.logged("amqp.listening")[0]["url"])
        self.mqtt = int(server.mqtt_url.rpartition(":")[2])


# --- publishing ----------------------------------------------------------------------------


def publish_natively(ports: Ports, context: Context) -> None:
    with penstock.connect(ports.native) as session:
        session.channels.get(CHANNEL).publish(b"native", properties={"topic": TOPIC, **context})


def publish_over_http(ports: Ports, context: Context) -> None:
    event = {"data": "http", "properties": {"topic": TOPIC}}
    reply = ports.http.ask("POST", f"channels/{CHANNEL}/events", event, headers=context)
    assert reply.status == 201


def publish_over_amqp(ports: Ports, context: Context) -> None:
    connection = BlockingConnection(ports.amqp, timeout=PATIENCE_S)
    message = Message(body=b"amqp", properties={"topic": TOPIC, **context})
    connection.create_sender(CHANNEL).send(message)
    connection.close()


def publish_over_mqtt(ports: Ports, context: Context) -> None:
    published = threading.Event()
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "publisher", protocol=mqtt.MQTTv5)
    properties: Any = mqtt.Properties(PacketTypes.PUBLISH)
    properties.UserProperty = list(context.items())
    client.on_connect = lambda *_: client.publish(TOPIC, b"mqtt", 1, properties=properties)
    client.on_publish = lambda *_: published.set()
    client.connect("127.0.0.1", ports.mqtt)
    client.loop_start()
    assert published.wait(PATIENCE_S)
    client.disconnect()
    client.loop_stop()


PUBLISH: Final[Mapping[str, Callable[[Ports, Context], None]]] = {
    "native": publish_natively,
    "http": publish_over_http,
    "amqp": publish_over_amqp,
    "mqtt": publish_over_mqtt,
}


# --- receiving -----------------------------------------------------------------------------


def received_natively(ports: Ports) -> Contexts:
    with penstock.connect(ports.native) as session:
        return {
            event.data.decode(): (event.properties["traceparent"], event.properties["tracestate"])
            for event in session.channels.get(CHANNEL).browse()
        }


def received_over_http(ports: Ports) -> Contexts:
    items = ports.http.get(f"channels/{CHANNEL}/events")["items"]
    return {
        item["data"]: (item["properties"]["traceparent"], item["properties"]["tracestate"])
        for item in items
    }


@contextmanager
def receiving_over_amqp(ports: Ports) -> Iterator[Callable[[], Contexts]]:
    connection = BlockingConnection(ports.amqp, timeout=PATIENCE_S)
    receiver = connection.create_receiver(CHANNEL, credit=10)

    def received() -> Contexts:
        contexts = {}
        for _ in PROTOCOLS:
            message = receiver.receive()
            receiver.accept()
            properties = message.properties
            contexts[bytes(message.body).decode()] = (
                properties["traceparent"],
                properties["tracestate"],
            )
        return contexts

    yield received
    connection.close()


@contextmanager
def receiving_over_mqtt(ports: Ports) -> Iterator[Callable[[], Contexts]]:
    messages: queue.Queue[Any] = queue.Queue()
    subscribed = threading.Event()
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "subscriber", protocol=mqtt.MQTTv5)
    client.on_connect = lambda *_: client.subscribe(TOPIC, qos=1)
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda _, __, message: messages.put(message)
    client.connect("127.0.0.1", ports.mqtt)
    client.loop_start()
    assert subscribed.wait(PATIENCE_S)

    def received() -> Contexts:
        contexts = {}
        for _ in PROTOCOLS:
            message = messages.get(timeout=PATIENCE_S)
            properties = dict(message.properties.UserProperty)
            contexts[message.payload.decode()] = properties["traceparent"], properties["tracestate"]
        return contexts

    yield received
    client.disconnect()
    client.loop_stop()


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Contexts]]:
    """The contexts that each protocol has received, after each has published one event."""
    options = ("--http", "--http-port", "0", "--amqp-port", "0", "--mqtt-port", "0")
    with (
        ServerProcess(tmp_path_factory.mktemp("realm"), *options) as server,
        ExitStack() as stack,
    ):
        ports = Ports(server)
        over_mqtt = stack.enter_context(receiving_over_mqtt(ports))
        over_amqp = stack.enter_context(receiving_over_amqp(ports))
        for protocol, publish in PUBLISH.items():
            publish(ports, context_of(protocol))
        yield {
            "native": received_natively(ports),
            "http": received_over_http(ports),
            "amqp": over_amqp(),
            "mqtt": over_mqtt(),
        }


@pytest.mark.parametrize("reader", PROTOCOLS)
@pytest.mark.parametrize("publisher", PROTOCOLS)
def test_a_context_arrives_untouched(
    received: Mapping[str, Contexts], publisher: str, reader: str
) -> None:
    assert received[reader][publisher] == tuple(context_of(publisher).values())
