"""The stores that have a durable of a name are known without a look at any other store."""

from __future__ import annotations

import pytest

from packages.server.tests.runtime.lives import ENDS, End, Lives
from penstock_testing.loop import simulated


def with_durable(lives: Lives, name: str) -> list[str]:
    return [store.name for store, _ in lives.realm.view.with_durable(name)]


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_durables_are_found_by_name_after_all_changes(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        for name in ("a", "b", "c", "d"):
            await lives.create(name)
            await lives.durable(name, "mine")
        await lives.create("jobs", kind="queue")
        await lives.durable("b", "other")
        await lives.realm.subscriptions.delete_durable(lives.number("c"), "mine")
        await lives.realm.delete_channel("d")

        assert with_durable(lives, "mine") == ["a", "b"]
        assert with_durable(lives, "other") == ["b"]
        assert with_durable(lives, "") == []
        assert with_durable(lives, "nobody") == []

    async with lives.life():
        assert with_durable(lives, "mine") == ["a", "b"]
        await lives.durable("c", "mine")
        await lives.realm.subscriptions.delete_durable(lives.number("a"), "mine")
        assert with_durable(lives, "mine") == ["b", "c"]
        assert with_durable(lives, "other") == ["b"]


@simulated
async def test_a_transient_durable_is_found_while_it_exists() -> None:
    lives = Lives()
    async with lives.life("snapshot"):
        await lives.create("a", type="transient")
        await lives.durable("a", "mine")
        assert with_durable(lives, "mine") == ["a"]

    async with lives.life():
        durables = lives.realm.directory.channels[lives.number("a")].state.durables
        assert with_durable(lives, "mine") == (["a"] if "mine" in durables else [])
