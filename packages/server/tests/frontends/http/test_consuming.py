"""Consumers over HTTP: events are fetched under a lease, and settled by separate requests."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

import penstock
from packages.server.tests.frontends.http.asking import Web
from packages.server.tests.frontends.http.disconnecting import ask, hang_up
from packages.server.tests.frontends.http.fetches import (
    ARROW,
    JSON,
    LONG_MS,
    NDJSON,
    TEAM,
    fetch,
    publish,
    settle,
)
from packages.server.tests.frontends.http.known import Known
from penstock_server.frontends.http import consuming
from penstock_server.runtime.access.askers import asker
from penstock_server.runtime.subscriptions.lease_fetch import ChannelFetch
from tests.patience import until


@pytest.fixture
def orders(session: penstock.Session) -> penstock.Channel:
    return session.channels.create("orders")


def ids(answer: Any) -> list[int]:
    return [event["event_id"] for event in answer["items"]]


@pytest.mark.spec("H1", "H2")
@pytest.mark.parametrize("kind", ["shared", "serial", "exclusive", "priority", "shared_queued"])
def test_acknowledged_events_are_not_delivered_again(
    web: Web, orders: penstock.Channel, kind: Any
) -> None:
    team = orders.durables.create("team", type=kind)
    publish(orders, 3)

    delivery = fetch(web, count=2)
    assert [event["data"] for event in delivery["items"]] == ["e0", "e1"]
    assert team.info().clients[0].startswith("http lease of ")
    done = settle(web, delivery["lease"], "ack", all=True)
    assert done.document == {"count": 2, "left": 0, "ends": None}
    assert ids(fetch(web)) == [2]
    assert team.info().outstanding == 1


@pytest.mark.spec("H1", "H2")
def test_a_queue_is_consumed_with_acknowledgements(web: Web, session: penstock.Session) -> None:
    work = session.queues.create("work")
    publish(work, 3)

    delivery = fetch(web, "queues/work", selector="n >= 1")
    assert ids(delivery) == [1, 2]
    done = settle(web, delivery["lease"], "ack", where="queues/work", ids=[2])
    assert (done.document["count"], done.document["left"]) == (1, 1)
    assert settle(web, delivery["lease"], "rollback", where="queues/work", all=True).status == 200
    assert work.info().events == 2
    again = fetch(web, "queues/work")
    assert [event.get("redelivery_count", 0) for event in again["items"]] == [0, 1]


@pytest.mark.spec("H2")
@pytest.mark.parametrize("how", ["ack", "rollback", "reject"])
def test_a_repeated_request_is_answered_as_done(
    web: Web, session: penstock.Session, how: str
) -> None:
    session.channels.create("dead")
    channel = session.channels.create("orders", dead_event_store="dead")
    channel.durables.create("team")
    publish(channel, 3)
    lease = fetch(web)["lease"]
    more = {"reason": "no"} if how == "reject" else {}

    first = settle(web, lease, how, ids=[0, 1], **more)
    assert first.status == 200, first.data
    assert settle(web, lease, how, ids=[0, 1], **more).document == first.document
    last = settle(web, lease, how, all=True, **more)
    assert last.document["left"] == 0
    assert settle(web, lease, how, all=True, **more).document == last.document
    for other_way in {"ack", "rollback"} - {how}:
        refused = settle(web, lease, other_way, ids=[0])
        assert (refused.status, refused.code) == (409, "illegal-state")


@pytest.mark.spec("H1", "D19")
@pytest.mark.parametrize("kind", ["shared", "exclusive"])
def test_unsettled_events_are_redelivered_and_a_late_settlement_is_refused(
    web: Web, orders: penstock.Channel, kind: Any
) -> None:
    orders.durables.create("team", type=kind)
    publish(orders, 2)
    lease = fetch(web, lease_ms=200)["lease"]

    again = fetch(web, wait_ms=30_000)
    assert ids(again) == [0, 1]
    counted = kind == "shared"
    assert [event.get("redelivery_count", 0) for event in again["items"]] == [counted] * 2
    late: list[tuple[str, dict[str, Any]]] = [
        ("ack", {"ids": [0]}),
        ("ack", {"all": True}),
        ("extend", {"all": True, "lease_ms": 1_000}),
    ]
    for how, body in late:
        refused = settle(web, lease, how, **body)
        assert (refused.status, refused.code) == (409, "lease-ended")
        assert "within their time (0.2 s)" in refused.reason
    assert settle(web, again["lease"], "ack", all=True).document["left"] == 0
    assert settle(web, lease, "ack", ids=[0]).code == "lease-ended", "it was another's work"


@pytest.mark.spec("H1", "D19")
def test_more_time_is_for_the_events_that_are_named(web: Web, orders: penstock.Channel) -> None:
    orders.durables.create("team")
    publish(orders, 3)
    delivery = fetch(web, lease_ms=300)

    more = settle(web, delivery["lease"], "extend", ids=[1], lease_ms=LONG_MS).document
    assert (more["count"], more["left"]) == (1, 3)
    assert more["ends"] > delivery["ends"]
    assert ids(fetch(web, wait_ms=30_000)) == [0, 2]
    assert settle(web, delivery["lease"], "ack", ids=[1]).document["left"] == 0


@pytest.mark.spec("H1")
def test_a_durables_own_timeout_is_not_exceeded(web: Web, orders: penstock.Channel) -> None:
    orders.durables.create("team", ack_timeout="5s")
    publish(orders, 1)

    assert fetch(web)["lease_ms"] == 5_000


@pytest.mark.spec("H2", "D11")
def test_settling_recalled_events_is_refused(web: Web, orders: penstock.Channel) -> None:
    orders.durables.create("team", type="serial", strict_order=True)
    publish(orders, 3)
    lease = fetch(web)["lease"]
    assert settle(web, lease, "ack", ids=[0]).status == 200
    assert settle(web, lease, "rollback", ids=[1]).document["left"] == 0

    assert settle(web, lease, "ack", ids=[2]).code == "lease-ended"
    assert ids(fetch(web)) == [1, 2]


@pytest.mark.spec("H2")
def test_a_cumulative_durable_acknowledges_all_before(web: Web, orders: penstock.Channel) -> None:
    orders.durables.create("team", type="exclusive")
    publish(orders, 4)
    lease = fetch(web)["lease"]

    assert settle(web, lease, "ack", ids=[2]).document["left"] == 1
    assert settle(web, lease, "ack", up_to=2).document == {
        **settle(web, lease, "ack", ids=[0, 1, 2]).document
    }
    settle(web, lease, "rollback", all=True)
    assert ids(fetch(web)) == [3]


@pytest.mark.spec("H1")
@pytest.mark.parametrize("kind", ["serial", "exclusive", "priority"])
def test_one_lease_at_a_time_where_one_client_is_served(
    web: Web, orders: penstock.Channel, kind: Any
) -> None:
    orders.durables.create("team", type=kind)
    publish(orders, 2)
    lease = fetch(web, count=1)["lease"]

    refused = web.ask("POST", f"{TEAM}/fetch", {"lease_ms": LONG_MS})
    assert (refused.status, refused.code) == (409, "durable-in-use")
    assert "http lease of" in refused.reason
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(fetch, web, wait_ms=30_000)
        assert settle(web, lease, "ack", all=True).status == 200
        assert ids(waits.result(60)) == [1]


@pytest.mark.spec("H1", "D11")
def test_lanes_are_worked_on_by_several_leases(web: Web, orders: penstock.Channel) -> None:
    orders.durables.create("team", type="serial", order_by="lane")
    orders.publish_many([penstock.Event(properties={"lane": n % 2}) for n in range(4)])

    one, second_delivery = fetch(web, count=1), fetch(web, count=1)
    assert (ids(one), ids(second_delivery)) == ([0], [1])
    settle(web, one["lease"], "ack", all=True)
    assert ids(fetch(web, count=4)) == [2]


@pytest.mark.spec("H1")
def test_forms_of_a_batch(web: Web, orders: penstock.Channel) -> None:
    orders.durables.create("team")
    publish(orders, 3)
    settle(web, fetch(web)["lease"], "rollback", all=True)

    delivery = web.ask(
        "POST", f"{TEAM}/fetch", {"count": 1}, headers={"accept": f"{ARROW}, {NDJSON};q=0.5"}
    )
    assert delivery.headers["content-type"] == ARROW
    table = pa.ipc.open_stream(delivery.data).read_all()
    assert table.select(["event_id", "data", "n", "redelivery_count"]).to_pylist() == [
        {"event_id": 0, "data": b"e0", "n": 0, "redelivery_count": 1}
    ]
    assert settle(web, delivery.headers["penstock-lease"], "ack", ids=[0]).status == 200
    delivery = web.ask("POST", f"{TEAM}/fetch", {}, headers={"accept": NDJSON})
    lines = [msgspec.json.decode(line) for line in delivery.data.splitlines()]
    assert [(event["event_id"], event["data"]) for event in lines] == [(1, "e1"), (2, "e2")]
    assert "penstock-lease-ends" in delivery.headers

    empty = web.ask("POST", f"{TEAM}/fetch", {}, headers={"accept": ARROW})
    assert pa.ipc.open_stream(empty.data).read_all().num_rows == 0
    assert "penstock-lease" not in empty.headers
    assert fetch(web) == {"lease": None, "ends": None, "lease_ms": 0, "items": []}
    refused = web.ask("POST", f"{TEAM}/fetch", {}, headers={"accept": "text/html"})
    assert (refused.status, refused.code) == (406, "invalid-argument")


@pytest.mark.parametrize(
    "accept", [ARROW, "application/vnd.apache.parquet", "application/json;q=0"]
)
def test_a_form_in_which_an_answer_does_not_come_is_refused_before_anything_is_done(
    web: Web, accept: str
) -> None:
    for method, path, body in (
        ("GET", "realm", None),
        ("GET", "channels", None),
        ("POST", "channels", {"name": "unmade"}),
    ):
        refused = web.ask(method, path, body, headers={"accept": accept})

        assert (refused.status, refused.code) == (406, "invalid-argument")
        assert "accept one of application/json" in refused.reason
    assert web.ask("GET", "channels/unmade").status == 404
    for usual in ("*/*", "text/html, */*;q=0.1", "application/*", "Application/JSON;q=0.5", ""):
        assert web.ask("GET", "realm", headers={"accept": usual}).status == 200


@pytest.mark.spec("E10")
def test_a_batch_in_columns_has_one_for_numbers(web: Web, orders: penstock.Channel) -> None:
    orders.durables.create("team")
    orders.publish_many([penstock.Event(properties={"price": event}) for event in (3, 9.5)])

    delivery = web.ask("POST", f"{TEAM}/fetch", {}, headers={"accept": ARROW})

    assert pa.ipc.open_stream(delivery.data).read_all()["price"].to_pylist() == [3.0, 9.5]


def test_invalid_requests_are_explained(web: Web, orders: penstock.Channel) -> None:
    orders.durables.create("team")
    publish(orders, 1)
    lease = fetch(web)["lease"]
    unclear: list[dict[str, Any]] = [{}, {"ids": [0], "all": True}, {"up_to": 3, "ids": [1]}]
    for body in unclear:
        refused = settle(web, lease, "ack", **body)
        assert refused.code == "invalid-argument"
        assert "in exactly one way" in refused.reason
    assert settle(web, lease, "ack", ids=[5]).code == "illegal-state"
    assert settle(web, lease, "reject", ids=[0]).code == "invalid-argument", "for what reason?"
    assert settle(web, "nobodys", "ack", all=True).code == "lease-ended"
    assert settle(web, lease, "ack", where="channels/orders/durables/other", all=True).status == 409
    assert web.ask("POST", f"{TEAM}/fetch", {"lease_ms": 1}).code == "invalid-argument"
    assert web.ask("POST", "channels/orders/durables/none/fetch", {}).status == 404


@pytest.mark.spec("H1")
def test_a_client_that_disconnects_while_waiting_holds_no_events(
    web: Web, orders: penstock.Channel, realm: penstock.Realm
) -> None:
    team = orders.durables.create("team", type="exclusive")
    peer = ask(web, "POST", f"{TEAM}/fetch", body={"wait_ms": 30_000})
    until(lambda: team.info().clients)

    hang_up(peer)
    until(lambda: not team.info().clients)
    publish(orders, 1)
    assert ids(fetch(web)) == [0]


@pytest.mark.spec("H1")
def test_a_client_that_disconnects_before_the_answer_has_fetched_nothing(
    web: Web, orders: penstock.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events are returned at once, without a redelivery count."""
    orders.durables.create("team")
    publish(orders, 2)
    peers: list[Any] = []
    run_fetch, calls, is_sent = ChannelFetch.run, count(), threading.Event()

    async def late(self: ChannelFetch, *args: Any) -> Any:
        delivery = await run_fetch(self, *args)
        if not next(calls):
            is_cancelled = asyncio.Event()
            asker.get().on_gone(is_cancelled.set)
            await asyncio.to_thread(is_sent.wait)
            hang_up(peers[0])
            await is_cancelled.wait()
        return delivery

    monkeypatch.setattr(ChannelFetch, "run", late)
    peers.append(ask(web, "POST", f"{TEAM}/fetch", body={"lease_ms": LONG_MS}))
    is_sent.set()

    again = fetch(web, wait_ms=30_000)
    assert [(event["event_id"], event.get("redelivery_count", 0)) for event in again["items"]] == [
        (0, 0),
        (1, 0),
    ]


