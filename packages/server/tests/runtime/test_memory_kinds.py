"""Stores of events other than the journal, each with a separate limit (SEM C1, C6)."""

from __future__ import annotations

import contextlib
from random import Random

import pytest

from packages.server.tests.runtime.lives import ENDS, LATE, End, Lives, datas, named
from packages.server.tests.runtime.living import EAGER
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Storage
from penstock_core.vocabulary.errors import CapacityReached, MemoryLimit, StorageFailed
from penstock_server.runtime.realm import Limits
from penstock_server.runtime.writer.placement import MemoryLimits
from penstock_testing.loop import pass_time, simulate, simulated

SMALL = Limits(memory=MemoryLimits(20_000, 20_000, 20_000))


@pytest.mark.spec("C1f")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_off_heap_events_are_outside_the_python_heap_and_freed(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("off", "off_heap", capacity=3)
        for n in range(5):
            await lives.put("off", Event(bytes([n]) * 10_000))
        about = await lives.realm.describe("1")
        assert 30_000 <= about.off_heap_bytes <= 35_000
        assert about.memory_bytes == 0
        info = await lives.info("off")
        assert (info.storage.home, info.storage.sealed_files) == ("off_heap", 0)
        assert info.storage.memory_bytes >= 30_000
        assert [event.data[0] for event in await lives.stored("off")] == [2, 3, 4]
        follower = await lives.follow("off")
        await follower.has(3)
        await lives.purge("off")
        assert (await lives.realm.describe("1")).off_heap_bytes == 0
        assert follower.events[0].data == bytes([2]) * 10_000
        await lives.put("off", *named("a"))
        await follower.has(4)
        assert (await lives.realm.describe("1")).off_heap_bytes > 0
        follower.events.clear()  # this one still lay where the realm has it
        await lives.realm.delete_channel("off")
        assert (await lives.realm.describe("1")).off_heap_bytes == 0
        await lives.create("off2", "off_heap")
        await lives.put("off2", *named("x", "y"))
    async with lives.life(end):
        info = await lives.info("off2")
        assert (info.events, (await lives.realm.describe("1")).off_heap_bytes) == (0, 0)
        span = await lives.put("off2", *named("z"))
        assert span.first >= 2
        await lives.conserved()


@pytest.mark.spec("C6")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", ["reliable", "simple", "mixed", "off_heap", "paged"])
@simulated
async def test_at_the_limit_of_its_kind_a_publish_is_refused_and_nothing_is_dropped(
    end: End, kind: str
) -> None:
    lives = Lives(limits=SMALL)
    big = Event(bytes(6_000), persistent=False if kind == "mixed" else None)
    async with lives.life(end):
        await lives.create("small", kind)
        await lives.create("orders")
        for _ in range(3):
            await lives.put("small", big)
        with pytest.raises(MemoryLimit, match=kind):
            await lives.put("small", big)
        if kind == "mixed":
            await lives.put("small", Event(bytes(6_000)))  # that one is on disk
            await lives.purge("small", "event_id = 3")
        await lives.put("orders", big)
        other_kind = "off_heap" if kind in ("reliable", "simple", "mixed") else "reliable"
        await lives.create("other", other_kind)
        await lives.put("other", Event(bytes(6_000)))  # each kind has its own limit
        assert len(await lives.stored("small")) == 3
        assert await lives.purge("small", "event_id < 2") == 2
        await lives.put("small", big)
        assert len(await lives.stored("small")) == 2
    async with lives.life(end):
        remaining = 2 if kind == "paged" else 0
        assert len(await lives.stored("small")) == remaining
        for _ in range(3 - remaining):
            await lives.put("small", big)
        with pytest.raises(MemoryLimit):
            await lives.put("small", big)
        await lives.conserved()


@pytest.mark.spec("C1g")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("eager", [True, False])
@simulated
async def test_paged_events_are_in_pages_that_are_removed_when_empty(end: End, eager: bool) -> None:
    lives = Lives(sealing=EAGER if eager else LATE)

    async def pages() -> int:
        return lives.store.pages.info(lives.number("paged")).pages

    async with lives.life(end):
        await lives.create("paged", "paged", keys={"k": 1})
        for n in range(30):
            await lives.put("paged", Event(bytes([n]) * 3_000, properties={"k": n}))
        many = await pages()
        assert many > 1
        about = await lives.realm.describe("1")
        assert about.paged_bytes >= 90_000
        journal = about.journal_bytes
        assert journal < 60_000  # facts, not bytes
    async with lives.life(end):
        events = await lives.stored("paged")
        assert [event.data for event in events] == [bytes([n]) * 3_000 for n in range(30)]
        assert (await lives.info("paged")).storage.home == "pages"
        assert (await lives.realm.describe("1")).paged_bytes == about.paged_bytes
        await lives.put("paged", Event(b"new", properties={"k": 0}))
        assert await lives.purge("paged", "event_id < 30") == 29
        assert datas(await lives.stored("paged")) == ["new"]
        assert await pages() < many
    async with lives.life(end):
        assert datas(await lives.stored("paged")) == ["new"]
        assert await pages() <= 2
        await lives.realm.delete_channel("paged")
        await pass_time(0.01)
        assert lives.store.pages.info(1).pages == 0
        await lives.conserved()


@pytest.mark.slow
@pytest.mark.spec("C1g", "S1")
def test_a_power_cut_at_any_sync_loses_nothing_of_a_paged_channel() -> None:
    async def life(good: int) -> int:
        lives = Lives(good, sealing=EAGER)
        async with lives.life():
            await lives.create("paged", "paged", capacity=5)
        confirmed = 0
        async with lives.life():
            lives.disk.fail_syncs_after(good)
            try:
                for n in range(12):
                    await lives.put("paged", Event(bytes([n]) * 900))
                    confirmed = n + 1
                    await pass_time(0.004)
                await lives.realm.snapshot()
                confirmed += 100
            except StorageFailed:
                pass
        lives.disk.fail_syncs(0)
        async with lives.life():
            events = await lives.stored("paged")
            last = confirmed % 100
            ids = [event.event_id for event in events]
            assert all(event.data == bytes([event.event_id or 0]) * 900 for event in events)
            assert ids in [[*range(max(0, n - 5), n)] for n in (last, last + 1)]
            await lives.put("paged", Event(bytes([len(events) and (ids[-1] or 0) + 1]) * 900))
            await lives.conserved()
        return confirmed

    confirmed = {simulate(life(good), Random(good)) for good in range(45)}
    assert {*range(13), 112} <= confirmed | {12}


@pytest.mark.spec("C1g", "S1")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_a_damaged_page_costs_its_events_and_no_others(end: End) -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("paged", "paged")
        for word in ("first", "second", "third"):
            await lives.put("paged", *named(*[word] * 3))
        pages = [entry for entry in files(lives, "/realm/pages/1")]
    (path,) = [path for path in pages if b"secondsecond" in lives.disk.content(path)]
    lives.disk.flip(path, lives.disk.content(path).index(b"secondsecond") + 2)
    async with lives.life(end, damaged=True):
        assert any("pages/1" in reason for reason in lives.realm.recovered.damage)
        assert datas(await lives.stored("paged")) == ["first"] * 3 + ["third"] * 3
        info = await lives.info("paged")
        assert info.counters.quarantined == 3
        assert "pages/1" in info.storage.quarantined[0]
        await lives.put("paged", *named("fourth"))
    async with lives.life(end):  # nothing is damaged any more: it has been taken out
        assert len(await lives.stored("paged")) == 7
        assert (await lives.info("paged")).counters.quarantined == 3
        await lives.conserved()


@pytest.mark.spec("C1g", "S1")
@simulated
async def test_a_missing_page_is_reported_and_the_others_stay() -> None:
    lives = Lives()
    async with lives.life("closed"):
        await lives.create("paged", "paged")
        for n in range(20):
            await lives.put("paged", Event(bytes([n]) * 3_000))
        pages = files(lives, "/realm/pages/1")
        assert len(pages) > 2
    lives.disk.unlink(pages[1])
    async with lives.life("closed", damaged=True):
        remaining = len(await lives.stored("paged"))
        assert 0 < remaining < 20
        assert (await lives.info("paged")).counters.quarantined == 20 - remaining
        await lives.conserved()
    async with lives.life("closed"):
        assert len(await lives.stored("paged")) == remaining


def files(lives: Lives, path: str) -> list[str]:
    return sorted(f"{path}/{entry.name}" for entry in lives.disk.list(path))


@pytest.mark.spec("C1g", "S", "E3")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("publisher", ["me@here", f"{'m' * 180}@{'h' * 200}"])
@simulated
async def test_a_paged_channel_may_stamp_its_events(end: End, publisher: str) -> None:
    lives = Lives()
    async with lives.life(end):
        storage = Storage(stamp_dictionary=True, priority=7)
        await lives.create("paged", "paged", storage=storage)
        for count in (1, 500):
            await lives.put("paged", *named(*["x"] * count), publisher=publisher)
        await lives.transact("t", {"paged": named("in", "one")})
    async with lives.life(end):
        events = await lives.stored("paged", "$penstock.id >= 500")
        assert [event.event_id for event in events] == [500, 501, 502]
        first = (await lives.stored("paged"))[0].properties["$penstock"]
        assert f"{first['publisher']}@{first['host']}" == publisher
        assert first["id"] == 0


@pytest.mark.spec("C1g")
@pytest.mark.parametrize("seed", range(5))
@simulated
async def test_many_publishes_at_once_fit_into_the_pages(seed: int) -> None:
    random = Random(seed)
    lives = Lives(seed)
    sizes = [random.randint(1, 5_000) for _ in range(60)]
    async with lives.life("killed"):
        await lives.create("paged", "paged", capacity=40, storage=Storage(honour_capacity=True))
        await lives.create("orders")
        answers = []
        for n, size in enumerate(sizes):
            answers.append(lives.send("paged", Event(bytes([n]) * size)))
            if random.random() < 0.2:
                await pass_time(0.001)
        for answer in answers:
            with contextlib.suppress(CapacityReached):
                await answer
    async with lives.life():
        events = await lives.stored("paged")
        assert [event.data for event in events] == [
            bytes([n]) * size for n, size in enumerate(sizes[:40])
        ]
