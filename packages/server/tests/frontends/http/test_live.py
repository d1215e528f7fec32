"""Live views: watching changes nothing, a slow viewer is told which events it missed, and every
view ends with its channel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web
from penstock_server.frontends.http import live
from penstock_server.frontends.http.pattern_live import CHANNELS_MAX, WINDOW


@pytest.fixture
def orders(session: penstock.Session) -> penstock.Channel:
    return session.channels.create("orders")


def seen(events: Iterator[tuple[str, Any]], count: int) -> list[tuple[str, Any]]:
    return [next(events) for _ in range(count)]


def test_a_view_shows_stored_and_new_events(web: Web, orders: penstock.Channel) -> None:
    orders.publish(b"before")
    with web.watching("channels/orders/live", start="earliest") as events:
        [(name, first)] = seen(events, 1)
        orders.publish(b"after", tag="t")
        [(_, second)] = seen(events, 1)

    assert (name, first["data"], second["data"], second["tag"]) == ("event", "before", "after", "t")


def test_a_view_may_choose_by_a_selector(web: Web, orders: penstock.Channel) -> None:
    with web.watching("channels/orders/live", selector="n > 6") as events:
        orders.publish_many([penstock.Event(b"", properties={"n": n}) for n in range(9)])

        assert [shown["event_id"] for _, shown in seen(events, 2)] == [7, 8]


def test_watching_changes_nothing(web: Web, session: penstock.Session) -> None:
    jms = session.channels.create("jms", engine="jms")
    plain = session.channels.create("plain")
    durable = plain.durables.create("billing")
    with (
        web.watching("channels/jms/live"),
        web.watching("channels/plain/live") as events,
    ):
        jms.publish(b"nobody waits for it")
        plain.publish(b"x")
        seen(events, 1)

        assert (jms.info().events, jms.info().counters.dropped) == (0, 1)
        assert (jms.info().subscribers, plain.info().subscribers) == (0, 0)
        assert (durable.info().outstanding, durable.info().in_flight) == (1, 0)
        assert msgspec.structs.asdict(plain.info().counters)["published"] == 1


def test_queues_are_watched_and_nothing_is_taken(web: Web, session: penstock.Session) -> None:
    jobs = session.queues.create("jobs")
    with web.watching("queues/jobs/live") as events:
        jobs.push(b"a")
        [(_, shown)] = seen(events, 1)

    assert shown["data"] == "a"
    assert [event.data for event in jobs.peek()] == [b"a"]
    assert jobs.info().readers == ()


def test_a_slow_view_continues_at_the_newest_events_with_the_missed_ids(
    web: Web, orders: penstock.Channel
) -> None:
    with web.watching("channels/orders/live") as events:
        many = live.BEHIND_MAX + 5 * live.WINDOW
        orders.publish_many([penstock.Event(b"x")] * many)
        view_events: list[tuple[str, Any]] = []
        while not view_events or view_events[-1][1].get("event_id") != many - 1:
            view_events += seen(events, 1)

    [lost] = [shown for name, shown in view_events if name == "lost"]
    shown_ids = [shown["event_id"] for name, shown in view_events if name == "event"]
    assert lost["events"] == lost["last_id"] - lost["first_id"] + 1
    assert lost["events"] + len(shown_ids) == many
    assert set(shown_ids).isdisjoint(range(lost["first_id"], lost["last_id"] + 1))


def test_counters_have_deliveries_and_acknowledgements(
    web: Web, session: penstock.Session, orders: penstock.Channel
) -> None:
    billing, audit = (orders.durables.create(name) for name in ("billing", "audit"))
    orders.publish_many([penstock.Event(b"x")] * 10)
    billing.fetch(10, timeout=10)[3].ack()
    with orders.subscribe(start="earliest") as plain:
        assert next(iter(plain)).event_id == 0
    assert len(list(orders.browse())) == 10
    session.queues.create("jobs").push(b"x")
    session.queues.get("jobs").pop()

    with web.watching("rates") as rates:
        [(_, rates_event)] = seen(rates, 1)
    flows = {
        item["name"]: (item["delivered"], item["acknowledged"]) for item in rates_event["channels"]
    }
    durable_flows = {
        item["name"]: (item["delivered"], item["acknowledged"]) for item in rates_event["durables"]
    }
    assert durable_flows["billing"] == (10, 1)
    assert durable_flows["audit"] == (0, 0)
    assert flows == {"orders": (20, 1), "jobs": (1, 1)}

    orders.durables.delete("billing")
    audit.purge()
    with web.watching("rates", channel="orders") as rates:
        [(_, rates_event)] = seen(rates, 1)
    assert (
        rates_event["channels"][0]["delivered"],
        rates_event["channels"][0]["acknowledged"],
    ) == (20, 11)


def test_a_view_of_a_deleted_channel_ends_with_a_reason(
    web: Web, session: penstock.Session, orders: penstock.Channel
) -> None:
    with web.watching("channels/orders/live") as events:
        session.channels.delete("orders")

        assert seen(events, 1)[0][0] == "end"
        assert list(events) == []


def test_views_end_with_the_realm() -> None:
    with penstock.Realm() as realm:
        web = Web(realm.listen_http())
        web.send("POST", "channels", {"name": "orders"})
        with web.watching("channels/orders/live") as events, web.watching("rates") as rates:
            next(rates)
            realm.close()

            [(name, why)] = list(events)
            assert (name, why["code"]) == ("end", "realm-stopping")
            assert [name for name, _ in rates][-1] == "end"


def test_a_view_that_is_not_read_is_closed(web: Web, orders: penstock.Channel) -> None:
    with web.watching("channels/orders/live", start="earliest") as events:
        orders.publish(b"x")
        seen(events, 1)
    open_views = 1
    while open_views:
        text = web.ask("GET", "/metrics").data.decode()
        [line] = [line for line in text.splitlines() if line.startswith("penstock_http_views ")]
        open_views = int(float(line.split()[1]))
        orders.publish(b"y")


@pytest.mark.parametrize(
    ("query", "status"),
    [({"selector": "n >"}, 422), ({"start": "soon"}, 400), ({"data_bytes": 1 << 20}, 400)],
)
def test_a_view_that_cannot_be_is_refused_before_it_begins(
    web: Web, orders: penstock.Channel, query: dict[str, Any], status: int
) -> None:
    assert web.ask("GET", "channels/orders/live", **query).status == status
    assert web.ask("GET", "channels/nobody/live").status == 404


def test_there_are_only_so_many_views() -> None:
    with penstock.Realm(http__viewers_max=1) as realm:
        web = Web(realm.listen_http())
        web.send("POST", "channels", {"name": "orders"})
        with web.watching("rates") as rates:
            next(rates)

            refused = web.ask("GET", "channels/orders/live")

        assert (refused.status, refused.code) == (503, "unavailable")


def test_counters_come_each_second(web: Web, orders: penstock.Channel) -> None:
    orders.durables.create("billing")
    orders.publish_many([penstock.Event(b"x")] * 3)
    with web.watching("rates", channel="orders") as rates:
        (name, first), (_, second) = seen(rates, 2)

    assert name == "rates"
    assert first["channels"][0]["counters"]["published"] == 3
    assert first["durables"][0]["outstanding"] == 3
    assert second["at"] > first["at"]
    assert web.ask("GET", "rates", channel="nobody").status == 404


# --- of all channels of a pattern -----------------------------------------------------------


@pytest.mark.spec("D21")
def test_a_view_of_a_pattern_shows_its_channels_and_those_made_later(
    web: Web, session: penstock.Session
) -> None:
    session.channels.create("eu/a").publish(b"stored")
    session.channels.create("us/a").publish(b"elsewhere")
    with web.watching("live", pattern="eu/*", start="earliest") as events:
        [(_, first)] = seen(events, 1)
        session.channels.create("eu/b").publish(b"new")
        session.channels.get("us/a").publish(b"elsewhere")
        [(_, second)] = seen(events, 1)

    assert (first["channel"], first["data"]) == ("eu/a", "stored")
    assert (second["channel"], second["data"], second["event_id"]) == ("eu/b", "new", 0)


@pytest.mark.spec("D21")
def test_a_busy_channel_of_a_pattern_holds_up_no_quiet_one(
    web: Web, session: penstock.Session
) -> None:
    session.channels.create("a/busy").publish_many([penstock.Event(b"")] * 500)
    session.channels.create("a/quiet").publish(b"quiet")
    with web.watching("live", pattern="a/*", start="earliest") as events:
        shown = [item["channel"] for _, item in seen(events, 3 * WINDOW)]
        rest = [item["channel"] for _, item in seen(events, 501 - len(shown))]

    assert "a/quiet" in shown
    assert (shown + rest).count("a/busy") == 500


@pytest.mark.spec("D21")
def test_a_deleted_channel_leaves_a_view_of_a_pattern_and_one_made_anew_joins(
    web: Web, session: penstock.Session
) -> None:
    session.channels.create("a/1")
    session.channels.create("a/2")
    with web.watching("live", pattern="a/*") as events:
        session.channels.delete("a/1")
        session.channels.create("a/1").publish(b"anew")
        session.channels.get("a/2").publish(b"still there")

        shown = {item["channel"]: item["data"] for _, item in seen(events, 2)}
        assert shown == {"a/1": "anew", "a/2": "still there"}


def test_a_view_of_a_pattern_may_choose_by_a_selector(web: Web, session: penstock.Session) -> None:
    channels = [session.channels.create(name) for name in ("a/1", "a/2")]
    with web.watching("live", pattern="a/*", selector="n > 6") as events:
        for channel in channels:
            channel.publish_many([penstock.Event(b"", properties={"n": n}) for n in range(9)])
        shown = sorted((item["channel"], item["event_id"]) for _, item in seen(events, 4))

    assert shown == [("a/1", 7), ("a/1", 8), ("a/2", 7), ("a/2", 8)]


def test_a_slow_view_of_a_pattern_gets_the_missed_ids_by_channel(
    web: Web, session: penstock.Session
) -> None:
    session.channels.create("a/quiet")
    busy = session.channels.create("a/busy")
    with web.watching("live", pattern="a/*") as events:
        busy.publish_many([penstock.Event(b"")] * (live.BEHIND_MAX + 5 * live.WINDOW))
        rates_event = next(shown for name, shown in events if name == "lost")

    assert rates_event["channel"] == "a/busy"
    assert rates_event["events"] == rates_event["last_id"] - rates_event["first_id"] + 1


def test_a_pattern_of_too_many_channels_is_refused(web: Web, session: penstock.Session) -> None:
    for name in ("b/1", *(f"a/{number}" for number in range(CHANNELS_MAX))):
        session.channels.create(name)

    refused = web.ask("GET", "live", pattern="**")
    assert refused.status == 429
    assert "narrower pattern" in refused.document["error"]["message"]
    with web.watching("live", pattern="a/*") as events:
        session.channels.create("a/one-more")
        [(name, end)] = seen(events, 1)
    assert (name, end["code"]) == ("end", "limit-reached")


def test_a_pattern_that_is_none_is_refused(web: Web) -> None:
    assert web.ask("GET", "live").status == 400
    assert web.ask("GET", "live", pattern="a" * 300).status == 400
    assert web.ask("GET", "live", pattern=" , ").status == 400
