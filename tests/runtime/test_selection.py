"""Selectors that take long: beside the loop, within a budget, for those who are there (SEM F5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.columns.events.event import Event
from penstock.core.vocabulary.errors import ConnectionLost, LimitReached
from penstock.runtime.access.askers import Asker, asker
from penstock.runtime.delivery import selection
from penstock.runtime.subscriptions import selector_scan
from penstock.testing.loop import pass_time, simulated
from tests.runtime.lives import Lives

pytestmark = pytest.mark.spec("F5")

LONG = [Event(properties={"s": "ab" * 2_000}) for _ in range(40)]


class Elsewhere:
    """Counts what was not done on the loop."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, call: Callable[[], Any], /) -> Any:
        self.calls += 1
        return await asyncio.sleep(0, call())


@simulated
async def test_much_is_looked_at_beside_the_loop_and_little_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives, elsewhere = Lives(1), Elsewhere()
    async with lives.life():
        lives.realm.dispatch._choosing._offload = elsewhere
        await lives.create("orders")
        await lives.put("orders", *LONG)
        few = await lives.follow("orders", "s LIKE '%a%b%'")
        await few.has(40)
        assert not elsewhere.calls
        monkeypatch.setattr(selection, "BESIDE_ABOVE", 100_000)
        many = await lives.follow("orders", "s LIKE '%b%a%'")
        await many.has(40)
        assert elsewhere.calls


@simulated
async def test_a_selector_that_takes_too_long_ends_its_subscription_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selection, "BESIDE_ABOVE", 100_000)
    lives = Lives(1)
    async with lives.life():
        await lives.create("orders")
        await lives.put("orders", *LONG)
        monkeypatch.setattr(selection, "BUDGET_S", -1.0)
        slow = await lives.follow("orders", "s LIKE '%a%b%'")
        while slow.reason is None:
            await pass_time(0.005)
        assert isinstance(slow.reason, LimitReached)
        assert "selector took longer" in str(slow.reason)
        monkeypatch.setattr(selection, "BUDGET_S", 5.0)
        other = await lives.follow("orders", "s LIKE '%b%a%'")
        await other.has(40)


@simulated
async def test_a_look_at_what_is_stored_ends_with_its_time_and_with_who_has_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selector_scan, "SCAN_EVENTS", 8)
    lives = Lives(1)
    async with lives.life():
        await lives.create("orders")
        await lives.put("orders", *LONG)
        monkeypatch.setattr(selection, "BUDGET_S", -1.0)
        with pytest.raises(LimitReached, match="some of the events from id 0 on"):
            await lives.purge("orders", "s LIKE '%a%b%'")
        monkeypatch.setattr(selection, "BUDGET_S", 5.0)
        before = lives.realm.shard.groups
        gone = Asker()
        gone.go()
        given = asker.set(gone)
        with pytest.raises(ConnectionLost, match="hung up"):
            await lives.purge("orders", "s LIKE '%a%b%'")
        asker.reset(given)
        assert lives.realm.shard.groups - before < 3, "it stopped after one look"
        assert (await lives.info("orders")).events == 40


@simulated
async def test_nothing_is_chosen_for_a_subscription_that_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selection, "BESIDE_ABOVE", 100_000)
    lives = Lives(1)
    async with lives.life():
        await lives.create("orders")
        await lives.put("orders", *LONG)

        async def meanwhile(call: Callable[[], Any], /) -> Any:
            for number in list(lives.realm.dispatch._outlets):
                lives.realm.dispatch.close(number)
            return call()

        lives.realm.dispatch._choosing._offload = meanwhile
        outlet = await lives.follow("orders", "s LIKE '%a%b%'")
        await pass_time(0.1)
        assert outlet.events == []
        assert outlet.reason is None, "nobody is there to be told"
