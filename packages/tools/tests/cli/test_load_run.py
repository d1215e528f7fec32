"""A run of ``penstock load`` against a realm that stalls, and one that is cut off, on virtual
time."""

from __future__ import annotations

import pytest

from packages.client.tests.simulated import URL, World, in_world
from packages.tools.tests.cli.load_runs import (
    CHANNEL,
    a_realm_stalls,
    each_comes_once,
    run_of,
    server_transports,
    start_and_wait_a_second,
)
from penstock import aio
from penstock_core.vocabulary.errors import EventTooLarge, InvalidArgument, NameAlreadyBound
from penstock_testing.loop import pass_time
from penstock_tools.cli.load_plan import LoadPlan
from penstock_tools.cli.load_run import Ending


@in_world
async def test_each_event_comes_once_and_the_channel_is_gone(world: World) -> None:
    await each_comes_once(world)


@in_world
async def test_a_realm_that_stalls_has_kept_all_waiting_that_were_due_meanwhile(
    world: World,
) -> None:
    await a_realm_stalls(world)


@in_world
async def test_connections_that_are_cut_lose_nothing(world: World) -> None:
    run = run_of(world, LoadPlan(rates=(500.0,), step_s=3.0, rollback=0.05), consumers=2)
    running = await start_and_wait_a_second(run)

    for end in server_transports(world):
        end.reset()
    report = await running

    assert report.is_right, report
    assert report.delivered == report.acknowledged == 1_500


@in_world
async def test_asked_to_end_it_waits_for_what_is_under_way(world: World) -> None:
    ending = Ending()
    running = await start_and_wait_a_second(
        run_of(world, LoadPlan(rates=(100.0,), step_s=60.0), ending)
    )

    ending.request()
    report = await running

    assert report.ended == "interrupted"
    assert 90 <= report.acknowledged == report.delivered <= 120
    assert (report.unanswered, report.outstanding, report.lost, report.twice) == (0, 0, 0, 0)
    assert not report.is_kept


@in_world
async def test_asked_again_it_waits_for_nothing(world: World) -> None:
    ending = Ending()
    running = await start_and_wait_a_second(
        run_of(world, LoadPlan(rates=(100.0,), step_s=60.0), ending)
    )
    stalled = server_transports(world)
    for end in stalled:
        end.pause_reading()
    await pass_time(1.0)

    ending.request()
    ending.request()
    await pass_time(0.1)
    for end in stalled:
        end.resume_reading()
    report = await running

    assert report.ended == "interrupted"
    assert report.unanswered > 0
    assert (report.lost, report.twice, report.is_kept) == (0, 0, False)


@in_world
async def test_a_realm_that_does_not_come_back_is_told_with_what_is_left(world: World) -> None:
    run = run_of(world, LoadPlan(rates=(100.0,), step_s=60.0), reconnect_s=5.0)
    running = await start_and_wait_a_second(run)

    world.door.close()
    for end in server_transports(world):
        end.reset()
    report = await running

    assert (report.ended, report.is_kept) == ("failed", True)
    assert "[cannot-connect]" in report.problem
    assert report.unanswered > 0
    assert report.delivered >= 90
    assert (report.lost, report.twice) == (0, 0)


@in_world
async def test_without_consumers_the_channel_has_counted(world: World) -> None:
    plan = LoadPlan(rates=(100.0,), step_s=1.0, sizes=(0, 50), keys=7)

    report = await run_of(world, plan, consumers=0, keep=True).run()

    assert report.is_right
    assert (report.acknowledged, report.delivered, report.is_kept) == (100, 0, True)
    async with aio.connect(URL) as session:
        table = await (await session.channels.get(CHANNEL)).read(columns=["number", "key", "data"])
    assert table["number"].to_pylist() == list(range(100))
    assert set(table["key"].to_pylist()) == set(range(7))
    assert [len(data) for data in table["data"].to_pylist()] == [0, 50] * 50


@in_world
async def test_the_events_of_a_key_may_be_consumed_in_their_order(world: World) -> None:
    plan = LoadPlan(rates=(300.0,), step_s=1.0, keys=5)

    report = await run_of(world, plan, consumers=3, by_key=True).run()

    assert report.is_right
    assert report.delivered == 300


@in_world
async def test_events_that_are_refused_are_counted(world: World) -> None:
    run = run_of(world, LoadPlan(rates=(100.0,), step_s=2.0))
    running = await start_and_wait_a_second(run)

    async with aio.connect(URL) as administrator:
        await administrator.pause_publishing()
        report = await running

    assert not report.is_right
    assert 50 <= report.refused <= 120
    assert report.acknowledged + report.refused == 200
    assert "[publishing-paused]" in report.problem
    assert (report.ended, report.outstanding, report.lost) == ("complete", 0, 0)


@in_world
async def test_what_keeps_a_run_from_beginning_changes_nothing(world: World) -> None:
    async with aio.connect(URL) as session:
        await session.channels.create(CHANNEL)
        plan = LoadPlan(rates=(100.0,), step_s=1.0)

        with pytest.raises(NameAlreadyBound):
            await run_of(world, plan).run()
        assert await session.channels.list() == [CHANNEL]
        await session.channels.delete(CHANNEL)
        with pytest.raises(InvalidArgument, match="type"):
            await run_of(world, plan, type="fast").run()
        too_large = LoadPlan(rates=(1.0,), step_s=1.0, sizes=(session.event_bytes_max,))
        with pytest.raises(EventTooLarge, match="are too large"):
            await run_of(world, too_large).run()
        assert await session.channels.list() == []
