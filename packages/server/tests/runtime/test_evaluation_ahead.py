"""Selectors on moved events and merged states are evaluated in a thread, and no event is missed or
moves twice (SEM F5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from msgspec import structs

from packages.server.tests.runtime.expensive_selectors import (
    LETTERS,
    SMALL_SLICES,
    Elsewhere,
    costly,
    expected,
    outstanding,
)
from packages.server.tests.runtime.lives import Lives, clock_now, datas
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.errors import PenstockError, StorageFailed
from penstock_core.vocabulary.identities import ChannelId
from penstock_testing.loop import pass_time, simulated

pytestmark = pytest.mark.spec("F5")


TEAM = costly(ChannelId(1))


def large(count: int, seed: int = 1, **options: Any) -> list[Event]:
    """Events with a long text each."""
    random = Random(seed)
    texts = ["".join(random.choices(LETTERS, k=1_000)) for _ in range(count)]
    return [
        Event(b"%d" % n, properties={"n": n, "s": text}, **options) for n, text in enumerate(texts)
    ]


class Broken:
    """An offload that fails."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, call: Callable[[], Any], /) -> Any:
        self.calls += 1
        raise ValueError("nobody foresaw it")


async def with_dead_store(lives: Lives, **attributes: Any) -> None:
    """Create a channel with a dead event store that has a durable with an expensive selector."""
    await lives.create("dead")
    await lives.durable("dead", "team", selector=TEAM)
    await lives.create("orders", dead_event_store="dead", **attributes)
    await lives.create("other")


async def settled(lives: Lives, name: str, count: int, elsewhere: Elsewhere | None = None) -> None:
    """Wait until a channel has ``count`` events. Check that the loop evaluated no pattern on them,
    and that the durable gets its matches."""
    async with asyncio.timeout(100):
        while (await lives.info(name)).events < count:
            await pass_time(0.01)
    assert elsewhere is None or elsewhere.on_loop == 0
    events = await lives.stored(name)
    assert sorted(int(data) for data in datas(events)) == list(range(count)), "each of them once"
    wanted = await expected(lives, name, TEAM)
    assert await outstanding(lives, name, "team") == wanted
    assert 0 < len(wanted) < count
    await lives.conserved()


@simulated
async def test_other_requests_are_served_while_expired_events_are_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await with_dead_store(lives, ttl=1_000)
        elsewhere = Elsewhere(lives, monkeypatch)
        elsewhere.paused = asyncio.Event()
        await lives.put("orders", *large(200))
        await pass_time(1.5)
        assert elsewhere.calls == 1
        assert (await lives.info("orders")).events == 0, "they are not seen any more"
        assert await lives.put("other", Event(b"here")) == (0, 1)
        assert await lives.put("orders", Event(b"200")) == (200, 201), "nor does it wait for them"
        assert await lives.stored("dead") == []
        elsewhere.paused.set()
        await settled(lives, "dead", 201, elsewhere=elsewhere)
    async with lives.life():
        await settled(lives, "dead", 201)


@pytest.mark.spec("T7")
@simulated
async def test_a_power_cut_during_evaluation_loses_no_event_and_moves_none_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    for end in ("power cut", "kill"):
        async with lives.life(end):  # type: ignore[arg-type]
            if "orders" not in {c.state.name for c in lives.realm.directory.channels.values()}:
                await with_dead_store(lives, ttl=1_000)
                await lives.put("orders", *large(200))
            elsewhere = Elsewhere(lives, monkeypatch)
            elsewhere.paused = asyncio.Event()
            await pass_time(1.5)
            assert elsewhere.calls
            assert await lives.stored("dead") == []
    async with lives.life():
        await settled(lives, "dead", 200)


@pytest.mark.spec("X4")
@simulated
async def test_due_scheduled_events_are_evaluated_before_they_are_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await lives.create("orders")
        await lives.create("other")
        await lives.durable("orders", "team", selector=TEAM)
        elsewhere = Elsewhere(lives, monkeypatch)
        elsewhere.paused = asyncio.Event()
        later = clock_now() + timedelta(milliseconds=100)
        await lives.put("orders", *large(150, deliver_at=later))
        await pass_time(0.2)
        assert elsewhere.calls == 1
        assert await lives.stored("orders") == []
        assert await lives.put("other", Event(b"here")) == (0, 1)
        elsewhere.paused.set()
        await settled(lives, "orders", 150, elsewhere=elsewhere)


