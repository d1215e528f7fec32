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


def ends_at_the_realm(world: World) -> list[Any]:
    """The realm's end of every connection."""
    connections: list[Any] = list(world.listener.connections)
    return [each._transport for each in connections]


async def after_a_second(run: LoadRun) -> asyncio.Task[LoadReport]:
    """The run, a second after it has begun to publish."""
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
    """Measured from the sending, ten publishes would have waited; but two hundred were due."""
    run = run_of(world, LoadPlan(rates=(100.0,), step_s=4.0))
    running = await after_a_second(run)

    stalled = ends_at_the_realm(world)
    for end in stalled:
        end.pause_reading()
    await pass_time(2.0)
    for end in stalled:
        end.resume_reading()
    report = await running

    assert report.is_right
    (step,) = report.steps
    assert step.publish.p50_ms < 100
    assert 1_500 <= step.publish.p90_ms <= 1_700
    assert 1_900 <= step.publish.max_ms <= 2_100
    assert step.delivery.p90_ms >= step.publish.p90_ms * 0.99
