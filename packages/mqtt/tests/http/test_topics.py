"""Topics of MQTT by HTTP: what is retained by level and by filter, sessions, and how to tail."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest

import penstock
from packages.mqtt.tests.clients import Hung, connected
from packages.mqtt.tests.internal_stores import put_into
from packages.server.tests.frontends.http.asking import Web
from packages.server.tests.frontends.http.known import Known
from penstock_mqtt.wire.packets import DisconnectPacket, Will
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason

RETAINED = "channels/mqtt/retained"
TOPICS = "channels/mqtt/topics"
NAMES = (
    "plant/1/temp",
    "plant/1/state",
    "plant/2/temp",
    "plant",
    "plant-b",
    "/x",
    "/",
    "a b/ü",
    "$own/1",
    "deep/1/2/3/4",
)


@pytest.fixture
def retained(realm: penstock.Realm, session: penstock.Session) -> None:
    """With a message for each of the names, and one that was purged again."""
    realm.listen_mqtt()
    names = ("plant/9/temp", *NAMES)
    put_into(realm, "mqtt-retained", [({"topic": name}, name.encode()) for name in names])
    assert session.mqtt.forget("plant/9/temp") == 1


def pages(web: Web, path: str, **query: Any) -> list[Any]:
    """All items, page by page."""
    items: list[Any] = []
    while True:
        answer = web.get(path, **query)
        assert len(answer["items"]) <= query.get("limit", 100)
        items += answer["items"]
        if answer["next"] is None:
            return items
        query["after"] = answer["next"]


@pytest.mark.slow
@pytest.mark.spec("M5")
@pytest.mark.usefixtures("retained")
def test_topics_are_counted_by_level_page_by_page(web: Web) -> None:
    for prefix, depth in product(("plant", "", "deep/1", "nothing", None), (1, 2, 16)):
        above = () if prefix is None else tuple(prefix.split("/"))
        counts: Counter[tuple[str, ...]] = Counter()
        for levels in (tuple(topic.split("/")) for topic in NAMES):
            if levels[: len(above)] == above:
                ends = range(len(above) + 1, min(len(levels), len(above) + depth) + 1)
                counts.update(levels[:end] for end in ends)
        query = {} if prefix is None else {"prefix": prefix}

        for limit in (2, 100):
            topics = pages(web, TOPICS, **query, depth=depth, limit=limit)

            assert [(item["topic"], item["retained"]) for item in topics] == [
                ("/".join(levels), count) for levels, count in sorted(counts.items())
            ]

    topics = web.get(TOPICS, depth=16)["items"]
    assert len(topics) > len(NAMES)
    for item in topics:
        below = item["topic"] + "/"
        assert item["name"] == item["topic"].rpartition("/")[2]
        assert (item["event_id"] is not None) == (item["topic"] in NAMES)
        assert item["is_open"] == any(name.startswith(below) for name in NAMES)


FOUND = {
    "#": [topic for topic in NAMES if not topic.startswith("$")],
    "plant/+/temp": ["plant/1/temp", "plant/2/temp"],
    "plant/#": [topic for topic in NAMES if topic.split("/")[0] == "plant"],
    "plant/1/temp": ["plant/1/temp"],
    "$own/#": ["$own/1"],
    "nothing/+": [],
}
"""Topics of the retained messages that each filter finds, which are also their payloads."""


@pytest.mark.spec("M5", "F6")
@pytest.mark.usefixtures("retained")
def test_what_is_retained_is_read_by_filter(web: Web) -> None:
    for (wanted, topics), limit in product(FOUND.items(), (2, 100)):
        read = pages(web, RETAINED, filter=wanted, limit=limit)
        assert [event["properties"]["topic"] for event in read] == topics
        assert [event["data"] for event in read] == topics


@pytest.mark.spec("M5")
def test_what_was_removed_is_not_shown(web: Web, realm: penstock.Realm) -> None:
    with connected(realm.listen_mqtt(), "plant") as client:
        for topic in ("a", "b"):
            client.publish(topic, b"21", retain=True)
        client.publish("a", b"", retain=True)

    for wanted in ("#", "+"):
        assert [item["data"] for item in web.get(RETAINED, filter=wanted)["items"]] == ["21"]


def test_what_is_no_filter_or_keeps_no_topics_is_refused(
    web: Web, session: penstock.Session, realm: penstock.Realm
) -> None:
    realm.listen_mqtt()
    session.channels.create("orders", keys={"sku": 1})

    for path in (f"{RETAINED}?filter=a%2F%23%2Fb", "mqtt?filter=%2Ba"):
        refused = web.ask("GET", path)
        assert (refused.status, refused.code) == (400, "invalid-argument")
        assert "wildcard" in refused.reason
    for path in ("topics", "retained"):
        refused = web.ask("GET", f"channels/orders/{path}")
        assert (refused.status, refused.code) == (400, "invalid-argument")
        assert "the publish key topic of depth 1" in refused.reason


@pytest.mark.spec("M6", "M8")
def test_sessions_are_told_with_what_waits_for_them(web: Web, realm: penstock.Realm) -> None:
    assert web.get("mqtt/sessions") == {"items": [], "next": None}
    url, hour = realm.listen_mqtt(), PacketProperties(session_expiry_s=3_600)
    will = Will("gone", b"bye", properties=PacketProperties(will_delay_s=600))
    with connected(url, "meter", properties=hour, will=will) as client:
        client.subscribe("plant/#", qos=1)
        client.subscribe("office", qos=0)
        client.send(DisconnectPacket(Reason.DISCONNECT_WITH_WILL))
        with pytest.raises(Hung):
            client.receive()
    with connected(url, "other", version=4) as client:
        client.subscribe("x", qos=1)
        client.publish("plant/1/temp", b"22")
        client.publish("x", b"23")

        session_pages = pages(web, "mqtt/sessions", limit=1)
        sessions = {session["client_id"]: session for session in session_pages}

    assert list(sessions) == ["meter", "other"]
    meter, other_session = sessions.values()
    assert [
        (subscription["filter"], subscription["qos"], subscription["waiting"])
        for subscription in meter["subscriptions"]
    ] == [
        ("plant/#", 1, 1),
        ("office", 0, 0),
    ]
    assert (meter["version"], meter["expiry_s"], meter["waiting"]) == (None, 3_600, 1)
    assert meter["ended"] < meter["will_due"] < meter["expires"]
    assert (
        other_session["version"],
        other_session["in_flight"],
        other_session["subscription_count"],
    ) == ("3.1.1", 1, 1)
    assert (other_session["ended"], other_session["expires"], other_session["will_due"]) == (
        None,
        None,
        None,
    )


@pytest.mark.spec("M6")
def test_a_session_is_ended_by_its_client_id(web: Web, realm: penstock.Realm) -> None:
    hour = PacketProperties(session_expiry_s=3_600)
    with connected(realm.listen_mqtt(), "pump-7", properties=hour) as client:
        web.send("DELETE", "mqtt/sessions?client_id=pump-7")

        assert client.receive().reason == Reason.ADMINISTRATIVE_ACTION
    assert web.get("mqtt/sessions")["items"] == []
    refused = web.ask("DELETE", "mqtt/sessions?client_id=pump-7")
    assert (refused.status, refused.code) == (404, "name-does-not-exist")


@pytest.mark.spec("M12")
def test_how_a_filter_is_tailed_is_told_for_each_channel(
    web: Web, realm: penstock.Realm, session: penstock.Session
) -> None:
    assert web.get("mqtt") == {"channel": None, "retained": None, "channels": []}
    realm.listen_mqtt()
    temps = session.channels.create("temps", topics=["plant/{line}/temp"])
    for line in ("1", "2"):
        temps.publish(b"21", properties={"line": line})

    answer = web.get("mqtt", filter="plant/1/#")
    elsewhere = web.get("mqtt", filter="office")

    assert (answer["channel"], answer["retained"]) == ("mqtt", "mqtt")
    assert [(channel["name"], channel["topics"]) for channel in answer["channels"]] == [
        ("mqtt", []),
        ("temps", ["plant/{line}/temp"]),
    ]
    chosen = answer["channels"][1]["selector"]
    events = web.get("channels/temps/events", selector=chosen)["items"]
    assert [event["properties"] for event in events] == [{"line": "1"}]
    assert [channel["selector"] for channel in elsewhere["channels"]] == ["topic = 'office'", None]


@pytest.mark.spec("A3")
def test_who_may_not_read_a_channel_is_not_told_of_it() -> None:
    with penstock.Realm(access__mode="mandatory", access__password_rounds=4_096) as realm:
        web = Web(realm.listen_http())
        realm.listen_mqtt()
        admin = Known(web.url, "admin", realm.access.first_password)
        admin.send("POST", "channels", {"name": "temps", "attributes": {"topics": ["plant/+"]}})
        admin.send("POST", "users", {"name": "ann", "password": "a long password"})
        for grant in (
            {"kind": "realm", "subject": "ann@*", "rights": ["access"]},
            {"kind": "channel", "name": "temps", "subject": "ann@*", "rights": ["subscribe"]},
        ):
            admin.send("POST", "acl/grant", grant)
        ann = Known(web.url, "ann", "a long password")

        assert [channel["name"] for channel in ann.get("mqtt")["channels"]] == ["temps"]
        assert [channel["name"] for channel in admin.get("mqtt")["channels"]] == ["mqtt", "temps"]
        assert [ann.ask("GET", path).status for path in (TOPICS, RETAINED)] == [403, 403]
