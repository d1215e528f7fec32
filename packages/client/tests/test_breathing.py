"""Time to breathe after a failure, over a session."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

import penstock
from packages.client.tests.simulated import URL, World, in_world
from penstock import aio
from penstock.client.connection.arguments import milliseconds
from penstock.client.sync.sync import Channel, Session
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.errors import InvalidArgument

LONG = "1h"


@pytest.mark.spec("D18")
@in_world
async def test_a_poison_event_waits_longer_each_time_and_delays_no_other_event(
    world: World,
) -> None:
    async with aio.connect(URL) as session:
        orders = await session.channels.create("orders")
        team = await orders.durables.create(
            "team", backoff={"first": "1s", "factor": 3, "most": "5s"}
        )
        await orders.publish(b"poison")
        await orders.publish(b"fine")
        deliveries, done = [], []
        async with team.subscribe(window=1, timeout=60) as subscription:
            async for event in subscription:
                if event.data == b"fine":
                    await event.ack()
                    done.append(world.loop.time())
                    continue
                deliveries.append(world.loop.time())
                if len(deliveries) == 5:
                    await event.ack()
                    break
                await event.rollback()

        waited = [later - sooner for sooner, later in pairwise(deliveries)]
        assert [round(wait_s, 1) for wait_s in waited] == [1.0, 3.0, 5.0, 5.0]
        assert done[0] - deliveries[0] < 0.5


@pytest.mark.spec("D18")
@in_world
async def test_each_way_to_roll_back_takes_a_delay(world: World) -> None:
    async with aio.connect(URL) as session:
        orders = await session.channels.create("orders")
        team = await orders.durables.create("team")
        await orders.publish_many([aio.Event() for _ in range(6)])
        async with team.subscribe(window=10) as subscription:
            batch = await subscription.next_batch()
            assert batch is not None
            events = list(batch)
            await events[0].rollback(delay="5s")
            await events[1].rollback(delay=7)
            await subscription.rollback([2], delay=timedelta(seconds=9))
            await subscription.flush()
            begun = world.loop.time()
            deliveries: dict[int, int] = {}
            while len(deliveries) < 3:
                more = await subscription.next_batch()
                assert more is not None
                deliveries |= {int(i): round(world.loop.time() - begun) for i in more.event_ids}
                await more.ack()
            assert deliveries == {0: 5, 1: 7, 2: 9}
        again = await team.fetch_batches(3)
        await again[0].rollback(delay=11)
        begun = world.loop.time()
        assert (await team.info()).waiting == 3
        (event, *_) = await team.fetch(3, timeout=60)
        assert round(world.loop.time() - begun) == 11
        assert event.redelivery_count == 2


@pytest.mark.spec("D18", "Q3")
@in_world
async def test_a_queues_reader_gives_back_with_a_delay(world: World) -> None:
    async with aio.connect(URL) as session:
        work = await session.queues.create("work", backoff={"first": 2_000})
        for n in range(3):
            await work.push(b"%d" % n)
        async with work.reader(transactional=True, window=3) as reader:
            events = await reader.fetch(3, timeout=1)
            begun = world.loop.time()
            await reader.rollback(events[0], individual=True, delay="10s")
            await reader.rollback(events[1], individual=True)
            await reader.rollback(events[2], individual=True, delay=0)
            deliveries = []
            for _ in range(3):
                (event,) = await reader.fetch(1, timeout=60)
                deliveries.append((event.data, round(world.loop.time() - begun)))
            await reader.commit()
        assert deliveries == [(b"2", 0), (b"1", 2), (b"0", 10)]
        work = await session.queues.get("work")
        await work.edit(backoff=None)
        assert (await work.info()).definition.backoff is None


def test_a_blocking_client_has_all_of_it(session: Session, orders: Channel) -> None:
    team = orders.durables.create("team", backoff={"first": LONG, "most": "2h", "seed": 3})
    orders.publish_many([penstock.Event() for _ in range(5)])
    with team.subscribe(window=5) as subscription:
        batch = subscription.next_batch(30)
        assert batch is not None
        first, second, *_ = list(batch)
        first.rollback()
        second.rollback(delay="2h")
        subscription.rollback([2], delay=3 * 3_600)
        subscription.flush()
        info = team.info()
        assert (info.waiting, info.in_flight, info.ready) == (3, 2, 0)
        assert info.backoff == Backoff(3_600_000, most=7_200_000, seed=3)
    (batch,) = team.fetch_batches(5)
    batch.rollback(delay="4h")
    outstanding = team.outstanding()

    assert sorted(i for ids in outstanding.waits.values() for i in ids) == [0, 1, 2, 3, 4]
    assert len(outstanding.waits) == 4
    assert IdSet(outstanding.id_set.spans) == IdSet.from_ids(range(5))
    work = session.queues.create("work", backoff={"first": LONG, "most": LONG})
    work.push(b"x")
    with work.reader(transactional=True) as reader:
        reader.fetch(1, timeout=30)
        reader.rollback()
        assert work.info().waiting == 1
        assert work.info().waiting_until_us is not None


@pytest.mark.parametrize(
    ("duration", "ms"),
    [
        ("5s", 5_000),
        ("1.5s", 1_500),
        ("250ms", 250),
        ("2m", 120_000),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
        (5, 5_000),
        (0.25, 250),
        (0, 0),
        (timedelta(minutes=2), 120_000),
    ],
)
def test_a_duration_is_seconds_a_text_or_a_timedelta(duration: Any, ms: int) -> None:
    assert milliseconds(duration, "delay") == ms


@pytest.mark.parametrize(
    "duration",
    ["", "5", "5 s", "-5s", "five", "5w", -1, float("nan"), float("inf"), True, None, b"5s",
     timedelta(seconds=-1), "9" * 16 + "s"],
)  # fmt: skip
def test_anything_else_is_refused_and_told_what_would_be_right(duration: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"delay is .*; give seconds, 0 or more, a text such"):
        milliseconds(duration, "delay")


@pytest.mark.spec("D18")
@pytest.mark.parametrize(
    ("backoff", "said"),
    [
        ("1s", "backoff is '1s'; give a dictionary"),
        ({"first": "soon"}, "backoff.first is 'soon'; give seconds"),
        ({"first": 100, "often": 2}, "backoff has no often; allowed are first, factor, most"),
        ({"factor": 2}, "first"),
        ({"first": 100, "factor": "much"}, "factor"),
        ({"first": 100, "most": 50}, "backoff.most is 50; allowed are 100 to"),
        ({"first": 100, "jitter": 3}, "backoff.jitter is 3"),
    ],
)
def test_a_backoff_that_cannot_be_is_refused_and_says_why(
    session: Session, orders: Channel, backoff: Any, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        orders.durables.create("team", backoff=backoff)
    with pytest.raises(InvalidArgument, match=said):
        session.queues.create("work", backoff=backoff)
    assert orders.durables.list() == []


def test_a_channel_has_no_backoff_of_its_own(session: Session) -> None:
    with pytest.raises(InvalidArgument, match="a channel has no attribute backoff"):
        session.channels.create("other", backoff={"first": 100})  # type: ignore[call-arg]


def test_a_delay_that_cannot_be_changes_nothing(orders: Channel) -> None:
    team = orders.durables.create("team")
    orders.publish(b"x")
    (event,) = team.fetch(1, timeout=30)
    with pytest.raises(InvalidArgument, match="delay is 'soon'"):
        event.rollback(delay="soon")
    event.rollback(delay="9000d")
    with pytest.raises(InvalidArgument, match="the delay of a rollback is 777600000000 ms"):
        team.flush()
    event.ack()
    team.flush()

    assert team.info().outstanding == 0
