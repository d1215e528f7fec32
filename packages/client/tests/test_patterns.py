"""Subscriptions over a pattern: all channels that match, also those that are made later."""

from __future__ import annotations

import pytest

import penstock
from packages.client.tests.simulated import URL, World, in_world
from penstock import aio
from penstock.client.sync.sync import Session
from penstock_core.vocabulary.errors import (
    InvalidArgument,
    InvalidName,
    NameDoesNotExist,
)
from penstock_testing.relay import Relay

WAIT_S = 30.0


def got(subscription: penstock.PatternSubscription, count: int) -> list[tuple[str, bytes]]:
    """The next events, each with its channel, in the order of the channels."""
    return sorted(take_events(subscription, count))


def take_events(subscription: penstock.PatternSubscription, count: int) -> list[tuple[str, bytes]]:
    """The next events, each with its channel."""
    deliveries: list[tuple[str, bytes]] = []
    while len(deliveries) < count:
        batch = subscription.next_batch(WAIT_S)
        assert batch is not None, deliveries
        deliveries += [(event.channel, event.data) for event in batch]
    return deliveries


@pytest.mark.spec("D21")
def test_a_pattern_is_read_with_the_channels_there_are_and_those_made_later(
    session: Session,
) -> None:
    for name in ("orders/eu", "orders/us", "orders/us/west", "trades"):
        session.channels.create(name).publish(b"old")
    with session.subscribe("orders/*", start="earliest") as subscription:
        assert subscription.channels == ["orders/eu", "orders/us"]
        assert got(subscription, 2) == [("orders/eu", b"old"), ("orders/us", b"old")]

        session.channels.create("orders/asia").publish(b"first")
        session.channels.create("other/asia").publish(b"no")
        session.channels.get("orders/us").publish(b"new")

        assert got(subscription, 2) == [("orders/asia", b"first"), ("orders/us", b"new")]
        assert subscription.next_batch(0) is None


@pytest.mark.spec("D21")
def test_a_channel_made_later_is_read_from_its_first_event_whatever_the_start(
    session: Session,
) -> None:
    session.channels.create("orders/eu").publish(b"old")
    with session.subscribe("orders/**, trades") as subscription:
        trades = session.channels.create("trades")
        trades.publish_many([penstock.Event(b"%d" % n) for n in range(3)])
        session.channels.get("orders/eu").publish(b"new")

        deliveries = got(subscription, 4)

    assert deliveries == [("orders/eu", b"new"), *(("trades", b"%d" % n) for n in range(3))]


@pytest.mark.spec("D21")
def test_iterating_tells_the_channel_of_each_event_and_a_selector_chooses(
    session: Session,
) -> None:
    for name in ("a/1", "a/2"):
        events = [penstock.Event(properties={"n": n}) for n in range(4)]
        session.channels.create(name).publish_many(events)

    reading = session.subscribe("a/*", start="earliest", selector="n > 1", timeout=0.2)

    deliveries = sorted((event.channel, event.properties["n"]) for event in reading)
    assert deliveries == [("a/1", 2), ("a/1", 3), ("a/2", 2), ("a/2", 3)]


@pytest.mark.spec("D21")
def test_a_busy_channel_does_not_hold_up_a_quiet_one(session: Session) -> None:
    busy, quiet = session.channels.create("busy"), session.channels.create("quiet")
    busy.publish_many([penstock.Event() for _ in range(20_000)])
    quiet.publish(b"at last")
    before = 0
    with session.subscribe("*", start="earliest") as subscription:
        for event in subscription:
            if event.channel == "quiet":
                break
            before += 1
        else:
            pytest.fail("the quiet one was starved")

    assert before <= 2 * 512


@pytest.mark.spec("D21")
def test_what_a_loop_has_left_comes_with_the_next_and_after_opening_again(
    session: Session,
) -> None:
    for name in ("a", "b"):
        events = [penstock.Event(b"%d" % n) for n in range(600)]
        session.channels.create(name).publish_many(events)
    subscription = session.subscribe("*", start="earliest")
    deliveries: list[tuple[str, bytes]] = []
    subscription.open()
    for _ in range(3):
        for event in subscription:
            deliveries.append((event.channel, event.data))
            if len(deliveries) % 7 == 0:
                break
    subscription.close()
    while len(deliveries) < 1_200:
        deliveries += take_events(subscription, 1)
    subscription.close()

    for name in ("a", "b"):
        assert [int(data) for channel, data in deliveries if channel == name] == list(range(600))


