"""Expensive selectors are evaluated in a thread, within a budget, and only while their result is
wanted (SEM F5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from packages.server.tests.runtime.lives import Lives
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import ConnectionLost, InvalidSelector, LimitReached
from penstock_server.runtime.access.askers import Asker, asker
from penstock_server.runtime.delivery.selection import Choosing, SelectorLimits
from penstock_server.runtime.realm import Limits
from penstock_server.runtime.writer.clock import SystemClock
from penstock_testing.loop import pass_time, simulated

pytestmark = pytest.mark.spec("F5")

LONG = [Event(properties={"s": "ab" * 2_000}) for _ in range(40)]
EXPENSIVE = Limits(selectors=SelectorLimits(thread_above=100_000))


def change(lives: Lives, **limits: float) -> None:
    """Change limits of the running realm."""
    choosing = lives.realm.dispatch.choosing
    choosing.limits = replace(choosing.limits, **limits)


class Elsewhere:
    """An offload that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, call: Callable[[], Any], /) -> Any:
        self.calls += 1
        return await asyncio.sleep(0, call())


@simulated
async def test_expensive_selectors_run_in_a_thread_and_cheap_ones_in_the_loop() -> None:
    lives, elsewhere = Lives(1), Elsewhere()
    async with lives.life():
        lives.realm.dispatch.choosing.offload = elsewhere
        await lives.create("orders")
        await lives.put("orders", *LONG)
        few = await lives.follow("orders", "s LIKE '%a%b%'")
        await few.has(40)
        assert not elsewhere.calls
        change(lives, thread_above=100_000)
        many = await lives.follow("orders", "s LIKE '%b%a%'")
        await many.has(40)
        assert elsewhere.calls


@simulated
async def test_a_selector_that_takes_too_long_ends_its_subscription_and_no_other() -> None:
    lives = Lives(1, limits=EXPENSIVE)
    async with lives.life():
        await lives.create("orders")
        await lives.put("orders", *LONG)
        change(lives, budget_s=-1.0)
        slow = await lives.follow("orders", "s LIKE '%a%b%'")
        while slow.reason is None:
            await pass_time(0.005)
        assert isinstance(slow.reason, LimitReached)
        assert "selector took longer" in str(slow.reason)
        change(lives, budget_s=5.0)
        second = await lives.follow("orders", "s LIKE '%b%a%'")
        await second.has(40)


@simulated
async def test_a_scan_ends_at_its_time_limit_and_when_its_client_disconnects() -> None:
    lives = Lives(1, limits=Limits(selectors=SelectorLimits(scan_events=8)))
    async with lives.life():
        await lives.create("orders")
        await lives.put("orders", *LONG)
        change(lives, budget_s=-1.0)
        with pytest.raises(LimitReached, match="some of the events from id 0 on"):
            await lives.purge("orders", "s LIKE '%a%b%'")
        change(lives, budget_s=5.0)
        before = lives.realm.shard.groups
        disconnected = Asker()
        disconnected.disconnect()
        token = asker.set(disconnected)
        with pytest.raises(ConnectionLost, match="the requesting client disconnected"):
            await lives.purge("orders", "s LIKE '%a%b%'")
        asker.reset(token)
        assert lives.realm.shard.groups - before < 3, "it stopped after one look"
        assert (await lives.info("orders")).events == 40


@simulated
async def test_no_selector_is_evaluated_for_an_ended_subscription() -> None:
    lives = Lives(1, limits=EXPENSIVE)
    async with lives.life():
        await lives.create("orders")
        await lives.put("orders", *LONG)

        async def meanwhile(call: Callable[[], Any], /) -> Any:
            lives.realm.dispatch.close(outlet.number)
            return call()

        lives.realm.dispatch.choosing.offload = meanwhile
        outlet = await lives.follow("orders", "s LIKE '%a%b%'", credit=0)
        lives.realm.subscriptions.credit(outlet.number, 1 << 30)
        await pass_time(0.1)
        assert outlet.events == []
        assert outlet.reason is None, "nobody is there to be told"


@simulated
async def test_purges_durables_and_redrives_evaluate_selectors_in_a_thread() -> None:

    lives, elsewhere = Lives(1, limits=EXPENSIVE), Elsewhere()
    async with lives.life():
        lives.realm.dispatch.choosing.offload = elsewhere
        for name in ("dead", "orders"):
            await lives.create(name)
        await lives.put("dead", *LONG)
        await lives.create("work", kind="queue")
        await lives.put("work", *LONG)
        await lives.durable("dead", "team", selector="s LIKE '%a%b%'")
        assert (calls := elsewhere.calls) == 1
        await lives.attach("work", window=100, selector="s LIKE '%b%a%'")
        assert elsewhere.calls > calls
        calls = elsewhere.calls
        moved = await lives.realm.redrive(
            "dead", "orders", "s LIKE '%a%b%' AND event_id >= 30", dry_run=False
        )
        assert (moved.moved, moved.left) == (10, 30)
        assert elsewhere.calls > calls
        calls = elsewhere.calls
        assert await lives.purge("dead", "s LIKE '%a%b%' AND event_id >= 20") == 10
        assert elsewhere.calls > calls
        assert [e.event_id for e in await lives.stored("dead")] == list(range(20))


