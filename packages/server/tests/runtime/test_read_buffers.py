"""Recovery keeps the bytes of events, and not the buffers that it has read them into."""

from __future__ import annotations

import pytest

from packages.server.tests.runtime.damaged_pages import living_on
from packages.server.tests.runtime.living import body, events, publish
from penstock_core.vocabulary.definitions import Definition
from penstock_testing.disk import FaultyDisk
from penstock_testing.loop import simulated


@pytest.mark.spec("S1")
@simulated
async def test_a_small_event_does_not_keep_the_large_ones_that_left_before_it() -> None:
    disk = FaultyDisk()
    async with living_on(disk) as realm:
        number = (await realm.create_channel("orders", Definition(type="persistent"))).channel
        for _ in range(4):
            await publish(realm, number, body([b"large" * 50_000]))
        await publish(realm, number, body([b"small"]))
        await realm.subscriptions.purge(number, 0, 3, "")
    async with living_on(disk) as realm:
        kept = [tail_batch.body for tail_batch in realm.shard.state.stores[number].tail]
        buffers = [memoryview(tail_batch).obj for tail_batch in kept]
        held = {id(buffer): memoryview(buffer).nbytes for buffer in buffers}
        assert sum(held.values()) < 10_000, "the small event alone"
        assert list((await events(realm, number)).values()) == [b"small"]