@pytest.mark.spec("D21")
def test_a_deleted_channel_leaves_quietly_and_one_of_its_name_is_a_new_one(
    session: Session,
) -> None:
    errors: list[Exception] = []
    session.on_error(errors.append)
    session.channels.create("a/1").publish(b"1")
    session.channels.create("a/2").publish(b"2")
    with session.subscribe("a/*", start="earliest") as subscription:
        got(subscription, 2)
        session.channels.delete("a/1")
        assert subscription.next_batch(0.2) is None
        assert subscription.channels == ["a/2"]

        session.channels.create("a/1").publish(b"again")

        assert got(subscription, 1) == [("a/1", b"again")]
    assert errors == []


@pytest.mark.spec("D21")
def test_an_invalid_pattern_is_refused_with_an_explanation(session: Session) -> None:
    with pytest.raises(InvalidName, match="cannot be"):
        session.subscribe("orders/../*")
    with pytest.raises(InvalidArgument, match="the list of channels is empty"):
        session.subscribe(" , ")
    with pytest.raises(InvalidArgument, match="give durable as well"):
        session.subscribe("a/*", window=5)  # type: ignore[call-overload]  # the point
    with pytest.raises(InvalidArgument, match="start and merged cannot be combined"):
        session.subscribe("a/*", durable="d", start="earliest")  # type: ignore[call-overload]
    with pytest.raises(NameDoesNotExist, match="has a durable billing"):
        session.subscribe("a/*", durable="billing").open()


@pytest.mark.spec("D21", "J5")
def test_a_pattern_outlives_a_lost_connection_and_hears_of_what_was_made_meanwhile(
    relay: Relay, direct_session: Session
) -> None:
    direct_session.channels.create("a/1")
    with (
        penstock.connect(relay.url) as session,
        session.subscribe("a/*", start="earliest") as subscription,
    ):
        direct_session.channels.get("a/1").publish(b"1")
        assert got(subscription, 1) == [("a/1", b"1")]
        relay.cut()
        direct_session.channels.create("a/2").publish(b"2")
        direct_session.channels.get("a/1").publish(b"3")

        assert got(subscription, 2) == [("a/1", b"3"), ("a/2", b"2")]


@pytest.mark.spec("D21")
def test_a_durable_is_read_on_each_channel_that_has_it(session: Session) -> None:
    for name in ("a/1", "a/2", "a/3"):
        session.channels.create(name).publish_many([penstock.Event(b"%d" % n) for n in range(3)])
    for name in ("a/1", "a/2"):
        session.channels.get(name).durables.create("d", type="serial", start="earliest")
    with session.subscribe("a/*", durable="d", window=2, timeout=0.2) as subscription:
        assert subscription.channels == ["a/1", "a/2"]
        tried: dict[tuple[str, bytes], int] = {}
        for event in subscription:
            key = event.channel, event.data
            tried[key] = tried.get(key, 0) + 1
            if event.data == b"1" and tried[key] == 1:
                event.rollback()
            else:
                event.ack()
        assert tried == {
            (name, b"%d" % n): 1 + (n == 1) for name in ("a/1", "a/2") for n in range(3)
        }

        session.channels.get("a/3").durables.create("d", start="earliest")

        events_left = 3
        while events_left:
            batch = subscription.next_batch(WAIT_S)
            assert batch is not None
            assert batch.channel == "a/3"
            batch.ack()
            events_left -= len(batch)
    for name in ("a/1", "a/2", "a/3"):
        assert session.channels.get(name).durables.get("d").info().outstanding == 0


@pytest.mark.spec("D21")
def test_a_durable_over_a_pattern_acknowledges_by_itself(session: Session) -> None:
    for name in ("a/1", "a/2"):
        channel = session.channels.create(name)
        channel.durables.create("d")
        channel.publish_many([penstock.Event() for _ in range(5)])

    reading = session.subscribe("a/*", durable="d", auto_ack=True, timeout=0.2)

    assert sorted(event.channel for event in reading) == ["a/1"] * 5 + ["a/2"] * 5
    for name in ("a/1", "a/2"):
        assert session.channels.get(name).durables.get("d").info().outstanding == 0


@pytest.mark.spec("D21")
@in_world
async def test_a_channel_that_is_made_costs_a_message_and_one_that_is_not_asked_costs_none(
    world: World,
) -> None:
    async with aio.connect(URL) as session:
        await session.channels.create("a/1")
        async with session.subscribe("a/*", start="earliest") as subscription:
            (connection,) = world.listener.connections
            sent = connection.describe().subscriptions
            await session.channels.create("b/1")
            made = await session.channels.create("a/2")
            await made.publish(b"x")
            batch = await subscription.next_batch(WAIT_S)

            assert batch is not None
            assert batch.channel == "a/2"
            assert connection.describe().subscriptions == sent + 1
            assert len(world.listener.realm.watches) == 1
    assert len(world.listener.realm.watches) == 0
