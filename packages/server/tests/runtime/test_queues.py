"""Queues: each event goes to one reader, and leaves when that one commits (SEM Q)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from packages.server.tests.runtime.lives import ENDS, End, Lives, Outlet, datas, named
from packages.server.tests.runtime.living import EAGER
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import (
    IllegalState,
    InvalidName,
    NameAlreadyBound,
    NameDoesNotExist,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_testing.loop import pass_time, simulated
from tests.spindles import spindles


async def peek(lives: Lives, name: str, selector: str = "") -> list[str]:
    outlet = Outlet("peeker", selector)
    subscriptions = lives.realm.subscriptions
    await subscriptions.browse_durable(ChannelId(lives.number(name)), "", outlet, credit=1 << 30)
    await outlet.at_end.wait()
    return datas(outlet.events)


@pytest.mark.spec("Q1")
@simulated
async def test_each_event_goes_to_one_reader_in_turn() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("work", kind="queue")
        readers = [await lives.attach("work", session=f"s{n}", window=1) for n in range(3)]
        await lives.put("work", *named(*"abcdef"))
        for _ in range(2):
            for reader in readers:
                await reader.has(1)
            for reader in readers:
                await reader.settle(reader.outlet.ids[-1])
        await pass_time(0.1)
        assert [datas(reader.events) for reader in readers] == [
            ["a", "d"],
            ["b", "e"],
            ["c", "f"],
        ]
        info = await lives.info("work")
        assert (info.events, info.counters.consumed) == (0, 6)
        assert info.readers == ("s0", "s1", "s2")


@pytest.mark.spec("Q2", "Q3", "E9")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", ["persistent", "mixed", "paged"])
@simulated
async def test_what_was_not_committed_comes_again_after_a_restart(end: End, kind: str) -> None:
    lives = Lives(sealing=EAGER)
    async with lives.life(end):
        await lives.create("work", kind, kind="queue", storage=spindles(kind, 4))
        await lives.put("work", *named(*"abcdefghijklmno"))
        reader = await lives.attach("work")
        await reader.has(10)
        assert len(reader.events) == 10  # the window
        await reader.settle(2, 5)
        await reader.settle(0, back=True)
        await reader.has(13)
        assert (await lives.info("work")).in_flight == 10
    async with lives.life(end):
        info = await lives.info("work")
        assert (info.events, info.in_flight, info.redelivered) == (13, 0, 1)
        reader = await lives.attach("work", window=100)
        events = await reader.has(13)
        assert datas(events) == [*"abdeghijklmno"]
        assert [event.redelivery_count for event in events] == [1] + [0] * 12
        await reader.settle(*reader.outlet.ids)
    async with lives.life(end):
        info = await lives.info("work")
        assert (info.events, info.counters.consumed, info.last_event_id) == (0, 15, 14)
        await lives.conserved()


@pytest.mark.spec("Q3")
@simulated
async def test_a_reader_that_leaves_gives_back_what_it_held() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("work", kind="queue")
        await lives.put("work", *named("a", "b"))
        first = await lives.attach("work", session="one")
        await first.has(2)
        second = await lives.attach("work", session="two")
        await first.leave()
        events = await second.has(2)
        assert datas(events) == ["a", "b"]
        assert [event.redelivery_count for event in events] == [1, 1]


@pytest.mark.spec("Q1", "F5")
@pytest.mark.parametrize("eager", [True, False])
@simulated
async def test_a_reader_with_a_selector_gets_what_it_matches_and_the_rest_waits(
    eager: bool,
) -> None:
    lives = Lives(sealing=EAGER) if eager else Lives()
    async with lives.life():
        await lives.create("work", kind="queue", storage=Storage(events_per_spindle=2))
        await lives.put("work", *coloured("red", "blue", "red", "green"))
        await pass_time(0.1)
        red = await lives.attach("work", selector="colour = 'red'", session="red")
        blue = await lives.attach("work", selector="colour = 'blue'", session="blue")
        await lives.put("work", *coloured("blue", "green", "red"))
        await blue.has(2)
        assert red.outlet.ids == [0, 2, 6]
        assert blue.outlet.ids == [1, 4]
        assert (await lives.info("work")).events == 7
        await red.leave()
        anyone = await lives.attach("work", session="any")
        await anyone.has(5)
        assert anyone.outlet.ids == [0, 2, 3, 5, 6]
        assert [event.redelivery_count for event in anyone.events] == [1, 1, 0, 0, 1]


def coloured(*colours: str) -> list[Any]:
    return [event for colour in colours for event in named(colour, properties={"colour": colour})]


@pytest.mark.spec("Q4", "F5")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_a_peek_shows_what_is_there_and_changes_nothing(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("work", kind="queue")
        await lives.put("work", *coloured("red", "blue", "red"))
        reader = await lives.attach("work", window=1)
        await reader.has(1)
        assert await peek(lives, "work") == ["red", "blue", "red"]
    async with lives.life(end):
        assert await peek(lives, "work", "colour = 'red'") == ["red", "red"]
        assert await peek(lives, "work", "event_id > 0") == ["blue", "red"]
        info = await lives.info("work")
        assert (info.events, info.in_flight, info.redelivered) == (3, 0, 0)
        assert await lives.purge("work", "colour = 'red'") == 2
        assert await peek(lives, "work") == ["blue"]


@pytest.mark.spec("Q1", "C2")
@simulated
async def test_a_queue_has_readers_and_nothing_else() -> None:
    lives = Lives()
    async with lives.life():
        number = await lives.create("work", kind="queue")
        await lives.create("orders")
        subscriptions = lives.realm.subscriptions
        with pytest.raises(IllegalState, match="reader"):
            await subscriptions.subscribe(ChannelId(number), FromEarliest(), Outlet(), credit=1)
        with pytest.raises(IllegalState, match="queue"):
            await lives.durable("work", "team")
        with pytest.raises(InvalidName):
            await lives.durable("orders", "")
        with pytest.raises(NameDoesNotExist):
            await lives.attach("orders", "")
        with pytest.raises(NameDoesNotExist, match="queue"):
            await lives.realm.open_channel("work", "channel")
        with pytest.raises(NameDoesNotExist, match="channel"):
            await lives.realm.open_channel("orders", "queue")
        with pytest.raises(NameAlreadyBound):
            await lives.realm.create_channel("work", Definition())
        assert await lives.realm.list_channels("queue") == ["work"]
        assert await lives.realm.list_channels() == ["orders"]


@pytest.mark.spec("Q1", "Q2", "D5")
@simulated
async def test_a_reader_that_pulls_gets_what_it_demands() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("work", kind="queue")
        await lives.put("work", *named("a", "b", "c"))
        reader = await lives.attach("work", pull=True)
        await pass_time(0.1)
        assert reader.events == []
        lives.realm.subscriptions.demand(reader.number, 2)
        await reader.has(2)
        assert datas(reader.events) == ["a", "b"]
        assert reader.outlet.at_end.is_set()


@pytest.mark.spec("Q2", "D5")
@simulated
async def test_a_demand_is_met_in_parts_by_a_client_that_does_not_read() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("work", kind="queue")
        for _ in range(20):
            await lives.put("work", Event(bytes(1 << 20)))
        reader = await lives.attach("work", pull=True)
        outlet, deliver = reader.outlet, reader.outlet.deliver

        def deliver_once(rows: Any, redeliveries: Any) -> None:
            deliver(rows, redeliveries)
            outlet.is_writable = False  # its connection has too much to send

        outlet.deliver = deliver_once  # type: ignore[method-assign]
        lives.realm.subscriptions.demand(reader.number, 20)
        await pass_time(1)
        parts = 1
        while not outlet.at_end.is_set():
            assert 0 < len(reader.events) <= 4 * parts
            parts += 1
            outlet.is_writable = True
            lives.realm.subscriptions.stall(outlet.session, stalled=False)
            await pass_time(1)

        assert parts >= 5
        assert outlet.ids == list(range(20))
        assert {event.redelivery_count for event in reader.events} == {0}


@pytest.mark.spec("Q5", "T1", "T4")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_capacity_and_ttl_hold_for_queues(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("dead", kind="queue")
        await lives.create("work", kind="queue", ttl=1_000, capacity=2, dead_event_store="dead")
        await lives.put("work", *named("a", "b", "c"))
        reader = await lives.attach("work", window=1)
        await reader.has(1)
        assert await peek(lives, "dead") == ["a"]
    async with lives.life(end):
        await pass_time(3)
        assert await peek(lives, "dead") == ["a", "b", "c"]
        info = await lives.info("work")
        assert (info.events, info.counters.dead) == (0, 3)
        await lives.conserved()


@pytest.mark.spec("Q1", "Q3")
@pytest.mark.parametrize("seed", range(5))
@simulated
async def test_every_event_is_committed_once_whatever_readers_do(seed: int) -> None:
    random = Random(seed)
    lives = Lives(seed, sealing=EAGER)
    committed: list[int] = []
    async with lives.life("closed"):
        await lives.create("work", kind="queue", storage=Storage(events_per_spindle=7))
    total = 0
    for _ in range(3):
        async with lives.life(random.choice(ENDS)):
            readers = [await lives.attach("work", session=f"{n}") for n in range(3)]
            for _ in range(8):
                span = await lives.put("work", *named(*"abcde"))
                total = span.end
                await pass_time(0.01)
                reader = random.choice(readers)
                committed_ids = IdSet.from_ids(committed)
                held = IdSet.from_ids(reader.outlet.ids)
                held.remove_all(committed_ids)
                if random.random() < 0.3:
                    await reader.leave()
                    readers.remove(reader)
                    readers.append(await lives.attach("work", session="again"))
                elif held:
                    ids = [i for span in held.spans for i in range(*span)]
                    before = (await lives.info("work")).counters.consumed
                    await reader.settle(*ids)
                    after = (await lives.info("work")).counters.consumed
                    uncommitted = [i for i in ids if i not in committed]
                    assert after - before <= len(uncommitted)
                    if after - before == len(uncommitted):
                        committed += uncommitted
                    reader.outlet.events.clear()
    async with lives.life("closed"):
        last = await lives.attach("work", window=1_000)
        count = (await lives.info("work")).events
        events = await last.has(count)
        assert len(events) == count == len(set(last.outlet.ids))
        assert (await lives.info("work")).counters.consumed + count == total
        assert not set(committed) & set(last.outlet.ids)
        await lives.conserved()
