"""Each protocol as a source and as a sink, as the guide's tables have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec

import pytest

import penstock
from packages.mqtt.tests.clients import connected
from penstock_mqtt.wire.properties import PacketProperties
from tests.round_trips import (
    CHANNEL,
    SINKS,
    SOURCES,
    Parts,
    World,
    assert_as_told,
    documented_parts,
    tables,
    world,
)

pytestmark = pytest.mark.slow

IS_AMQP = find_spec("proton") is not None
HERE = [name for name in SOURCES if IS_AMQP or name != "AMQP"]


class Exchange:
    """Messages that the sinks have received from each source; a source sends once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.got = cache(self._got)

    def _got(self, source: str) -> dict[str, Parts]:
        hearing = {sink: SINKS[sink](self.world) for sink in HERE}
        SOURCES[source](self.world)
        return {sink: heard() for sink, heard in hearing.items()}


@pytest.fixture(scope="module")
def exchange() -> Iterator[Exchange]:
    with penstock.Realm() as realm, world(realm, is_amqp=IS_AMQP) as everybody:
        yield Exchange(everybody)


@pytest.mark.spec("M3")
@pytest.mark.parametrize("sink", HERE)
@pytest.mark.parametrize("source", HERE)
def test_what_arrives_is_what_the_guide_says(exchange: Exchange, source: str, sink: str) -> None:
    assert_as_told(exchange.got(source)[sink], source, sink)


@pytest.mark.parametrize("correlation", [b"c-17", b"\0\xff"])
@pytest.mark.parametrize("replier", [name for name in HERE if name in ("native", "AMQP")])
def test_another_protocol_answers_a_request_of_mqtt(
    exchange: Exchange, replier: str, correlation: bytes
) -> None:
    topic = f"answers/{replier}/{correlation.hex()}"
    asking = PacketProperties(response_topic=topic, correlation_data=correlation)
    with connected(exchange.world.mqtt_url) as asker:
        asker.subscribe(topic)
        reply = REPLIERS[replier](exchange.world)
        asker.publish("double", b"21", properties=asking)
        reply()
        answer = asker.receive()

    assert (answer.payload, answer.properties.correlation_data) == (b"42", correlation)


def _native(world: World) -> Callable[[], None]:
    stream = world.channel().subscribe(selector="topic = 'double'", timeout=20.0)
    requests = iter(stream.__enter__())

    def reply() -> None:
        headers = next(requests).headers
        stream.__exit__(None, None, None)
        headers_of_amqp = {"correlation_id": headers["correlation_id"]}
        if "hex" in headers.get("mqtt", ""):
            headers_of_amqp["mqtt"] = '{"hex": true}'
        world.channel().publish(
            b"42", properties={"topic": headers["reply_to"]}, headers=headers_of_amqp
        )

    return reply


def _amqp(world: World) -> Callable[[], None]:
    from proton import Message

    from packages.amqp.tests.clients import plain

    receiver = world.amqp.receiver(CHANNEL, "topic", selector="topic = 'double'")
    sender = world.amqp.sender(CHANNEL, "topic")

    def reply() -> None:
        request = receiver.receive(20.0)
        to = {"topic": request.reply_to}
        sender.send(Message(b"42", properties=to, correlation_id=plain(request.correlation_id)))
        receiver.accept()
        receiver.close()

    return reply


REPLIERS = {"native": _native, "AMQP": _amqp}


def test_the_guide_has_a_column_for_each_pair_and_says_why_a_part_is_lost() -> None:
    everybody = (*SOURCES, "Spark")
    for source in everybody:
        for sink in everybody:
            assert documented_parts(source, sink)
    for heading, (_, *rows) in tables().items():
        for part, *cells, why in rows:
            assert "—" not in cells or why, (heading, part)
