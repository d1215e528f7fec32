"""While publishing is paused, clients cannot publish, and all other requests are served (SEM
X5)."""

from __future__ import annotations

import pytest

from packages.server.tests.runtime.lives import (
    ENDS,
    End,
    Lives,
    body_from_events,
    clock_now,
    datas,
    named,
)
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import PublishingPaused
from penstock_core.vocabulary.identities import ChannelId
from penstock_testing.loop import pass_time, simulated


async def commit_staged(lives: Lives, number: ChannelId) -> None:
    failed: list[BaseException | None] = []
    lives.realm.commit(number, ["s"], "", sequence=0, reply=lambda _, error: failed.append(error))
    await pass_time(0.01)
    if failed[0] is not None:
        raise failed[0]


@pytest.mark.spec("X5")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_publishes_and_commits_of_clients_are_refused_until_it_ends(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("orders")
        await lives.put("orders", *named("a", "b"), producer="p", sequence=1)
        await lives.realm.transactions.begin("t", [1])
        await lives.realm.pause(paused=True)
        with pytest.raises(PublishingPaused):
            await lives.commit("t", {"orders": named("x")})
    async with lives.life(end):
        assert (await lives.realm.describe("1")).publishing_paused
        for event in (*named("x"), *named("x", deliver_at=clock_now())):
            with pytest.raises(PublishingPaused):
                await lives.put("orders", event)
        lives.realm.stages.put("s", 1, [body_from_events(named("x"))])
        with pytest.raises(PublishingPaused):
            await commit_staged(lives, ChannelId(1))
        with pytest.raises(PublishingPaused):
            await lives.transact("t", {"orders": named("x")})
        assert datas(await lives.stored("orders")) == ["a", "b"]

        await lives.realm.pause(paused=False)
        await commit_staged(lives, ChannelId(1))
        await lives.commit("t", {"orders": named("y")})
    async with lives.life(end):
        assert not (await lives.realm.describe("1")).publishing_paused
        assert datas(await lives.stored("orders")) == ["a", "b", "x", "y"]


@pytest.mark.spec("X3", "X5")
@simulated
async def test_a_retry_of_what_was_stored_before_is_answered() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders")
        first = await lives.put("orders", *named("a", "b"), producer="p", sequence=1)
        later = named("c", deliver_at=clock_now())
        second = await lives.put("orders", *later, producer="p", sequence=2)
        await lives.realm.pause(paused=True)
        again = await lives.put("orders", *named("a", "b"), producer="p", sequence=1)
        assert again == first == Span(0, 2)
        assert await lives.put("orders", *later, producer="p", sequence=2) == second
        with pytest.raises(PublishingPaused):
            await lives.put("orders", *named("a"), producer="p", sequence=3)


@pytest.mark.spec("X5", "L1", "T7", "T10", "X4")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_internal_work_continues_while_publishing_is_paused(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("dead")
        await lives.create("copy")
        await lives.create("orders", ttl=60_000, dead_event_store="dead")
        await lives.realm.joins.create("orders", "copy", "", archive=False)
        await lives.durable("orders", "team")
        await lives.put("orders", *named("a", "b"))
        await lives.put("orders", *named("later", deliver_at=clock_now()))
        await lives.realm.pause(paused=True)
    async with lives.life(end):
        worker = await lives.attach("orders", "team")
        await worker.has(3)
        await worker.settle(0)
        await pass_time(63)
        assert datas(await lives.stored("dead")) == ["b", "later"]
        assert (await lives.realm.redrive("dead", "", "")).moved == 2
        assert datas(await lives.stored("copy")) == ["a", "b", "later", "b", "later"]
        await lives.conserved()
