"""Durables over a session: kinds, seats, settlement, handlers, fetches."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from packages.client.tests.received_ids import ids
from penstock.client.sync.sync import Channel, Session
from penstock.client.sync.sync_delivered import DeliveredEvent
from penstock_core.vocabulary.errors import IllegalState

WAIT_S = 30.0


@pytest.fixture
def ten(orders: Channel) -> Channel:
    orders.publish_many([penstock.Event(properties={"n": n}) for n in range(10)])
    return orders


@pytest.mark.spec("D1", "D2")
def test_durables_are_made_listed_found_and_deleted(orders: Channel) -> None:
    orders.durables.create("b", type="exclusive")
    orders.durables.create("a", selector="n > 5")

    assert [(d.name, d.type, d.selector) for d in orders.durables.list()] == [
        ("a", "shared", "n > 5"),
        ("b", "exclusive", ""),
    ]
    assert orders.durables.get("a").info().outstanding == 0

    orders.durables.delete("a")

    assert [d.name for d in orders.durables.list()] == ["b"]
    with pytest.raises(penstock.NameDoesNotExist, match="a"):
        orders.durables.get("a")
    with pytest.raises(penstock.NameDoesNotExist, match="a"):
        orders.durables.delete("a")
    with pytest.raises(penstock.NameAlreadyBound, match="b"):
        orders.durables.create("b")


@pytest.mark.spec("D3")
@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"colour": 5}, "durables have no attribute colour; allowed are type, start"),
        ({"taste": "sweet", "colour": 5}, "colour, taste"),
        ({"order_by": "sku"}, "type shared cannot have order_by"),
        ({"order_by": 5, "type": "serial"}, "order_by is 5; give the name of a property"),
        ({"strict_order": True}, "type shared cannot have strict_order"),
        ({"max_deliveries": -1}, "max_deliveries is -1; give a whole number of deliveries"),
        ({"max_deliveries": 2.5}, "max_deliveries is 2.5"),
        ({"type": "blue"}, "blue"),
        ({"type": "exclusive", "selector": "n > 5"}, "exclusive"),
        ({"start": "soon"}, "start is 'soon'"),
    ],
)
def test_an_attribute_that_cannot_be_is_refused(
    orders: Channel, attributes: dict[str, object], says: str
) -> None:
    with pytest.raises(penstock.PenstockError, match=says):
        orders.durables.create("d", **attributes)  # type: ignore[arg-type]  # that is the point

    assert orders.durables.list() == []


@pytest.mark.slow
@pytest.mark.spec("D5", "D9")
def test_a_window_bounds_what_is_unsettled(ten: Channel) -> None:
    durable = ten.durables.create("d")
    with durable.subscribe(window=3, timeout=0.2) as subscription:
        first = subscription.next_batch(30)
        assert first is not None
        assert ids(first) == [0, 1, 2]
        assert subscription.next_batch() is None
        assert durable.info().in_flight == 3

        first[0].ack()
        first[1].rollback()

        second = [subscription.next_batch(30), subscription.next_batch(0.2)]
        assert {e.event_id for batch in second if batch is not None for e in batch} == {1, 3}


@pytest.mark.spec("D9")
@pytest.mark.parametrize("kind", ["exclusive", "shared"])
@pytest.mark.parametrize("window", [0, -1, 1 << 40])
def test_a_window_that_cannot_be_is_refused(
    orders: Channel, kind: penstock.DurableType, window: int
) -> None:
    durable = orders.durables.create("d", type=kind)

    with pytest.raises(penstock.InvalidArgument, match="window"):
        durable.subscribe(window=window).open()


@pytest.mark.spec("D9")
def test_a_window_and_auto_ack_exclude_each_other(orders: Channel) -> None:
    durable = orders.durables.create("d")

    with pytest.raises(penstock.InvalidArgument, match="give window or auto_ack, not both"):
        durable.subscribe(window=3, auto_ack=True)


@pytest.mark.spec("D14")
def test_an_exclusive_durable_takes_one_session(realm: penstock.Realm, ten: Channel) -> None:
    durable = ten.durables.create("d", type="exclusive")
    with realm.connect() as other_session:
        theirs = other_session.channels.get("orders").durables.get("d")
        with durable.subscribe(), pytest.raises(penstock.DurableInUse):
            theirs.subscribe().open()

        with theirs.subscribe(timeout=5) as subscription:
            assert ids(subscription.next_batch() or [])[0] == 0


@pytest.mark.slow
@pytest.mark.spec("D7", "D13")
def test_what_a_worker_leaves_unsettled_goes_to_the_next_counted(ten: Channel) -> None:
    durable = ten.durables.create("d")
    with durable.subscribe(window=4) as subscription:
        batch = subscription.next_batch(30)
        assert batch is not None
        batch[0].ack()

    with durable.subscribe(window=20, timeout=0.2) as subscription:
        again = list(subscription)

    assert [(e.event_id, e.redelivery_count) for e in again[:3]] == [(1, 1), (2, 1), (3, 1)]
    assert ids(again) == list(range(1, 10))
    assert (again[0].redelivered, again[-1].redelivered) == (True, False)


@pytest.mark.spec("E9")
def test_a_rolled_back_event_returns_with_its_count(ten: Channel) -> None:
    durable = ten.durables.create("d", selector="n = 0")
    counts = []
    with durable.subscribe(window=1, timeout=5) as subscription:
        for event in subscription:
            counts.append(event.redelivery_count)
            if event.redelivery_count == 3:
                event.ack()
                break
            event.rollback()

    assert counts == [0, 1, 2, 3]
    assert durable.info().outstanding == 0


def test_ack_previous_covers_what_the_subscription_holds(ten: Channel) -> None:
    durable = ten.durables.create("d")
    with durable.subscribe(window=10) as subscription:
        batch = subscription.next_batch(30)
        assert batch is not None
        batch[6].ack(previous=True)
        subscription.flush()

        assert durable.info().outstanding == 3


def test_an_exclusive_ack_covers_everything_before(ten: Channel) -> None:
    durable = ten.durables.create("d", type="exclusive")
    with durable.subscribe() as subscription:
        batch = subscription.next_batch(30)
        assert batch is not None
        batch[6].ack()

    assert durable.info().outstanding == 3


@pytest.mark.spec("D15")
def test_only_the_receiver_may_settle_and_a_second_ack_changes_nothing(ten: Channel) -> None:
    durable = ten.durables.create("d")
    with durable.subscribe(window=3) as mine, durable.subscribe(window=3) as theirs:
        own_batch, their_batch = mine.next_batch(30), theirs.next_batch(30)
        assert own_batch is not None
        assert their_batch is not None
        with pytest.raises(
            penstock.IllegalState, match="only the subscription that holds it may settle it"
        ):
            mine.ack(their_batch.event_ids.tolist())

        mine.ack(own_batch.event_ids.tolist())
        mine.ack(own_batch.event_ids.tolist())
        their_batch.rollback()

    assert durable.info().outstanding == 10 - len(own_batch)


@pytest.mark.slow
@pytest.mark.spec("D8")
def test_two_workers_share_and_nothing_is_settled_twice(ten: Channel) -> None:
    durable = ten.durables.create("d")

    def work() -> list[int | None]:
        with durable.subscribe(window=1, timeout=0.5) as subscription:
            seen = []
            for event in subscription:
                seen.append(event.event_id)
                event.ack()
            return seen

    with ThreadPoolExecutor(2) as pool:
        seen = [future.result(60) for future in [pool.submit(work), pool.submit(work)]]

    assert len(seen[0]) + len(seen[1]) == 10
    assert {*seen[0], *seen[1]} == set(range(10))
    assert durable.info().outstanding == 0


@pytest.mark.spec("D8")
def test_ten_events_are_shared_one_by_one_by_two_clients_that_set_no_window(
    orders: Channel,
) -> None:
    durable = orders.durables.create("d")
    with durable.subscribe() as first, durable.subscribe() as second:
        orders.publish_many([penstock.Event(b"%d" % n) for n in range(10)])

        got = [first.next_batch(WAIT_S), second.next_batch(WAIT_S)]

        ids_by_batch = sorted(batch.event_ids.tolist() for batch in got if batch is not None)
        assert ids_by_batch == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


@pytest.mark.slow
@pytest.mark.spec("D3", "D4")
@pytest.mark.parametrize("type_", ["reliable", "off_heap", "persistent"])
@pytest.mark.parametrize("kind", ["exclusive", "priority", "serial", "shared", "shared_queued"])
def test_a_durable_survives_a_restart_even_where_events_do_not(
    tmp_path: Path, type_: penstock.ChannelType, kind: penstock.DurableType
) -> None:
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        channel = session.channels.create("orders", type=type_)
        durable = channel.durables.create("d", type=kind)
        channel.publish_many([penstock.Event(b"%d" % n) for n in range(3)])
        durable.fetch(1, WAIT_S)[0].ack()
        durable.flush()

    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        channel = session.channels.get("orders")
        durable = channel.durables.get("d")
        remaining = 2 if type_ == "persistent" else 0
        assert (durable.info().persistent, durable.info().outstanding) == (True, remaining)
        assert channel.publish(b"next") == 3
        (*_, event) = durable.fetch(remaining + 1, WAIT_S)
        assert event.data == b"next"


@pytest.mark.spec("D5")
def test_a_handler_acknowledges_by_returning_and_may_use_the_session(
    session: Session, ten: Channel
) -> None:
    results = session.channels.create("results")
    durable = ten.durables.create("d", selector="n < 5")
    done = threading.Event()

    def handle(event: DeliveredEvent) -> None:
        if results.publish(event.data, properties=event.properties) == 4:
            done.set()

    with durable.subscribe(handle, auto_ack=True) as subscription:
        assert done.wait(30)
        while durable.info().outstanding:
            subscription.flush()

    assert results.read()["n"].to_pylist() == list(range(5))


@pytest.mark.spec("D5")
def test_a_handler_that_fails_gives_the_event_back_and_is_reported(
    session: Session, ten: Channel
) -> None:
    durable = ten.durables.create("d", selector="n = 3")
    counts: list[int] = []
    reports: list[penstock.PenstockError] = []
    session.on_error(reports.append)
    done = threading.Event()

    def handle(event: DeliveredEvent) -> None:
        counts.append(event.redelivery_count)
        if len(counts) < 3:
            raise ValueError("not today")
        event.ack()
        done.set()

    with durable.subscribe(handle):
        assert done.wait(30)

    assert counts == [0, 1, 2]
    assert [str(report) for report in reports] == [
        "the handler of durable d failed on event 3: ValueError('not today')"
    ] * 2
    assert durable.info().outstanding == 0


@pytest.mark.slow
@pytest.mark.spec("D5")
def test_a_fetch_gives_what_comes_in_time(ten: Channel) -> None:
    durable = ten.durables.create("d")

    first, second = durable.fetch(4), durable.fetch(50, timeout=0.1)
    for event in first + second:
        event.ack()
    durable.flush()

    assert (ids(first), ids(second)) == ([0, 1, 2, 3], [4, 5, 6, 7, 8, 9])
    assert durable.fetch(1, timeout=0.1) == []
    assert durable.info().outstanding == 0
    with pytest.raises(penstock.InvalidArgument, match="whole number of events, 1 or more"):
        durable.fetch(0)


def test_a_fetch_waits_for_what_is_published_meanwhile(orders: Channel) -> None:
    durable = orders.durables.create("d")
    with ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(durable.fetch, 2, 30)
        orders.publish(b"a")
        orders.publish(b"b")

        assert [event.data for event in fetched.result(30)] == [b"a", b"b"]


def test_threads_that_fetch_from_one_handle_take_turns(ten: Channel) -> None:
    durable = ten.durables.create("d")
    with ThreadPoolExecutor(5) as pool:
        fetched = list(pool.map(lambda _: durable.fetch(2, 5), range(5)))

    assert sorted(map(len, fetched)) == [2] * 5
    assert {event.event_id for part in fetched for event in part} == set(range(10))
    assert len(durable.info().clients) == 1


def test_closing_a_handle_leaves_the_seat_of_its_fetches(ten: Channel) -> None:
    durable = ten.durables.create("d", type="exclusive")
    durable.fetch(3)
    assert len(durable.info().clients) == 1

    durable.close()

    assert durable.info().clients == ()
    assert ids(durable.fetch(3)) == [0, 1, 2]


@pytest.mark.spec("D16", "D17")
def test_a_browse_of_a_durable_shows_what_is_outstanding_and_changes_nothing(ten: Channel) -> None:
    durable = ten.durables.create("d")
    with durable.subscribe(window=4) as subscription:
        batch = subscription.next_batch(30)
        assert batch is not None
        batch[1].ack()
        subscription.flush()

        assert ids(durable.browse()) == [0, 2, 3, 4, 5, 6, 7, 8, 9]
        info = durable.info()
        assert (info.outstanding, info.in_flight, info.redelivered) == (9, 4, 0)
        assert (info.ready, info.pending) == (5, info.in_flight)
        assert len(info.clients) == 1
        assert info.oldest_outstanding_ms is not None


def test_a_durable_that_is_deleted_ends_its_subscriptions(ten: Channel) -> None:
    durable = ten.durables.create("d")
    with durable.subscribe(window=1) as subscription:
        assert subscription.next_batch(30) is not None

        ten.durables.delete("d")

        with pytest.raises(penstock.NameDoesNotExist, match="durable d was deleted"):
            subscription.next_batch(30)


@pytest.mark.spec("D13", "D14")
def test_unbinding_ends_all_subscriptions_and_others_may_follow(ten: Channel) -> None:
    durable = ten.durables.create("d", type="exclusive")
    held = durable.subscribe().open()
    batch = held.next_batch(30)
    assert batch is not None

    assert durable.unbind() == 1

    with pytest.raises(penstock.DurableUnbound, match="ended all subscriptions of durable d"):
        held.next_batch(30)
    with pytest.raises(IllegalState, match="is not open"):
        held.ack([0])
    held.close()
    assert durable.info().clients == ()
    with durable.subscribe() as next_one:
        again = next_one.next_batch(30)
        assert again is not None
        assert ids(again) == list(range(10))


@pytest.mark.spec("D13", "D14")
def test_what_unbound_clients_held_is_counted_as_for_any_that_is_gone(ten: Channel) -> None:
    durable = ten.durables.create("d")
    seats = [durable.subscribe(window=2).open() for _ in range(2)]
    for seat in seats:
        assert seat.next_batch(30) is not None

    assert durable.unbind() == 2
    assert durable.unbind() == 0

    assert durable.info().redelivered == 4
    assert durable.info().in_flight == 0
    for seat in seats:
        with pytest.raises(penstock.DurableUnbound):
            seat.next_batch(30)
    assert ids(durable.fetch(10, 1)) == list(range(10))
    durable.close()
    ten.durables.delete("d")
    with pytest.raises(penstock.NameDoesNotExist):
        durable.unbind()


def test_a_fetch_from_an_unbound_seat_says_so_until_it_is_closed(ten: Channel) -> None:
    durable = ten.durables.create("d")
    durable.fetch(2)
    durable.unbind()

    with pytest.raises(penstock.DurableUnbound):
        durable.fetch(2, 0.1)
    durable.close()
    assert ids(durable.fetch(2)) == [0, 1]


def test_a_channel_that_is_deleted_ends_its_subscriptions(session: Session, ten: Channel) -> None:
    with ten.subscribe() as subscription:
        session.channels.delete("orders")

        with pytest.raises(penstock.NameDoesNotExist, match="the channel was deleted"):
            subscription.next_batch(30)
    with pytest.raises(penstock.NameDoesNotExist, match="open the channel again"):
        ten.publish(b"")


@pytest.mark.slow
def test_auto_ack_acknowledges_what_was_iterated_over(ten: Channel) -> None:
    events = ten.durables.create("events")
    batches = ten.durables.create("batches")

    assert ids(events.subscribe(auto_ack=True, timeout=0.2)) == list(range(10))
    assert sum(len(b) for b in batches.subscribe(auto_ack=True, timeout=0.2).batches()) == 10

    assert (events.info().outstanding, batches.info().outstanding) == (0, 0)


@pytest.mark.parametrize(("selector", "gone"), [("", 3), ("n = 2", 1)])
def test_a_durable_is_purged_for_itself_alone(
    session: penstock.Session, selector: str, gone: int
) -> None:
    orders = session.channels.create("orders")
    mine = orders.durables.create("mine", type="serial")
    other_durable = orders.durables.create("other", type="shared")
    orders.publish_many([penstock.Event(properties={"n": n}) for n in range(5)])

    assert mine.purge(start=1, end=3, selector=selector) == gone
    assert mine.info().outstanding == 5 - gone
    assert other_durable.info().outstanding == 5


@pytest.mark.parametrize("type", ["exclusive", "priority", "shared_queued"])
def test_some_types_of_durable_cannot_be_purged(
    session: penstock.Session, type: penstock.DurableType
) -> None:
    orders = session.channels.create("orders")
    mine = orders.durables.create("mine", type=type)
    orders.publish(b"1")

    with pytest.raises(IllegalState, match=f"mine is {type}"):
        mine.purge()
    assert mine.info().outstanding == 1


@pytest.mark.spec("D16", "E9")
def test_browsing_shows_how_often_events_were_delivered(orders: Channel) -> None:
    durable = orders.durables.create("d")
    orders.publish_many([penstock.Event(), penstock.Event()])
    for _ in range(2):
        durable.fetch(1, 5)[0].rollback()
        durable.flush()

    shown = [(event.event_id, event.redelivery_count) for event in durable.browse()]
    assert shown == [(0, 2), (1, 0)]
    browse = iter(durable.browse())
    assert next(browse).redelivered


@pytest.mark.spec("D1", "C2")
def test_a_durable_is_found_however_its_name_was_typed(orders: Channel) -> None:
    typed, kept = "gro\u0308\u00dfe/\u65e5 1" * 14, "gr\u00f6\u00dfe/\u65e5 1" * 14
    orders.publish_many([penstock.Event(b"x")] * 3)
    made = orders.durables.create(typed, type="shared", start="earliest")

    assert made.name == kept
    assert [info.name for info in orders.durables.list()] == [kept]
    durable = orders.durables.get(typed)
    with durable.subscribe(timeout=1.0) as subscription:
        next(iter(subscription)).ack()
    assert [event.event_id for event in durable.browse()] == [1, 2]
    assert durable.purge(start=1, end=1) == 1
    assert durable.info().outstanding == 1
    assert durable.unbind() == 0
    orders.durables.delete(typed)
    assert orders.durables.list() == []


@pytest.mark.spec("C2")
def test_a_name_may_be_longer_as_it_is_given(session: Session) -> None:
    typed_name = "e\u0301" * 255 + "//"
    made = session.channels.create(typed_name)

    assert made.name == "\u00e9" * 255
    assert session.channels.get(typed_name).name == made.name
    with pytest.raises(penstock.InvalidName, match="256 characters; at most 255 are allowed"):
        session.channels.create("x" + typed_name)
    session.channels.delete(typed_name)
    assert session.channels.list() == []