@simulated
async def test_a_redrive_ends_with_the_time_of_its_selector_and_keeps_what_it_has_not_moved() -> (
    None
):
    lives = Lives(1)
    async with lives.life():
        for name in ("dead", "orders"):
            await lives.create(name)
        await lives.put("dead", *LONG)
        change(lives, budget_s=-1.0)
        with pytest.raises(LimitReached, match="selector took longer"):
            await lives.realm.redrive("dead", "orders", "s LIKE '%a%b%'", dry_run=False)
        assert len(await lives.stored("dead")) == 40
        assert await lives.stored("orders") == []


@simulated
async def test_a_subscriber_of_a_merge_channel_has_a_budget_too() -> None:
    states = [Event(properties={"k": n, "s": "ab" * 2_000}) for n in range(40)]

    lives, elsewhere = Lives(1, limits=EXPENSIVE), Elsewhere()
    async with lives.life():
        lives.realm.dispatch.choosing.offload = elsewhere
        await lives.create("rates", engine="merge", keys={"k": 1})
        some = await lives.follow("rates", "s LIKE '%a%b%' AND k < 30", deltas=True)
        await lives.put("rates", *states)
        await some.has(30)
        assert [event.properties["k"] for event in some.events] == list(range(30))
        assert elsewhere.calls
        change(lives, budget_s=-1.0)
        slow = await lives.follow("rates", "s LIKE '%b%a%'", deltas=True)
        while slow.reason is None:
            await pass_time(0.005)
        assert isinstance(slow.reason, LimitReached)
        change(lives, budget_s=5.0)
        second = await lives.follow("rates", "s LIKE '%b%a%'", deltas=True)
        await second.has(40)
        assert some.reason is None


@pytest.mark.slow
@simulated
async def test_a_purge_includes_events_published_before_its_turn() -> None:

    lives = Lives(1, limits=EXPENSIVE)
    async with lives.life():
        await lives.create("orders")
        await lives.put("orders", *LONG)
        rounds = 0

        async def meanwhile(call: Callable[[], Any], /) -> Any:
            nonlocal rounds
            rounds += 1
            if rounds < endless:
                await lives.put("orders", *LONG)
            return call()

        lives.realm.dispatch.choosing.offload = meanwhile
        endless = 4
        assert await lives.purge("orders", "s LIKE '%a%b%'") == 160
        assert rounds > 3
        assert await lives.stored("orders") == []
        rounds, endless = 0, 1_000
        await lives.put("orders", *LONG)
        with pytest.raises(LimitReached, match="events are published faster"):
            await lives.purge("orders", "s LIKE '%a%b%'")
        assert len(await lives.stored("orders")) > 40, "nothing was done"


class Held:
    """A thread whose work ends when the test allows it."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()

    async def __call__(self, call: Callable[[], Any], /) -> Any:
        self.begun += 1
        await self.go_on.wait()
        return call()


@simulated
async def test_long_selectors_are_parsed_one_at_a_time_even_after_disconnects() -> None:
    held = Held()
    choosing = Choosing(held, SystemClock())
    text = " OR ".join(f"n = {number}" for number in range(300))

    async with asyncio.TaskGroup() as group:
        cancelled = group.create_task(choosing.parse(text))
        await pass_time(1)
        cancelled.cancel()
        waits = group.create_task(choosing.parse(text))
        wrong = group.create_task(refusal(choosing.parse(f"{text} OR")))
        short = await choosing.parse("n = 1")
        await pass_time(1)
        assert (held.begun, cancelled.done(), waits.done()) == (1, False, False)

        held.go_on.set()

    assert short.text == "n = 1"
    assert cancelled.cancelled()
    assert waits.result().text == text
    assert isinstance(wrong.result(), InvalidSelector)
    assert held.begun == 3


async def refusal(request: Coroutine[Any, Any, object]) -> BaseException | None:
    try:
        await request
    except InvalidSelector as error:
        return error
    return None


@simulated
async def test_selectors_in_use_are_shared_and_bounded_together() -> None:
    limits = SelectorLimits(in_use_characters_max=30)
    choosing = Choosing(Elsewhere(), SystemClock(), limits)
    first = await choosing.parse("price > 10")
    assert await choosing.parse("price > 10") is first
    second = await choosing.parse("price > 20")
    third = await choosing.parse("price > 30")

    with pytest.raises(LimitReached, match="have 30 characters together; allowed are 30"):
        await choosing.parse("price > 40")

    assert await choosing.parse("price > 20") is second
    del second
    assert (await choosing.parse("price > 50")).text == "price > 50"
    assert third.text == "price > 30"
