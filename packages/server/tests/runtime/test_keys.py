"""Publish keys: each value keeps a limited number of its newest events (SEM K1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from packages.server.tests.runtime.lives import ENDS, LATE, End, Lives, datas, named
from packages.server.tests.runtime.living import EAGER
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import Spans
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.store.sealed_file import Damage
from penstock_testing.loop import pass_time, simulated
from tests.spindles import spindles


def event_of(**properties: Any) -> Event:
    return Event(str(properties).encode(), properties=properties)


async def shown(lives: Lives, name: str, *keys: str) -> list[Any]:
    properties = [tuple(e.properties.get(key) for key in keys) for e in await lives.stored(name)]
    return [values[0] if len(keys) == 1 else values for values in properties]


@pytest.mark.slow
@pytest.mark.spec("K1")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize(
    ("kind", "spindle"), [("persistent", 3), ("persistent", 0), ("mixed", 3), ("paged", 0)]
)
@simulated
async def test_the_newest_events_stay_and_later_ones_replace_them_after_a_restart(
    end: End, eager: bool, kind: str, spindle: int
) -> None:
    lives = Lives(sealing=EAGER if eager else LATE)
    async with lives.life(end):
        await lives.create("last", kind, keys={"k": 2}, storage=spindles(kind, spindle))
        await lives.put("last", *[event_of(k=k, n=n) for n in range(4) for k in "ab"])
        assert await shown(lives, "last", "k", "n") == [
            ("a", 2),
            ("b", 2),
            ("a", 3),
            ("b", 3),
        ]
        await lives.put("last", event_of(n=0), event_of(k="c", n=0))
        await pass_time(0.1)
    async with lives.life(end):
        await lives.put("last", event_of(k="b", n=4), event_of(k="b", n=5), event_of(k="b", n=6))
        assert await shown(lives, "last", "k", "n") == [
            ("a", 2),
            ("a", 3),
            (None, 0),
            ("c", 0),
            ("b", 5),
            ("b", 6),
        ]
        await pass_time(0.1)
        assert await lives.purge("last", "k = 'a' AND n = 3") == 1
    async with lives.life(end):
        await lives.put("last", event_of(k="a", n=7))
        await lives.put("last", event_of(k="a", n=8))
        assert await shown(lives, "last", "k", "n") == [
            (None, 0),
            ("c", 0),
            ("b", 5),
            ("b", 6),
            ("a", 7),
            ("a", 8),
        ]
        info = await lives.info("last")
        assert (info.counters.replaced, info.counters.purged) == (8, 1)
        await lives.conserved()


@pytest.mark.spec("K1")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_several_keys_apply_one_by_one(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("last", keys={"a": 1, "b": 1})
        await lives.put("last", event_of(a=1, b=1), event_of(a=2, b=2), event_of(a=3))
    async with lives.life(end):
        await lives.put("last", event_of(a=1, b=2))
        assert await shown(lives, "last", "a", "b") == [(3, None), (1, 2)]
        await lives.put("last", event_of(b=2))
        assert await shown(lives, "last", "a", "b") == [(3, None), (None, 2)]
    async with lives.life(end):
        await lives.put("last", event_of(a=3, b=2), event_of(a=1))
        assert await shown(lives, "last", "a", "b") == [(3, 2), (1, None)]
        await lives.conserved()


@pytest.mark.spec("E8", "K1")
@simulated
async def test_a_transient_event_replaces_nothing() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("last", keys={"k": 1})
        follower = await lives.follow("last")
        await lives.put("last", event_of(k=1))
        passing = Event(b"passing", properties={"k": 1}, transient=True)
        await lives.put("last", passing, event_of(k=2))
        await lives.put("last", passing)
        await follower.has(4)
        assert await shown(lives, "last", "k") == [1, 2]
        await lives.put("last", event_of(k=1))
        assert await shown(lives, "last", "k") == [2, 1]
        await lives.conserved()


@pytest.mark.spec("C1b", "K1")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_an_event_in_memory_replaces_one_on_disk_for_good(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("last", "mixed", keys={"k": 1})
        await lives.put("last", event_of(k=1), event_of(k=2))
        await lives.put("last", Event(b"m", properties={"k": 1}, persistent=False))
        assert await shown(lives, "last", "k") == [2, 1]
    async with lives.life(end):
        assert await shown(lives, "last", "k") == [2]
        await lives.put("last", event_of(k=2))
        assert await shown(lives, "last", "k") == [2]
        await lives.conserved()


@pytest.mark.spec("K1", "Q5", "T3", "T5")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_a_queue_keeps_the_newest_too_and_replaced_events_are_not_dead(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("dead")
        await lives.create("work", kind="queue", keys={"k": 1}, capacity=2, dead_event_store="dead")
        reader = await lives.attach("work", window=1)
        await lives.put("work", event_of(k=1), event_of(k=2))
        await reader.has(1)
    async with lives.life(end):
        await lives.put("work", event_of(k=1))
        assert await lives.stored("dead") == []
        await lives.put("work", event_of(k=3), event_of(k=3))
        dead = await lives.stored("dead")
        assert [event.origin and event.origin.event_id for event in dead] == [1]
        reader = await lives.attach("work")
        events = await reader.has(2)
        assert [event.properties["k"] for event in events] == [1, 3]
        info = await lives.info("work")
        assert (info.counters.replaced, info.counters.dead) == (2, 1)
        await lives.conserved()


@pytest.mark.spec("D2", "K1")
@simulated
async def test_a_durable_does_not_get_replaced_events() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("last", keys={"k": 1})
        await lives.durable("last", "team")
        await lives.put("last", *named("old", properties={"k": 1}))
    async with lives.life():
        await lives.put("last", *named("new", properties={"k": 1}))
        worker = await lives.attach("last", "team")
        assert datas(await worker.has(1)) == ["new"]


@pytest.mark.spec("F5", "K1")
@pytest.mark.parametrize("engine", ["default", "merge"])
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_a_browse_for_values_of_a_key_reads_their_events_only(end: End, engine: str) -> None:
    lives = Lives(sealing=EAGER)
    async with lives.life(end):
        await lives.create("last", "persistent", keys={"k": 1}, engine=engine)
        await lives.put("last", *[event_of(k=f"key {n}", n=n) for n in range(300)])
        await lives.put("last", event_of(k="key 7", n=1_000), event_of(n=7))
        await pass_time(0.1)
    async with lives.life(end):
        with counted_rows() as read:
            assert await matching(lives, "last", "k = 'key 7'") == [1_000]
        assert read() <= 1
        with counted_rows() as read:
            matches = await matching(lives, "last", "k IN ('key 3', 'key 299', 'none') AND n > 3")
        assert matches == [299]
        assert read() <= 2
        assert await matching(lives, "last", "k = 'none'") == []
        assert await matching(lives, "last", "n = 7") == [7]
        await lives.put("last", event_of(k="none", n=5))
        assert await matching(lives, "last", "k = 'none' OR k = 'key 8'") == [8, 5]
        await lives.purge("last", "k = 'key 8'")
        assert await matching(lives, "last", "k = 'none' OR k = 'key 8'") == [5]


async def matching(lives: Lives, name: str, selector: str) -> list[int]:
    """Return the numbers of the events that match."""
    return [event.properties["n"] for event in await lives.stored(name, selector)]


@contextmanager
def counted_rows() -> Iterator[Callable[[], int]]:
    """Count the rows that are read from stores."""
    count = 0
    read = ChannelStore.read

    def counting(store: ChannelStore, spans: Spans, damage: Damage) -> list[OutgoingBatch]:
        nonlocal count
        batches = read(store, spans, damage)
        count += sum(rows.batch.num_rows for rows in batches)
        return batches

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ChannelStore, "read", counting)
        yield lambda: count
