"""Scheduled publishing (SEM X4): events wait on an internal store."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

import pytest

from packages.server.tests.runtime.lives import ENDS, End, Lives, clock_now, datas, named
from packages.server.tests.runtime.living import EAGER
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import InvalidEvent, NameDoesNotExist, StorageFailed
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.realm import Limits
from penstock_testing.loop import pass_time, simulate, simulated
from tests.spindles import spindles

SELDOM = Limits(sweep_interval_s=1e6)
"""Sweeps are rare, so that only wake-ups can publish events."""
MS = timedelta(milliseconds=1)


def later(data: str, ms: int, **options: Any) -> Event:
    return Event(data.encode(), deliver_at=clock_now() + ms * MS, **options)


@pytest.mark.spec("X4", "E4")
@simulated
async def test_scheduled_events_are_published_in_the_order_of_their_times() -> None:
    lives = Lives(limits=SELDOM)
    async with lives.life():
        await lives.create("orders")
        begun = clock_now()
        follower = await lives.follow("orders")
        await lives.put("orders", later("d", 900), later("b", 250), publisher="ann@one")
        await lives.put("orders", later("c", 300), later("a", 40_000 // 200))
        await lives.put("orders", *named("now"))
        await pass_time(0.1)
        assert datas(follower.events) == ["now"]
        assert (await lives.info("orders")).scheduled == 4
        await follower.has(5)
        assert datas(follower.events) == ["now", "a", "b", "c", "d"]
        assert follower.ids == [0, 1, 2, 3, 4]
        waited = [time - begun for time in follower.came_at[1:]]
        for wanted, real in zip((200, 250, 300, 900), waited, strict=True):
            assert timedelta() <= real - wanted * MS <= 3 * MS, (wanted, real)
        assert follower.publishers == ["me@here"] * 2 + ["ann@one", "me@here", "ann@one"]
        for event, time in zip(follower.events[1:], follower.came_at[1:], strict=True):
            assert event.published is not None
            assert time - event.published < 3 * MS
            assert event.deliver_at is None
            assert event.origin is None
        assert (await lives.info("orders")).scheduled == 0
        await lives.conserved()


@pytest.mark.spec("X4")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("kind", "eager"),
    [("persistent", True), ("mixed", False), ("paged", False), ("queue", False)],
)
@simulated
async def test_scheduled_events_survive_a_restart_and_are_published_once(
    end: End, kind: str, eager: bool
) -> None:
    lives = Lives(limits=SELDOM, sealing=EAGER) if eager else Lives(limits=SELDOM)
    async with lives.life(end):
        if kind == "queue":
            await lives.create("orders", kind="queue")
        else:
            await lives.create("orders", kind, storage=spindles(kind, 2))
        await lives.put("orders", later("before", 50))
        await lives.put("orders", later("down", 400), later("up", 5_000, ttl=3_000))
        await pass_time(0.2)
        assert (await lives.info("orders")).events == 1
        if eager:  # the store where they wait is channel number 2
            files = await lives.store.blobs.list("segments/")
            assert any("orders.2/" in file.name for file in files)
    await pass_time(0.4)
    async with lives.life(end):
        await pass_time(0.01)
        assert (await lives.info("orders")).events == 2  # due while the realm was down
        assert (await lives.info("orders")).scheduled == 1
    async with lives.life(end):
        await pass_time(4.4)
        info = await lives.info("orders")
        assert (info.events, info.scheduled) == (3, 0)  # the event's own TTL counts from now on
        if kind != "queue":
            assert datas(await lives.stored("orders")) == ["before", "down", "up"]
        await lives.conserved()


@pytest.mark.spec("X4", "C1b", "C1c", "C1d", "C1e", "C1f")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", ["reliable", "simple", "off_heap", "transient", "mixed"])
@simulated
async def test_volatile_scheduled_events_are_lost_by_a_restart(end: End, kind: str) -> None:
    lives = Lives(limits=SELDOM)
    options: dict[str, Any] = {"persistent": False} if kind == "mixed" else {}
    async with lives.life(end):
        await lives.create("orders", kind)
        follower = await lives.follow("orders")
        await lives.put("orders", later("a", 100, **options), later("b", 2_000, **options))
        await follower.has(1)
        assert datas(follower.events) == ["a"]
        await lives.conserved()
    async with lives.life(end):
        follower = await lives.follow("orders")
        await pass_time(3)
        assert follower.events == []
        assert (await lives.info("orders")).scheduled == 0
        await lives.put("orders", later("c", 100, **options))
        await follower.has(1)
        await lives.conserved()


@pytest.mark.spec("X4")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_scheduled_events_can_be_read_and_cancelled(end: End) -> None:
    lives = Lives(limits=SELDOM)
    async with lives.life(end):
        number = await lives.create("orders")
        assert await lives.realm.schedule_of(ChannelId(number)) is None
        await lives.put(
            "orders", later("a", 500, properties={"n": 1}), later("b", 500, properties={"n": 2})
        )
    async with lives.life(end):
        opened = await lives.realm.schedule_of(ChannelId(number))
        assert opened is not None
        assert opened.name == "$orders"
        waiting = await lives.waiting_in(opened.channel)
        assert datas(waiting) == ["a", "b"]
        assert all(event.deliver_at is not None for event in waiting)
        purged = lives.realm.subscriptions.purge(opened.channel, None, None, selector="n = 1")
        assert await purged == 1
    async with lives.life(end):
        await pass_time(1)
        assert datas(await lives.stored("orders")) == ["b"]
        await lives.conserved()


@pytest.mark.spec("X4", "C2")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_the_schedule_store_belongs_to_its_channel(end: End) -> None:
    lives = Lives(limits=SELDOM)
    async with lives.life(end):
        await lives.create("a/orders")
        await lives.put("a/orders", later("x", 500))
        assert await lives.realm.list_channels() == ["a/orders"]
        assert await lives.realm.list_channels("queue") == []
        with pytest.raises(NameDoesNotExist):
            await lives.realm.open_channel("$a/orders")
        await lives.realm.delete_channel("a/orders")
        assert not lives.realm.directory.names("schedule")
        await lives.create("a/orders")
    async with lives.life(end):
        await pass_time(1)
        assert (await lives.info("a/orders")).events == 0


@pytest.mark.spec("X4", "C2")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_a_channel_may_have_the_name_of_a_schedule_store(end: End) -> None:
    lives = Lives(limits=SELDOM)
    async with lives.life(end):
        await lives.create("orders")
        await lives.put("orders", later("waits", 500))
        await lives.create("$orders")
        await lives.put("$orders", *named("is there"))
        await lives.put("$orders", later("waits, too", 500))
    async with lives.life(end):
        assert datas(await lives.stored("$orders")) == ["is there"]
        assert datas(await lives.stored("orders")) == []
        await pass_time(1)
        assert datas(await lives.stored("$orders")) == ["is there", "waits, too"]
        assert datas(await lives.stored("orders")) == ["waits"]
        await lives.realm.delete_channel("orders")
        assert lives.realm.directory.names("schedule") == ["$$orders"]
        await lives.conserved()


@pytest.mark.spec("X4")
@simulated
async def test_a_mix_in_one_publish_is_refused() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders")
        with pytest.raises(InvalidEvent, match="1 of 2 events"):
            await lives.put("orders", later("a", 10), *named("b"))
        await pass_time(2)
        assert await lives.stored("orders") == []


@pytest.mark.spec("X3", "X4")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_a_repeated_scheduled_publish_waits_once(end: End) -> None:
    lives = Lives(limits=SELDOM)
    event = [Event(b"a", deliver_at=clock_now() + 100 * MS)]
    async with lives.life(end):
        await lives.create("orders")
        first = await lives.put("orders", *event, producer="p", sequence=1)
        assert await lives.put("orders", *event, producer="p", sequence=1) == first
    async with lives.life(end):
        assert await lives.put("orders", *event, producer="p", sequence=1) == first
        await pass_time(0.3)
        assert await lives.put("orders", *event, producer="p", sequence=1) == first
    async with lives.life(end):
        await pass_time(0.3)
        assert datas(await lives.stored("orders")) == ["a"]


@pytest.mark.slow
@pytest.mark.spec("X4")
def test_after_a_power_cut_at_any_sync_each_event_is_published_once() -> None:
    async def life(good: int) -> int:
        lives = Lives(good, limits=SELDOM)
        async with lives.life():
            await lives.create("orders")
        confirmed = 0
        async with lives.life():
            lives.disk.fail_syncs_after(good)
            try:
                for n in range(4):
                    await lives.put("orders", later(f"{n}", 90), later(f"{n}", 5_000))
                    confirmed += 1
                    await pass_time(0.05)
            except StorageFailed:
                pass
        lives.disk.fail_syncs(0)
        async with lives.life():
            await pass_time(0.1)
            early = datas(await lives.stored("orders"))
            assert early == [str(n) for n in range(len(early))]
            assert len(early) >= confirmed
            await pass_time(6)
            assert sorted(datas(await lives.stored("orders"))) == sorted(2 * early)
            await lives.conserved()
        return confirmed

    assert len({simulate(life(good), Random(good)) for good in range(16)}) == 5
