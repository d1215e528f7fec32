"""Publishers that wait for the sealing go on, and what the realm copies waits as they do."""

from __future__ import annotations

import pytest

from packages.server.tests.runtime.lives import Lives
from penstock_core.columns.events.event import Event
from penstock_server.runtime.realm import Limits
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_testing.loop import pass_time, simulated

NAMES = "abcdefgh"
EVENT = Event(bytes(1_000))
LIMIT = 50_000
MIB = 1 << 20


@simulated
async def test_channels_of_which_none_fills_a_segment_are_sealed_when_publishers_wait() -> None:
    lives = Lives(sealing=SealingLimits(), limits=Limits(tail_bytes_max=LIMIT))
    async with lives.life("closed"):
        for name in NAMES:
            await lives.create(name)
            await lives.put(name, *[EVENT] * (8 if name == "a" else 7))
        assert lives.realm.is_congested

        await pass_time(1)

        assert not lives.realm.is_congested
        assert lives.realm.waiting_bytes <= LIMIT // 2
        assert (await lives.info("a")).storage.sealed_files == 1
        assert [len(await lives.stored(name)) for name in NAMES] == [8, *[7] * 7]


@simulated
async def test_a_large_tail_that_fills_no_segment_is_sealed_in_parts() -> None:
    lives = Lives(sealing=SealingLimits(part_bytes_max=10_000), limits=Limits(tail_bytes_max=LIMIT))
    async with lives.life("closed"):
        await lives.create("a")
        for _ in range(60):
            await lives.put("a", EVENT)
        assert lives.realm.is_congested

        await pass_time(1)

        assert not lives.realm.is_congested
        info = await lives.info("a")
        assert info.storage.sealed_files >= 3
        assert info.storage.sealed_bytes / info.storage.sealed_files < 20_000
        assert len(await lives.stored("a")) == 60


def waiting_bytes_of(lives: Lives) -> list[int]:
    """A list that gets, after each group, how many bytes wait to be sealed."""
    seen: list[int] = []
    lives.realm.shard.on_answered = lambda: seen.append(lives.realm.waiting_bytes)
    return seen


@pytest.mark.spec("T10")
@simulated
async def test_a_redrive_into_joins_waits_for_the_sealing_as_publishers_do() -> None:
    lives = Lives(sealing=SealingLimits(), limits=Limits(tail_bytes_max=4 * MIB))
    async with lives.life("closed"):
        await lives.create("dead")
        for name in "abc":
            await lives.create(name)
        for name in "bc":
            await lives.realm.joins.create("a", name, "", archive=False)
        for _ in range(20):
            await lives.put("dead", Event(bytes(MIB)))
        await pass_time(1)
        waiting = waiting_bytes_of(lives)
        done = await lives.realm.redrive("dead", "a", "")

        assert (done.moved, done.left) == (20, 0)
        assert [(await lives.info(name)).events for name in "abc"] == [20] * 3
        assert 4 * MIB < max(waiting) < 13 * MIB  # the limit, and a step with its copies


@pytest.mark.spec("T7")
@simulated
async def test_dead_events_that_joins_copy_wait_for_the_sealing_as_publishers_do() -> None:
    lives = Lives(sealing=SealingLimits(), limits=Limits(tail_bytes_max=4 * MIB))
    async with lives.life("closed"):
        await lives.create("dead")
        for name in "bc":
            await lives.create(name)
            await lives.realm.joins.create("dead", name, "", archive=False)
        await lives.create("dying", ttl=100_000, dead_event_store="dead")
        for _ in range(20):
            await lives.put("dying", Event(bytes(MIB)))
        await pass_time(1)
        waiting = waiting_bytes_of(lives)
        await pass_time(200)

        assert [(await lives.info(name)).events for name in ("dead", "b", "c")] == [20] * 3
        assert not await lives.stored("dying")
        assert 4 * MIB < max(waiting) < 13 * MIB  # the limit, and a step with its copies
