"""Publish keys and states of merge channels are bounded in bytes of memory (SEM C6)."""

from __future__ import annotations

import pytest

from packages.server.tests.runtime.lives import ENDS, End, Lives
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Storage
from penstock_core.vocabulary.errors import CapacityReached, MemoryLimit
from penstock_server.runtime.realm import Limits
from penstock_server.runtime.writer.placement import MemoryLimits
from penstock_testing.loop import pass_time, simulated

LIMIT = 400_000
SMALL = Limits(memory=MemoryLimits(index_bytes_max=LIMIT))
LONG = "x" * 10_000


def keyed(name: str, size: int = 1) -> Event:
    return Event(bytes(size), properties={"key": name + LONG})


def index_bytes(lives: Lives) -> int:
    return lives.realm.view.index_bytes


async def fill(lives: Lives, channel: str) -> int:
    """Publish new keys until they are refused. Returns how many were stored."""
    for count in range(1_000):
        try:
            await lives.put(channel, keyed(str(count)))
        except MemoryLimit:
            return count
    raise AssertionError("no key was refused")


@pytest.mark.spec("C6")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_new_keys_are_refused_at_the_limit_and_known_ones_are_taken(end: End) -> None:
    lives = Lives(limits=SMALL)
    async with lives.life(end):
        await lives.create("first", keys={"key": 1})
        await lives.create("second", keys={"key": 1})
        count = await fill(lives, "first")

        assert 15 <= count <= 20, "a channel has half of what the others leave"
        with pytest.raises(MemoryLimit, match=r"limits\.index_bytes"):
            await lives.put("first", keyed("new"))
        await lives.put("first", keyed("0"))
        await lives.put("first", Event(b"without a key"))
        assert 5 <= await fill(lives, "second") <= 10
        before = index_bytes(lives)
    async with lives.life(end):
        assert index_bytes(lives) == pytest.approx(before, abs=1_000)
        with pytest.raises(MemoryLimit):
            await lives.put("first", keyed("new"))
        await lives.put("first", keyed("1"))
        await lives.conserved()


@simulated
async def test_keys_of_refused_events_take_no_memory() -> None:
    lives = Lives(limits=SMALL)
    async with lives.life():
        storage = Storage(honour_capacity=True)
        await lives.create("small", keys={"key": 1}, capacity=2, storage=storage)
        await lives.put("small", keyed("a"), keyed("b"))
        before = index_bytes(lives)

        for count in range(100):
            with pytest.raises(CapacityReached):
                await lives.put("small", keyed(f"n{count}"))
            with pytest.raises(CapacityReached):
                await lives.put("small", keyed(f"m{count}"), keyed(f"o{count}"))

        await lives.put("small", keyed("a"))
        assert index_bytes(lives) == before


@simulated
async def test_the_memory_of_keys_is_free_once_their_events_have_left() -> None:
    lives = Lives(limits=SMALL)
    async with lives.life():
        await lives.create("first", keys={"key": 1})
        count = await fill(lives, "first")
        await lives.purge("first")
        await pass_time(0.1)
        assert index_bytes(lives) == 0
        assert await fill(lives, "first") == count

        await lives.purge("first", f"event_id < {2 * count - 3}")
        assert await fill(lives, "first") >= 1, "values without an event make room"
        await lives.realm.delete_channel("first")
        assert index_bytes(lives) == 0


@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_states_of_merge_channels_count(end: End) -> None:
    lives = Lives(limits=SMALL)
    async with lives.life(end):
        await lives.create("states", engine="merge", keys={"key": 1})
        for key in range(15):
            await lives.put("states", Event(bytes(10_000), properties={"key": key}))
        await lives.stored("states")
        assert 150_000 <= index_bytes(lives) <= 200_000
        six = [Event(bytes(10_000), properties={"key": key}) for key in range(15, 21)]
        with pytest.raises(MemoryLimit):
            await lives.put("states", *six)
        await lives.create("others", engine="merge", keys={"key": 1})
        await lives.put("others", Event(bytes(10_000), properties={"key": 1}))
    async with lives.life(end):
        assert 150_000 <= index_bytes(lives) <= 250_000
        await lives.purge("states")
        await pass_time(0.1)
        assert index_bytes(lives) <= 15_000
        await lives.put("states", Event(bytes(10_000), properties={"key": 1}))


@simulated
async def test_replaced_states_make_room() -> None:
    lives = Lives(limits=SMALL)
    async with lives.life():
        await lives.create("states", engine="merge", keys={"key": 1})
        for count in range(200):
            await lives.put("states", Event(bytes(10_000), properties={"key": count % 4}))
        assert len(await lives.stored("states")) == 4
