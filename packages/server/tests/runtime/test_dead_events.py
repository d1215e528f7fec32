"""Dead events move to another store in the step that removes them (SEM T5-T7)."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from structlog.testing import capture_logs

from packages.server.tests.runtime.lives import ENDS, End, Lives, clock_now, datas, named
from packages.server.tests.runtime.living import EAGER
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import PenstockError, StorageFailed
from penstock_server.runtime.upkeep.compaction import MaintenanceLimits
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_testing.loop import START_US, pass_time, simulate, simulated

SEALED = SealingLimits(
    segment_bytes_max=1, interval_s=0.01, retry_s=0.01, maintenance=MaintenanceLimits(retry_s=0.01)
)


@pytest.mark.spec("T5", "T6", "T7", "E3")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_expired_events_are_in_the_dead_event_store_with_their_origin(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("dead")
        await lives.create("orders", ttl=1_000, dead_event_store="dead", event_ttl=True)
        await lives.durable("orders", "team")
        await lives.durable("orders", "blue", selector="colour = 'blue'")
        worker = await lives.attach("orders", "team")
        await lives.put("orders", *named("a", ttl=500), publisher="ann@one")
        await lives.put("orders", *named("b", "c", properties={"colour": "blue"}))
        await lives.put("orders", *named("d", ttl=60_000), publisher="ann@one")
        await worker.has(4)
        await worker.settle(0, back=True)
        await worker.settle(1)
    async with lives.life(end):
        await pass_time(3.1)
        orders = await lives.info("orders")
        assert (orders.events, orders.counters.dead, orders.counters.expired) == (1, 3, 0)
        await lives.conserved()
    async with lives.life(end):
        browsed = await lives.browsed("dead")
        assert datas(browsed.events) == ["a", "b", "c"]
        assert browsed.ids == [0, 1, 2]
        assert browsed.publishers == ["ann@one", "me@here", "me@here"]
        a, b, c = (event.origin for event in browsed.events)
        assert a
        assert b
        assert c
        assert (a.store, a.event_id, a.cause, a.ttl) == ("orders", 0, "expired", 500)
        assert (a.durables, a.redeliveries, a.path) == (("team",), 1, ("orders",))
        assert (b.event_id, b.durables, b.redeliveries) == (1, ("blue",), 0)
        assert (c.event_id, c.durables, c.ttl) == (2, ("team", "blue"), 0)
        assert all(event.ttl == 0 for event in browsed.events)
        assert a.at - a.published >= timedelta(milliseconds=500)
        assert a.at == browsed.events[0].published
        assert datas(await lives.stored("orders")) == ["d"]
        await lives.conserved()


@pytest.mark.spec("T3", "T6", "T7")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", ["persistent", "mixed", "reliable", "simple", "off_heap", "paged"])
@simulated
async def test_evicted_events_move_even_from_the_batch_being_published(end: End, kind: str) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("dead")
        await lives.create("orders", kind, capacity=3, dead_event_store="dead")
        await lives.put("orders", *named("a", "b"))
        await lives.put("orders", *named("c", "d", "e", "f", "g"), publisher="bob@two")

        assert datas(await lives.stored("orders")) == ["e", "f", "g"]
    async with lives.life(end):
        browsed = await lives.browsed("dead")
        assert datas(browsed.events) == ["a", "b", "c", "d"]
        assert browsed.publishers == ["me@here"] * 2 + ["bob@two"] * 2
        origins = [event.origin for event in browsed.events]
        assert [origin.event_id for origin in origins if origin] == [0, 1, 2, 3]
        assert {origin.cause for origin in origins if origin} == {"evicted"}
        kept = kind in ("persistent", "mixed", "paged")
        assert len(await lives.stored("orders")) == (3 if kept else 0)
        await lives.conserved()


@pytest.mark.spec("T5", "T7", "C1a", "C1b", "C1c", "C1d", "C1e", "C1f", "C1g")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "kind", ["persistent", "mixed", "reliable", "simple", "off_heap", "paged", "transient"]
)
@pytest.mark.parametrize("store", ["channel", "queue"])
@simulated
async def test_a_dead_event_store_may_be_of_any_type(end: End, kind: str, store: str) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("dead", kind, kind=store)
        await lives.create("orders", capacity=1, dead_event_store="dead")
        if store == "queue":
            worker = await lives.attach("dead", window=100)
            outlet = worker.outlet
        else:
            outlet = await lives.follow("dead")
        await lives.put("orders", *named("a", "b", "c"))
        await outlet.has(2)

        assert datas(outlet.events) == ["a", "b"]
        assert (await lives.info("orders")).counters.dead == 2
        await lives.conserved()
    kept = kind in ("persistent", "mixed", "paged")
    async with lives.life(end):
        assert (await lives.info("dead")).events == (2 if kept else 0)
        assert datas(await lives.stored("orders")) == ["c"]
        await lives.put("orders", *named("d"))
        assert (await lives.info("dead")).events == (3 if kept else kind != "transient")
        await lives.conserved()


@pytest.mark.spec("T3", "T4", "T5")
@simulated
async def test_a_full_dead_event_store_accepts_dead_events_despite_honoured_capacity() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("dead", capacity=1, storage=Storage(honour_capacity=True))
        await lives.create("orders", capacity=1, dead_event_store="dead")
        await lives.put("orders", *named("a", "b", "c"))
        assert datas(await lives.stored("dead")) == ["a", "b"]
        with pytest.raises(PenstockError, match="2 of 1 events"):
            await lives.put("dead", *named("x"))


@pytest.mark.spec("T7")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_dead_events_of_a_dead_event_store_move_to_the_next_one(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("c", kind="queue")
        await lives.create("b", ttl=2_000, dead_event_store="c")
        await lives.create("a", ttl=1_000, dead_event_store="b", event_ttl=True)
        await lives.put("a", *named("x", ttl=300), *named("y"))
        await pass_time(0.5)
        assert datas(await lives.stored("a")) == ["y"]
        assert datas(await lives.stored("b")) == ["x"]
    async with lives.life(end):
        await pass_time(5)
        outlet = (await lives.attach("c")).outlet
        await outlet.has(2)
        assert datas(outlet.events) == ["x", "y"]
        origins = [event.origin for event in outlet.events]
        assert [origin and origin.path for origin in origins] == [("a", "b")] * 2
        assert [origin and origin.store for origin in origins] == ["b"] * 2
        assert [origin and origin.ttl for origin in origins] == [300, 0]
        await lives.conserved()


@pytest.mark.slow
@pytest.mark.spec("T7", "S1")
@pytest.mark.parametrize(
    "storage",
    [
        Storage(events_per_spindle=5),
        Storage(events_per_spindle=0),
        Storage(events_per_spindle=5, compression="zstd"),
        Storage(events_per_spindle=0, compression="lz4"),
    ],
)
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_events_in_files_move_too(storage: Storage, end: End) -> None:
    lives = Lives(sealing=SEALED)
    async with lives.life(end):
        await lives.create("dead", storage=storage)
        await lives.create("orders", ttl=2_000, dead_event_store="dead", storage=storage)
        for n in range(4):
            events = named(*(f"{n}{i}" for i in range(7)))
            await lives.put("orders", *events, publisher=f"p@{n}")
        await lives.sealed("orders")
    async with lives.life(end):
        await pass_time(4)
        assert (await lives.info("orders")).events == 0
        await lives.sealed("dead")
    async with lives.life(end):
        browsed = await lives.browsed("dead")
        assert datas(browsed.events) == [f"{n}{i}" for n in range(4) for i in range(7)]
        assert browsed.publishers == [f"p@{n}" for n in range(4) for _ in range(7)]
        assert [event.origin and event.origin.event_id for event in browsed.events] == [*range(28)]
        assert (await lives.info("orders")).storage.quarantined == ()
        await lives.conserved()


@pytest.mark.slow
@pytest.mark.spec("T3", "T7")
@pytest.mark.parametrize("spindle", [4, 0])
@pytest.mark.parametrize("seed", range(3))
@simulated
async def test_events_move_in_the_step_in_which_they_are_sealed(seed: int, spindle: int) -> None:
    lives = Lives(seed, sealing=SEALED)
    async with lives.life("closed"):
        await lives.create("dead")
        storage = Storage(events_per_spindle=spindle)
        await lives.create("orders", capacity=4, dead_event_store="dead", storage=storage)
        for n in range(30):  # as often as the sealer looks, before it or after it
            await lives.put("orders", *named(*[f"{n}"] * 4))
            await pass_time(SEALED.interval_s)
        assert (await lives.info("orders")).storage.quarantined == ()
        dead = [event.origin for event in await lives.stored("dead")]
        assert [origin.event_id for origin in dead if origin] == [*range(116)]
        assert datas(await lives.stored("orders")) == ["29"] * 4
        await lives.conserved()


@pytest.mark.spec("C3", "T5")
@simulated
async def test_a_new_capacity_with_a_dead_event_store_moves_events_in_files() -> None:
    lives = Lives(sealing=SEALED)
    async with lives.life():
        await lives.create("dead")
        await lives.create("orders", storage=Storage(events_per_spindle=5))
        await lives.put("orders", *named(*"abcdefgh"))
        await lives.sealed("orders")
    async with lives.life():
        wanted = Definition(
            type="persistent",
            capacity=2,
            dead_event_store="dead",
            storage=Storage(events_per_spindle=5),
        )
        await lives.realm.edit_channel("orders", wanted)
        assert datas(await lives.stored("dead")) == [*"abcdef"]
        assert datas(await lives.stored("orders")) == [*"gh"]
        assert (await lives.info("orders")).storage.quarantined == ()


@pytest.mark.spec("S1", "T7")
@simulated
async def test_unreadable_events_are_quarantined_and_the_others_move() -> None:
    lives = Lives(sealing=SEALED)
    async with lives.life():
        await lives.create("dead")
        await lives.create(
            "orders", ttl=5_000, dead_event_store="dead", storage=Storage(events_per_spindle=4)
        )
        for word in ("first", "second", "third"):
            await lives.put("orders", *named(*[word] * 4))
        await lives.sealed("orders")
        files = [f"/realm/{info.name}" for info in await lives.store.blobs.list("segments/")]
        offset = lives.disk.content(files[1]).index(b"secondsecond")
    lives.disk.flip(files[1], offset + 3)
    async with lives.life("closed", damaged=True):
        await pass_time(8)
        assert set(datas(await lives.stored("dead"))) == {"first", "third"}
        info = await lives.info("orders")
        assert (info.events, info.counters.dead, info.counters.quarantined) == (0, 8, 4)
        assert "segments/" in info.storage.quarantined[0]
        await lives.conserved()
    async with lives.life(damaged=True):
        assert len(await lives.stored("dead")) == 8
        assert (await lives.info("orders")).counters.quarantined == 4
        await pass_time(1)
        names = [info.name for info in await lives.store.blobs.list("segments/")]
        assert files[1].removeprefix("/realm/") in names


@pytest.mark.slow
@pytest.mark.spec("T1", "T7")
@pytest.mark.parametrize("durable", [False, True])
@simulated
async def test_many_events_expire_in_steps_and_none_is_delivered(durable: bool) -> None:
    lives = Lives()
    count = 50_000
    async with lives.life("closed"):
        await lives.create("dead")
        await lives.create("orders", ttl=2_500, dead_event_store="dead")
        if durable:
            await lives.durable("orders", "team")
        for _ in range(5):
            await lives.put("orders", *[Event(b"old")] * (count // 5))
        await pass_time(2.49)
        number = lives.number("orders")
        groups = lives.realm.shard.groups
        await pass_time(0.02)
        if durable:
            outlet = (await lives.attach("orders", "team", window=100_000)).outlet
        else:
            outlet = await lives.follow("orders")
        state = lives.realm.directory.channels[number].state
        overdue: list[int] = []
        published = 0
        while state.overdue or not overdue:
            overdue.append(state.overdue)
            await lives.put("orders", *named("new"))
            published += 1
        assert overdue[0] >= 10_000  # publishing continued while they moved
        assert lives.realm.shard.groups - groups >= 3
        await outlet.has(published)
        assert set(datas(outlet.events)) == {"new"}
        assert (await lives.info("dead")).events == count
        assert (await lives.info("orders")).counters.dead == count
        await lives.conserved()
    async with lives.life():
        assert (await lives.info("dead")).events == count


@pytest.mark.spec("T1")
@simulated
async def test_an_expired_event_is_hidden_until_it_moves() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("dead")
        await lives.create("orders", ttl=100, dead_event_store="dead")
        await lives.put("orders", *named("a"))
        await pass_time(0.0995)
        assert datas(await lives.stored("orders")) == ["a"]
        await pass_time(0.001)
        assert (clock_now().timestamp() - START_US / 1e6) < 0.11  # no scan has been yet
        assert await lives.stored("orders") == []
        assert datas(await lives.stored("dead")) == ["a"]


@pytest.mark.spec("T7")
@pytest.mark.slow
@pytest.mark.parametrize("sealing", [None, EAGER])
def test_after_a_power_cut_at_any_write_each_event_is_in_one_store(
    sealing: SealingLimits | None,
) -> None:
    async def life(seed: int, good: int) -> tuple[int, int]:
        lives = Lives(seed) if sealing is None else Lives(seed, sealing=sealing)
        promised: set[str] = set()
        async with lives.life():
            await lives.create("dead")
            await lives.create("orders", "mixed", ttl=400, capacity=6, dead_event_store="dead")
        async with lives.life():
            lives.disk.fail_syncs_after(good)
            try:
                for n in range(8):
                    words = [f"{n}{i}" for i in range(3)]
                    await lives.put("orders", *named(*words))
                    promised.update(words)
                    await pass_time(0.08)
                await pass_time(2)
            except StorageFailed:
                pass
        lives.disk.fail_syncs(0)
        async with lives.life("closed"):
            alive = datas(await lives.stored("orders"))
            dead = datas(await lives.stored("dead"))
            assert promised <= {*alive, *dead}
            assert len({*alive, *dead}) == len(alive) + len(dead)
            await lives.conserved()
            await pass_time(2)
            dead_events = datas(await lives.stored("dead"))
            assert dead_events == sorted(dead_events), "they move in the order of their ids"
            assert set(dead_events) == {*alive, *dead}
        return len(alive), len(dead)

    seen = {simulate(life(good, good), Random(good)) for good in range(30)}
    assert len(seen) > 3
    assert any(dead for _, dead in seen)


@pytest.mark.spec("T1", "T7")
@simulated
async def test_on_a_full_disk_expired_events_stay_hidden_until_it_has_room() -> None:
    lives = Lives()
    async with lives.life("closed"):
        await lives.create("dead")
        await lives.create("orders", ttl=1_000, dead_event_store="dead")
        await lives.create("small", capacity=3, dead_event_store="dead")
        await lives.create("copied")
        await lives.realm.joins.create("copied", "dead", "", archive=False)
        for name in ("orders", "small", "copied"):
            await lives.put(name, *[Event(bytes(20_000))] * 3)
        before = (await lives.info("dead")).events
        lives.disk.free_bytes = 10_000
        follower = await lives.follow("orders")
        await pass_time(0.01)
        assert len(follower.events) == 3
        await pass_time(3)
        late = await lives.follow("orders", session="late")
        for name in ("small", "copied", "orders"):
            with pytest.raises(StorageFailed):
                await lives.put(name, Event(bytes(20_000)))
        assert late.events == []
        assert (await lives.info("orders")).events == 0
        assert (await lives.info("dead")).events == before
        lives.disk.free_bytes = None
        await pass_time(2)
        assert (await lives.info("dead")).events == before + 3
        await lives.put("orders", *named("new"))
        await late.has(1)
        assert datas(late.events) == ["new"]
    async with lives.life():
        assert (await lives.info("dead")).events == before + 3
        await lives.conserved()


@pytest.mark.slow
@pytest.mark.spec("T7")
@simulated
async def test_after_a_restart_from_a_snapshot_large_events_still_move_in_steps() -> None:
    lives = Lives()
    async with lives.life("snapshot"):
        await lives.create("dead")
        await lives.create("orders", ttl=1_000, dead_event_store="dead")
        for _ in range(5):
            await lives.put("orders", Event(bytes(4 << 20)))
    await pass_time(2)
    async with lives.life():
        before = lives.realm.shard.groups
        assert (await lives.info("orders")).events == 0
        await pass_time(1.5)
        assert (await lives.info("dead")).events == 5
        assert lives.realm.shard.groups - before >= 3


@pytest.mark.spec("T5")
@pytest.mark.parametrize(
    ("dead", "how"), [({"type": "transient"}, "transient"), ({"engine": "jms"}, "jms"), ({}, None)]
)
@simulated
async def test_a_dead_event_store_without_retention_is_warned_of(
    dead: dict[str, str], how: str | None
) -> None:
    lives = Lives()
    with capture_logs() as logged:
        async with lives.life():
            await lives.realm.create_channel("dead", Definition(**dead))  # type: ignore[arg-type]
            await lives.realm.create_channel("orders", Definition(dead_event_store="dead"))

    warned = [entry["how"] for entry in logged if entry["event"] == "store.dead_events_not_kept"]
    assert warned == ([how] if how else [])
