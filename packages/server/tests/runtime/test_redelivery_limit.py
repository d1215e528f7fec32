"""An event that is rolled back too often becomes dead (SEM T10)."""

from __future__ import annotations

import pytest

from packages.server.tests.runtime.lives import ENDS, End, Lives, datas, named
from penstock_testing.loop import pass_time, simulated


@pytest.mark.spec("T10")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_what_is_rolled_back_too_often_is_dead_for_that_durable(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("dead")
        await lives.create("orders", dead_event_store="dead")
        await lives.durable("orders", "team", max_deliveries=2)
        await lives.durable("orders", "other")
        await lives.put("orders", *named("a", "b"))
        worker = await lives.attach("orders", "team")
        await worker.has(2)
        await worker.settle(0, back=True)
        await worker.has(3)
        await worker.leave()
    async with lives.life(end):
        dead = await lives.stored("dead")
        assert datas(dead) == ["a"]
        assert dead[0].origin is not None
        assert dead[0].origin.cause == "redelivery_limit"
        assert (dead[0].origin.durables, dead[0].origin.redeliveries) == (("team",), 1)
        assert datas(await lives.stored("orders")) == ["a", "b"]  # the other wants it
        other_client = await lives.attach("orders", "other")
        await other_client.has(2)
        await other_client.settle(0, 1)
        await pass_time(2)
        assert datas(await lives.stored("orders")) == ["b"]
        await lives.conserved()


@pytest.mark.spec("T10", "Q3")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_a_queue_buries_what_its_readers_give_back_too_often(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("dead")
        await lives.create("work", kind="queue", dead_event_store="dead", max_deliveries=2)
        await lives.put("work", *named("a"))
        reader = await lives.attach("work")
        await reader.has(1)
        await reader.settle(0, back=True)
        await reader.has(2)
        assert reader.events[1].redelivery_count == 1
        await reader.settle(0, back=True)
        (dead,) = await lives.stored("dead")
        assert dead.origin is not None
        assert (dead.origin.cause, dead.origin.redeliveries) == ("redelivery_limit", 1)
    async with lives.life(end):
        assert len(await lives.stored("dead")) == 1
        info = await lives.info("work")
        assert (info.events, info.counters.dead) == (0, 1)
        await lives.conserved()
