"""Merge channels as users see them: register, update, full events and deltas (SEM K2-K5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import penstock
from packages.client.tests.patience import eventually
from penstock.client.sync.sync import Channel, Session
from penstock.client.sync.sync_subscription import Subscription

Seen = list[tuple[bool, dict[str, Any]]]


@pytest.fixture
def rates(session: Session) -> Channel:
    return session.channels.create("rates", engine="merge", keys={"ccy": 1}, type="persistent")


@pytest.fixture
def follower(rates: Channel) -> Iterator[Subscription]:
    with rates.subscribe(start="earliest", timeout=5) as reading:
        yield reading


def take(reading: Subscription, count: int) -> Seen:
    """The next events: whether they are deltas, and their properties."""
    deliveries: Seen = []
    while len(deliveries) < count:
        batch = reading.next_batch()
        assert batch is not None, f"only {deliveries} came"
        deliveries += [(event.is_delta, event.properties) for event in batch]
    return deliveries


def states(channel: Channel) -> dict[Any, dict[str, Any]]:
    browsed = list(channel.browse())
    assert not any(event.is_delta for event in browsed)
    return {event.properties.get("ccy"): event.properties for event in browsed}


@pytest.mark.spec("K2")
def test_an_update_changes_what_it_names_and_nothing_else(rates: Channel) -> None:
    eur = rates.register("EUR", bid=1.0, ask=2.0)

    eur.update(ask=5.0)

    assert eur.event_id == 1
    assert states(rates) == {"EUR": {"ccy": "EUR", "bid": 1.0, "ask": 5.0}}


@pytest.mark.spec("K3")
def test_a_subscriber_gets_the_state_first_and_then_what_changes(
    rates: Channel, follower: Subscription
) -> None:
    eur = rates.register("EUR", bid=1.0, ask=2.0)
    first = take(follower, 1)
    eur.update(ask=5.0)
    second = take(follower, 1)
    eur.update({"bid": None, "new": [1, 2]})

    assert first == [(False, {"ccy": "EUR", "bid": 1.0, "ask": 2.0})]
    assert second == [(True, {"ccy": "EUR", "ask": 5.0})]
    assert take(follower, 1) == [(True, {"ccy": "EUR", "bid": None, "new": [1, 2]})]


@pytest.mark.spec("K3")
def test_merged_events_are_whole_and_are_no_deltas(rates: Channel) -> None:
    with rates.subscribe(start="earliest", timeout=5, merged=True) as reading:
        eur = rates.register("EUR", bid=1.0, ask=2.0)
        seen = take(reading, 1)
        eur.update(ask=5.0)
        seen += take(reading, 1)
        rates.publish(properties={"ccy": "EUR", "only": 1})
        seen += take(reading, 1)
        eur.update(ask=None)
        seen += take(reading, 1)

    assert seen == [
        (False, {"ccy": "EUR", "bid": 1.0, "ask": 2.0}),
        (False, {"ccy": "EUR", "bid": 1.0, "ask": 5.0}),
        (False, {"ccy": "EUR", "only": 1}),
        (False, {"ccy": "EUR", "only": 1, "ask": None}),
    ]


@pytest.mark.spec("K3")
def test_who_comes_for_live_events_gets_each_key_whole_once(rates: Channel) -> None:
    eur = rates.register("EUR", bid=1.0, ask=2.0)
    with rates.subscribe(start="latest", timeout=5) as reading:
        eur.update(ask=5.0)
        first = take(reading, 1)
        eur.update(ask=6.0)

        assert first == [(False, {"ccy": "EUR", "bid": 1.0, "ask": 5.0})]
        assert take(reading, 1) == [(True, {"ccy": "EUR", "ask": 6.0})]


@pytest.mark.spec("K4")
def test_a_late_subscriber_sees_states_and_no_history(rates: Channel) -> None:
    eur, usd = rates.register("EUR", a=1), rates.register("USD", a=1)
    for n in range(10):
        eur.update(a=n, b=n)
    usd.update(c=3)

    with rates.subscribe(start="earliest", timeout=5) as reading:
        assert take(reading, 2) == [
            (False, {"ccy": "EUR", "a": 9, "b": 9}),
            (False, {"ccy": "USD", "a": 1, "c": 3}),
        ]
    assert rates.info().events == 2
    assert rates.info().counters.replaced == 11


@pytest.mark.spec("K4")
def test_a_delta_of_an_unknown_key_is_a_full_event(rates: Channel, follower: Subscription) -> None:
    rates.update("EUR", ask=5.0)

    assert take(follower, 1) == [(False, {"ccy": "EUR", "ask": 5.0})]


@pytest.mark.spec("K4", "T9")
def test_a_purged_key_is_unknown(rates: Channel, follower: Subscription) -> None:
    eur = rates.register("EUR", bid=1.0, ask=2.0)
    take(follower, 1)
    rates.purge()
    eur.update(ask=5.0)

    assert take(follower, 1) == [(False, {"ccy": "EUR", "ask": 5.0})]


@pytest.mark.spec("K4")
def test_an_ordinary_publish_replaces_the_state(rates: Channel, follower: Subscription) -> None:
    rates.register("EUR", bid=1.0, ask=2.0)
    take(follower, 1)
    rates.publish(b"data", properties={"ccy": "EUR", "ask": 7.0})

    assert take(follower, 1) == [(False, {"ccy": "EUR", "ask": 7.0})]
    assert states(rates) == {"EUR": {"ccy": "EUR", "ask": 7.0}}


@pytest.mark.spec("K3")
def test_several_deltas_of_one_publish_come_as_one(rates: Channel, follower: Subscription) -> None:
    rates.register("EUR", a=1, b=1, c=1)
    take(follower, 1)
    rates.publish_many(
        [
            penstock.Event(properties={"ccy": "EUR", "a": 2}, is_delta=True),
            penstock.Event(properties={"ccy": "EUR", "b": 3}, is_delta=True),
            penstock.Event(properties={"ccy": "EUR", "a": None}, is_delta=True),
        ]
    )

    assert take(follower, 1) == [(True, {"ccy": "EUR", "a": None, "b": 3})]
    assert states(rates) == {"EUR": {"ccy": "EUR", "a": None, "b": 3, "c": 1}}


@pytest.mark.spec("K3", "F1")
def test_a_selector_looks_at_the_merged_event(rates: Channel) -> None:
    eur = rates.register("EUR", bid=1.0, ask=2.0)
    with rates.subscribe(start="earliest", timeout=5, selector="bid + ask > 5") as reading:
        eur.update(ask=5.0)  # it has not been sent before: whole
        first = take(reading, 1)
        eur.update(ask=6.0)  # now it has
        second = take(reading, 1)
        eur.update(ask=0.0)  # out of sight
        eur.update(bid=9.0)  # visible again: the missed change is delivered, too
        third = take(reading, 1)

    assert first == [(False, {"ccy": "EUR", "bid": 1.0, "ask": 5.0})]
    assert second == [(True, {"ccy": "EUR", "ask": 6.0})]
    assert third == [(False, {"ccy": "EUR", "bid": 9.0, "ask": 0.0})]


@pytest.mark.spec("K3", "D4")
@pytest.mark.parametrize("kind", ["exclusive", "priority", "shared", "serial", "shared_queued"])
def test_durables_get_whole_events(rates: Channel, kind: penstock.DurableType) -> None:
    rates.edit(retain_consumed=True)
    eur = rates.register("EUR", bid=1.0, ask=2.0)
    durable = rates.durables.create("audit", type=kind, start="earliest")
    with durable.subscribe(timeout=5) as reading:
        seen = []
        for event in reading:
            seen.append((event.is_delta, event.properties))
            event.ack()
            if len(seen) == 2:
                break
            eur.update(ask=5.0)

    assert seen == [
        (False, {"ccy": "EUR", "bid": 1.0, "ask": 2.0}),
        (False, {"ccy": "EUR", "bid": 1.0, "ask": 5.0}),
    ]


@pytest.mark.spec("K3", "K4", "D6")
def test_a_state_that_all_durables_have_acknowledged_stays_and_is_changed_by_deltas(
    rates: Channel,
) -> None:
    eur = rates.register("EUR", bid=1.0, ask=2.0)
    follower = rates.subscribe(start="earliest", timeout=5).open()
    got = [next(iter(follower))]
    with rates.durables.create("audit", start="earliest").subscribe(timeout=5) as reading:
        next(iter(reading)).ack()
    eur.update(ask=5.0)
    got.append(next(iter(follower)))

    assert [(event.is_delta, event.properties) for event in got] == [
        (False, {"ccy": "EUR", "bid": 1.0, "ask": 2.0}),
        (True, {"ccy": "EUR", "ask": 5.0}),
    ]
    assert states(rates) == {"EUR": {"ccy": "EUR", "bid": 1.0, "ask": 5.0}}
    counters = rates.info().counters
    assert (counters.published, counters.replaced, counters.consumed) == (2, 1, 0)


@pytest.mark.spec("K2", "L1")
def test_a_join_copies_whole_events(session: Session, rates: Channel) -> None:
    history = session.channels.create("history")
    session.joins.create("rates", "history", selector="bid > 0")
    eur = rates.register("EUR", bid=1.0, ask=2.0)
    eur.update(ask=5.0)
    eur.update(bid=-1.0)
    eur.update(bid=3.0)

    assert [event.properties for event in history.browse()] == [
        {"ccy": "EUR", "bid": 1.0, "ask": 2.0},
        {"ccy": "EUR", "bid": 1.0, "ask": 5.0},
        {"ccy": "EUR", "bid": 3.0, "ask": 5.0},
    ]


@pytest.mark.slow
@pytest.mark.spec("K2", "T1", "T7")
def test_what_expires_goes_whole_to_the_dead_event_store(session: Session) -> None:
    dead = session.channels.create("dead")
    rates = session.channels.create(
        "short", engine="merge", keys={"ccy": 1}, ttl=1_000, dead_event_store="dead"
    )
    before = session.channels.create("before", engine="merge", keys={"ccy": 1})
    before.register("EUR", bid=1.0).update(bid=2.0)  # the first ones take long
    rates.register("EUR", bid=1.0, ask=2.0).update(ask=5.0)

    eventually(lambda: rates.info().events == 0)

    assert [event.properties for event in dead.browse()] == [{"ccy": "EUR", "bid": 1.0, "ask": 5.0}]


@pytest.mark.spec("K2", "X1")
def test_a_transaction_may_hold_deltas(rates: Channel) -> None:
    rates.register("EUR", bid=1.0, ask=2.0)
    with rates.transaction() as tx:
        tx.publish_many([penstock.Event(properties={"ccy": "EUR", "ask": 3.0}, is_delta=True)])
        tx.publish_many([penstock.Event(properties={"ccy": "EUR", "bid": 4.0}, is_delta=True)])

    assert states(rates) == {"EUR": {"ccy": "EUR", "bid": 4.0, "ask": 3.0}}


@pytest.mark.spec("K2")
def test_a_table_of_deltas(rates: Channel) -> None:
    rates.publish_table(pa.table({"ccy": ["EUR", "USD"], "bid": [1.0, 2.0], "ask": [3.0, 4.0]}))
    rates.publish_table(pa.table({"ccy": ["USD", "EUR"], "ask": [9.0, None]}), delta=True)

    assert states(rates) == {
        "EUR": {"ccy": "EUR", "bid": 1.0, "ask": None},
        "USD": {"ccy": "USD", "bid": 2.0, "ask": 9.0},
    }


@pytest.mark.spec("K2", "C7")
def test_an_export_holds_states_and_an_import_goes_on_from_them(
    session: Session, rates: Channel, tmp_path: Any
) -> None:
    rates.register("EUR", bid=1.0, ask=2.0).update(ask=5.0)
    rates.register("USD", bid=3.0)
    session.channels.export("rates", tmp_path / "out")

    copy = session.channels.import_from(tmp_path / "out", "copy")
    before = states(copy)
    copy.update("EUR", bid=7.0)

    assert before == states(rates)
    assert states(copy)["EUR"] == {"ccy": "EUR", "bid": 7.0, "ask": 5.0}


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.spec("K2")
def test_updates_need_a_merge_channel(session: Session, orders: Channel) -> None:
    delta = penstock.Event(properties={"a": 1}, is_delta=True)
    queue = session.queues.create("jobs")

    for refused in (
        lambda: orders.publish_many([delta]),
        lambda: orders.publish_table(pa.table({"a": [1]}), delta=True),
        lambda: orders.register("EUR", a=1),
        lambda: orders.update("EUR", a=1),
        lambda: orders.subscribe(merged=True),
        lambda: orders.state("EUR"),
        lambda: queue.push_many([delta]),
    ):
        with pytest.raises(penstock.IllegalState, match=r"has (the )?engine default[:;,] "):
            refused()
    assert orders.info().counters.published == 0


@pytest.mark.spec("K2")
@pytest.mark.parametrize("properties", [{}, {"ask": 1.0}, {"ccy": None}, {"ccy": [1]}])
def test_a_delta_names_its_key(rates: Channel, properties: dict[str, Any]) -> None:
    sound = penstock.Event(properties={"ccy": "EUR", "ask": 1.0}, is_delta=True)
    delta = penstock.Event(b"x", properties=properties, is_delta=True)

    with pytest.raises(penstock.InvalidEvent, match="event 1 is a delta without a value of 'ccy'"):
        rates.publish_many([sound, delta])
    assert rates.info().events == 0


@pytest.mark.spec("K2")
def test_an_update_cannot_become_another_key(rates: Channel) -> None:
    eur = rates.register("EUR", bid=1.0)

    with pytest.raises(penstock.InvalidArgument, match="'EUR' and cannot be changed to 'USD'"):
        eur.update(ccy="USD")
    with pytest.raises(penstock.InvalidArgument, match="the value of ccy is None"):
        rates.register(None, bid=1.0)


@pytest.mark.spec("K2", "E8")
def test_what_is_merged_has_to_be_stored(rates: Channel) -> None:
    with pytest.raises(penstock.InvalidEvent, match="event 0 is transient"):
        rates.publish(properties={"ccy": "EUR"}, transient=True)


# --- earlier states ---------------------------------------------------------------------------


@pytest.mark.spec("K5")
@pytest.mark.parametrize("kind", ["channel", "queue"])
def test_the_state_as_of_an_event_comes_from_an_archive(
    session: Session, rates: Channel, kind: str
) -> None:
    (session.channels if kind == "channel" else session.queues).create("history")
    session.joins.create("rates", "history", archive=kind == "queue")
    eur = rates.register("EUR", bid=1.0, ask=2.0)
    rates.register("USD", bid=1.5)
    eur.update(ask=5.0)
    eur.update(ask=6.0)

    now = rates.state("EUR")
    then = rates.state("EUR", as_of=2, archive="history")
    first = rates.state("EUR", as_of=1, archive="history")

    assert (now.event_id, now.found_in) == (3, "rates")
    assert now.properties == {"ccy": "EUR", "bid": 1.0, "ask": 6.0}
    assert (then.event_id, then.found_in) == (2, "history")
    assert then.properties == {"ccy": "EUR", "bid": 1.0, "ask": 5.0}
    assert (first.event_id, first.properties["ask"]) == (0, 2.0)
    assert rates.state("USD", as_of=1).properties == {"ccy": "USD", "bid": 1.5}


@pytest.mark.spec("K5")
def test_an_error_about_a_missing_state_names_the_existing_one(
    session: Session, rates: Channel
) -> None:
    eur = rates.register("EUR", ask=2.0)
    eur.update(ask=5.0)
    session.channels.create("history")
    session.joins.create("rates", "history")
    eur.update(ask=6.0)

    with pytest.raises(penstock.InvalidArgument, match="has its state as of event 2; name"):
        rates.state("EUR", as_of=1)
    with pytest.raises(
        penstock.InvalidArgument, match="history has no state from event 1 or before"
    ):
        rates.state("EUR", as_of=1, archive="history")
    with pytest.raises(
        penstock.InvalidArgument, match="'CHF' is no longer on rates, which has nothing"
    ):
        rates.state("CHF")
    with pytest.raises(penstock.NameDoesNotExist):
        rates.state("EUR", as_of=1, archive="nowhere")
    with pytest.raises(penstock.InvalidArgument, match="as_of -1"):
        rates.state("EUR", as_of=-1)
