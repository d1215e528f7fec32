"""Subscribers with selectors get exactly the matching events, in order, whichever other subscribers
exist (SEM E6, F5)."""

from __future__ import annotations

from random import Random

import pytest

from packages.core.tests.columns.selectors.batches import batch_of
from packages.server.tests.runtime.lives import Lives, Outlet
from penstock_core.columns.events.event import Event
from penstock_core.columns.selectors import Selector
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.delivery.selection import Following
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch, spans_in
from penstock_testing.loop import pass_time, simulated

pytestmark = pytest.mark.spec("E6", "F5")

SELECTORS = [
    "topic = 'a'",
    "topic = 'b'",
    "topic IN ('a', 'c')",
    "topic LIKE 'd/%'",
    "topic = 'a' AND n > 3",
    "n BETWEEN 2 AND 5",
    "n < 4 OR topic = 'e'",
    "n <> 3",
    "topic IS NULL",
    "event_id >= 4",
    "",
]
TOPICS = ["a", "b", "c", "d/1", "d/2/3", "e", None]


def look_up_always(lives: Lives) -> None:
    """However few selectors there are, they are found by values."""
    lives.realm.dispatch.following = Following(value_cost=0.0)


def some_events(random: Random) -> list[Event]:
    """A few events, with some properties."""
    return [
        Event(b"", properties={"topic": random.choice(TOPICS), "n": random.randrange(7)})
        for _ in range(random.choice((1, 1, 1, 2, 5)))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@simulated
async def test_everybody_gets_what_is_for_them(seed: int) -> None:
    random, lives = Random(seed), Lives(seed)
    async with lives.life():
        look_up_always(lives)
        await lives.create("orders")
        outlets: list[tuple[Outlet, int]] = []
        departures: list[tuple[Outlet, int, int]] = []
        end = 0
        for step in range(120):
            kind = random.random()
            if kind < 0.25:
                credit = random.choice((1, 3, 1 << 30))
                text = random.choice(SELECTORS)
                outlet = await lives.follow(
                    "orders", text, session=f"s{step}", latest=True, credit=credit
                )
                outlets.append((outlet, end))
            elif kind < 0.3 and outlets:
                outlet, first = outlets.pop(random.randrange(len(outlets)))
                await pass_time(0.05)
                lives.realm.subscriptions.detach(outlet.number)
                departures.append((outlet, first, end))
            elif kind < 0.4 and outlets:
                outlet, _ = random.choice(outlets)
                stalled = random.random() < 0.5
                outlet.is_writable = not stalled
                lives.realm.subscriptions.stall(outlet.session, stalled=stalled)
            elif kind < 0.5 and outlets:
                lives.realm.subscriptions.credit(random.choice(outlets)[0].number, 5)
            else:
                end = (await lives.put("orders", *some_events(random))).end
        for outlet, _ in outlets:
            outlet.is_writable = True
            lives.realm.subscriptions.stall(outlet.session, stalled=False)
            lives.realm.subscriptions.credit(outlet.number, 1 << 30)
        await pass_time(1)

        for outlet, first in outlets:
            text = outlet.selector.text if outlet.selector else ""
            stored = await lives.stored("orders", text)
            assert outlet.ids == [e.event_id for e in stored if (e.event_id or 0) >= first], text
        for outlet, first, last in departures:
            text = outlet.selector.text if outlet.selector else ""
            matching = [event.event_id for event in await lives.stored("orders", text)]
            due = [i for i in matching if i is not None and first <= i < last]
            assert outlet.ids == due[: len(outlet.ids)], text


@pytest.mark.slow
@simulated
async def test_an_event_is_offered_to_those_it_is_for() -> None:
    lives = Lives()
    async with lives.life():
        look_up_always(lives)
        await lives.create("orders")
        outlets = [
            await lives.follow("orders", f"topic = 'dev/{n}'", session=f"s{n}") for n in range(200)
        ]
        followers = lives.realm.directory.channels[lives.number("orders")].state.followers
        assert len(followers.members) == 200

        await lives.put("orders", Event(b"", properties={"topic": "dev/7"}))
        await outlets[7].has(1)

        assert [n for n, outlet in enumerate(outlets) if outlet.events] == [7]
        assert not followers.apart
        for outlet in outlets:
            lives.realm.subscriptions.detach(outlet.number)
        await pass_time(0.01)
        assert not followers.members
        assert not lives.realm.dispatch.following


@simulated
async def test_a_subscription_that_has_ended_is_not_kept() -> None:
    lives = Lives()
    async with lives.life():
        look_up_always(lives)
        await lives.create("orders")
        outlet = await lives.follow("orders", "topic = 'a'")
        lives.realm.dispatch.close(outlet.number)

        assert not lives.realm.dispatch.follow(outlet.number)
        assert not lives.realm.dispatch.following


def test_only_selectors_that_are_found_by_values_are_kept() -> None:
    following = Following(value_cost=0.0)

    assert following.add(1, 10, Selector("n = 1"))
    assert following.add(1, 11, Selector("n = 1"))
    assert not following.add(1, 12, Selector("n <> 1"))
    batch = batch_of([{"event_id": 0, "properties": {"n": 1}}])
    rows = [OutgoingBatch(spans_in(batch), batch=batch)]
    assert following.interested(ChannelId(1), rows, None) == (10, 11)
    assert following.interested(ChannelId(2), rows, None) == ()
    for subscription in (10, 11, 12):
        following.remove(subscription)
    assert not following
