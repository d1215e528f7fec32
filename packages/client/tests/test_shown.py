"""The ``repr`` of handles, and events that are sent to other processes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec import Struct

import penstock
import penstock.aio
from penstock.client.sync.sync import Session
from penstock_testing.relay import Relay
from tests.patience import until

SECRET = "s3cr3t"
HOSTILE = 'a\nb\x1b[31m<script>&"' + "x" * 400
"""A name that no realm accepts; a handle may have it nevertheless."""


KINDS = [
    kind
    for module in (penstock, penstock.aio)
    for name in dir(module)
    if isinstance(kind := getattr(module, name), type)
    and not issubclass(kind, BaseException | Struct | dict)
]
"""The classes of both clients that have objects of their own."""


def of_each_kind(session: Session) -> list[Any]:
    """Return an object of each kind that a program meets, with its parts."""
    orders = session.channels.create("orders", if_missing=True)
    work = session.queues.create("work", if_missing=True)
    billing = orders.durables.create("billing", if_missing=True)
    return [
        session,
        session.connection,
        session.channels,
        session.queues,
        session.joins,
        session.access,
        session.mqtt,
        session.durables,
        orders.durables,
        orders.scheduled,
        orders,
        work,
        billing,
        billing.subscribe(),
        billing.hold(),
        billing.browse(),
        orders.subscribe(),
        orders.browse(),
        work.browse(),
        work.reader(),
        orders.producer(),
        orders.transaction(),
        session.transaction(),
        session.subscribe("o*"),
        session.subscribe("o*", durable="billing"),
    ]


def half_made(kind: type) -> Any:
    """Return an object whose constructor has not run."""
    return object.__new__(kind)


def test_handles_show_what_they_stand_for(session: Session) -> None:
    orders = session.channels.create("orders")
    work = session.queues.create("work", type="reliable")
    rates = session.channels.create("rates", engine="merge", keys={"pair": 1})
    billing = orders.durables.create("billing", type="serial")
    place = repr(session).removeprefix("<Session ").removesuffix(">")

    assert place.startswith("at penstock://")
    assert repr(session.channels) == f"<Channels {place}>"
    assert repr(orders) == f"<Channel 'orders' (mixed) {place}>"
    assert repr(rates) == f"<Channel 'rates' (mixed, engine merge) {place}>"
    assert repr(work) == f"<Queue 'work' (reliable) {place}>"
    assert repr(orders.durables) == f"<Durables of channel 'orders' {place}>"
    assert repr(billing) == f"<Durable 'billing' (serial) of channel 'orders' {place}>"
    assert repr(orders.durables.get("billing")) == repr(billing)
    hold = f"<DurableHold of durable 'billing' of channel 'orders' {place}, not open>"
    assert repr(billing.hold()) == hold


@pytest.mark.slow
def test_subscriptions_show_their_state_and_counts(session: Session) -> None:
    orders, work = session.channels.create("orders"), session.queues.create("work")
    billing = orders.durables.create("billing")
    place = repr(session).removeprefix("<Session ").removesuffix(">")
    orders.publish_many([penstock.Event(b"")] * 3)
    work.push_many([penstock.Event(b"")] * 3)
    events, seat = orders.subscribe(start="earliest"), billing.subscribe(window=2)
    every, reader = session.subscribe("o*"), work.reader(transactional=True)

    of_orders = f"<Subscription of channel 'orders' {place}"
    assert repr(events) == f"{of_orders}, not open, 0 events unread, next id 0>"
    with events, seat, every, reader:
        until(lambda: "3 events unread, next id 3" in repr(events))
        until(lambda: "2 events unread" in repr(seat))
        reader.fetch(2, 30)

        seat_text = f"<DurableSubscription of durable 'billing' of channel 'orders' {place}, open"
        assert repr(seat) == f"{seat_text}, 2 events unread>"
        assert repr(every) == f"<PatternSubscription of 'o*' {place}, open, 1 channels>"
        read = f"<Reader of queue 'work' {place}, open, 0 events unread, 2 uncommitted>"
        assert repr(reader) == read
        assert "open subscriptions" in repr(session)
    assert ", not open" in repr(events)


@pytest.mark.slow
def test_what_publishes_shows_its_counts(session: Session) -> None:
    orders = session.channels.create("orders")
    place = repr(session).removeprefix("<Session ").removesuffix(">")
    producer = orders.producer(linger_ms="1h")
    producer.send(b"")

    text = f"<Producer of channel 'orders' {place}, 0 events acknowledged, 1 unsent>"
    assert repr(producer) == text
    producer.close()
    assert "1 events acknowledged, 0 unsent, closed>" in repr(producer)
    with orders.transaction() as one:
        one.publish(b"")
        one.publish_many([penstock.Event(b"")] * 2)
        assert repr(one) == f"<Transaction {one.id} {place}, open, 3 events>"
    assert repr(one) == f"<Transaction {one.id} {place}, committed>"


def test_a_closed_session_and_its_objects_say_so(realm: penstock.Realm) -> None:
    with realm.connect() as session:
        shown = of_each_kind(session)
    for handle in shown:
        assert ", closed" in repr(handle), handle
        assert "incomplete" not in repr(handle)


def test_a_session_without_its_connection_says_so(relay: Relay) -> None:
    with penstock.connect(relay.url) as session:
        shown = of_each_kind(session)
        relay.close_door()
        relay.cut()
        until(lambda: not session.is_connected)

        assert {", reconnecting" in repr(handle) for handle in shown} == {True}
        relay.open_door()


def test_nothing_is_asked_of_the_realm(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = of_each_kind(session)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a repr has asked")

    for name in ("request", "ask", "tell", "send"):
        monkeypatch.setattr(session.connection, name, refuse)
    assert [text for handle in shown if "incomplete" in (text := repr(handle))] == []
    monkeypatch.undo()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_an_object_whose_constructor_has_failed_is_shown(kind: type) -> None:
    text = repr(half_made(kind))

    assert text.startswith("<") or "(" in text
    assert "object at 0x" not in text
    if hasattr(kind, "_repr_html_"):
        assert half_made(kind)._repr_html_().startswith("<pre>")


def test_hostile_and_long_names_stay_on_one_short_line(session: Session) -> None:
    shown = of_each_kind(session)
    for handle in shown:
        inner = getattr(handle, "_inner", handle)
        for owner in (inner, getattr(inner, "_seat", None)):
            for name in ("name", "_name", "_channel_name", "channel_name", "durable", "_durable"):
                if isinstance(getattr(owner, name, None), str):
                    setattr(owner, name, HOSTILE)
        if hasattr(handle, "name"):
            handle.name = HOSTILE
        texts = [repr(handle)]
        if hasattr(handle, "_repr_html_"):
            texts.append(handle._repr_html_())
            assert "<script" not in texts[1]
        for text in texts:
            assert text.isprintable(), handle
            assert "incomplete" not in text
        assert len(texts[0]) < 500


def test_no_secret_of_a_url_is_shown(realm: penstock.Realm) -> None:
    hosts = realm.listen().removeprefix("penstock://")
    with penstock.connect(f"penstock://ann:{SECRET}@{hosts}") as session:
        for handle in of_each_kind(session):
            assert SECRET not in repr(handle)
            assert SECRET not in getattr(handle, "_repr_html_", str)()
        archived = session.channels.create("archived", archive=f"s3://key:{SECRET}@lake/a")
        assert SECRET not in archived._repr_html_()
        assert SECRET not in archived.info()._repr_html_()
    for wrong in (f"penstock://h?token={SECRET}", f"penstock://h?ca=a&token={SECRET}&x=y"):
        with pytest.raises(penstock.InvalidArgument) as refused:
            penstock.connect(wrong)
        assert SECRET not in str(refused.value)


def test_events_name_their_channel_and_are_short(session: Session) -> None:
    orders = session.channels.create("orders")
    long_properties = {f"p{n}": "\x1b\n<b>" * 1_000 for n in range(100)}
    orders.publish(b"\n" * 5_000, tag="t\n" * 500, properties=long_properties)
    (event,) = orders.browse()
    (batch,) = orders.browse().batches()

    assert repr(event).startswith("Event(channel='orders', event_id=0, tag='t\\nt")
    assert repr(event).isprintable()
    assert len(repr(event)) < 1_500
    assert repr(batch) == "EventBatch(1 events of channel 'orders', ids 0..0)"
    for html in (event._repr_html_(), batch._repr_html_()):
        assert html.startswith("<table><caption>E")
        assert html.isprintable()
        assert "<b>" not in html
        assert len(html) < 12_000


def test_a_notebook_shows_tables(session: Session) -> None:
    orders, work = session.channels.create("orders", ttl="1h"), session.queues.create("work")
    work.push_many([penstock.Event(b"x", properties={"price": n}) for n in range(30)])
    billing = orders.durables.create("billing", ack_timeout="5s")
    tables = {
        "channel": orders._repr_html_(),
        "channel info": orders.info()._repr_html_(),
        "durable info": billing.info()._repr_html_(),
        "realm info": session.info()._repr_html_(),
        "peeked": work.peek()._repr_html_(),
    }

    assert "<th>ttl</th><td>3600000</td>" in tables["channel"]
    assert "<th>definition.ttl</th><td>3600000</td>" in tables["channel info"]
    assert "<th>ack_timeout</th><td>5000</td>" in tables["durable info"]
    assert "<th>channels</th><td>1</td>" in tables["realm info"]
    assert tables["peeked"].startswith("<table><caption>Peeked: 30 events, has_more=False")
    assert tables["peeked"].count("<tr>") == 21
    for html in tables.values():
        assert ElementTree.fromstring(f"<div>{html}</div>") is not None


def test_a_realm_shows_where_it_is(tmp_path: Path) -> None:
    with penstock.Realm() as realm:
        assert repr(realm) == "<Realm in memory, open>"
    assert repr(realm) == "<Realm in memory, closed>"


@pytest.mark.spec("E1")
@pytest.mark.parametrize("way", ["browse", "durable", "queue"])
def test_a_received_event_goes_to_another_process_as_a_plain_event(
    session: Session, way: str
) -> None:
    properties: dict[str, Any] = {
        "tag": "t",
        "properties": {"n": 1, "lines": [{"sku": "a"}, {"price": 1.5}]},
        "headers": {"correlation_id": "c"},
        "ttl": 60_000,
        "priority": 7,
    }
    orders, work = session.channels.create("orders"), session.queues.create("work")
    durable = orders.durables.create("d")
    orders.publish(b"before")
    orders.publish(b"data", **properties)
    work.push(b"before")
    work.push(b"data", **properties)
    ways: dict[str, Any] = {
        "browse": lambda: list(orders.browse())[1],
        "durable": lambda: durable.fetch(2, 30)[1],
        "queue": lambda: work.reader().fetch(2, 30)[1],
    }
    event = ways[way]()

    copy = pickle.loads(pickle.dumps(event))

    assert type(copy) is penstock.Event
    for name in (
        "event_id",
        "published",
        "data",
        "tag",
        "properties",
        "headers",
        "ttl",
        "priority",
        "redelivery_count",
        "persistent",
        "transient",
        "origin",
        "is_delta",
    ):
        assert getattr(copy, name) == getattr(event, name), name


def test_an_event_that_was_made_by_hand_goes_there_as_it_is() -> None:
    event = penstock.Event(b"data", tag="t", properties={"n": 1}, ttl=5)

    copy = pickle.loads(pickle.dumps(event))

    assert (copy.data, copy.tag, copy.properties, copy.ttl) == (b"data", "t", {"n": 1}, 5)
