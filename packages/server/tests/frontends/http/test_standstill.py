"""A realm that reads no publishers for seconds says so, and one that is only busy does not."""

from __future__ import annotations

from typing import Any

import msgspec

import penstock
from packages.client.tests.simulated import World, in_world
from packages.server.tests.frontends.http.asking import Web
from packages.server.tests.frontends.http.http_wire import HttpWire
from penstock_server.frontends.http.http_service import HttpLimits
from penstock_server.frontends.http.server import HttpConnection, HttpServer
from penstock_server.frontends.http.standstill import STANDSTILL_S, Standstill
from penstock_testing.loop import pass_time


def test_a_backlog_that_does_not_get_less_is_a_standstill() -> None:
    standstill = Standstill()
    for second in range(4):
        standstill.update(second, (100, 7), is_congested=True)

    assert standstill.lasts_s(5) == 5


def test_a_backlog_that_is_worked_off_is_none() -> None:
    standstill = Standstill()
    for second, backlog in enumerate([(100, 7), (90, 7), (95, 6), (95, 9), (80, 10)]):
        standstill.update(second, backlog, is_congested=True)

    assert standstill.lasts_s(5) == 1


def test_it_ends_when_publishers_are_read() -> None:
    standstill = Standstill()
    standstill.update(0, (100, 0), is_congested=True)
    standstill.update(9, (100, 0), is_congested=False)

    assert standstill.lasts_s(20) == 0


@in_world
async def test_the_realm_is_not_ready_while_it_lasts_and_lives(world: World) -> None:
    listener = world.listener
    server = HttpServer(listener, HttpLimits())
    checks = world.loop.create_task(server.run())
    listener.pending_bytes = listener.realm.limits.backlog_bytes_max + 1
    await pass_time(STANDSTILL_S - 1.0)
    assert (await get(server, "/ready"))[0] == 200, "it may be only busy"
    await pass_time(3.0)

    assert await get(server, "/ready") == (503, {"status": "standstill"})
    assert (await get(server, "/health"))[0] == 200
    listener.pending_bytes = 0
    await pass_time(2.0)
    assert (await get(server, "/ready"))[0] == 200
    checks.cancel()


async def get(server: HttpServer, path: str) -> tuple[int, Any]:
    """Return the status and the document of an answer."""
    connection, wire = HttpConnection(server), HttpWire()
    connection.connection_made(wire)
    connection.data_received(b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode())
    await pass_time(0.1)
    head, _, body = wire.written.partition(b"\r\n\r\n")
    connection.connection_lost(None)
    return int(head.split()[1]), msgspec.json.decode(body)


def test_a_realm_at_ease_is_ready(realm: penstock.Realm, web: Web) -> None:
    assert web.get("/ready") == {"status": "ok"}
