"""Group commit: when a group closes, and which events are on disk when its answers are sent (SEM
S)."""

from __future__ import annotations

from random import Random

import pytest

from packages.server.tests.runtime.lives import End, Lives, datas, named
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Storage
from penstock_core.vocabulary.errors import StorageFailed
from penstock_testing.loop import START_US, simulate, simulated


class Ticking:
    """A clock that advances with every reading."""

    def __init__(self, tick_us: int) -> None:
        self._tick_us = tick_us
        self._now_us = START_US

    def now_us(self) -> int:
        self._now_us += self._tick_us
        return self._now_us

    def steady_us(self) -> int:
        return self.now_us()


async def blocks_of(lives: Lives, name: str, count: int, *, size: int = 10) -> int:
    """Return the number of blocks for ``count`` publishes that wait together."""
    await lives.put(name, Event(bytes(size)))  # from now on the schema is known
    before = lives.realm.shard.tail
    answers = [lives.send(name, Event(bytes(size))) for _ in range(count)]
    spans = [await answer for answer in answers]
    assert [span.first for span in spans] == [*range(1, count + 1)]
    assert lives.realm.shard.tail - before == lives.realm.shard.groups - 2
    return lives.realm.shard.tail - before


@pytest.mark.spec("S")
@pytest.mark.parametrize(
    ("storage", "size", "blocks"),
    [
        (Storage(), 10, 1),
        (Storage(sync_each_write=True), 10, 10),
        (Storage(sync_max_batch_size=4_000), 1_500, 4),
        (Storage(sync_max_batch_size=1), 10, 10),
        (Storage(sync_max_batch_size=1 << 20), 1_500, 1),
        (Storage(sync="none", sync_max_batch_size=1), 10, 1),
        (Storage(sync_max_batch_size=0), 10, 10),
    ],
)
@simulated
async def test_a_group_closes_at_the_limits_of_the_storage_settings(
    storage: Storage, size: int, blocks: int
) -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders", storage=storage)
        assert await blocks_of(lives, "orders", 10, size=size) == blocks


@pytest.mark.spec("S")
@pytest.mark.parametrize(("batch_time", "blocks"), [(2, 4), (60_000, 1), (0, 200)])
@simulated
async def test_a_group_closes_after_its_time_and_some_requests(
    batch_time: int, blocks: int
) -> None:
    lives = Lives(clock=Ticking(700))
    async with lives.life():
        await lives.create("orders", storage=Storage(sync_batch_time=batch_time))
        assert await blocks_of(lives, "orders", 200) == blocks


@pytest.mark.spec("S")
@simulated
async def test_each_write_of_one_channel_closes_the_group_for_all() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("each", storage=Storage(sync_each_write=True))
        await lives.create("other")
        await lives.put("each", *named("x"))
        await lives.put("other", *named("x"))
        before = lives.realm.shard.groups
        answers = [lives.send(name, *named("y")) for name in ("other", "each") * 3]
        for answer in answers:
            await answer
        assert lives.realm.shard.groups - before == 3


@pytest.mark.slow
@pytest.mark.spec("S")
@pytest.mark.parametrize("kind", ["persistent", "mixed", "paged"])
@pytest.mark.parametrize(
    ("end", "kept"), [("closed", True), ("killed", True), ("power cut", False)]
)
def test_without_a_sync_only_the_machine_can_lose_events(kind: str, end: End, kept: bool) -> None:
    async def life(seed: int) -> int:
        lives = Lives(seed)
        async with lives.life("closed"):
            await lives.create("fast", kind, storage=Storage(sync="none"))
            await lives.create("safe")
            await lives.put("fast", *named("0"))
        async with lives.life(end):
            syncs = lives.disk.syncs
            for n in range(1, 6):
                await lives.put("fast", *named(f"{n}"))
            assert lives.disk.syncs == syncs
        async with lives.life("closed", damaged=not kept):  # a torn tail is told
            stored = datas(await lives.stored("fast"))
            if kind != "paged":
                assert stored == [str(n) for n in range(len(stored))]
            await lives.put("safe", *named("x"))
        async with lives.life():
            assert datas(await lives.stored("fast")) == stored
            assert datas(await lives.stored("safe")) == ["x"]
        return len(stored)

    counts = {simulate(life(seed), Random(seed)) for seed in range(6)}
    assert counts == {6} if kept else min(counts) < 6


