"""Subscriptions with expensive selectors wait for a thread; others do not wait, and no event is
missed or out of order (SEM F5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from packages.server.tests.runtime.lives import Lives, Outlet, clock_us, datas
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import Internal, LimitReached, PenstockError
from penstock_core.vocabulary.ports import Clock
from penstock_server.runtime.delivery.selection import SelectorLimits
from penstock_server.runtime.realm import Limits
from penstock_testing.loop import pass_time, simulated

pytestmark = pytest.mark.spec("F5")

COSTLY = "s LIKE '%a%b%' AND n >= 0"
CHEAP = "n >= 0"


SMALL_LIMITS = SelectorLimits(thread_above=150_000, slice_cost=100_000)
"""Selectors with wildcards are expensive."""


def large(*numbers: int, **options: Any) -> list[Event]:
    return [
        Event(
            b"%d" % n, properties={"n": n, "s": "ab" * 2_000 if n % 2 else "x" * 4_000}, **options
        )
        for n in numbers
    ]


class Gate:
    """An offload that runs nothing until it is opened."""

    def __init__(self, lives: Lives) -> None:
        self.calls = 0
        self.is_open = asyncio.Event()
        self.is_busy = asyncio.Event()
        lives.realm.dispatch.choosing.offload = self

    async def __call__(self, call: Callable[[], Any], /) -> Any:
        self.calls += 1
        self.is_busy.set()
        await self.is_open.wait()
        return await asyncio.sleep(0, call())


class SettableClock:
    """The loop's clock, with a time of day that can be set forward."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def now_us(self) -> int:
        return clock_us() + self.ahead_us

    def steady_us(self) -> int:
        return clock_us()


@asynccontextmanager
async def gated(
    channel: str = "orders",
    *,
    clock: Clock | None = None,
    selectors: SelectorLimits = SMALL_LIMITS,
    **attributes: Any,
) -> AsyncIterator[tuple[Lives, Gate]]:
    lives = Lives(clock=clock, limits=Limits(selectors=selectors))
    async with lives.life():
        await lives.create(channel, **attributes)
        yield lives, Gate(lives)


@simulated
async def test_other_requests_are_served_while_a_selector_is_evaluated() -> None:
    async with gated() as (lives, gate):
        await lives.create("other")
        await lives.put("orders", *large(*range(40)))
        slow = await lives.follow("orders", COSTLY)
        await gate.is_busy.wait()
        cheap = await lives.follow("orders", session="cheap")
        for n in range(40, 60):
            assert await lives.put("other", Event(b"here")) == (n - 40, n - 39)
            assert await lives.put("orders", *large(n)) == (n, n + 1)
            assert (await lives.info("orders")).events == n + 1, "an administrator is answered"
        await cheap.has(60)
        assert cheap.ids == list(range(60))
        assert slow.events == []

        gate.is_open.set()
        await slow.has(30)
        assert slow.ids == list(range(1, 60, 2))


@simulated
async def test_many_comparisons_run_in_a_thread_however_small_the_events() -> None:
    async with gated() as (lives, gate):
        many = " OR ".join(f"n = {n}" for n in range(1, 40, 2))
        slow = await lives.follow("orders", many)
        await lives.put("orders", *[Event(b"", properties={"n": n}) for n in range(40)])
        await gate.is_busy.wait()
        assert await lives.put("orders", Event(b"")) == (40, 41)
        assert slow.events == []
        gate.is_open.set()
        await slow.has(20)
        assert slow.ids == list(range(1, 40, 2))


@pytest.mark.parametrize("window", [1, 7, 1 << 20])
@simulated
async def test_credit_counts_sent_events_only(window: int) -> None:
    async with gated() as (lives, gate):
        gate.is_open.set()
        await lives.put("orders", *large(*range(40)))
        slow = await lives.follow("orders", COSTLY, credit=window)
        got = 0
        while got < 20:
            got = min(20, got + window)
            await slow.has(got)
            assert slow.ids == list(range(1, 2 * got, 2))
            lives.realm.subscriptions.credit(slow.number, window)
        assert bool(gate.calls) == (window > 1), "one event is little to look at"


@simulated
async def test_a_browse_ends_after_all_stored_matches() -> None:
    async with gated() as (lives, gate):
        await lives.put("orders", *large(*range(40)))
        loop = asyncio.get_running_loop()
        browse = loop.create_task(lives.browsed("orders", COSTLY))
        await gate.is_busy.wait()
        await lives.put("orders", *large(*range(40, 60)))
        assert not browse.done()
        gate.is_open.set()
        assert (await browse).ids == list(range(1, 40, 2))


@simulated
async def test_a_browse_of_a_durable_changes_nothing_and_is_evaluated_in_a_thread() -> None:
    async with gated() as (lives, gate):
        await lives.durable("orders", "team")
        await lives.put("orders", *large(*range(40)))
        outlet = Outlet("browser", COSTLY)
        await lives.realm.subscriptions.browse_durable(
            lives.number("orders"), "team", outlet, credit=1 << 30
        )
        await gate.is_busy.wait()
        assert await lives.put("orders", *large(40)) == (40, 41)
        gate.is_open.set()
        await outlet.at_end.wait()
        assert outlet.ids == list(range(1, 40, 2))