@pytest.mark.slow
@pytest.mark.spec("T3")
@simulated
async def test_a_publish_waits_for_the_evaluation_of_the_events_it_evicts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await with_dead_store(lives, capacity=100)
        events = large(300)
        await lives.put("orders", *events[:100])
        elsewhere = Elsewhere(lives, monkeypatch)
        elsewhere.paused = asyncio.Event()
        full = lives.send("orders", *events[100:200])
        behind = [lives.send("orders", event) for event in events[200:]]
        assert await lives.put("other", Event(b"here")) == (0, 1)
        await pass_time(0.1)
        assert not any(publish.done() for publish in (full, *behind))
        elsewhere.paused.set()
        assert await full == (100, 200)
        assert [await publish for publish in behind] == [(n, n + 1) for n in range(200, 300)]
        assert (await lives.info("orders")).events == 100
        await settled(lives, "dead", 200, elsewhere=elsewhere)


@pytest.mark.slow
@pytest.mark.spec("T3")
@simulated
async def test_a_batch_larger_than_the_capacity_is_evaluated_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await with_dead_store(lives, capacity=50)
        elsewhere = Elsewhere(lives, monkeypatch)
        assert await lives.put("orders", *large(200)) == (0, 200)
        assert len(await lives.stored("orders")) == 50
        await settled(lives, "dead", 150, elsewhere=elsewhere)


@pytest.mark.spec("T3", "L1")
@simulated
async def test_events_evicted_by_copies_and_dead_events_move_later_and_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await with_dead_store(lives, capacity=100)
        await lives.create("source")
        await lives.realm.joins.create("source", "orders", "", archive=False)
        elsewhere = Elsewhere(lives, monkeypatch)
        events = large(250)
        for n in range(0, 250, 50):
            await lives.put("source", *events[n : n + 50])
        await settled(lives, "dead", 150, elsewhere=elsewhere)
        assert len(await lives.stored("orders")) == 100
        assert elsewhere.calls


@pytest.mark.spec("C3")
@simulated
async def test_a_lowered_capacity_waits_for_the_evaluation_of_evicted_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await with_dead_store(lives)
        await lives.put("orders", *large(200))
        elsewhere = Elsewhere(lives, monkeypatch)
        mine = lives.realm.directory.channels[lives.number("orders")].state.definition
        await lives.realm.edit_channel("orders", structs.replace(mine, capacity=20))
        await settled(lives, "dead", 180, elsewhere=elsewhere)
        assert len(await lives.stored("orders")) == 20


@pytest.mark.spec("T10", "D13")
@simulated
async def test_buried_events_are_evaluated_and_later_requests_wait_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await with_dead_store(lives)
        await lives.durable("orders", "work", max_deliveries=1)
        await lives.put("orders", *large(200))
        worker = await lives.attach("orders", "work", window=1_000)
        await worker.has(200)
        elsewhere = Elsewhere(lives, monkeypatch)
        elsewhere.paused = asyncio.Event()
        loop = asyncio.get_running_loop()
        back = loop.create_task(worker.settle(*range(150), back=True))
        done = loop.create_task(worker.settle(*range(150, 200)))
        leaving = loop.create_task(worker.leave())
        await pass_time(0.1)
        assert not any(request.done() for request in (back, done, leaving))
        assert await lives.put("other", Event(b"here")) == (0, 1)
        elsewhere.paused.set()
        for request in (back, done, leaving):
            await request
        await settled(lives, "dead", 150, elsewhere=elsewhere)
        assert await outstanding(lives, "orders", "work") == [], "nothing came again"


@simulated
async def test_a_request_that_is_held_in_a_failing_group_is_refused_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life("killed"):
        await with_dead_store(lives)
        await lives.durable("orders", "work", max_deliveries=1)
        await lives.put("orders", *large(200))
        worker = await lives.attach("orders", "work", window=1_000)
        await worker.has(200)
        Elsewhere(lives, monkeypatch).paused = asyncio.Event()
        lives.disk.fail_syncs()
        refusals: list[BaseException | None] = []
        lives.realm.subscriptions.settle(
            worker.number,
            IdSet([Span(0, 150)]).spans,
            lambda _, error: refusals.append(error),
            roll_back=True,
            previous=False,
        )
        with pytest.raises(StorageFailed):
            await lives.put("other", Event(b"stored in the same group"))
        await pass_time(0.1)
        assert [type(error) for error in refusals] == [StorageFailed]


