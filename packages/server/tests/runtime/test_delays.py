"""Delays: rolled-back events are redelivered at their time, and not at the next sweep."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from packages.server.tests.runtime.lives import ENDS, End, Lives, clock_now, clock_us, named
from penstock_core.vocabulary.backoff import Backoff
from penstock_server.runtime.realm import Limits
from penstock_server.runtime.writer.clock import SystemClock
from penstock_testing.loop import SimLoop, pass_time, simulated

SELDOM = Limits(sweep_interval_s=1e6)
"""Sweeps are rare, so that only wake-ups can deliver events."""
MS = timedelta(milliseconds=1)


@pytest.mark.spec("D18")
@simulated
async def test_each_event_is_redelivered_at_its_time() -> None:
    lives = Lives(limits=SELDOM)
    async with lives.life():
        await lives.create("orders")
        await lives.durable("orders", "team")
        await lives.put("orders", *named("a", "b", "c"))
        worker = await lives.attach("orders", "team")
        await worker.has(3)
        begun = clock_now()
        await worker.settle(0, back=True, delay_ms=900)
        await worker.settle(1, back=True, delay_ms=250)
        await worker.settle(2, back=True, delay_ms=400)
        await worker.has(6)

        assert worker.outlet.ids[3:] == [1, 2, 0]
        assert [event.redelivery_count for event in worker.events[3:]] == [1, 1, 1]
        waited = [time - begun for time in worker.outlet.came_at[3:]]
        for wanted, real in zip((250, 400, 900), waited, strict=True):
            assert timedelta() <= real - wanted * MS <= 10 * MS, (wanted, real)


@pytest.mark.spec("D18", "D4")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", ["persistent", "mixed", "paged", "queue"])
@simulated
async def test_a_delay_survives_any_restart_and_does_not_begin_again(end: End, kind: str) -> None:
    lives = Lives(limits=SELDOM)
    durable = "" if kind == "queue" else "team"
    async with lives.life(end):
        if kind == "queue":
            await lives.create("orders", kind="queue")
        else:
            await lives.create("orders", kind)
            await lives.durable("orders", "team")
        await lives.put("orders", *named("a", "b"))
        worker = await lives.attach("orders", durable)
        await worker.has(2)
        due_us = clock_us() + 5_000_000
        await worker.settle(0, back=True, delay_ms=5_000)
        await pass_time(2)
        assert len(worker.events) == 2
    async with lives.life(end):
        worker = await lives.attach("orders", durable)
        await worker.has(1)
        await pass_time((due_us - clock_us()) / 1e6 - 0.01)
        assert worker.outlet.ids == [1]
        await worker.has(2)
        assert worker.outlet.ids == [1, 0]
        assert worker.events[1].redelivery_count == 1
        assert abs(worker.outlet.came_at[1] - clock_now()) < 50 * MS
        await lives.conserved()


@pytest.mark.spec("D18")
@simulated
async def test_many_channels_have_separate_delays() -> None:
    lives = Lives(limits=SELDOM)
    async with lives.life():
        workers = []
        for n in range(12):
            await lives.create(f"c{n}")
            await lives.durable(f"c{n}", "d", backoff=Backoff(100 * (12 - n), factor=1.0))
            await lives.put(f"c{n}", *named("x"))
            workers.append(await lives.attach(f"c{n}", "d"))
        begun = clock_now()
        for worker in workers:
            await worker.has(1)
            await worker.settle(0, back=True)
        await workers[0].has(2)

        waited = [(worker.outlet.came_at[1] - begun) / MS for worker in workers]
        assert waited == sorted(waited, reverse=True)
        await workers[3].settle(0, back=True)
        await lives.realm.delete_channel("c3")  # its alarm is of no use any more
        await workers[5].settle(0, back=True)
        await workers[5].has(3)


@pytest.mark.spec("D18", "D17")
@simulated
async def test_the_durable_shows_the_delayed_events_and_the_next_time() -> None:
    lives = Lives(limits=SELDOM)
    async with lives.life():
        await lives.create("orders")
        await lives.create("work", kind="queue", backoff=Backoff(700))
        await lives.durable("orders", "team", backoff=Backoff(500))
        await lives.put("orders", *named("a", "b", "c"))
        await lives.put("work", *named("a", "b"))
        worker = await lives.attach("orders", "team")
        reader = await lives.attach("work")
        await worker.has(3)
        await reader.has(2)
        begun_us = clock_us()
        await worker.settle(0, back=True)
        await worker.settle(1, back=True, delay_ms=2_000)
        await reader.settle(1, back=True)
        number = lives.number("orders")
        info = await lives.realm.subscriptions.durable(number, "team")

        assert (info.outstanding, info.in_flight, info.waiting, info.ready) == (3, 1, 2, 0)
        assert info.waiting_until_us is not None
        assert 500_000 <= info.waiting_until_us - begun_us < 600_000
        assert info.backoff == Backoff(500)
        queue = await lives.info("work")
        assert (queue.waiting, queue.in_flight) == (1, 1)
        assert queue.waiting_until_us is not None
        assert 700_000 <= queue.waiting_until_us - begun_us < 800_000
        await pass_time(3)
        info = await lives.realm.subscriptions.durable(number, "team")
        assert (info.waiting, info.waiting_until_us, info.in_flight) == (0, None, 3)


@pytest.mark.spec("D18", "J7")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_a_passing_event_of_the_jms_engine_stays_delayed_over_a_restart(end: End) -> None:
    lives = Lives(limits=SELDOM)
    async with lives.life(end):
        await lives.create("orders", engine="jms")
        await lives.durable("orders", "d", kind="exclusive")
        worker = await lives.attach("orders", "d", auto_ack=True)
        await lives.put("orders", *named("a"))
        await worker.has(1)
        due_us = clock_us() + 5_000_000
        await worker.settle(0, back=True, delay_ms=5_000)
    async with lives.life(end):
        worker = await lives.attach("orders", "d")
        await pass_time((due_us - clock_us()) / 1e6 - 0.1)
        assert worker.events == []
        await worker.has(1)


@pytest.mark.spec("D18")
@pytest.mark.parametrize("jump_s", [3_600, -3_600])
@simulated
async def test_setting_the_clock_shifts_a_delay_like_a_ttl(jump_s: int) -> None:
    """A clock set forward ends the delay; set back, it stands still until it has caught up."""
    loop, jumped_s = asyncio.get_running_loop(), [0]
    assert isinstance(loop, SimLoop)
    clock = SystemClock(lambda: loop.now_us() * 1_000 + jumped_s[0] * 1_000_000_000)
    lives = Lives(clock=clock)
    async with lives.life():
        await lives.create("orders")
        await lives.durable("orders", "team")
        await lives.put("orders", *named("a"))
        worker = await lives.attach("orders", "team")
        await worker.has(1)
        await worker.settle(0, back=True, delay_ms=600_000)
        await pass_time(300)
        jumped_s[0] = jump_s
        await pass_time(2)
        assert len(worker.events) == (2 if jump_s > 0 else 1)
        await pass_time(3_600 + 299)
        assert len(worker.events) == 2
