"""A realm starts although pages are damaged, whatever happens to the events in them."""

from __future__ import annotations

import pytest

from packages.server.tests.runtime.damaged_pages import living_on
from packages.server.tests.runtime.living import body, events, publish
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_testing.disk import FaultyDisk
from penstock_testing.loop import pass_time, simulated


@pytest.mark.slow
@pytest.mark.spec("S1", "T7", "K1")
@simulated
async def test_damaged_events_are_quarantined_and_the_others_move_when_they_expire() -> None:
    disk = FaultyDisk()
    async with living_on(disk) as realm:
        await realm.create_channel("dead", Definition(type="persistent"))
        paged = Definition(type="paged", ttl=1_000, dead_event_store="dead", keys={"k": 1})
        number = (await realm.create_channel("orders", paged)).channel
        await publish(realm, number, body([b"rotten"], k=1))
        await publish(realm, number, body([b"sound"], k=2))
    page = disk.content("/realm/pages/2/0001.page")
    disk.flip("/realm/pages/2/0001.page", page.index(b"rotten"))
    await pass_time(2)

    async with living_on(disk) as realm:
        orders = await realm.describe_channel("orders")
        moved = await events(realm, ChannelId(1))
        assert (orders.events, orders.counters.quarantined, list(moved.values())) == (
            0,
            1,
            [b"sound"],
        )


@pytest.mark.spec("S1", "K1")
@simulated
async def test_a_missing_page_does_not_prevent_indexing_the_publish_keys() -> None:
    disk = FaultyDisk()
    async with living_on(disk) as realm:
        paged = Definition(type="paged", keys={"k": 1})
        number = (await realm.create_channel("orders", paged)).channel
        await publish(realm, number, body([b"gone" * 1_000], k=1))
        await publish(realm, number, body([b"old" * 1_000], k=2))
    disk.unlink("/realm/pages/1/0001.page")

    async with living_on(disk) as realm:
        await publish(realm, number, body([b"new"], k=2))
        assert list((await events(realm, number)).values()) == [b"new"]


@pytest.mark.spec("C1g", "S1")
@pytest.mark.parametrize(("text", "key"), [(b"long" * 500, 3), (b"short", 2)])
@simulated
async def test_a_slot_freed_before_a_restart_is_not_freed_again_under_its_next_body(
    text: bytes, key: int
) -> None:
    disk = FaultyDisk()
    async with living_on(disk) as realm:
        paged = Definition(type="paged", keys={"k": 1})
        number = (await realm.create_channel("orders", paged)).channel
        await publish(realm, number, body([b"first" * 200], k=1))
        await publish(realm, number, body([b"short"], k=2))
        await realm.subscriptions.purge(number, 1, 2, selector="")
    async with living_on(disk) as realm:
        await publish(realm, number, body([text], k=key))  # where "short" was
        await publish(realm, number, body([b"other" * 1_200], k=4))  # in the next page
        await publish(realm, number, body([b"f"], k=1))
    async with living_on(disk) as realm:
        orders = await realm.describe_channel("orders")
        assert orders.storage.quarantined == ()
        kept = await events(realm, number)
        assert list(kept.values()) == [text, b"other" * 1_200, b"f"]
