"""Handlers that fail, and the log lines of a session."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest

from packages.client.tests.simulated import URL, World, in_world
from penstock import aio
from penstock_testing.loop import pass_time


async def failing(world: World, kind: str, **attributes: object) -> list[float]:
    """The times, in seconds from the first call, at which a handler was given the event that it
    fails on."""
    calls: list[float] = []

    def handle(event: aio.DeliveredEvent) -> None:
        calls.append(world.loop.time())
        raise ValueError("not today")

    async with aio.connect(URL) as session:
        orders = await session.channels.create("orders")
        durable = await orders.durables.create("d", type=kind, **attributes)  # type: ignore[arg-type]
        await orders.publish(b"0")
        async with durable.subscribe(handle):
            await pass_time(30.0)
    return [call - calls[0] for call in calls]


@pytest.mark.spec("D18")
@pytest.mark.parametrize("kind", ["shared", "serial", "shared_queued"])
@in_world
async def test_an_event_that_a_handler_fails_on_comes_later_each_time(
    world: World, kind: str
) -> None:
    calls = await failing(world, kind)

    pauses = [after - before for before, after in pairwise(calls)]
    assert pauses[:5] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6], abs=0.2)
    assert len(calls) == 9


@pytest.mark.spec("D18")
@in_world
async def test_a_backoff_of_the_durable_decides(world: World) -> None:
    calls = await failing(world, "shared", backoff={"first": "10s", "factor": 1})

    assert calls == pytest.approx([0.0, 10.0, 20.0, 30.0][: len(calls)], abs=0.5)
    assert len(calls) in (3, 4)


@in_world
async def test_the_log_names_the_durable_and_has_the_traceback_of_the_handler(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await failing(world, "exclusive")

    (record,) = [record for record in caplog.records if "handler" in record.getMessage()]
    assert "the handler of durable d failed on event 0: ValueError" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is ValueError


@pytest.mark.spec("N4")
@in_world
async def test_a_lost_connection_is_logged_at_once_and_so_is_the_next(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.client")
    async with aio.connect(URL) as session:
        world.end_of(session).abort()
        await world.until(lambda: session.connection.reconnects > 0)

    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert lines == [
        (
            "WARNING",
            "session.interrupted: the connection was lost (it was closed) [connection-lost]",
        ),
        ("INFO", "session.resumed: the session is connected again"),
    ]