@pytest.mark.spec("S", "S1")
@pytest.mark.parametrize("kind", ["persistent", "mixed", "paged"])
@pytest.mark.parametrize("seed", range(4))
@simulated
async def test_recovered_events_are_safe_after_the_start(kind: str, seed: int) -> None:
    lives = Lives(seed)
    async with lives.life("killed"):
        await lives.create("fast", kind, storage=Storage(sync="none"))
        for n in range(5):
            await lives.put("fast", *named(f"{n}"))
    async with lives.life("power cut"):
        assert datas(await lives.stored("fast")) == ["0", "1", "2", "3", "4"]
    async with lives.life():  # without damage
        assert datas(await lives.stored("fast")) == ["0", "1", "2", "3", "4"]


@pytest.mark.spec("S", "X3")
@pytest.mark.parametrize("kind", ["persistent", "paged"])
@pytest.mark.parametrize("seed", range(4))
@simulated
async def test_a_publish_repeated_after_a_failed_sync_survives_a_power_cut(
    kind: str, seed: int
) -> None:
    lives = Lives(seed)
    async with lives.life("killed"):
        await lives.create("orders", kind)
        lives.disk.fail_syncs()
        with pytest.raises(StorageFailed):
            await lives.put("orders", *named("0"), producer="p", sequence=1)
    async with lives.life("power cut"):
        span = await lives.put("orders", *named("0"), producer="p", sequence=1)
    async with lives.life():
        assert datas(await lives.stored("orders")) == ["0"]
        assert span == (0, 1)


@pytest.mark.spec("S")
@simulated
async def test_an_answer_is_sent_after_its_sync() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders")
        for count in range(5):
            syncs = lives.disk.syncs
            for answer in [lives.send("orders", *named("x")) for _ in range(count + 1)]:
                await answer
            assert lives.disk.syncs == syncs + 1


@pytest.mark.spec("S", "E1", "F1")
@simulated
async def test_a_channels_default_priority_can_be_selected_and_read() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders", storage=Storage(priority=7))
        await lives.create("copy")
        await lives.realm.joins.create("orders", "copy", "JMSPriority = 7", archive=False)
        await lives.durable("orders", "team", selector="JMSPriority > 6")
        await lives.put("orders", *named("a"), *named("b", priority=2), *named("c", priority=4))
    async with lives.life():
        events = await lives.stored("orders")
        assert [event.priority for event in events] == [7, 2, 4]
        assert datas(await lives.stored("orders", "JMSPriority = 7")) == ["a"]
        assert datas(await lives.stored("copy")) == ["a"]
        worker = await lives.attach("orders", "team")
        assert datas(await worker.has(1)) == ["a"]


@pytest.mark.spec("S", "E3", "F2")
@simulated
async def test_a_stamped_dictionary_can_be_selected_and_read() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders", storage=Storage(stamp_dictionary=True))
        await lives.create("copy", storage=Storage(stamp_dictionary=True))
        await lives.realm.joins.create("orders", "copy", "$penstock.host = 'one'", archive=False)
        await lives.durable("orders", "ann", selector="$penstock.publisher = 'ann'")
        await lives.put("orders", *named("a", properties={"n": 1}), publisher="ann@one")
        await lives.put("orders", *named("b", "c"), publisher="bob@one")
        await lives.put("orders", *named("d"), publisher="ann@two")
    async with lives.life():
        events = await lives.stored("orders")
        stamps = [event.properties["$penstock"] for event in events]
        assert [stamp["id"] for stamp in stamps] == [0, 1, 2, 3]
        assert [stamp["publisher"] for stamp in stamps] == ["ann", "bob", "bob", "ann"]
        assert [stamp["time"] for stamp in stamps] == [event.published for event in events]
        assert events[0].properties["n"] == 1
        worker = await lives.attach("orders", "ann")
        assert datas(await worker.has(2)) == ["a", "d"]
        copies = await lives.stored("copy")
        assert datas(copies) == ["a", "b", "c"]
        assert [event.properties["$penstock"]["id"] for event in copies] == [0, 1, 2]
        assert datas(await lives.stored("orders", "$penstock.id > 1")) == ["c", "d"]