@pytest.mark.parametrize("kind", ["exclusive", "priority"])
@simulated
async def test_a_seat_with_a_client_selector_is_evaluated_in_a_thread(kind: str) -> None:
    async with gated() as (lives, gate):
        await lives.durable("orders", "team", kind)
        await lives.put("orders", *large(*range(40)))
        worker = await lives.attach("orders", "team", selector=COSTLY)
        await gate.is_busy.wait()
        await lives.put("orders", *large(*range(40, 80)))
        gate.is_open.set()
        await worker.has(40)
        assert worker.outlet.ids == list(range(1, 80, 2))
        await worker.settle(79)
        assert (await lives.realm.subscriptions.durable(lives.number("orders"), "team")).ready == 0


@simulated
async def test_a_fetch_of_available_events_waits_for_its_selector() -> None:
    async with gated() as (lives, gate):
        await lives.durable("orders", "team", "exclusive")
        await lives.put("orders", *large(*range(40)))
        worker = await lives.attach("orders", "team", selector=COSTLY, pull=True)
        lives.realm.subscriptions.demand(worker.number, 60)
        lives.realm.subscriptions.demand(worker.number, 0)
        await gate.is_busy.wait()
        await pass_time(0.1)
        assert not worker.outlet.at_end.is_set()
        gate.is_open.set()
        await worker.outlet.at_end.wait()
        assert worker.outlet.ids == list(range(1, 40, 2))


@pytest.mark.spec("E8")
@simulated
async def test_transient_events_wait_for_a_selector_that_takes_long() -> None:
    async with gated(type="transient") as (lives, gate):
        slow = await lives.follow("orders", COSTLY)
        connected = await lives.follow("orders", session="there")
        for n in range(0, 40, 10):
            await lives.put("orders", *large(*range(n, n + 10)))
        await gate.is_busy.wait()
        await connected.has(40)
        assert slow.events == []
        gate.is_open.set()
        await slow.has(20)
        assert datas(slow.events) == [str(n) for n in range(1, 40, 2)]
        assert not lives.realm.directory.channels[lives.number("orders")].state.relayed
        await lives.conserved()


@simulated
async def test_states_and_deltas_of_a_merge_channel_are_evaluated_in_a_thread() -> None:
    async with gated("rates", engine="merge", keys={"n": 1}) as (lives, gate):
        await lives.put("rates", *large(*range(40)))
        slow = await lives.follow("rates", COSTLY, deltas=True)
        await gate.is_busy.wait()
        await lives.put("rates", *large(*range(1, 9, 2)))
        gate.is_open.set()
        await slow.has(20)
        assert datas(slow.events) == [str(n) for n in [*range(9, 40, 2), *range(1, 9, 2)]]
        await lives.put("rates", *large(3, 4))
        await slow.has(21)
        assert datas(slow.events)[20:] == ["3"]


@simulated
async def test_subscriptions_with_one_selector_share_its_results() -> None:
    async with gated() as (lives, gate):
        everybody = [await lives.follow("orders", COSTLY, session=f"s{n}") for n in range(20)]
        await lives.put("orders", *large(*range(40)))
        await gate.is_busy.wait()
        gate.is_open.set()
        for outlet in everybody:
            await outlet.has(20)
            assert outlet.ids == list(range(1, 40, 2))
        slices = gate.calls
        alone = await lives.follow("orders", COSTLY)
        await alone.has(20)
        assert gate.calls == 2 * slices


@pytest.mark.slow
@simulated
async def test_many_cheap_selectors_do_not_add_up_to_a_long_turn() -> None:
    async with gated(selectors=replace(SMALL_LIMITS, turn_cost=200_000)) as (lives, gate):
        everybody = [await lives.follow("orders", f"n >= {-n}") for n in range(100)]
        await lives.put("orders", *large(*range(20)))
        await gate.is_busy.wait()
        served = sum(bool(outlet.events) for outlet in everybody)
        assert 0 < served < 10, "each is below the bound, and all together are not"
        gate.is_open.set()
        for outlet in everybody:
            await outlet.has(20)
            assert outlet.ids == list(range(20))


@pytest.mark.slow
@simulated
async def test_sessions_take_turns_regardless_of_their_subscriptions() -> None:
    async with gated() as (lives, gate):
        await lives.put("orders", *large(*range(40)))
        many = [
            await lives.follow("orders", f"{COSTLY} AND n > {-n}", session="many")
            for n in range(50)
        ]
        await gate.is_busy.wait()
        one = await lives.follow("orders", COSTLY, session="one")
        before: list[int] = []
        one.on_delivery = lambda: before.append(sum(bool(outlet.events) for outlet in many))
        gate.is_open.set()
        await one.has(20)
        assert before[0] < 10
        for outlet in many:
            await outlet.has(20)


