"""Settling event by event: what one turn of the loop settles ends as each call said."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

import penstock
from penstock import aio
from penstock_core.vocabulary.errors import IllegalState
from tests.loops import on_a_loop

EVENTS = 10
Story = Callable[[aio.Session, aio.Durable], Awaitable[None]]


@on_a_loop
async def play(realm: penstock.Realm, story: Story, **attributes: object) -> None:
    """Run a story on ten events and a durable without deliveries."""
    async with aio.connect(realm.listen()) as session:
        orders = await session.channels.create("orders")
        await orders.publish_many([penstock.Event(b"%d" % n) for n in range(EVENTS)])
        durable = await orders.durables.create("d", **attributes)  # type: ignore[arg-type]  # theirs
        await story(session, durable)


async def take_events(subscription: aio.DurableSubscription) -> dict[int, aio.DeliveredEvent]:
    batch = await subscription.next_batch(30)
    assert batch is not None
    return {int(event_id): event for event_id, event in zip(batch.event_ids, batch, strict=True)}


@pytest.mark.spec("D5", "E9")
def test_acknowledged_and_rolled_back_in_turns_within_one_turn_of_the_loop(
    realm: penstock.Realm,
) -> None:
    async def story(session: aio.Session, durable: aio.Durable) -> None:
        async with durable.subscribe(window=EVENTS) as subscription:
            for event_id, event in (await take_events(subscription)).items():
                await (event.ack() if event_id % 2 else event.rollback())
            await subscription.flush()

            again = await take_events(subscription)

            assert {i: event.redelivery_count for i, event in again.items()} == dict.fromkeys(
                range(0, EVENTS, 2), 1
            )
            assert (await durable.info()).outstanding == EVENTS // 2

    play(realm, story)


@pytest.mark.spec("D15")
def test_what_was_rolled_back_just_now_cannot_be_acknowledged(realm: penstock.Realm) -> None:
    async def story(session: aio.Session, durable: aio.Durable) -> None:
        session.on_error(lambda error: None)
        async with durable.subscribe(window=EVENTS) as subscription:
            events = await take_events(subscription)
            await events[3].rollback()
            await events[3].ack()

            with pytest.raises(IllegalState, match="event 3"):
                await subscription.flush()

            assert [*await take_events(subscription)] == [3]

    play(realm, story)


@pytest.mark.slow
@pytest.mark.spec("D15")
def test_what_was_acknowledged_just_now_cannot_be_rolled_back(realm: penstock.Realm) -> None:
    async def story(session: aio.Session, durable: aio.Durable) -> None:
        async with durable.subscribe(window=EVENTS) as subscription:
            events = await take_events(subscription)
            await events[3].ack()
            await events[3].rollback()
            await subscription.flush()

            assert (await durable.info()).outstanding == EVENTS - 1
            assert await subscription.next_batch(0.1) is None

    play(realm, story)


@pytest.mark.spec("D5")
def test_all_previous_ones_are_without_what_was_rolled_back_before(realm: penstock.Realm) -> None:
    async def story(session: aio.Session, durable: aio.Durable) -> None:
        async with durable.subscribe(window=EVENTS) as subscription:
            events = await take_events(subscription)
            await events[7].ack()
            await events[2].rollback()
            await events[4].ack(previous=True)
            await events[9].ack()
            await subscription.flush()

            assert [*await take_events(subscription)] == [2]
            assert (await durable.info()).outstanding == 4  # 2, and 5, 6, 8

    play(realm, story)


@pytest.mark.spec("D11")
def test_who_lost_events_to_another_client_settles_the_next_ones_without_asking(
    realm: penstock.Realm,
) -> None:
    """A recall concerns the events that were in hand, not those that come later."""

    async def story(session: aio.Session, durable: aio.Durable) -> None:
        async with (
            durable.subscribe(window=4) as one,
            durable.subscribe(window=4) as second,
        ):
            events = await take_events(one)
            await events[0].rollback()
            await one.flush()
            assert one._seat.may_recall
            for event in (await take_events(second)).values():
                await event.ack()
            await second.flush()

            assert [*await take_events(one)] == [4, 5, 6, 7]

            assert not one._seat.may_recall

    play(realm, story, type="serial", strict_order=True)
