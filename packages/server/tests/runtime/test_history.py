"""The samples of the last 24 hours, which a realm keeps in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from packages.server.tests.runtime.lives import Lives, named
from penstock_core.api.realm import HistoryInfo
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_server.runtime.realm import Limits
from penstock_server.runtime.upkeep.history import STEP_US, STEPS, FlowHistory, Track
from penstock_testing.loop import SimLoop, pass_time, simulated

STEP_S = STEP_US / 1_000_000
ASKED = Limits(sweep_interval_s=1e6)
"""A realm that takes samples only when the test says so."""


class SetForward:
    """The loop's clock, which can be set."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def now_us(self) -> int:
        return _loop().now_us() + self.ahead_us

    def steady_us(self) -> int:
        return _loop().steady_us()


def _loop() -> SimLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return loop


@asynccontextmanager
async def life(
    clock: SetForward | None = None, limits: Limits | None = None
) -> AsyncIterator[Lives]:
    """A realm that has just seen a step begin."""
    lives = Lives(limits=limits, clock=clock)
    async with lives.life():
        await next_step()
        yield lives


async def next_step(steps: int = 1) -> None:
    """Wait until so many more steps are over."""
    left_us = STEP_US - _loop().now_us() % STEP_US
    await pass_time(left_us / 1_000_000 + (steps - 1) * STEP_S + 2)


def history_of(lives: Lives, channel: str | None = None, durable: str | None = None) -> HistoryInfo:
    lives.realm.history.take()
    return lives.realm.history.read(channel, durable)


@simulated
async def test_rates_lag_and_latency_are_recorded_step_by_step() -> None:
    async with life() as lives:
        await lives.create("orders")
        await lives.durable("orders", "billing")
        await lives.durable("orders", "audit")
        await lives.put("orders", *named(*"abcd"))
        await pass_time(31)
        worker = await lives.attach("orders", "billing")
        await worker.has(4)
        await worker.settle(0, 1, 2)
        await next_step(2)

        of_orders, of_billing = history_of(lives, "orders"), history_of(lives, "orders", "billing")

        elapsed_s = pytest.approx(4 / STEP_S, rel=0.05)
        assert of_orders.published[-2:] == [elapsed_s, 0]
        assert of_billing.delivered[-2:] == [elapsed_s, 0]
        assert of_billing.acknowledged[-2:] == [pytest.approx(3 / STEP_S, rel=0.05), 0]
        assert of_billing.outstanding[-2:] == [1, 1], "what stands still is still owed"
        assert of_orders.outstanding[-2:] == history_of(lives).outstanding[-2:] == [5, 5]
        slow_ms, none = of_billing.delivery_ms[-2:]
        assert slow_ms is not None, "it was delivered"
        assert none is None
        assert 30_000 < slow_ms <= 60_000, "of the class that 30 s are in"
        assert of_orders.delivery_ms[-2] == history_of(lives).delivery_ms[-2] == slow_ms
        assert history_of(lives).published == of_orders.published
        assert of_billing.published == []
        assert history_of(lives, "orders", "audit").outstanding[-2:] == [4, 4]


