"""Turns between a flood over HTTP and others, counted in virtual time: the requests of a connection
are answered one by one, and others are served in between."""

from __future__ import annotations

from packages.server.tests.frontends.http.http_wire import HttpWire
from packages.server.tests.frontends.publishers import publishers, watched
from penstock_server.frontends.http.http_service import HttpLimits
from penstock_server.frontends.http.server import HttpConnection, HttpServer
from penstock_testing.loop import pass_time, simulated

FLOOD = 60
"""Requests that come in one piece."""
BODY = b'{"data": "x"}'
REQUEST = (
    b"POST /api/v1/channels/flooded/events HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY)
) + BODY


@simulated
async def test_others_are_served_between_the_requests_of_one_connection() -> None:
    async with watched() as (world, realm):
        _, other_connection = await publishers(world)
        server = HttpServer(world.listener, HttpLimits())

        def publish_too(number: int) -> None:
            if number == 1 and len(realm.arrivals) < FLOOD:
                other_connection.publish(1)

        realm.on_publish = publish_too
        flooding, wire = HttpConnection(server), HttpWire()
        flooding.connection_made(wire)
        flooding.data_received(REQUEST * FLOOD)
        await pass_time(1.0)

        order = [number for number, _ in realm.arrivals]
        assert wire.written.count(b"HTTP/1.1 201 Created\r\n") == FLOOD
        assert order.count(1) == FLOOD
        assert order[: FLOOD // 2] == [1, 2] * (FLOOD // 4), "one of each in turn"
        flooding.connection_lost(None)
