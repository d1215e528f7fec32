"""Events published on a store are copied by its joins in the same step (SEM L)."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from packages.server.tests.runtime.lives import ENDS, End, Lives, datas, named
from penstock_core.vocabulary.definitions import Storage
from penstock_core.vocabulary.errors import IllegalState, InvalidSelector, StorageFailed
from penstock_testing.loop import pass_time, simulate, simulated


async def join(
    lives: Lives, source: str, destination: str, selector: str = "", *, archive: bool = False
) -> None:
    await lives.realm.joins.create(source, destination, selector, archive)


async def in_queue(lives: Lives, name: str) -> list[str]:
    outlet = await peeked(lives, name)
    return datas(outlet)


async def peeked(lives: Lives, name: str) -> list[Any]:
    reader = await lives.attach(name, window=1_000)
    count = (await lives.info(name)).events
    events = list(await reader.has(count))
    await reader.leave()
    return events


@pytest.mark.spec("L1", "L4", "L5", "E3", "F5")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", ["persistent", "mixed", "paged", "queue"])
@simulated
async def test_a_join_copies_matching_events_published_after_its_creation(
    end: End, kind: str
) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("orders", "mixed")
        if kind == "queue":
            await lives.create("copy", kind="queue")
        else:
            await lives.create("copy", kind)
        await lives.put("orders", *named("early", properties={"n": 9}))
        await lives.put("copy", *named("own"))
        await join(lives, "orders", "copy", selector="n > 1")
        await lives.put("orders", *named("a", properties={"n": 1}))
    async with lives.life(end):
        await lives.put(
            "orders",
            *named("b", properties={"n": 2}, tag="t", ttl=70_000),
            *named("c", properties={"n": 0}),
            *named("d", properties={"n": 3}),
            publisher="ann@one",
        )
        (info,) = await lives.realm.joins.list()
        assert (info.source, info.destination, info.selector) == ("orders", "copy", "n > 1")
        assert (info.copied, info.dropped) == (2, 0)
    async with lives.life(end):
        if kind == "queue":
            copies = await peeked(lives, "copy")
        else:
            browsed = await lives.browsed("copy")
            copies = browsed.events
            assert browsed.ids == [0, 1, 2]
            assert browsed.publishers == ["me@here", "ann@one", "ann@one"]
        assert datas(copies) == ["own", "b", "d"]
        b = copies[1]
        assert (b.tag, b.ttl, b.properties) == ("t", 70_000, {"n": 2})
        assert [event.origin and event.origin.event_id for event in copies] == [None, 2, 4]
        assert (b.origin.store, b.origin.cause, b.origin.path) == (
            "orders",
            "join",
            ("orders",),
        )
        await lives.realm.joins.delete("orders", "copy")
    async with lives.life(end):
        assert await lives.realm.joins.list() == ()
        await lives.put("orders", *named("e", properties={"n": 2}))
        assert (await lives.info("copy")).events == 3
        await lives.conserved()


@pytest.mark.spec("L2")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_joins_in_a_circle_copy_an_event_once(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        for name in "abc":
            await lives.create(name)
        for source, destination in ("ab", "bc", "ca", "ba"):
            await join(lives, source, destination)
    async with lives.life(end):
        await lives.put("a", *named("from a"))
        await lives.put("c", *named("from c"))
        assert datas(await lives.stored("a")) == ["from a", "from c"]
        assert datas(await lives.stored("b")) == ["from a", "from c"]
        assert datas(await lives.stored("c")) == ["from a", "from c"]
        last = (await lives.stored("c"))[0].origin
        assert last is not None
        assert (last.store, last.path) == ("b", ("a", "b"))


@pytest.mark.spec("L2")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_an_event_is_copied_over_ten_hops_and_no_more(end: End) -> None:
    lives = Lives()
    names = [f"s{n}" for n in range(14)]
    async with lives.life(end):
        for name in names:
            await lives.create(name)
        for source, destination in pairwise(names):
            await join(lives, source, destination)
    async with lives.life(end):
        await lives.put("s0", *named("x", "y"))
        counts = [len(await lives.stored(name)) for name in names]
        assert counts == [2] * 12 + [0, 0]  # s1 to s10 lie between s0 and s11
        dropped = {info.source: info.dropped for info in await lives.realm.joins.list()}
        assert {name for name, count in dropped.items() if count} == {"s11"}
        assert dropped["s11"] == 2


@pytest.mark.spec("L1", "L3")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_an_event_that_arrives_by_two_routes_is_stored_once_but_archived_twice(
    end: End,
) -> None:
    lives = Lives()
    async with lives.life(end):
        for name in ("a", "left", "right", "end"):
            await lives.create(name)
        await lives.create("archive", kind="queue")
        for way in ("left", "right"):
            await join(lives, "a", way, selector="event_id <> 1" if way == "left" else "")
            await join(lives, way, "end")
            await join(lives, way, "archive", archive=True)
    async with lives.life(end):
        await lives.put("a", *named("0", "1", "2"))
        assert sorted(datas(await lives.stored("end"))) == ["0", "1", "2"]
        await lives.put("right", *named("3"))
        assert sorted(datas(await lives.stored("end"))) == ["0", "1", "2", "3"]
        assert sorted(await in_queue(lives, "archive")) == ["0", "0", "1", "2", "2", "3"]
        await lives.conserved()


@pytest.mark.spec("L1", "E8")
@simulated
async def test_a_transient_event_is_copied_but_not_stored() -> None:
    lives = Lives()
    async with lives.life():
        for name in ("a", "b"):
            await lives.create(name)
        await lives.create("work", kind="queue")
        await join(lives, "a", "b")
        await join(lives, "a", "work")
        follower = await lives.follow("b")
        await lives.put("a", *named("x", transient=True), *named("y"))
        await follower.has(2)
        assert datas(follower.events) == ["x", "y"]
        for name in ("a", "b"):
            assert datas(await lives.stored(name)) == ["y"]
        assert await in_queue(lives, "work") == ["x", "y"]  # a queue ignores the flag
        await lives.conserved()


@pytest.mark.spec("K1", "L1")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_copies_replace_events_of_their_key(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("a")
        await lives.create("last", keys={"k": 1}, capacity=2, storage=Storage(honour_capacity=True))
        await join(lives, "a", "last")
        await lives.put("a", *[event for k in (1, 2, 1) for event in keyed(k)])
    async with lives.life(end):
        await lives.put("a", *keyed(2), *keyed(3))  # joins are never refused for want of room
        events = await lives.stored("last")
        assert [event.properties["k"] for event in events] == [1, 2, 3]
        assert [event.event_id for event in events] == [2, 3, 4]
        await lives.conserved()


def keyed(k: int) -> list[Any]:
    return named(f"{k}", properties={"k": k})


@pytest.mark.spec("F1", "F5", "L1", "D3")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_a_selector_may_test_ids_and_origins(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("a")
        await lives.create("b")
        await join(lives, "a", "b", selector="event_id >= 2 AND event_id < 4")
        await lives.durable("a", "even", selector="event_id IN (0, 2, 4)")
        await lives.durable("b", "late", selector="event_id = 1")
        await lives.put("a", *named("0"))
        await lives.put("a", *named("1", "2", "3"))
    async with lives.life(end):
        await lives.put("a", *named("4"))
        assert datas(await lives.stored("b")) == ["2", "3"]
        even = await lives.attach("a", "even")
        assert datas(await even.has(3)) == ["0", "2", "4"]
        late = await lives.attach("b", "late")
        assert datas(await late.has(1)) == ["3"]


@pytest.mark.spec("L1", "L5")
@simulated
async def test_stores_and_selectors_are_checked() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("a")
        await lives.create("b")
        with pytest.raises(InvalidSelector):
            await join(lives, "a", "b", selector="n >")
        await join(lives, "a", "b")
        with pytest.raises(IllegalState, match="join from a"):
            await lives.realm.delete_channel("b")
        await lives.realm.delete_channel("a")
        assert await lives.realm.joins.list() == ()
        await lives.realm.delete_channel("b")


@pytest.mark.slow
@pytest.mark.spec("L1", "S1")
def test_after_a_power_cut_at_any_sync_each_event_has_its_copy() -> None:
    async def life(good: int) -> int:
        lives = Lives(good)
        async with lives.life():
            await lives.create("a", capacity=4, dead_event_store="")
            await lives.create("b", "paged")
            await lives.create("c", kind="queue")
            await join(lives, "a", "b")
            await join(lives, "b", "c")
        confirmed = 0
        async with lives.life():
            lives.disk.fail_syncs_after(good)
            try:
                for n in range(5):
                    await lives.put("a", *named(f"{n}", f"{n}"))
                    confirmed += 1
                    await pass_time(0.01)
            except StorageFailed:
                pass
        lives.disk.fail_syncs(0)
        async with lives.life():
            copies = datas(await lives.stored("b"))
            assert copies == [str(n // 2) for n in range(len(copies))]
            assert len(copies) >= 2 * confirmed
            assert await in_queue(lives, "c") == copies
            assert datas(await lives.stored("a")) == copies[-4:]
            await lives.conserved()
        return confirmed

    assert len({simulate(life(good), Random(good)) for good in range(10)}) > 4


@pytest.mark.spec("L1")
@simulated
async def test_the_counters_of_a_join_are_dropped_with_its_stores() -> None:
    lives = Lives()
    async with lives.life("closed"):
        for _ in range(3):
            await lives.create("orders")
            await lives.create("copy")
            await join(lives, "orders", "copy")
            await lives.put("orders", *named("a"))
            (info,) = await lives.realm.joins.list()
            assert info.copied == 1
            await lives.realm.delete_channel("orders")
            await lives.realm.delete_channel("copy")

        assert not lives.realm.shard.state._joined