@pytest.mark.spec("H1")
def test_a_client_that_disconnects_during_encoding_has_fetched_nothing(
    web: Web, orders: penstock.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.durables.create("team")
    publish(orders, 2)
    form = consuming.ENCODERS[JSON]

    def slow(*args: Any) -> bytes:
        asker.get().disconnect()
        return form(*args)

    monkeypatch.setattr(consuming, "ENCODERS", {JSON: slow})
    fetch(web)
    monkeypatch.undo()

    again = fetch(web)
    assert [event.get("redelivery_count", 0) for event in again["items"]] == [0, 0]


@pytest.mark.spec("H1", "H2")
def test_a_restart_ends_leases(tmp_path: Any) -> None:
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        orders.durables.create("team")
        publish(orders, 3)
        web = Web(realm.listen_http())
        lease = fetch(web)["lease"]
        assert settle(web, lease, "ack", ids=[1]).status == 200
    with penstock.Realm(tmp_path) as realm:
        web = Web(realm.listen_http())
        assert settle(web, lease, "ack", ids=[1]).document["count"] == 1, "it was done"
        assert settle(web, lease, "ack", ids=[0]).code == "lease-ended"
        assert settle(web, lease, "ack", all=True).code == "lease-ended"
        assert ids(fetch(web)) == [0, 2]


def test_a_wait_ends_with_the_realm() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        team = session.channels.create("orders").durables.create("team")
        web = Web(realm.listen_http())
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(web.ask, "POST", f"{TEAM}/fetch", body={"wait_ms": 30_000})
            until(lambda: team.info().clients)
            closing = threading.Thread(target=realm.close)
            closing.start()
            refused = waits.result(30)
            closing.join(30)
    assert (refused.status, refused.code) == (503, "realm-stopping")


@pytest.mark.spec("D14", "H2")
def test_an_unbound_lease_hears_why(web: Web, orders: penstock.Channel) -> None:
    team = orders.durables.create("team")
    publish(orders, 1)
    lease = fetch(web)["lease"]
    assert team.unbind() == 1

    assert settle(web, lease, "ack", all=True).code == "durable-unbound"
    assert ids(fetch(web)) == [0]


@pytest.mark.spec("H3")
def test_how_much_may_be_fetched_is_bounded() -> None:
    with penstock.Realm(http__leases_max=2, http__leased_events_max=5) as realm:
        with realm.connect() as session:
            orders = session.channels.create("orders")
            orders.durables.create("team")
            publish(orders, 9)
        web = Web(realm.listen_http())
        refused = web.ask("POST", f"{TEAM}/fetch", {"count": 6})
        assert (refused.status, refused.code) == (429, "limit-reached")
        assert "http.leased_events_max" in refused.reason
        lease = fetch(web, count=4)["lease"]
        assert "would have 6 events" in web.ask("POST", f"{TEAM}/fetch", {"count": 2}).reason
        assert settle(web, lease, "ack", ids=[0, 1]).document["left"] == 2
        fetch(web, count=2)
        refused = web.ask("POST", f"{TEAM}/fetch", {"count": 1})
        assert "http.leases_max" in refused.reason
        settle(web, lease, "ack", all=True)
        fetch(web, count=1)


@pytest.fixture
def realm_of_users() -> Any:
    quick = {"access__password_rounds": 4_096, "access__password_length_min": 1}
    settings: dict[str, Any] = {
        "access__mode": "mandatory",
        "http__leases_per_user_max": 1,
        **quick,
    }
    with penstock.Realm(**settings) as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        orders.durables.create("team")
        publish(orders, 4)
        for user in ("ann", "bob"):
            session.access.create_user(user, user)
            session.access.grant(f"{user}@*", "access")
            session.access.grant(f"{user}@*", "subscribe", channel="orders")
        yield realm, session


@pytest.mark.spec("H3")
def test_a_lease_is_its_users(realm_of_users: Any) -> None:
    realm, session = realm_of_users
    url = realm.listen_http()
    ann, bob = Known(url, "ann", "ann"), Known(url, "bob", "bob")
    lease = fetch(ann, count=1)["lease"]

    assert settle(bob, lease, "ack", all=True).code == "lease-ended", "as one there is not"
    assert "http.leases_per_user_max" in ann.ask("POST", f"{TEAM}/fetch", {}).reason
    theirs = fetch(bob, count=1)["lease"]
    assert settle(ann, lease, "ack", all=True).status == 200

    session.access.revoke("bob@*", channel="orders")
    assert settle(bob, theirs, "ack", all=True).code == "access-denied"
    until(lambda: ids(fetch(ann, count=1)) == [1])


@pytest.mark.spec("H2")
def test_leases_that_have_ended_are_remembered_up_to_their_size(
    web: Web, realm: penstock.Realm, orders: penstock.Channel
) -> None:
    book = realm.running.leases
    book.limits = replace(book.limits, ended_size_max=7)
    orders.durables.create("team")
    publish(orders, 3)
    leases = [fetch(web, count=1)["lease"] for _ in range(3)]
    for lease in leases:
        assert settle(web, lease, "ack", all=True).status == 200

    assert settle(web, leases[0], "ack", all=True).code == "lease-ended"
    for lease in leases[1:]:
        assert settle(web, lease, "ack", all=True).document["left"] == 0
