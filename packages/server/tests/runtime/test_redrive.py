"""Redrive: dead events go back to their origin, each once (SEM T10)."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from packages.server.tests.runtime.lives import ENDS, End, Lives, datas, named
from packages.server.tests.runtime.living import EAGER
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Storage
from penstock_core.vocabulary.errors import (
    CapacityReached,
    InvalidArgument,
    MemoryLimit,
    NameDoesNotExist,
    StorageFailed,
)
from penstock_server.runtime.realm import Limits
from penstock_server.runtime.writer.placement import MemoryLimits
from penstock_testing.loop import pass_time, simulate, simulated


async def with_dead_events(lives: Lives) -> None:
    """Create ``a`` and ``b`` with two dead events each on ``dead``, which also has an event without
    origin."""
    await lives.create("dead")
    for name in "ab":
        await lives.create(name, "mixed", capacity=1, dead_event_store="dead")
        await lives.put(name, *named(f"{name}0", ttl=60_000), publisher=f"{name}@there")
        await lives.put(name, *named(f"{name}1", properties={"size": 2}), publisher=f"{name}@there")
        await lives.put(name, *named("stays"))
        await lives.realm.edit_channel(name, wider(lives, name))
    await lives.put("dead", *named("own", properties={"size": 2}))


def wider(lives: Lives, name: str) -> Any:
    return replace(lives.realm.directory.channels[lives.number(name)].state.definition, capacity=10)


@pytest.mark.spec("T10", "E3")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_each_event_goes_back_to_its_origin_unchanged(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await with_dead_events(lives)
    async with lives.life(end):
        tried = await lives.realm.redrive("dead", "", "", dry_run=True)
        assert (tried.moved, tried.destinations, tried.left, tried.dry_run) == (
            4,
            {"a": 2, "b": 2},
            1,
            True,
        )
        assert len(await lives.stored("dead")) == 5
        done = await lives.realm.redrive("dead", "", "")
        assert (done.moved, done.destinations, done.left) == (4, {"a": 2, "b": 2}, 1)
    async with lives.life(end):
        assert datas(await lives.stored("dead")) == ["own"]
        for name in "ab":
            browsed = await lives.browsed(name)
            assert datas(browsed.events) == ["stays", f"{name}0", f"{name}1"]
            assert browsed.ids == [2, 3, 4]
            assert browsed.publishers == ["me@here", *[f"{name}@there"] * 2]
            assert [event.ttl for event in browsed.events] == [0, 60_000, 0]
            assert [event.origin for event in browsed.events] == [None] * 3
        info = await lives.info("dead")
        assert info.counters.redriven == 4
        await lives.conserved()
        await pass_time(62)  # the event's own TTL starts again at its return
        assert datas(await lives.stored("a")) == ["stays", "a1"]
        assert datas(await lives.stored("dead")) == ["own", "a0", "b0"]


@pytest.mark.spec("T10", "F5")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", ["persistent", "paged", "queue"])
@simulated
async def test_a_selector_chooses_and_a_destination_may_be_named(end: End, kind: str) -> None:
    lives = Lives()
    async with lives.life(end):
        await with_dead_events(lives)
        if kind == "queue":
            await lives.create("again", kind="queue")
        else:
            await lives.create("again", kind)
        done = await lives.realm.redrive("dead", "again", "size = 2")
        assert (done.moved, done.destinations, done.left) == (3, {"again": 3}, 2)
    async with lives.life(end):
        if kind == "queue":
            reader = await lives.attach("again")
            events = await reader.has(3)
        else:
            events = await lives.stored("again")
        assert datas(events) == ["a1", "b1", "own"]
        assert datas(await lives.stored("dead")) == ["a0", "b0"]
        await lives.conserved()


@pytest.mark.spec("T10")
@simulated
async def test_an_impossible_redrive_is_refused() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("dead")
        with pytest.raises(InvalidArgument, match="itself"):
            await lives.realm.redrive("dead", "dead", "")
        with pytest.raises(NameDoesNotExist, match="nowhere"):
            await lives.realm.redrive("dead", "nowhere", "")
        with pytest.raises(NameDoesNotExist, match="nowhere"):
            await lives.realm.redrive("nowhere", "", "")
        done = await lives.realm.redrive("dead", "", "")
        assert (done.moved, done.left) == (0, 0)


@pytest.mark.spec("T4", "T10")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_a_full_target_moves_nothing_of_that_step(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await with_dead_events(lives)
        await lives.create("small", capacity=4, storage=Storage(honour_capacity=True))
        with pytest.raises(CapacityReached):
            await lives.realm.redrive("dead", "small", "")
        assert await lives.stored("small") == []
        done = await lives.realm.redrive("dead", "small", "size = 2")
        assert done.moved == 3
    async with lives.life(end):
        assert len(await lives.stored("small")) == 3
        assert len(await lives.stored("dead")) == 2


@pytest.mark.spec("T3", "T10")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_redriven_events_evict_nothing(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("dead")
        await lives.create("a", capacity=3, dead_event_store="dead")
        await lives.put("a", *named("0", "1", "2", "3", "4"))
        with pytest.raises(CapacityReached, match="3 of 3"):
            await lives.realm.redrive("dead", "", "")
        assert datas(await lives.stored("a")) == ["2", "3", "4"]
        assert datas(await lives.stored("dead")) == ["0", "1"]
        assert await lives.purge("a", "event_id < 4") == 2
        done = await lives.realm.redrive("dead", "", "")
        assert (done.moved, done.left) == (2, 0)
    async with lives.life(end):
        assert datas(await lives.stored("a")) == ["4", "0", "1"]
        assert await lives.stored("dead") == []
        await lives.conserved()


@pytest.mark.spec("S1", "T7", "T10")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("joined", [False, True])
@simulated
async def test_on_a_full_disk_nothing_moves_and_the_realm_lives(end: End, joined: bool) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("dead")
        await lives.create("a", capacity=5, dead_event_store="dead")
        await lives.create("copies")
        await lives.put("a", *named(*"0123"))
        await lives.put("a", Event(bytes(2_000_000)))
        await lives.put("a", *named(*"56789"))
        await lives.create("again")
        if joined:
            await lives.realm.joins.create("again", "copies", "", archive=False)
        lives.disk.free_bytes = 1_000
        before = [event.data for event in await lives.stored("dead")]
        for _ in range(2):
            with pytest.raises(StorageFailed):
                await lives.realm.redrive("dead", "again", "")
        assert [event.data for event in await lives.stored("dead")] == before
        assert await lives.stored("again") == []
        assert (await lives.realm.redrive("dead", "again", "", dry_run=True)).moved == 5
        lives.disk.free_bytes = None
        assert (await lives.realm.redrive("dead", "again", "")).moved == 5
    async with lives.life(end):
        assert [event.data for event in await lives.stored("again")] == before
        assert len(await lives.stored("copies")) == (5 if joined else 0)
        await lives.conserved()


@pytest.mark.slow
@pytest.mark.spec("T10")
@simulated
async def test_a_step_of_larger_events_than_most_asks_for_more_room() -> None:
    lives = Lives(sealing=EAGER)
    async with lives.life():
        await lives.create("dead", storage=Storage(events_per_spindle=20_000))
        await lives.create("again")
        await lives.put("dead", *[Event(bytes(1 << 20))] * 20, *named(*["x"] * 12_000))
        await lives.sealed("dead")
        done = await lives.realm.redrive("dead", "again", "")
        assert (done.moved, done.left) == (12_020, 0)
        assert (await lives.info("again")).events == 12_020
        await lives.conserved()


def block_sizes(lives: Lives) -> list[int]:
    """The bytes of each block that is written to the journal from now on."""
    blocks, journal, answered = list[int](), lives.store.journal, lives.realm.shard.on_answered
    before = journal.info()

    def note_block() -> None:
        nonlocal before
        now = journal.info()
        if now.tail > before.tail:
            blocks.append(now.size - before.size)
        before = now
        answered()

    lives.realm.shard.on_answered = note_block
    return blocks


@pytest.mark.spec("T10")
@simulated
async def test_each_step_of_several_redrives_waits_while_the_realm_is_congested() -> None:
    lives, names, loop = Lives(), [str(number) for number in range(4)], asyncio.get_running_loop()
    async with lives.life():
        await lives.create("again")
        for name in names:
            await lives.create(name)
            await lives.put(name, *named("a", "b"))
        blocks, steps_s = block_sizes(lives), list[float]()

        def is_congested() -> bool:  # for 5 s after each step
            if len(blocks) > len(steps_s):
                steps_s.extend([loop.time()] * (len(blocks) - len(steps_s)))
            return bool(steps_s) and loop.time() < steps_s[-1] + 5

        lives.realm.shard.is_congested = is_congested
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(lives.realm.redrive(name, "again", ""))

        is_congested()
        assert len(steps_s) == len(names)
        assert all(later - earlier >= 5 for earlier, later in pairwise(steps_s)), steps_s
        await lives.conserved()


@pytest.mark.spec("T10")
@pytest.mark.parametrize("copies", [0, 3])
@simulated
async def test_a_step_is_bounded_in_bytes_where_the_oldest_events_are_the_largest(
    copies: int,
) -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("dead")
        await lives.create("again")
        for number in range(copies):
            await lives.create(f"copy{number}")
            await lives.realm.joins.create("again", f"copy{number}", "", archive=False)
        await lives.put("dead", *[Event(bytes(1 << 20))] * 20)
        for _ in range(300):  # the newest events say nothing about the size of the oldest
            await lives.put("dead", *named("x"))
        blocks = block_sizes(lives)
        done = await lives.realm.redrive("dead", "again", "")
        assert (done.moved, done.left) == (320, 0)
        assert max(blocks) < 13 << 20
        assert len(blocks) < 25
        await lives.conserved()


@pytest.mark.spec("C6", "T10")
@simulated
async def test_the_memory_limit_of_the_target_counts_over_all_targets() -> None:
    lives = Lives(limits=Limits(memory=MemoryLimits(heap_bytes_max=16_000)))
    async with lives.life():
        await lives.create("dead")
        for name in "ab":
            await lives.create(name, "reliable", capacity=1, dead_event_store="dead")
            await lives.put(name, Event(bytes(9_000)))
            await lives.put(name, *named("x"))
            await lives.realm.edit_channel(name, wider(lives, name))
        with pytest.raises(MemoryLimit):
            await lives.realm.redrive("dead", "", "")
        assert len(await lives.stored("dead")) == 2
        assert datas(await lives.stored("a")) == ["x"]
        done = await lives.realm.redrive("dead", "a", "event_id = 0")
        assert done.moved == 1


@pytest.mark.spec("T10")
@simulated
async def test_events_held_by_a_reader_stay() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("dead", kind="queue")
        await lives.create("a", capacity=1, dead_event_store="dead")
        await lives.put("a", *named("0", "1", "2", "3"))
        reader = await lives.attach("dead", window=1)
        await reader.has(1)
        await lives.create("again")
        done = await lives.realm.redrive("dead", "again", "")
        assert (done.moved, done.left) == (2, 1)
        assert datas(await lives.stored("again")) == ["1", "2"]
        await reader.settle(0)
        await lives.conserved()


@pytest.mark.slow
@pytest.mark.spec("T10")
def test_an_interrupted_redrive_continues_and_moves_each_event_once() -> None:
    """Large events need several steps; the power fails at any sync."""
    size = 3 << 20

    async def life(good: int) -> int:
        lives = Lives(good)
        async with lives.life():
            await lives.create("dead")
            await lives.create("a", ttl=100, dead_event_store="dead")
            for n in range(6):
                await lives.put("a", Event(bytes([n]) * size))
            await pass_time(2)
            await lives.create("again")
            assert len(await lives.stored("dead")) == 6
        async with lives.life():
            lives.disk.fail_syncs_after(good)
            with contextlib.suppress(StorageFailed):
                await lives.realm.redrive("dead", "again", "")
        lives.disk.fail_syncs(0)
        async with lives.life():
            moved = len(await lives.stored("again"))
            assert moved + len(await lives.stored("dead")) == 6
            done = await lives.realm.redrive("dead", "again", "")
            assert done.moved == 6 - moved
            assert [event.data[0] for event in await lives.stored("again")] == [*range(6)]
            await lives.conserved()
        return moved

    moved = {simulate(life(good), Random(good)) for good in range(0, 10, 2)}
    assert len(moved) > 2, moved
