"""Durables that go back and forward, over a session."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import penstock
from packages.client.tests.patience import eventually
from packages.client.tests.simulated import URL, World, in_world
from penstock import aio
from penstock.client.sync.sync import Channel, Session
from penstock_core.api.durables import SeekDurable, SeekOutcome
from penstock_core.vocabulary.errors import (
    DurableInUse,
    IllegalState,
    InvalidArgument,
    NameDoesNotExist,
)
from penstock_core.vocabulary.start_positions import FromId
from penstock_testing.relay import Relay

pytestmark = pytest.mark.spec("D20")

WAIT_S = 30.0


@pytest.fixture
def kept(session: Session) -> Channel:
    """A channel with six events that stay."""
    channel = session.channels.create("kept", type="persistent", retain_consumed=True)
    channel.publish_many([penstock.Event(properties={"n": n}) for n in range(6)])
    return channel


def drain(channel: Channel, name: str) -> list[int]:
    """Acknowledge everything; gives the ids."""
    durable = channel.durables.get(name)
    events = durable.fetch(100, timeout=0.0)
    for event in events:
        event.ack()
    durable.flush()
    durable.close()
    return [event.event_id or 0 for event in events]


def test_what_was_acknowledged_comes_again_from_any_place(kept: Channel) -> None:
    billing = kept.durables.create("billing")
    assert drain(kept, "billing") == [0, 1, 2, 3, 4, 5]

    assert billing.seek("earliest").again == 6
    assert drain(kept, "billing") == [0, 1, 2, 3, 4, 5]
    assert billing.seek(4).outstanding == 2
    assert drain(kept, "billing") == [4, 5]
    billing.seek(datetime(2000, 1, 1, tzinfo=UTC))
    assert billing.info().outstanding == 6
    outcome = billing.seek("latest")
    assert (outcome.position, outcome.skipped, outcome.outstanding) == (6, 6, 0)
    assert drain(kept, "billing") == []


def test_a_time_is_that_of_the_first_event_published_then_or_later(kept: Channel) -> None:
    billing = kept.durables.create("billing")
    kept.publish(b"later")
    times = [event.published for event in kept.browse() if event.published is not None]
    middle = next(n for n, time in enumerate(times) if time == times[-1])

    assert billing.seek(times[-1]).position == middle
    assert billing.seek(times[-1] + timedelta(days=1), preview=True).position == 7


def test_a_preview_changes_nothing_and_names_missing_events(
    session: Session, kept: Channel
) -> None:
    billing = kept.durables.create("billing")
    drain(kept, "billing")
    kept.purge(start=0, end=1)

    preview = billing.seek("earliest", preview=True)

    assert (preview.position, preview.again, preview.skipped, preview.taken_back) == (2, 4, 0, 0)
    assert (preview.outstanding, preview.gone) == (4, {"purged": 2})
    assert billing.info().outstanding == 0
    assert billing.seek("earliest") == preview


def test_with_a_selector_only_what_matches_comes_again(kept: Channel) -> None:
    odd = kept.durables.create("odd", selector="n in (1, 3, 5)")
    assert drain(kept, "odd") == [1, 3, 5]

    assert odd.seek(2, preview=True).again == 2
    assert odd.seek(2).again == 2
    kept.publish(properties={"n": 3})

    assert drain(kept, "odd") == [3, 5, 6]


def test_what_is_in_hand_is_taken_back_and_a_late_acknowledgement_is_refused(
    kept: Channel,
) -> None:
    billing = kept.durables.create("billing")
    with billing.subscribe(window=6) as subscription:
        mine = subscription.next_batch(WAIT_S)
        assert mine is not None
        assert mine.event_ids.tolist() == [0, 1, 2, 3, 4, 5]

        assert billing.seek(3).taken_back == 6

        with pytest.raises(IllegalState, match="the durable was moved to another position"):
            subscription.ack([0, 5])
        again = subscription.next_batch(WAIT_S)
        assert again is not None
        assert again.event_ids.tolist() == [3, 4, 5]
        assert not any(event.redelivered for event in again)
        again.ack()
    assert billing.info().outstanding == 0


def test_what_waits_in_the_client_is_not_handed_out(kept: Channel) -> None:
    billing = kept.durables.create("billing")
    with billing.subscribe(window=6, timeout=0.2) as subscription:
        seen = []
        for event in subscription:
            seen.append(event.event_id)
            if seen == [0]:
                billing.seek("latest")
                kept.publish(b"new")
                continue
            event.ack()
    assert seen == [0, 6]


@pytest.mark.parametrize("type", ["exclusive", "serial", "shared"])
def test_whoever_is_subscribed_goes_on_from_there(kept: Channel, type: str) -> None:
    billing = kept.durables.create("billing", type=type)  # type: ignore[arg-type]  # a parameter
    with billing.subscribe(auto_ack=True, timeout=0.2) as subscription:
        first = [event.event_id for event in subscription]
        billing.seek(4)
        second = [event.event_id for event in subscription]

    assert (first, second) == ([0, 1, 2, 3, 4, 5], [4, 5])


def test_seeking_a_removed_event_names_the_cause(session: Session) -> None:
    orders = session.channels.create("orders")
    billing = orders.durables.create("billing")
    orders.publish_many([penstock.Event()] * 3)
    drain(orders, "billing")
    orders.publish(b"x")
    former = orders.durables.create("former")
    orders.durables.delete("former")

    with pytest.raises(
        IllegalState, match=r"event 1 of orders is not stored \(consumed\); the next"
    ):
        billing.seek(1)
    with pytest.raises(IllegalState, match=r"is not stored \(consumed\)"):
        billing.seek(1, preview=True)
    with pytest.raises(InvalidArgument, match="event 9 of orders does not exist yet"):
        billing.seek(9)
    with pytest.raises(
        InvalidArgument, match="give 'earliest', 'latest', an event id, or a time with its zone"
    ):
        billing.seek("newest")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(NameDoesNotExist):
        former.seek("earliest")
    assert billing.seek("earliest", preview=True).gone == {"consumed": 3}


def test_a_durable_that_is_held_as_a_whole_stays_where_it_is(kept: Channel) -> None:
    lake = kept.durables.create("lake")
    with lake.hold(), pytest.raises(DurableInUse, match="held as a whole"):
        lake.seek("earliest")
    lake.seek("latest")


@in_world
async def test_the_asynchronous_client_seeks_alike(world: World) -> None:
    async with aio.connect(URL) as session:
        orders = await session.channels.create("orders", retain_consumed=True)
        billing = await orders.durables.create("billing")
        await orders.publish_many([aio.Event(), aio.Event()])
        for event in await billing.fetch(2, timeout=1):
            await event.ack()
        await billing.flush()

        assert (await billing.seek("earliest", preview=True)).again == 2
        assert (await billing.seek(1)).again == 1

        (event,) = await billing.fetch(2, timeout=1)
        assert event.event_id == 1


@pytest.mark.spec("D4")
def test_it_outlives_the_realm(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        kept = session.channels.create("kept", type="persistent", retain_consumed=True)
        kept.durables.create("billing")
        kept.publish_many([penstock.Event()] * 4)
        drain(kept, "billing")
        kept.durables.get("billing").seek(2)
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        assert drain(session.channels.get("kept"), "billing") == [2, 3]


@pytest.mark.slow
def test_one_whose_answer_is_lost_is_done_once(relay: Relay, direct_session: Session) -> None:
    """The repeated seek gets the first answer, and does not skip events published since."""
    orders = direct_session.channels.create("orders")
    theirs = orders.durables.create("billing")
    orders.publish_many([penstock.Event()] * 3)
    with penstock.connect(relay.url) as session, ThreadPoolExecutor(1) as pool:
        billing = session.channels.get("orders").durables.get("billing")
        relay.hold_answers()
        waiting = pool.submit(billing.seek, "latest")
        eventually(lambda: theirs.info().outstanding == 0)
        orders.publish(b"new")
        relay.cut()
        relay.release_answers()

        outcome = waiting.result(WAIT_S)

    assert (outcome.position, outcome.skipped, outcome.outstanding) == (3, 3, 1)
    assert theirs.info().outstanding == 1


@in_world
async def test_an_older_one_that_is_asked_for_again_gets_its_own_answer(world: World) -> None:
    """Its answer was lost, and another client has moved the durable since."""
    async with aio.connect(URL) as session:
        orders = await session.channels.create("orders", retain_consumed=True)
        billing = await orders.durables.create("billing")
        await orders.publish_many([aio.Event()] * 4)
        number, ask = orders.number, session.connection.ask
        older = SeekDurable(number, "billing", FromId(3), key="older")
        first = await ask(older, SeekOutcome)
        await ask(SeekDurable(number, "billing", FromId(1), key="newer"), SeekOutcome)

        second = await ask(older, SeekOutcome)

        assert (first.position, first.skipped, first.outstanding) == (3, 3, 1)
        assert (second.position, second.skipped, second.outstanding) == (3, 3, 3)
        assert (await billing.info()).outstanding == 3