@pytest.mark.spec("T10")
@simulated
async def test_redriven_events_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await lives.create("dead")
        await lives.create("orders", dead_event_store="dead", ttl=1_000)
        await lives.put("orders", *large(200))
        await pass_time(3)
        assert len(await lives.stored("dead")) == 200
        await lives.create("again")
        await lives.durable("again", "team", selector=TEAM)
        elsewhere = Elsewhere(lives, monkeypatch)
        done = await lives.realm.redrive("dead", "again", "")
        assert (done.moved, done.left) == (200, 0)
        await settled(lives, "again", 200, elsewhere=elsewhere)


@pytest.mark.slow
@pytest.mark.spec("K4")
@simulated
async def test_merged_states_are_evaluated_also_behind_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await lives.create("rates", engine="merge", keys={"n": 1})
        await lives.create("copies")
        await lives.realm.joins.create("rates", "copies", "", archive=False)
        await lives.durable("rates", "team", selector=TEAM)
        await lives.durable("copies", "team", selector=TEAM)
        first, second = large(150, 1), large(150, 2)
        elsewhere = Elsewhere(lives, monkeypatch)
        await lives.put("rates", *first)
        text = {event.properties["n"]: event.properties["s"] for event in second}
        changes = [Event(properties={"n": n, "s": s}, is_delta=True) for n, s in text.items()]
        sent = [lives.send("rates", *changes), lives.send("rates", *changes[:100])]
        assert [await publish for publish in sent] == [(150, 300), (300, 400)]
        assert elsewhere.on_loop == 0
        for name in ("rates", "copies"):
            assert await outstanding(lives, name, "team") == await expected(lives, name, TEAM)
        assert [e.properties["s"] for e in await lives.stored("copies")][-100:] == [
            text[n] for n in range(100)
        ]


@simulated
async def test_cheap_selectors_are_evaluated_in_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await lives.create("dead")
        await lives.durable("dead", "team", selector="n = 1")
        await lives.create("orders", dead_event_store="dead", ttl=1_000)
        elsewhere = Elsewhere(lives, monkeypatch)
        await lives.put("orders", *large(20))
        await pass_time(3)
        assert await outstanding(lives, "dead", "team") == [1]
        assert elsewhere.calls == 0


@simulated
async def test_a_failing_selector_is_reported_in_the_turn_and_not_evaluated_again() -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await with_dead_store(lives, capacity=100)
        await lives.put("orders", *large(100))
        broken = Broken()
        lives.realm.dispatch.choosing.offload = broken
        assert await lives.put("orders", *large(100)) == (100, 200)
        assert broken.calls == 1
        assert len(await lives.stored("dead")) == 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@simulated
async def test_every_event_arrives_once_whatever_moves_during_evaluation(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives, random = Lives(seed, limits=SMALL_SLICES), Random(seed)
    async with lives.life():
        await with_dead_store(lives, capacity=150, ttl=1_000, event_ttl=True)
        await lives.durable("orders", "work", max_deliveries=1)
        worker = await lives.attach("orders", "work", window=40)
        elsewhere = Elsewhere(lives, monkeypatch)
        events = {ttl: large(600, seed, ttl=ttl) for ttl in (0, 50, 500)}
        next_number = 0
        while next_number < 600:
            match random.randrange(4):
                case 0 | 1:
                    count = random.choice([1, 5, 60, 150])
                    lives.send(
                        "orders",
                        *events[random.choice([0, 50, 500])][next_number : next_number + count],
                    )
                    next_number += count
                case 2:
                    held = [i for i in worker.outlet.ids if random.random() < 0.2]
                    with suppress(PenstockError):
                        await worker.settle(*held, back=True)
                case _:
                    await pass_time(random.choice([0.0, 0.001, 0.1, 0.6]))
        await worker.leave()
        await pass_time(10)
        assert await lives.stored("orders") == []
        await settled(lives, "dead", 600, elsewhere=elsewhere)
        assert elsewhere.calls
