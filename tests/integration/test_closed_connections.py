"""A connection that is over is freed at once. Nothing of it waits for the cyclic garbage collector,
which a server runs rarely: closed connections would take more memory than open ones."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

import pytest

from penstock_amqp.connection import AmqpConnection
from penstock_amqp.engine import AmqpEngine
from penstock_mqtt.connection import MqttConnection
from penstock_mqtt.session import MqttSession
from penstock_server.frontends.http.server import HttpConnection
from penstock_server.frontends.native.connection import Connection
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.writer.group import Group
from tests.frozen_heap import only_new_objects_tracked
from tests.fuzz import amqp, connections, http, mqtt_connections
from tests.fuzz.connections import Served

CONNECTIONS: Final = (AmqpConnection, Connection, HttpConnection, MqttConnection)
KINDS: Final = (*CONNECTIONS, AmqpEngine, Caller, Group, MqttSession)
KEPT: Final = Counter({"Group": 1, "MqttSession": 1})
"""Objects that remain: the newest group of the writer, and the session that is still open."""
PROTOCOLS: Final[dict[str, tuple[type[Served], Sequence[bytes]]]] = {
    "native": (Served, connections.conversations()),
    "amqp": (amqp.AmqpServed, amqp.conversations()),
    "mqtt": (mqtt_connections.MqttServed, mqtt_connections.conversations()),
    "http": (http.HttpServed, http.conversations()),
}


@pytest.fixture(autouse=True)
def _uncollected() -> Iterator[None]:
    """Nothing is collected, and what was there before is not looked at."""
    with only_new_objects_tracked():
        yield


def connection_objects() -> Counter[str]:
    return Counter(type(object_).__name__ for object_ in gc.get_objects() if type(object_) in KINDS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("share", [1.0, 0.6], ids=["whole", "cut off"])
def test_nothing_of_a_closed_connection_waits_for_the_garbage_collector(
    protocol: str, share: float
) -> None:
    kind, conversations = PROTOCOLS[protocol]
    with closing(kind()) as served:
        for conversation in conversations:
            served.handle(conversation[: int(share * len(conversation))])

        assert connection_objects() <= KEPT
