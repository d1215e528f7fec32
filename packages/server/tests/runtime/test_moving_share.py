"""Moving thousands of dead events leaves publishers most of the time (SEM T7)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from packages.server.tests.runtime.living import body, events, living, publish
from penstock_core.channel.dead import MOVED_EVENTS_MAX
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.schema.ipc import batch_bytes, schema_bytes
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.ports import Buffer
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.runtime.writer.dead_events import STEP_S, MovingPace
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import pass_time, simulated

BYTES_A_SECOND = 5_000_000
EVENTS = 60_000


class SlowJournal(MemoryJournal):
    """A journal whose appends take time in proportion to their bytes."""

    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        await pass_time(sum(len(chunk) for chunk in block) / BYTES_A_SECOND)
        return await super().append(expected, block, sync=sync)


async def with_dying_events(realm: RunningRealm) -> None:
    await realm.create_channel("dead", Definition(type="persistent"))
    dying = Definition(type="persistent", ttl=2_000, dead_event_store="dead")
    await realm.create_channel("orders", dying)
    await realm.create_channel("other", Definition(type="persistent"))
    for _ in range(EVENTS // 10_000):
        await publish(realm, realm.directory.channel_id_of("orders"), body([b"x"] * 10_000))


def moved(realm: RunningRealm) -> int:
    """Return the number of moved events, without queueing a request."""
    dead = realm.directory.channel_id_of("dead")
    return len(realm.directory.channels[dead].state.stored)


@pytest.mark.slow
@pytest.mark.spec("T1", "T5", "T7")
@simulated
async def test_most_publishers_never_wait_for_events_that_move() -> None:
    async with living(SlowJournal(), MemoryBlobs(), sealing=SealingLimits()) as realm:
        await with_dying_events(realm)
        other_channel = realm.directory.channel_id_of("other")
        loop = asyncio.get_running_loop()
        while not moved(realm):
            await pass_time(0.001)
        began_s, waits = loop.time(), []
        while moved(realm) < EVENTS:
            sent_s = loop.time()
            await publish(realm, other_channel, body([b"y"]))
            waits.append(loop.time() - sent_s)
            await pass_time(0.001)
        assert max(waits) > 0.1, "a step of them takes long"
        assert sum(waits) < 0.5 * (loop.time() - began_s)
        assert loop.time() < 20, "and they move all the same"


@pytest.mark.spec("T1", "T5", "T7")
@simulated
async def test_dead_events_keep_moving_while_no_client_publishes() -> None:
    async with living(SlowJournal(), MemoryBlobs(), sealing=SealingLimits()) as realm:
        await with_dying_events(realm)
        await pass_time(20)
        orders = await realm.describe_channel("orders")
        assert (orders.events, orders.overdue, orders.counters.dead) == (0, 0, EVENTS)
        assert len(await events(realm, realm.directory.channel_id_of("dead"))) == EVENTS


@pytest.mark.slow
@pytest.mark.spec("T1")
@simulated
async def test_events_that_expire_between_two_steps_are_not_delivered() -> None:
    async with living(SlowJournal(), MemoryBlobs(), sealing=SealingLimits()) as realm:
        await with_dying_events(realm)
        orders = realm.directory.channel_id_of("orders")
        for _ in range(100):
            now_us = realm.clock.now_us()
            await publish(realm, orders, body([b"%d" % now_us]))
            remaining = list((await events(realm, orders)).values())
            expired = realm.clock.now_us() - 2_100_000
            assert all(int(data) > expired for data in remaining if data != b"x")
            await pass_time(0.05)


@pytest.mark.spec("T7")
def test_the_size_of_a_step_adapts_to_its_duration() -> None:
    pace = MovingPace(lambda _: None)
    first = pace.events_max
    pace.adapt_step(first // 2, STEP_S / 10)
    assert pace.events_max == first, "there was no more to move"
    pace.adapt_step(first, STEP_S / 4)
    pace.adapt_step(2 * first, STEP_S / 2)
    assert pace.events_max == 2 * first
    for _ in range(9):
        pace.adapt_step(pace.events_max, 0.0)

    assert pace.events_max == MOVED_EVENTS_MAX
    pace.adapt_step(MOVED_EVENTS_MAX, STEP_S * 5 / 4)
    assert pace.events_max == MOVED_EVENTS_MAX * 4 // 5
    for _ in range(9):
        pace.adapt_step(pace.events_max, 100 * STEP_S)
    assert pace.events_max == first, "never so few that most of a step is its beginning and end"


@pytest.mark.spec("T7")
@simulated
async def test_channels_are_woken_after_a_pause_in_the_order_in_which_they_began_to_wait() -> None:
    woken: list[int] = []
    pace = MovingPace(woken.append)
    began_s = asyncio.get_running_loop().time()
    await pass_time(0.01)
    pace.rest(began_s)
    for channel_id in (7, 3, 5, 7):
        pace.hold_back(channel_id)
    assert woken == []
    await pass_time(1.0)
    assert woken == [7, 3, 5]
    assert pace.resting is None


@pytest.mark.slow
@pytest.mark.spec("T1", "T7")
@simulated
async def test_events_that_end_at_any_time_move_in_steps() -> None:
    async with living(MemoryJournal(), MemoryBlobs(), sealing=SealingLimits()) as realm:
        await realm.create_channel("dead", Definition(type="persistent"))
        dying = Definition(type="persistent", event_ttl=True, dead_event_store="dead")
        await realm.create_channel("orders", dying)
        orders = realm.directory.channel_id_of("orders")
        ttls = [2_000 + (i * 7_919) % 1_000 for i in range(10_000)]
        batch = body_of_columns([b"x"] * 10_000, ttls=ttls)
        for _ in range(3):
            await publish(
                realm, orders, Body(batch_bytes(batch), batch, schema_bytes(batch.schema))
            )
        await pass_time(2.5)
        await publish(realm, orders, body([b"y"]))
        assert 0 < moved(realm) < 15_000, "more have ended"
        await pass_time(2)
        info = await realm.describe_channel("orders")
        assert (info.events, info.overdue, info.counters.dead) == (1, 0, 30_000)
        assert len(await events(realm, realm.directory.channel_id_of("dead"))) == 30_000
