"""Consumers over HTTP of a durable over a pattern: one lease has events of several channels."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

import penstock
from packages.server.tests.frontends.http.asking import Reply, Web, part
from packages.server.tests.frontends.http.disconnecting import ask, hang_up
from packages.server.tests.frontends.http.fetches import (
    ARROW,
    JSON,
    LONG_MS,
    NDJSON,
    fetch,
    publish,
    settle,
)
from packages.server.tests.frontends.http.known import Known
from penstock_server.frontends.http import consuming
from penstock_server.runtime.access.askers import asker
from penstock_server.runtime.subscriptions.lease_fetch import even_shares
from tests.patience import until

TEAM = f"durables/{part('shop/*')}/team"
NORTH, SOUTH, EAST = "shop/north", "shop/south", "shop/east"


@pytest.fixture
def shops(session: penstock.Session) -> dict[str, penstock.Channel]:
    """Return two channels of the pattern and a further one; the pattern has the durable
    ``team``."""
    channels = {name: session.channels.create(name) for name in (NORTH, SOUTH, "other/north")}
    session.durables.create("shop/*", "team")
    return channels


def ids_by_channel(answer: Any) -> dict[str, list[int]]:
    """The ids of an answer by channel."""
    event_ids: dict[str, list[int]] = {}
    for event in answer["items"]:
        event_ids.setdefault(event["channel"], []).append(event["event_id"])
    return event_ids


def settled(web: Web, lease: str, how: str, **body: Any) -> Reply:
    return settle(web, lease, how, where=TEAM, **body)


def outstanding(channel: penstock.Channel) -> int:
    return channel.durables.get("team").info().outstanding


@pytest.mark.spec("H4")
def test_events_of_all_channels_come_under_one_lease_and_are_acknowledged_by_channel_and_id(
    web: Web, shops: dict[str, penstock.Channel]
) -> None:
    for channel in shops.values():
        publish(channel, 2)

    delivery = fetch(web, TEAM)
    assert ids_by_channel(delivery) == {NORTH: [0, 1], SOUTH: [0, 1]}
    assert [event["data"] for event in delivery["items"]] == ["e0", "e1"] * 2
    done = settled(web, delivery["lease"], "ack", ids={NORTH: [0, 1], SOUTH: [1]})
    assert (done.document["count"], done.document["left"]) == (3, 1)
    assert (outstanding(shops[NORTH]), outstanding(shops[SOUTH])) == (0, 1)
    last = settled(web, delivery["lease"], "ack", all=True)
    assert last.document == {"count": 4, "left": 0, "ends": None}
    assert ids_by_channel(fetch(web, TEAM)) == {}
    assert shops["other/north"].info().events == 2


@pytest.mark.spec("H4", "D22")
def test_a_channel_that_is_made_later_is_consumed_from_its_first_event(
    web: Web, shops: dict[str, penstock.Channel], session: penstock.Session
) -> None:
    publish(session.channels.create(EAST), 1)

    assert ids_by_channel(fetch(web, TEAM)) == {EAST: [0]}


@pytest.mark.spec("H4")
@pytest.mark.parametrize("where", [SOUTH, EAST])
def test_a_wait_ends_with_an_event_of_any_channel_also_of_one_made_meanwhile(
    web: Web, shops: dict[str, penstock.Channel], session: penstock.Session, where: str
) -> None:
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(fetch, web, TEAM, wait_ms=30_000)
        until(lambda: shops[SOUTH].durables.get("team").info().clients)
        publish(session.channels.create(where, if_missing=True), 3)
        delivery = waits.result(20)
    assert ids_by_channel(delivery) == {where: [0, 1, 2]}, (
        "what is there then, and not the first event alone"
    )
    assert shops[NORTH].durables.get("team").info().clients == (), "no seat is left behind"


@pytest.mark.spec("H4")
def test_a_busy_channel_leaves_room_for_others(
    web: Web, shops: dict[str, penstock.Channel], session: penstock.Session
) -> None:
    publish(shops[NORTH], 500)
    publish(shops[SOUTH], 3)
    publish(session.channels.create(EAST), 40)

    delivery = fetch(web, TEAM, count=30)
    assert {name: len(ids) for name, ids in ids_by_channel(delivery).items()} == {
        NORTH: 14,
        SOUTH: 3,
        EAST: 13,
    }


@pytest.mark.spec("H4")
def test_channels_have_their_turns_from_fetch_to_fetch(
    web: Web, shops: dict[str, penstock.Channel], session: penstock.Session
) -> None:
    publish(shops[NORTH], 50)
    publish(shops[SOUTH], 3)
    publish(session.channels.create(EAST), 3)

    turns = [next(iter(ids_by_channel(fetch(web, TEAM, count=1)))) for _ in range(9)]
    assert Counter(turns) == {NORTH: 3, SOUTH: 3, EAST: 3}
    assert all(len(set(turns[index : index + 3])) == 3 for index in (0, 3, 6)), turns


@pytest.mark.parametrize(
    ("waiting_counts", "count", "shares"),
    [
        ((5, 5), 4, (2, 2)),
        ((1, 9), 6, (1, 5)),
        ((2, 100, 100), 12, (2, 5, 5)),
        ((3, 0), 9, (3,)),
        ((), 5, ()),
    ],
)
def test_shares_are_even_and_unused_ones_go_to_other_channels(
    waiting_counts: tuple[int, ...], count: int, shares: tuple[int, ...]
) -> None:
    share_by_channel = even_shares(
        {str(index): many for index, many in enumerate(waiting_counts)}, count
    )
    assert tuple(share_by_channel.values()) == shares


@pytest.mark.spec("H4", "H2")
@pytest.mark.parametrize("how", ["ack", "rollback", "reject"])
def test_a_repeated_request_over_a_pattern_is_answered_as_done(
    web: Web, session: penstock.Session, how: str
) -> None:
    dead = session.channels.create("dead")
    for name in (NORTH, SOUTH):
        publish(session.channels.create(name, dead_event_store="dead"), 2)
    session.durables.create("shop/*", "team")
    lease = fetch(web, TEAM)["lease"]
    more = {"reason": "no"} if how == "reject" else {}

    first = settled(web, lease, how, ids={NORTH: [0], SOUTH: [0, 1]}, **more)
    assert (first.status, first.document["count"], first.document["left"]) == (200, 3, 1)
    again = settled(web, lease, how, ids={NORTH: [0], SOUTH: [0, 1]}, **more)
    assert again.document == first.document
    assert settled(web, lease, how, all=True, **more).document["left"] == 0
    for other_way in {"ack", "rollback"} - {how}:
        refused = settled(web, lease, other_way, ids={SOUTH: [1]})
        assert (refused.status, refused.code) == (409, "illegal-state")
        assert f"event 1 of {SOUTH}" in refused.reason
    assert dead.info().events == (4 if how == "reject" else 0)
    again_comes = fetch(web, TEAM)
    assert ids_by_channel(again_comes) == (
        {NORTH: [0, 1], SOUTH: [0, 1]} if how == "rollback" else {}
    )


@pytest.mark.spec("H4", "H2", "D19")
def test_a_late_settlement_on_one_channel_settles_nothing_on_others(
    web: Web, shops: dict[str, penstock.Channel]
) -> None:
    publish(shops[NORTH], 1)
    publish(shops[SOUTH], 1)
    lease = fetch(web, TEAM, lease_ms=200)["lease"]
    assert settled(web, lease, "extend", ids={SOUTH: [0]}, lease_ms=LONG_MS).document["left"] == 2

    again = fetch(web, TEAM, wait_ms=30_000)
    assert ids_by_channel(again) == {NORTH: [0]}
    assert again["items"][0]["redelivery_count"] == 1
    for body in ({"ids": {SOUTH: [0], NORTH: [0]}}, {"all": True}):
        refused = settled(web, lease, "ack", **body)
        assert (refused.status, refused.code) == (409, "lease-ended")
        assert f"event 0 of {NORTH}" in refused.reason
    assert outstanding(shops[SOUTH]) == 1, "a request is refused as a whole"
    assert settled(web, lease, "ack", up_to={SOUTH: 0}).document["left"] == 0
    assert settled(web, again["lease"], "ack", all=True).status == 200
    assert (outstanding(shops[NORTH]), outstanding(shops[SOUTH])) == (0, 0)


@pytest.mark.spec("H4", "T11")
def test_a_reject_that_one_channel_refuses_is_refused_as_a_whole(
    web: Web, session: penstock.Session
) -> None:
    """The second channel has no dead event store."""
    dead = session.channels.create("dead")
    north = session.channels.create(NORTH, dead_event_store="dead")
    south = session.channels.create(SOUTH)
    session.durables.create("shop/*", "team")
    publish(north, 1)
    publish(south, 1)
    lease = fetch(web, TEAM)["lease"]

    refused = settled(web, lease, "reject", all=True, reason="no such customer")
    assert refused.status == 409
    assert (dead.info().events, outstanding(north), outstanding(south)) == (0, 1, 1)
    assert settled(web, lease, "reject", ids={NORTH: [0]}, reason="no").document["left"] == 1
    assert dead.info().events == 1


@pytest.mark.spec("H4", "H1")
def test_a_killed_client_leaves_its_events_to_others(
    web: Web, shops: dict[str, penstock.Channel]
) -> None:
    """One client hangs up while it waits, the lease of another one expires."""
    peer = ask(web, "POST", f"{TEAM}/fetch", body={"wait_ms": 30_000})
    until(lambda: all(shops[n].durables.get("team").info().clients for n in (NORTH, SOUTH)))
    hang_up(peer)
    until(lambda: not any(shops[n].durables.get("team").info().clients for n in (NORTH, SOUTH)))
    publish(shops[NORTH], 1)
    publish(shops[SOUTH], 1)

    assert ids_by_channel(fetch(web, TEAM, lease_ms=150)) == {NORTH: [0], SOUTH: [0]}
    assert ids_by_channel(fetch(web, TEAM)) == {}
    again: dict[str, list[int]] = {}
    while len(again) < 2:  # each goes back by itself
        delivery = fetch(web, TEAM, wait_ms=30_000)
        assert {event.get("redelivery_count", 0) for event in delivery["items"]} == {1}
        again |= ids_by_channel(delivery)
    assert again == {NORTH: [0], SOUTH: [0]}


@pytest.mark.spec("H4", "H1")
def test_a_client_that_disconnects_during_encoding_has_fetched_nothing(
    web: Web, shops: dict[str, penstock.Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(shops[NORTH], 2)
    publish(shops[SOUTH], 1)
    form = consuming.ENCODERS[JSON]

    def slow(*args: Any) -> bytes:
        asker.get().disconnect()
        return form(*args)

    monkeypatch.setattr(consuming, "ENCODERS", {JSON: slow})
    fetch(web, TEAM)
    monkeypatch.undo()

    again = fetch(web, TEAM)
    assert ids_by_channel(again) == {NORTH: [0, 1], SOUTH: [0]}
    assert [event.get("redelivery_count", 0) for event in again["items"]] == [0, 0, 0]


@pytest.mark.spec("H4")
@pytest.mark.parametrize("kind", ["exclusive", "serial", "priority"])
def test_channels_whose_clients_are_served_are_left_to_them(
    web: Web, session: penstock.Session, kind: Any
) -> None:
    north = session.channels.create(NORTH)
    session.durables.create("shop/*", "team", type=kind)
    publish(north, 2)
    lease = fetch(web, TEAM, count=1)["lease"]

    refused = web.ask("POST", f"{TEAM}/fetch", {})
    assert (refused.status, refused.code) == (409, "durable-in-use")
    assert "http lease of" in refused.reason
    south = session.channels.create(SOUTH)
    publish(south, 1)
    assert ids_by_channel(fetch(web, TEAM)) == {SOUTH: [0]}, "another channel is served"
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(fetch, web, TEAM, wait_ms=30_000)
        assert settled(web, lease, "ack", all=True).status == 200
        assert ids_by_channel(waits.result(60)) == {NORTH: [1]}


@pytest.mark.spec("H4")
def test_forms_of_a_batch_tell_each_events_channel(
    web: Web, shops: dict[str, penstock.Channel]
) -> None:
    """A property that is called channel stands aside."""
    shops[NORTH].publish(b"one", properties={"channel": "tv", "n": 1})
    shops[SOUTH].publish(b"two", properties={"n": "text"})

    delivery = web.ask("POST", f"{TEAM}/fetch", {}, headers={"accept": ARROW})
    table = pa.ipc.open_stream(delivery.data).read_all()
    columns = ["channel", "event_id", "data", "properties.channel"]
    assert table.select(columns).to_pylist() == [
        {"channel": NORTH, "event_id": 0, "data": b"one", "properties.channel": "tv"},
        {"channel": SOUTH, "event_id": 0, "data": b"two", "properties.channel": None},
    ]
    assert settled(web, delivery.headers["penstock-lease"], "rollback", all=True).status == 200
    delivery = web.ask("POST", f"{TEAM}/fetch", {}, headers={"accept": NDJSON})
    lines = [msgspec.json.decode(line) for line in delivery.data.splitlines()]
    assert [(event["channel"], event["data"]) for event in lines] == [
        (NORTH, "one"),
        (SOUTH, "two"),
    ]

    empty = web.ask("POST", f"{TEAM}/fetch", {}, headers={"accept": ARROW})
    assert pa.ipc.open_stream(empty.data).read_all().column_names[0] == "channel"
    assert fetch(web, TEAM) == {"lease": None, "ends": None, "lease_ms": 0, "items": []}


def test_invalid_requests_over_a_pattern_are_explained(
    web: Web, shops: dict[str, penstock.Channel]
) -> None:
    publish(shops[NORTH], 1)
    lease = fetch(web, TEAM)["lease"]
    unclear: list[dict[str, Any]] = [{}, {"ids": {NORTH: [0]}, "all": True}]
    for body in unclear:
        refused = settled(web, lease, "ack", **body)
        assert refused.code == "invalid-argument"
        assert '{"ids": {"orders/de": [1, 2]}}' in refused.reason
    assert settled(web, lease, "ack", ids=[0]).code == "invalid-argument"
    assert settled(web, lease, "ack", ids={NORTH: []}).code == "invalid-argument"
    assert settled(web, lease, "ack", ids={NORTH: [5]}).code == "illegal-state"
    refused = settled(web, lease, "ack", ids={SOUTH: [0]})
    assert (refused.code, SOUTH in refused.reason) == ("illegal-state", True)
    assert settled(web, lease, "ack", ids={"a\0b": [0]}).status == 400
    assert settled(web, "nobodys", "ack", all=True).code == "lease-ended"
    other_path = f"durables/{part('shop/**')}/team"
    assert settle(web, lease, "ack", where=other_path, all=True).code == "lease-ended"
    assert (
        settle(web, lease, "ack", where=f"channels/{part(NORTH)}/durables/team", all=True).status
        == 409
    )
    assert web.ask("POST", f"{other_path}/fetch", {}).code == "name-does-not-exist"
    refused = web.ask("POST", f"durables/{part('shop/*')}/none/fetch", {})
    assert (refused.status, "none over the pattern shop/*" in refused.reason) == (404, True)


@pytest.mark.spec("H4", "H2")
def test_a_restart_ends_leases_over_patterns(tmp_path: Any) -> None:
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        for name in (NORTH, SOUTH):
            publish(session.channels.create(name), 2)
        session.durables.create("shop/*", "team", start="earliest")
        web = Web(realm.listen_http())
        lease = fetch(web, TEAM)["lease"]
        assert settled(web, lease, "ack", ids={NORTH: [1], SOUTH: [0]}).status == 200
    with penstock.Realm(tmp_path) as realm:
        web = Web(realm.listen_http())
        done = settled(web, lease, "ack", ids={NORTH: [1], SOUTH: [0]})
        assert done.document["count"] == 2, "it was done"
        assert settled(web, lease, "ack", ids={NORTH: [1], SOUTH: [1]}).code == "lease-ended"
        assert settled(web, lease, "ack", all=True).code == "lease-ended"
        assert ids_by_channel(fetch(web, TEAM)) == {NORTH: [0], SOUTH: [1]}


@pytest.mark.spec("H4", "D21")
def test_a_channel_that_is_deleted_leaves_the_lease(
    web: Web, shops: dict[str, penstock.Channel], session: penstock.Session
) -> None:
    publish(shops[NORTH], 1)
    publish(shops[SOUTH], 1)
    lease = fetch(web, TEAM)["lease"]
    session.channels.delete(NORTH)

    assert settled(web, lease, "ack", ids={NORTH: [0], SOUTH: [0]}).status == 404
    assert outstanding(shops[SOUTH]) == 1
    done = settled(web, lease, "ack", all=True)
    assert done.document == {"count": 1, "left": 0, "ends": None}


@pytest.mark.spec("H4")
def test_a_fetch_ends_with_its_durable(
    web: Web, shops: dict[str, penstock.Channel], session: penstock.Session
) -> None:
    publish(shops[NORTH], 1)
    lease = fetch(web, TEAM)["lease"]
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(web.ask, "POST", f"{TEAM}/fetch", body={"wait_ms": 30_000})
        until(lambda: shops[SOUTH].durables.get("team").info().clients)
        session.durables.delete("shop/*", "team")
        assert waits.result(20).status == 404
    assert settled(web, lease, "ack", all=True).code == "name-does-not-exist"


@pytest.mark.spec("H4", "H3")
def test_a_lease_over_a_pattern_counts_as_one_with_all_its_events() -> None:
    with penstock.Realm(http__leases_max=2, http__leased_events_max=5) as realm:
        with realm.connect() as session:
            for name in (NORTH, SOUTH, EAST):
                publish(session.channels.create(name), 2)
            session.durables.create("shop/*", "team")
        web = Web(realm.listen_http())
        assert web.ask("POST", f"{TEAM}/fetch", {"count": 6}).code == "limit-reached"
        delivery = fetch(web, TEAM, count=3)
        assert len(ids_by_channel(delivery)) == 3
        assert "would have 6 events" in web.ask("POST", f"{TEAM}/fetch", {"count": 3}).reason
        metrics = web.ask("GET", "/metrics").data.decode()
        assert "penstock_http_leases 1.0\n" in metrics
        assert "penstock_http_leased_events 3.0\n" in metrics


@pytest.mark.spec("H4", "A3")
def test_channels_that_one_may_not_read_are_left_out(realm_of_shops: Any) -> None:
    realm, session = realm_of_shops
    url = realm.listen_http()
    ann, bob = Known(url, "ann", "ann"), Known(url, "bob", "bob")

    hers = fetch(ann, TEAM)
    assert ids_by_channel(hers) == {NORTH: [0]}
    assert settled(bob, hers["lease"], "ack", all=True).code == "lease-ended", "as if there is none"
    assert ids_by_channel(fetch(bob, TEAM)) == {}
    refused = settled(ann, "ofbefore", "ack", ids={SOUTH: [0]})
    assert (refused.code, "'subscribe'" in refused.reason) == ("access-denied", True)

    session.access.grant("bob@*", "subscribe", channel=SOUTH)
    theirs = fetch(bob, TEAM)
    assert ids_by_channel(theirs) == {SOUTH: [0]}
    session.access.revoke("bob@*", channel=SOUTH)
    refused = settled(bob, theirs["lease"], "ack", all=True)
    assert (refused.code, "'subscribe'" in refused.reason) == ("access-denied", True)
    assert settled(ann, hers["lease"], "ack", all=True).status == 200
    session.access.grant("ann@*", "subscribe", channel=SOUTH)
    until(lambda: ids_by_channel(fetch(ann, TEAM)) == {SOUTH: [0]})


@pytest.fixture
def realm_of_shops() -> Any:
    quick = {"access__password_rounds": 4_096, "access__password_length_min": 1}
    settings: dict[str, Any] = {"access__mode": "mandatory", **quick}
    with penstock.Realm(**settings) as realm, realm.connect() as session:
        for name in (NORTH, SOUTH):
            publish(session.channels.create(name), 1)
        session.durables.create("shop/*", "team")
        for user in ("ann", "bob"):
            session.access.create_user(user, user)
            session.access.grant(f"{user}@*", "access")
        session.access.grant("ann@*", "subscribe", channel=NORTH)
        yield realm, session


@pytest.mark.spec("H4")
def test_a_pattern_of_many_channels_is_looked_at_again_and_again(
    web: Web,
    shops: dict[str, penstock.Channel],
    realm: penstock.Realm,
) -> None:
    """More than a fetch takes seats at."""
    book = realm.running.leases
    book.limits = replace(book.limits, watched_max=1)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(fetch, web, TEAM, wait_ms=30_000)
        until(lambda: shops[NORTH].durables.get("team").info().clients)
        assert not shops[SOUTH].durables.get("team").info().clients
        publish(shops[SOUTH], 1)
        assert ids_by_channel(waits.result(20)) == {SOUTH: [0]}