@simulated
async def test_events_from_before_the_start_count_as_lag_and_not_as_rate() -> None:
    async with life() as lives:
        await lives.create("orders")
        await lives.durable("orders", "billing")
        await lives.put("orders", *named(*"abc"))
        store = lives
    async with store.life():
        begun_us = _loop().now_us()
        await next_step(2)

        history_info = history_of(store, "orders")

        assert history_info.begun_us == begun_us, "it begins anew with the realm, and says so"
        assert history_info.first_us == (begun_us // STEP_US + 1) * STEP_US
        assert history_info.published == [0, 0]
        assert history_info.outstanding == [3, 3]


@simulated
async def test_an_idle_channel_is_not_sampled() -> None:
    async with life() as lives:
        for name in ("orders", "idle"):
            await lives.create(name)
            await lives.durable(name, "billing")
        await next_step(2)
        changed: list[set[int]] = []

        for _ in range(3):
            await lives.put("orders", *named("x"))
            changed.append(set(lives.realm.shard.state.moved))
            await next_step()

        assert changed == [{lives.number("orders")}] * 3
        assert history_of(lives, "idle").outstanding[-3:] == [0, 0, 0]
        assert history_of(lives, "idle").published[-3:] == [0, 0, 0]
        assert lives.realm.history.track_count == 2, "of the other channel and its durable"


@simulated
async def test_samples_are_kept_for_a_day() -> None:
    async with life(limits=ASKED) as lives:
        await lives.create("orders")
        history_of(lives)
        await lives.put("orders", *named("x"))
        await next_step()
        history_of(lives)
        await next_step(STEPS - 1)
        history_info = history_of(lives, "orders")
        assert len(history_info.published) == STEPS
        assert history_info.published[0] == pytest.approx(1 / STEP_S, abs=0.001)
        assert set(history_info.published[1:]) == {0}

        await next_step(2)

        assert set(history_of(lives, "orders").published) == {0}
        assert len(history_of(lives).published) == STEPS
        assert lives.realm.history.track_count == 0, "of what is idle for a day nothing is kept"


@simulated
async def test_steps_skipped_by_a_clock_set_forward_are_unknown() -> None:
    clock = SetForward()
    async with life(clock) as lives:
        await lives.create("orders")
        await next_step()

        clock.ahead_us = 5 * STEP_US
        await pass_time(2)
        await lives.put("orders", *named(*"ab"))
        await next_step()

        published = history_of(lives, "orders").published
        assert published[-7:-1] == [0, None, None, None, None, 0]
        assert published[-1] == pytest.approx(2 / STEP_S, rel=0.05)
        clock.ahead_us = 3 * STEPS * STEP_US
        await next_step()
        assert history_of(lives).published.count(None) == STEPS - 2


@simulated
async def test_rare_samples_have_the_mean_of_their_steps() -> None:
    async with life(limits=ASKED) as lives:
        await lives.create("orders")
        history_of(lives)
        await lives.put("orders", *named(*"abcde"))

        await next_step(5)

        last = history_of(lives, "orders").published[-5:]
        assert last == [pytest.approx(1 / STEP_S, rel=0.05)] * 5


@simulated
async def test_deleted_channels_and_durables_lose_their_samples() -> None:
    async with life() as lives:
        await lives.create("orders")
        await lives.durable("orders", "billing")
        await lives.put("orders", *named("x"))
        await next_step()
        assert history_of(lives).outstanding[-1] == 1

        await lives.realm.delete_channel("orders")
        await next_step()

        assert history_of(lives).outstanding[-1] == 0
        with pytest.raises(NameDoesNotExist, match="orders"):
            history_of(lives, "orders")
        kept = lives.realm.history
        assert kept.track_count == 0
        await lives.create("orders")
        assert set(history_of(lives, "orders").outstanding) == {0}
        with pytest.raises(NameDoesNotExist, match="billing"):
            history_of(lives, "orders", "billing")


@simulated
async def test_the_number_of_tracks_is_limited_and_the_realm_counts_all() -> None:
    async with life() as lives:
        lives.realm.history.tracks_max = 2
        for name in ("a", "b", "c"):
            await lives.create(name)
            await lives.put(name, *named("x"))
        await next_step()

        assert history_of(lives, "a").is_kept
        assert history_of(lives, "b").is_kept
        assert not history_of(lives, "c").is_kept
        assert history_of(lives).published[-1] == pytest.approx(3 / STEP_S, rel=0.05)


@simulated
async def test_untaken_events_of_a_queue_are_outstanding() -> None:
    async with life() as lives:
        await lives.create("work", kind="queue")
        await lives.put("work", *named(*"abc"))
        worker = await lives.attach("work", auto_ack=True, window=2)
        await worker.has(2)
        await next_step()

        assert history_of(lives, "work").acknowledged[-1] is not None
        assert history_of(lives).outstanding[-1] == history_of(lives, "work").outstanding[-1]


class Turns:
    """Counts the turns that others have while something is done."""

    def __init__(self) -> None:
        self.count = 0

    async def take(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)


@asynccontextmanager
async def many(channels: int = 30, durables: int = 4) -> AsyncIterator[Lives]:
    """Yield a realm with much activity in a past step without samples."""
    async with life(limits=ASKED) as lives:
        for number in range(channels):
            await lives.create(f"c{number}")
            for durable in range(durables):
                await lives.durable(f"c{number}", f"d{durable}")
            await lives.put(f"c{number}", *named("x"))
        await next_step()
        yield lives


async def begin(history: FlowHistory, sampled: int) -> None:
    """Begin a sample, and cancel it after so many channels and durables."""
    leaving = asyncio.get_running_loop().create_task(history.take_in_turns(sampled))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert leaving.cancelled(), "the sample was incomplete"


@simulated
async def test_a_sample_of_many_channels_lets_other_tasks_run() -> None:
    async with many() as lives:
        turns = Turns()
        task = asyncio.get_running_loop().create_task(turns.take())

        await lives.realm.history.take_in_turns(sampled_a_turn=10)
        task.cancel()

        assert turns.count >= 30 * (4 + 1) // 10, "durables count as well as channels"
        assert history_of(lives).outstanding[-1] == 30 * 4
        assert history_of(lives, "c29").outstanding[-1] == 4


@simulated
async def test_an_incomplete_sample_is_not_returned() -> None:
    async with many() as lives:
        kept = lives.realm.history
        before = kept.read()
        await begin(kept, sampled=40)

        during = [kept.read(), kept.read("c0"), kept.read("c0", "d0"), kept.read("c29")]
        kept.take()
        after = kept.read()

        assert {len(info.outstanding) for info in during} == {len(before.outstanding)}
        assert during[0] == before
        assert len(after.outstanding) > len(before.outstanding)
        assert after.outstanding[-1] == 30 * 4


@simulated
async def test_a_cancelled_sample_is_continued_by_the_next_call() -> None:
    async with many() as lives:
        kept = lives.realm.history
        before = kept.read()
        await begin(kept, sampled=50)
        assert kept.read() == before

        await asyncio.gather(kept.take_in_turns(), kept.take_in_turns())  # noqa: TID251  two askers

        assert kept.read().outstanding[-1] == 30 * 4


@simulated
async def test_a_channel_deleted_during_a_sample_loses_its_samples() -> None:
    async with many() as lives:
        kept = lives.realm.history
        await begin(kept, sampled=2)
        await lives.realm.delete_channel("c0")
        await lives.realm.delete_channel("c7")
        await lives.durable("c3", "late")
        kept.take()

        assert kept.read().outstanding[-1] == 28 * 4 + 1
        assert kept.track_count == 28 * (1 + 4) + 1
        await next_step()
        kept.take()
        assert kept.read("c3").outstanding[-1] == 4 + 1


def test_a_track_is_as_large_as_the_guide_says() -> None:
    assert Track(0).between(0, STEPS).nbytes == 6 * 4 * STEPS < 17_500
