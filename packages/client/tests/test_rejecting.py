"""Rejecting events: they are dead at once, with a reason."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from packages.client.tests.simulated import URL, World, in_world
from penstock import aio
from penstock.client.sync.sync import Channel, Session
from penstock_core.vocabulary.errors import (
    ConnectionLost,
    IllegalState,
    InvalidArgument,
    SessionClosed,
)

WAIT_S = 30.0


@pytest.fixture
def mail(session: Session) -> Channel:
    session.channels.create("dead")
    mail = session.channels.create("mail", dead_event_store="dead")
    mail.publish_many([penstock.Event(b"%d" % n) for n in range(6)])
    return mail


def graves(session: Session) -> list[tuple[bytes, str, str, tuple[str, ...]]]:
    buried = []
    for event in session.channels.get("dead").browse():
        assert event.origin is not None
        buried.append((event.data, event.origin.cause, event.origin.reason, event.origin.durables))
    return buried


@pytest.mark.spec("T11")
@pytest.mark.parametrize("kind", ["shared", "serial", "shared_queued", "exclusive", "priority"])
def test_a_rejected_event_is_dead_at_once_with_its_reason(
    session: Session, mail: Channel, kind: penstock.DurableType
) -> None:
    team = mail.durables.create("team", type=kind, start="earliest")
    with team.subscribe() as subscription:
        batch = subscription.next_batch(WAIT_S)
        assert batch is not None
        first, *others = list(batch)
        first.reject("no such street")
        assert graves(session) == [(b"0", "rejected", "no such street", ("team",))]
        for event in others:
            event.ack()

    assert team.info().outstanding == 0
    info = mail.info()
    assert (info.events, info.counters.dead, info.counters.consumed) == (0, 1, 5)


@pytest.mark.spec("T11")
def test_each_way_to_reject(session: Session, mail: Channel) -> None:
    team = mail.durables.create("team", start="earliest")
    with team.subscribe() as subscription:
        assert subscription.next_batch(WAIT_S) is not None
        assert subscription.reject([1, 2], "by id") == 2
        assert subscription.reject([1], "twice") == 0, "it is dead already"
    (batch,) = team.fetch_batches(2, timeout=WAIT_S)
    batch.reject("as columns")
    team.close()
    with team.hold() as hold:
        assert hold.reject([4], "held") == 1

    assert sorted(graves(session)) == [
        (b"0", "rejected", "as columns", ("team",)),
        (b"1", "rejected", "by id", ("team",)),
        (b"2", "rejected", "by id", ("team",)),
        (b"3", "rejected", "as columns", ("team",)),
        (b"4", "rejected", "held", ("team",)),
    ]
    assert team.info().outstanding == 1


@pytest.mark.spec("T11")
def test_other_durables_keep_what_one_rejects(session: Session, mail: Channel) -> None:
    team = mail.durables.create("team", start="earliest")
    mail.durables.create("other", start="earliest")
    (event, *_) = team.fetch(1, timeout=WAIT_S)
    event.reject("not for us")

    assert [event_id for event_id, *_ in graves(session)] == [b"0"]
    assert (mail.info().events, mail.durables.get("other").info().outstanding) == (6, 6)


@pytest.mark.spec("T11")
def test_without_a_dead_event_store_it_is_refused_and_still_in_hand(orders: Channel) -> None:
    team = orders.durables.create("team")
    orders.publish(b"x")
    (event,) = team.fetch(1, timeout=WAIT_S)
    with pytest.raises(IllegalState, match="orders has no dead event store for events that are re"):
        event.reject("no")
    event.ack()
    team.flush()

    assert team.info().outstanding == 0


@pytest.mark.spec("T11", "D15")
def test_only_held_events_can_be_rejected(session: Session, mail: Channel) -> None:
    team = mail.durables.create("team", start="earliest")
    (event, second_event) = team.fetch(2, timeout=WAIT_S)
    event.rollback()
    team.flush()
    with pytest.raises(IllegalState, match="was not delivered to this subscription, or has been"):
        event.reject("too late")
    with pytest.raises(InvalidArgument, match="reason must be a string, not 7"):
        second_event.reject(7)  # type: ignore[arg-type]
    team.close()
    with pytest.raises(SessionClosed, match="event 1 has returned"):
        second_event.reject("too late")

    assert graves(session) == []


@pytest.mark.spec("T11", "Q2")
def test_a_queues_reader_rejects_as_it_commits(session: Session) -> None:
    session.channels.create("dead")
    work = session.queues.create("work", dead_event_store="dead")
    work.push_many([penstock.Event(b"%d" % n) for n in range(5)])
    with work.reader(transactional=True, window=5) as reader:
        events = reader.fetch(5, timeout=WAIT_S)
        reader.reject(events[3], reason="alone", individual=True)
        reader.reject(events[1], reason="and before")
        with pytest.raises(IllegalState, match="is not held by this reader"):
            reader.reject(events[1], reason="twice")
        reader.commit(events[2])
        reader.reject(reason="the rest")
        reader.commit()

    assert sorted(graves(session)) == [
        (b"0", "rejected", "and before", ()),
        (b"1", "rejected", "and before", ()),
        (b"3", "rejected", "alone", ()),
        (b"4", "rejected", "the rest", ()),
    ]
    assert (work.info().events, work.info().counters.dead) == (0, 4)
    with work.reader() as plain, pytest.raises(IllegalState, match="a plain reader has no reject"):
        plain.reject(reason="gone")


@pytest.mark.spec("T11")
@in_world
async def test_what_was_settled_before_arrives_before(world: World) -> None:
    async with aio.connect(URL) as session:
        await session.channels.create("dead")
        mail = await session.channels.create("mail", dead_event_store="dead")
        team = await mail.durables.create("team", type="exclusive")
        await mail.publish_many([aio.Event() for _ in range(3)])
        async with team.subscribe() as subscription:
            batch = await subscription.next_batch()
            assert batch is not None
            events = list(batch)
            await events[1].rollback()
            await events[0].reject("first")
            await events[2].ack()
        info = await team.info()
        assert info.outstanding == 1, "what was given back is covered by no acknowledgement"


@pytest.mark.spec("T11", "D13")
@in_world
async def test_what_went_back_with_the_connection_is_not_rejected(world: World) -> None:
    async with aio.connect(URL) as session:
        await session.channels.create("dead")
        mail = await session.channels.create("mail", dead_event_store="dead")
        team = await mail.durables.create("team")
        await mail.publish(b"x")
        async with team.subscribe() as subscription:
            event: Any = await anext(aiter(subscription))
            world.end_of(session).abort()
            await world.until(lambda: session.connection.reconnects > 0)
            with pytest.raises(IllegalState, match="because the connection was lost"):
                await event.reject("of another life")
            again = await subscription.next_batch(timeout=10)
            assert again is not None
            world.end_of(session).pause_reading()
            world.loop.call_later(1, world.end_of(session).abort)
            with pytest.raises(ConnectionLost):
                await again.reject("its answer is never heard")
        assert (await (await session.channels.get("dead")).info()).events == 1