@simulated
async def test_an_expensive_selector_ends_the_seat_and_its_successor_gets_all_events() -> None:
    async with gated() as (lives, gate):
        await lives.durable("orders", "team", "exclusive")
        await lives.put("orders", *large(*range(40)))
        choosing = lives.realm.dispatch.choosing
        choosing.limits = replace(SMALL_LIMITS, budget_s=-1.0)
        worker = await lives.attach("orders", "team", selector=COSTLY)
        await pass_time(0.1)
        choosing.limits = SMALL_LIMITS
        assert isinstance(worker.outlet.reason, LimitReached)
        assert "the selector took longer" in str(worker.outlet.reason)
        assert gate.calls == 0
        again = await lives.attach("orders", "team", selector=CHEAP)
        gate.is_open.set()
        await again.has(40)
        assert again.outlet.ids == list(range(40))


@simulated
async def test_setting_the_clock_forward_does_not_use_up_a_budget() -> None:
    clock = SettableClock()
    async with gated(clock=clock) as (lives, gate):
        await lives.put("orders", *large(*range(40)))
        slow = await lives.follow("orders", COSTLY)
        await gate.is_busy.wait()
        clock.ahead_us = 3_600_000_000
        gate.is_open.set()
        await slow.has(20)

        assert slow.ids == list(range(1, 40, 2))
        assert slow.reason is None


@simulated
async def test_a_selector_has_one_budget_for_all_slices_of_a_grant() -> None:
    async with gated() as (lives, gate):
        await lives.put("orders", *large(*range(400)))
        slow = await lives.follow("orders", COSTLY)
        await gate.is_busy.wait()
        gate.is_open.set()
        beside = gate.calls

        async def lasting(call: Callable[[], Any], /) -> Any:
            await pass_time(SMALL_LIMITS.budget_s / 3)
            return call()

        lives.realm.dispatch.choosing.offload = lasting
        while slow.reason is None:
            await pass_time(1.0)
        assert beside == 1
        assert isinstance(slow.reason, LimitReached)
        assert slow.events == []


@simulated
async def test_an_unexpected_failure_ends_the_subscription_alone() -> None:
    async with gated() as (lives, gate):
        gate.is_open.set()
        await lives.put("orders", *large(*range(40)))

        async def broken(_: Callable[[], Any], /) -> Any:
            raise ValueError("nobody foresaw it")

        lives.realm.dispatch.choosing.offload = broken
        slow = await lives.follow("orders", COSTLY)
        await pass_time(0.1)
        lives.realm.dispatch.choosing.offload = gate
        assert isinstance(slow.reason, Internal)
        second = await lives.follow("orders", COSTLY)
        await second.has(20)


@simulated
async def test_a_subscription_that_ends_during_evaluation_is_dropped() -> None:
    async with gated() as (lives, gate):
        await lives.durable("orders", "team", "exclusive")
        await lives.put("orders", *large(*range(40)))
        slow = await lives.follow("orders", COSTLY)
        worker = await lives.attach("orders", "team", selector=COSTLY)
        await gate.is_busy.wait()
        lives.realm.subscriptions.detach(slow.number)
        await worker.leave()
        again = await lives.attach("orders", "team")
        await again.has(40)
        gate.is_open.set()
        await pass_time(0.1)
        assert slow.events == []
        assert worker.events == []
        assert lives.realm.dispatch.choosers.is_idle


@simulated
async def test_a_channel_may_be_deleted_and_a_realm_closed_during_evaluation() -> None:
    lives = Lives(limits=Limits(selectors=SMALL_LIMITS))
    async with lives.life("closed"):
        gate = Gate(lives)
        for name in ("orders", "other"):
            await lives.create(name)
            await lives.put(name, *large(*range(40)))
        deleted = await lives.follow("orders", COSTLY)
        remaining = await lives.follow("other", COSTLY)
        await gate.is_busy.wait()
        await lives.realm.delete_channel("orders")
        assert isinstance(deleted.reason, PenstockError)
        assert remaining.reason is None
    async with lives.life():
        assert len(await lives.stored("other")) == 40


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@simulated
async def test_no_event_is_missed_while_more_are_published(seed: int) -> None:
    async with gated() as (lives, gate):
        gate.is_open.set()
        everybody = [
            await lives.follow("orders", f"{COSTLY} AND n >= {-n}", credit=10 + n) for n in range(5)
        ]
        published = 0
        for turn in range(20):
            count = (turn * 7 + seed * 3) % 23 + 1
            await lives.put("orders", *large(*range(published, published + count)))
            published += count
            for outlet in everybody:
                lives.realm.subscriptions.credit(outlet.number, count)
            if turn % 5 == seed:
                await pass_time(0.01)
        wanted = list(range(1, published, 2))
        for outlet in everybody:
            lives.realm.subscriptions.credit(outlet.number, published)
            await outlet.has(len(wanted))
            assert outlet.ids == wanted
        assert gate.calls
        assert (await lives.info("orders")).events == published
