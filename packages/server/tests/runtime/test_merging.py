"""Random lives of a merge channel: stored, sent and copied events equal those of a model of
dictionaries, however a life ends (SEM K2-K4)."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from packages.server.tests.runtime.lives import ENDS, Lives, Outlet, clock_us
from packages.server.tests.runtime.merge_model import KEY, Follower, MergeModel, Properties
from penstock_core.columns.events.event import Event
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_testing.loop import pass_time, simulated

BUSY = SealingLimits(segment_bytes_max=300, interval_s=0.02, retry_s=0.02, journal_bytes_max=6_000)
TTL_MS = 10_000


def matches(properties: Properties) -> bool:
    """Evaluate the selector ``a > 2``."""
    a = properties.get("a")
    return isinstance(a, int | float) and a > 2


class Story:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.lives = Lives(seed, sealing=BUSY)
        self.type = random.choice(("persistent", "mixed", "paged", "reliable", "off_heap"))
        self.lasts = self.type in ("persistent", "mixed", "paged")
        self.capacity = random.choice((0, 0, 3))
        self.ttl_ms = random.choice((0, TTL_MS))
        self.model = MergeModel(capacity=self.capacity, ttl_ms=self.ttl_ms)
        self.followers: list[tuple[Outlet, Follower, bool]] = []
        self.step = 0
        self.copied: dict[int, Properties] = {}

    async def begin(self) -> None:
        await self.lives.create(
            "rates",
            self.type,
            engine="merge",
            keys={KEY: 1},
            capacity=self.capacity,
            ttl=self.ttl_ms,
        )
        await self.lives.create("history", "persistent")
        await self.lives.realm.joins.create("rates", "history", "", archive=False)

    async def one_life(self) -> None:
        self.followers = []
        if not self.lasts:
            self.model.events = {}
        for _ in range(20):
            await self.one_step()
        await self.check()

    async def one_step(self) -> None:
        what = self.random.random()
        if what < 0.6:
            await self.publish()
        elif what < 0.75:
            await self.come()
        elif what < 0.8:
            await pass_time(20)
        elif what < 0.86:
            self.model.expire(clock_us())
            await self.lives.purge("rates", "a > 2")
            self.model.purge(matches)
        elif what < 0.92:
            await self.check()
        elif what < 0.96:
            await self.lives.realm.snapshot()
        else:
            await pass_time(0.05)

    async def publish(self) -> None:
        """Several publishes of one group."""
        publishes = [self.events() for _ in range(self.random.randint(1, 4))]
        sent = [self.lives.send("rates", *events) for events in publishes]
        for events, answer in zip(publishes, sent, strict=True):
            span = await answer
            self.model.published(span.first, events, clock_us())
        for event_id, properties in self.model.versions:
            self.copied[event_id] = properties
        self.model.versions = []

    def events(self) -> list[Event]:
        self.step += 1
        return [self.event() for _ in range(self.random.randint(1, 5))]

    def event(self) -> Event:
        random = self.random
        values: list[Any] = [None, 1, 5, "text", 2.5, [1, None], {"x": 1, "y": None}, {"x": "s"}]
        names = random.sample("abcdefgh", random.randint(0, 4))
        properties: Properties = {name: random.choice(values) for name in names}
        properties[KEY] = random.choice(("one", "two", "three", "four"))
        return Event(
            properties=properties,
            is_delta=random.random() < 0.7,
            persistent=random.choice((None, True, False)),
        )

    async def come(self) -> None:
        selective = self.random.random() < 0.4
        credit = self.random.choice((1 << 30, 4))
        outlet = await self.lives.follow(
            "rates",
            "a > 2" if selective else "",
            deltas=True,
            latest=self.random.random() < 0.3,
            credit=credit,
        )
        if credit < 100:
            asyncio.get_running_loop().call_later(
                0.02, self.lives.realm.subscriptions.credit, outlet.number, 1 << 20
            )
        self.followers.append((outlet, Follower(), selective))

    async def check(self) -> None:
        await pass_time(0.05)
        self.model.expire(clock_us())
        events = await self.lives.stored("rates")
        assert {e.event_id: e.properties for e in events} == self.model.stored()
        assert not any(event.is_delta for event in events)
        await self.lives.conserved()
        for outlet, follower, selective in self.followers:
            before = follower.seen
            follower.take(outlet.events)
            assert before <= follower.seen
            for kept in self.model.events.values():
                if kept.key in follower.states and (not selective or matches(kept.properties)):
                    assert follower.states[kept.key] == kept.properties

    async def check_history(self) -> None:
        """A join has copied every version, merged."""
        events = await self.lives.stored("history")
        properties = {event.origin.event_id: event.properties for event in events if event.origin}
        assert properties.keys() <= self.copied.keys()
        assert properties == {event_id: self.copied[event_id] for event_id in properties}
        assert not any(event.is_delta for event in events)
        if self.lasts:
            assert properties.keys() == self.copied.keys()


@pytest.mark.slow
@pytest.mark.spec("K2", "K3", "K4", "T1", "T3", "T8", "T9", "L1")
@pytest.mark.parametrize("seed", range(23))
@simulated
async def test_states_deltas_and_copies_are_those_of_the_model(seed: int) -> None:
    story = Story(seed)
    async with story.lives.life("closed"):
        await story.begin()
    for _ in range(4):
        async with story.lives.life(story.random.choice(ENDS)):
            await story.one_life()
    async with story.lives.life("closed"):
        if not story.lasts:
            story.model.events = {}
        story.followers = []
        await story.check()
        if story.lasts:
            await story.check_history()


def deltas(count: int, **properties: Any) -> list[Event]:
    return [Event(properties={KEY: f"{n}", **properties}, is_delta=True) for n in range(count)]


@pytest.mark.spec("K3", "E6")
@simulated
async def test_a_partly_sent_grant_is_not_sent_again() -> None:
    """A subscriber that could take only half of a large publish, when the next one comes."""
    lives = Lives()
    async with lives.life():
        await lives.create("rates", engine="merge", keys={KEY: 1})
        full_events = [Event(properties={KEY: f"{n}", "a": 0, "b": 0}) for n in range(200)]
        await lives.put("rates", *full_events)
        outlet, follower = await lives.follow("rates", deltas=True, credit=300), Follower()
        await outlet.has(200)
        await lives.put("rates", *deltas(200, a=1))
        follower.take(await outlet.has(300))
        await lives.put("rates", *deltas(200, b=2))
        lives.realm.subscriptions.credit(outlet.number, 1 << 20)
        follower.take(await outlet.has(500))

        assert [event.is_delta for event in outlet.events] == [False] * 200 + [True] * 300
        assert outlet.ids == [*range(200), *range(200, 300), *range(400, 600)]
        assert set(map(str, follower.states.values())) == {
            str({KEY: f"{n}", "a": 1, "b": 2}) for n in range(200)
        }


@pytest.mark.spec("K3")
@simulated
async def test_a_large_publish_is_sent_unchanged_to_subscribers_that_keep_up() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("rates", engine="merge", keys={KEY: 1})
        await lives.put("rates", *[Event(properties={KEY: f"{n}", "a": 0}) for n in range(100)])
        outlets = [await lives.follow("rates", deltas=True) for _ in range(3)]
        plain = await lives.follow("rates")
        for outlet in (*outlets, plain):
            await outlet.has(100)
        twice = [*deltas(100, a=1), *deltas(10, a=2)]
        await lives.put("rates", *twice)

        for outlet in outlets:
            deltas_sent = (await outlet.has(210))[100:]
            assert [event.properties for event in deltas_sent] == [e.properties for e in twice]
            assert all(event.is_delta for event in deltas_sent)
        await plain.has(200)
        assert not any(event.is_delta for event in plain.events)
        assert plain.ids[100:] == [*range(110, 210)]
