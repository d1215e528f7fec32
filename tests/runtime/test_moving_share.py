"""Dead events that move by the thousand leave publishers most of the time (SEM T7)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock.core.vocabulary.messages import Definition
from penstock.core.vocabulary.ports import Buffer
from penstock.runtime.realm import RunningRealm
from penstock.runtime.upkeep.sealer import SealingLimits
from penstock.storage.memory import MemoryBlobs, MemoryJournal
from penstock.testing.loop import pass_time, simulated
from tests.runtime.living import body, events, living, publish

BYTES_A_SECOND = 5_000_000
EVENTS = 60_000


class SlowJournal(MemoryJournal):
    """Each append takes as long as it has bytes."""

    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        await pass_time(sum(len(chunk) for chunk in block) / BYTES_A_SECOND)
        return await super().append(expected, block, sync=sync)


async def with_dying_events(realm: RunningRealm) -> None:
    await realm.create_channel("dead", Definition(type="persistent"))
    dying = Definition(type="persistent", ttl=2_000, dead_event_store="dead")
    await realm.create_channel("orders", dying)
    await realm.create_channel("other", Definition(type="persistent"))
    for _ in range(EVENTS // 10_000):
        await publish(realm, realm.directory.number_of("orders"), body([b"x"] * 10_000))


def moved(realm: RunningRealm) -> int:
    """How many have moved, without a place in the order of what is asked."""
    dead = realm.directory.number_of("dead")
    return len(realm.directory.channels[dead].state.stored)


@pytest.mark.slow
@pytest.mark.spec("T1", "T5", "T7")
@simulated
async def test_most_publishers_never_wait_for_events_that_move() -> None:
    async with living(SlowJournal(), MemoryBlobs(), sealing=SealingLimits()) as realm:
        await with_dying_events(realm)
        other = realm.directory.number_of("other")
        loop = asyncio.get_running_loop()
        while not moved(realm):
            await pass_time(0.001)
        began_s, waits = loop.time(), []
        while moved(realm) < EVENTS:
            sent_s = loop.time()
            await publish(realm, other, body([b"y"]))
            waits.append(loop.time() - sent_s)
            await pass_time(0.001)
        assert max(waits) > 0.1, "a step of them takes long"
        assert sum(waits) < 0.5 * (loop.time() - began_s)
        assert loop.time() < 20, "and they move all the same"


@pytest.mark.spec("T1", "T5", "T7")
@simulated
async def test_they_go_on_moving_where_nobody_publishes() -> None:
    async with living(SlowJournal(), MemoryBlobs(), sealing=SealingLimits()) as realm:
        await with_dying_events(realm)
        await pass_time(20)
        orders = await realm.describe_channel("orders")
        assert (orders.events, orders.overdue, orders.counters.dead) == (0, 0, EVENTS)
        assert len(await events(realm, realm.directory.number_of("dead"))) == EVENTS


@pytest.mark.slow
@pytest.mark.spec("T1")
@simulated
async def test_what_expires_between_two_steps_is_not_delivered() -> None:
    async with living(SlowJournal(), MemoryBlobs(), sealing=SealingLimits()) as realm:
        await with_dying_events(realm)
        orders = realm.directory.number_of("orders")
        for _ in range(100):
            now_us = realm.clock.now_us()
            await publish(realm, orders, body([b"%d" % now_us]))
            found = list((await events(realm, orders)).values())
            expired = realm.clock.now_us() - 2_100_000
            assert all(int(data) > expired for data in found if data != b"x")
            await pass_time(0.05)
