"""Turns between a flood over HTTP and others, counted in virtual time: the requests of a connection
are answered one by one, and others are served in between."""

from __future__ import annotations

from typing import Any

import pytest

from packages.client.tests.simulated import World, in_world
from packages.server.tests.frontends.publishers import publishers
from packages.server.tests.frontends.wires import Wire
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.frontends.http.http_service import HttpLimits
from penstock_server.frontends.http.server import HttpConnection, HttpServer
from penstock_testing.loop import pass_time

FLOOD = 60
"""Requests that come in one piece."""
BODY = b'{"data": "x"}'
REQUEST = (
    b"POST /api/v1/channels/flooded/events HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY)
) + BODY


class HttpWire(Wire):
    """Keeps what a connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def set_protocol(self, protocol: Any) -> None:
        """It stays with the one that it has."""


@in_world
async def test_others_are_served_between_the_requests_of_one_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, other = await publishers(world)
    server = HttpServer(world.listener, HttpLimits())
    order: list[int] = []
    publish = world.listener.realm.publish

    def noted(number: int, *given: Any, **named: Any) -> None:
        order.append(number)
        publish(ChannelId(number), *given, **named)
        if number == 1 and len(order) < FLOOD:
            other.publish(1)

    monkeypatch.setattr(world.listener.realm, "publish", noted)
    flooding, wire = HttpConnection(server), HttpWire()
    flooding.connection_made(wire)
    flooding.data_received(REQUEST * FLOOD)
    await pass_time(1.0)

    assert wire.written.count(b"HTTP/1.1 201 Created\r\n") == FLOOD
    assert order.count(1) == FLOOD
    assert order[: FLOOD // 2] == [1, 2] * (FLOOD // 4), "one of each in turn"
    flooding.connection_lost(None)
