"""Runs of ``penstock load`` against a realm in memory."""

from __future__ import annotations

import asyncio
from typing import Any

from packages.client.tests.simulated import URL, World
from penstock import aio
from penstock_testing.loop import pass_time
from penstock_tools.cli.load_plan import LoadPlan
from penstock_tools.cli.load_run import Ending, LoadPicture, LoadReport, LoadRun, LoadSetup

CHANNEL = "load-test"


def run_of(world: World, plan: LoadPlan, ending: Ending | None = None, **wanted: Any) -> LoadRun:
    setup = LoadSetup(url=URL, channel=CHANNEL, **wanted)
    return LoadRun(plan, setup, world.loop, ending=ending or Ending())


def server_transports(world: World) -> list[Any]:
    """Return the transport of the realm for each connection."""
    connections: list[Any] = list(world.listener.connections)
    return [connection._transport for connection in connections]


async def start_and_wait_a_second(run: LoadRun) -> asyncio.Task[LoadReport]:
    """Start a run; return its task a second after its first publish."""
    running = asyncio.get_running_loop().create_task(run.run())
    while run.picture().acknowledged_per_s == 0:
        await pass_time(0.01)
    await pass_time(1.0)
    return running


async def each_comes_once(world: World) -> None:
    plan = LoadPlan(rates=(100.0, 300.0), step_s=1.0, rollback=0.1)
    seen: list[LoadPicture] = []

    report = await run_of(world, plan, publishers=2, consumers=3).run(seen.append)

    assert report.is_right
    assert (report.ended, report.problem, report.is_kept) == ("complete", "", False)
    assert (report.planned, report.acknowledged, report.delivered) == (400, 400, 400)
    assert (report.rolled_back, report.redelivered) == (40, 40)
    assert [step.publish.events for step in report.steps] == [100, 300]
    assert [step.delivery.events for step in report.steps] == [100, 300]
    assert seen[0].rate == 300.0
    assert seen[0].acknowledged_per_s > 0
    async with aio.connect(URL) as session:
        assert await session.channels.list() == []


async def a_realm_stalls(world: World) -> None:
    """The realm reads nothing for two seconds. Latency counts from the time at which a publish was
    due: two hundred publishes were, although only ten could be sent."""
    run = run_of(world, LoadPlan(rates=(100.0,), step_s=4.0))
    running = await start_and_wait_a_second(run)

    transports = server_transports(world)
    for transport in transports:
        transport.pause_reading()
    await pass_time(2.0)
    for transport in transports:
        transport.resume_reading()
    report = await running

    assert report.is_right
    (step,) = report.steps
    assert step.publish.p50_ms < 100
    assert 1_500 <= step.publish.p90_ms <= 1_700
    assert 1_900 <= step.publish.max_ms <= 2_100
    assert step.delivery.p90_ms >= step.publish.p90_ms * 0.99
