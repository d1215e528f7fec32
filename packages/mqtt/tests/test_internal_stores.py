"""Clients cannot open the internal stores of MQTT, and no content of these stops a start."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from packages.mqtt.tests.clients import PacketClient, connected
from packages.mqtt.tests.internal_stores import (
    GUARDED,
    definition_of,
    made_before,
    number_of,
    put_into,
    stored_in,
)
from packages.mqtt.tests.persistent_sessions import HOUR, back, settled, stored
from penstock_core.access.rights import Principal
from penstock_core.api.channels import PurgeChannel
from penstock_core.api.operations import COLUMNS, READ, REQUESTS, Numbered
from penstock_core.api.publishing import PublishEvents
from penstock_core.api.subscriptions import Subscribe
from penstock_core.realm.directory import Directory
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import NameAlreadyBound, NameDoesNotExist
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromId
from penstock_mqtt.session_store import (
    SessionRecord,
    StoredPrincipal,
    session_entry,
)
from penstock_mqtt.wire.packets import MQTT_5, PublishPacket, Will
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason
from penstock_mqtt.wire.writing import packet_bytes
from penstock_server.runtime.access.permits import operations_on_internal
from penstock_server.runtime.operations.callers import Caller

HOUR_US = 3_600_000_000
OWN = ("mqtt-retained", "mqtt-sessions")
USES: list[Callable[[penstock.Session, str], object]] = [
    lambda session, name: session.channels.get(name),
    lambda session, name: session.channels.delete(name),
    lambda session, name: session.queues.get(name),
    lambda session, name: session.joins.create("other", name),
    lambda session, name: session.joins.create(name, "other"),
    lambda session, name: session.channels.create("third", dead_event_store=name),
    lambda session, name: session.access.grant("eve@*", "publish", channel=name),
]


@pytest.mark.spec("A6")
@pytest.mark.parametrize("settings", [{}, GUARDED])
def test_no_right_opens_an_internal_store_by_its_name(settings: dict[str, Any]) -> None:
    with penstock.Realm(**settings) as realm, realm.connect() as session:
        realm.listen_mqtt()
        session.channels.create("other")
        for name in OWN:
            for use in USES[: None if settings else -1]:
                with pytest.raises(NameDoesNotExist, match="an internal store of the realm"):
                    use(session, name)
            with pytest.raises(NameAlreadyBound, match="reserved for an internal store"):
                session.channels.create(name)
        assert session.channels.list() == ["mqtt", "other"]
        assert session.info().channels == 2


@pytest.mark.spec("A6")
@pytest.mark.parametrize("settings", [{}, GUARDED])
def test_no_right_opens_an_internal_store_by_its_number(settings: dict[str, Any]) -> None:
    with penstock.Realm(**settings) as realm:
        realm.listen_mqtt()
        running = realm.running
        caller = Caller(running, Principal("root", "here", trusted=True))
        for name in OWN:
            number = number_of(running, name)
            for request in (
                PublishEvents(number, "", 0, schema=0, sizes=()),
                PurgeChannel(number, None, None),
            ):
                with pytest.raises(NameDoesNotExist, match="an internal store"):
                    caller.check(request)
        with pytest.raises(NameDoesNotExist, match="an internal store"):
            caller.check(Subscribe(number_of(running, "mqtt-sessions"), 1, FromId(0), credit=1))
        caller.check(Subscribe(number_of(running, "mqtt-retained"), 1, FromId(0), credit=1))


@pytest.mark.spec("A6")
def test_reading_is_all_that_may_be_asked_of_retained_messages_by_number() -> None:
    with penstock.Realm() as realm:
        realm.listen_mqtt()
        directory = realm.running.directory
        retained = directory.internal.retained_id
        assert retained is not None
        pairs = {
            ask.pair for it in REQUESTS.values() for ask in it.asks if isinstance(ask, Numbered)
        }
        refused = {pair for pair in pairs if not _is_allowed(directory, retained, pair)}
        assert pairs - refused == {READ, COLUMNS}


def _is_allowed(directory: Directory, number: ChannelId, pair: tuple[str, str]) -> bool:
    try:
        operations_on_internal(directory, number, pair)
    except NameDoesNotExist:
        return False
    return True


@pytest.mark.spec("A6", "M5")
def test_retained_messages_are_read_by_who_may_read_every_channel_they_may_be_of() -> None:
    with penstock.Realm(**GUARDED) as realm, realm.connect() as session:
        url = realm.listen_mqtt()
        session.access.create_user("eve", "pw")
        session.access.grant("eve@*", "access")
        session.access.grant("eve@*", "subscribe", channel="mqtt")
        with connected(url, user="eve", password=b"pw") as eve:
            assert eve.publish("a").reason == Reason.NOT_AUTHORIZED
        session.access.grant("eve@*", "publish", channel="mqtt")
        with connected(url, user="eve", password=b"pw") as eve:
            eve.publish("a", b"1", retain=True)

        with realm.connect("eve") as other_session:
            assert [message.data for message in other_session.mqtt.retained("#")] == [b"1"]
            with pytest.raises(penstock.AccessDenied, match="'purge' on channel mqtt"):
                other_session.mqtt.forget("#")
            session.channels.create("lines", topics=["plant/#"])
            with pytest.raises(penstock.AccessDenied, match="'subscribe' on channel lines"):
                other_session.mqtt.retained("#")
        assert session.mqtt.forget("#") == 1
        assert list(session.mqtt.retained("#")) == []


BROKEN = [
    ("session/zz", b"not json"),
    ("session/deep", b'{"client_id":"deep","zz":' + b"[" * 100_000),
    ("session/other", msgspec.json.encode({"client_id": "a", "principal": ["a", "h"]})),
    ("session/b", msgspec.json.encode({"client_id": "c", "principal": {"user": "u", "host": ""}})),
    ("received/notanumber/zz", b"1"),
    ("received/70000/zz", b"1"),
    ("sent/1/zz", b"[]"),
    ("else/1", b"{}"),
    ("", b"{}"),
]


@pytest.mark.spec("A6", "M6")
def test_entries_that_cannot_be_read_are_left_out_and_told(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path) as realm:
        with back(realm.listen_mqtt(), "good", present=False) as client:
            client.subscribe("t", qos=1)
        put_into(realm, "mqtt-sessions", [({"entry": name}, data) for name, data in BROKEN])
        put_into(realm, "mqtt-retained", [({"topic": "bad/#"}, b"\xff"), ({}, b"x")])

    with penstock.Realm(tmp_path) as realm:
        with back(realm.listen_mqtt(), "good"):
            pass
        hub: Any = realm.listener.services["mqtt"]
        assert hub.sessions.unreadable_count == len(BROKEN)
        settled(realm)
        assert len(stored_in(realm, "mqtt-sessions")) == len(BROKEN) + 1


@pytest.mark.spec("A6", "M8")
def test_entries_of_other_users_are_not_believed_though_the_store_looks_like_the_realms(
    tmp_path: Path,
) -> None:
    """Older versions let users make it before MQTT was served, and publish to it."""
    will = packet_bytes(PublishPacket("forged", b"bye", 1, packet_id=1), MQTT_5)
    record = {
        "client_id": "x",
        "principal": {"user": "admin", "host": "h"},
        "expiry_s": 3_600,
        "ended_us": 1,
        "will": {"packet": will},
    }
    sent = {"source": "t", "event_id": 0, "channel": "secrets"}
    forged = [("session/x", record), ("sent/1/eve", sent)]
    with penstock.Realm(tmp_path) as realm:
        shape = Definition(keys={"entry": 1}, retain_consumed=True, event_ttl=True)
        made_before(realm, "mqtt-sessions", shape)
        entries = [({"entry": name}, msgspec.json.encode(document)) for name, document in forged]
        put_into(realm, "mqtt-sessions", entries, publisher="eve@10.0.0.5")

    with penstock.Realm(tmp_path) as realm:
        realm.listen_mqtt()
        hub: Any = realm.listener.services["mqtt"]
        assert hub.sessions.unreadable_count == len(forged)
        settled(realm)
        assert stored(realm, "forged") == []


@pytest.mark.spec("A6", "M8")
def test_a_session_that_was_stored_with_its_will_goes_on(tmp_path: Path) -> None:
    """Such an entry has the publisher of the will."""
    with penstock.Realm(tmp_path) as realm:
        with PacketClient(realm.listen_mqtt()) as client:
            lasting = PacketProperties(session_expiry_s=3_600)
            client.connect("x", properties=lasting, will=Will("gone", b"bye", 1))
            client.subscribe("t", qos=1)
            client.close()
        settled(realm)
        assert stored(realm, "gone") == [b"bye"]

    with penstock.Realm(tmp_path) as realm:
        with back(realm.listen_mqtt(), "x"):
            pass
        hub: Any = realm.listener.services["mqtt"]
        assert hub.sessions.unreadable_count == 0


@pytest.mark.spec("A6", "M8")
def test_a_stored_principal_has_the_rights_that_its_user_has_now(tmp_path: Path) -> None:
    will = packet_bytes(PublishPacket("forged", b"bye", 1, packet_id=1), MQTT_5)
    record = {
        "client_id": "x",
        "principal": {"user": "low", "host": "h", "trusted": True, "groups": ["admins"]},
        "expiry_s": 3_600,
        "ended_us": 1,
        "will": {"packet": will},
    }
    with penstock.Realm(tmp_path, **GUARDED) as realm, realm.connect() as session:
        realm.listen_mqtt()
        session.access.create_group("admins")
        session.access.grant("group:admins", "full")
        session.access.create_user("low", "pw")
        session.access.grant("low@*", "access")
        put_into(
            realm,
            "mqtt-sessions",
            [({"entry": "session/x"}, msgspec.json.encode(record))],
        )

    with penstock.Realm(tmp_path, **GUARDED) as realm:
        url = realm.listen_mqtt()
        with PacketClient(url) as client:
            client.connect("x", clean_start=False, user="low", password=b"pw")
        settled(realm)
        assert stored(realm, "forged") == []


@pytest.mark.spec("A6", "M6")
def test_sessions_and_retained_messages_of_an_older_version_go_on(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path) as realm:
        kept = Definition(retain_consumed=True, event_ttl=True)
        made_before(realm, "mqtt-sessions", msgspec.structs.replace(kept, keys={"entry": 1}))
        made_before(realm, "mqtt-retained", msgspec.structs.replace(kept, keys={"topic": 1}))
        old = SessionRecord(
            "old", StoredPrincipal("anonymous", "127.0.0.1"), 3_600, ended_us=1 << 51
        )
        put_into(realm, "mqtt-sessions", [({"entry": "session/old"}, session_entry("", old)[1])])
        put_into(realm, "mqtt-retained", [({"topic": "t"}, b"kept")])

    with penstock.Realm(tmp_path) as realm:
        url = realm.listen_mqtt()
        with back(url, "old") as client:
            client.subscribe("t")
            assert client.receive().payload == b"kept"
        assert definition_of(realm, "mqtt-sessions").keys == {"entry": 1}


@pytest.mark.spec("M8")
def test_a_session_that_ended_by_a_clock_that_was_ahead_expires_in_time(tmp_path: Path) -> None:
    ended_us = time.time_ns() // 1_000 + HOUR_US
    ahead = SessionRecord("ahead", StoredPrincipal("anonymous", "127.0.0.1"), 60, ended_us=ended_us)
    with penstock.Realm(tmp_path) as realm:
        realm.listen_mqtt()
        put_into(
            realm, "mqtt-sessions", [({"entry": "session/ahead"}, session_entry("", ahead)[1])]
        )

    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        realm.listen_mqtt()
        (shown,) = session.mqtt.sessions()
        assert shown.expires_us is not None
        assert shown.expires_us <= time.time_ns() // 1_000 + 60_000_000


@pytest.mark.spec("M4", "M6")
def test_a_client_id_is_its_users_and_others_may_have_the_same(tmp_path: Path) -> None:
    def as_user(name: str) -> dict[str, Any]:
        return {"user": name, "password": b"pw"}

    with penstock.Realm(tmp_path, **GUARDED) as realm, realm.connect() as session:
        url = realm.listen_mqtt()
        for user in ("low", "alice"):
            session.access.create_user(user, "pw")
            session.access.grant(f"{user}@*", "access")
            session.access.grant(f"{user}@*", "subscribe", "durable", channel="mqtt")
        for user in ("low", "alice"):
            with back(url, "pump-7", present=False, **as_user(user)) as client:
                client.subscribe(f"to/{user}", qos=1)
        settled(realm)
        assert {(row.client_id, row.user) for row in session.mqtt.sessions()} == {
            ("pump-7", "low@127.0.0.1"),
            ("pump-7", "alice@127.0.0.1"),
        }
    with penstock.Realm(tmp_path, **GUARDED) as realm, realm.connect() as session:
        url = realm.listen_mqtt()
        for user in ("low", "alice"):
            session.channels.get("mqtt").publish(b"1", properties={"topic": f"to/{user}"})
        with back(url, "pump-7", **as_user("alice")) as client:
            assert client.receive().topic == "to/alice"

        session.access.delete_user("low")

        assert [row.user for row in session.mqtt.sessions()] == ["alice@127.0.0.1"]
        assert [durable.name for durable in session.channels.get("mqtt").durables.list()] == [
            row.filters[0].durable for row in session.mqtt.sessions()
        ]


@pytest.mark.spec("M6", "M8")
def test_an_administrator_ends_a_session_with_its_connection() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        url = realm.listen_mqtt()
        will = Will("bye", b"", 1, properties=PacketProperties(will_delay_s=600))
        with back(url, "here", present=False, will=will) as client:
            client.subscribe("t", qos=1)
            session.mqtt.end_session("here")
            assert client.receive().reason == Reason.ADMINISTRATIVE_ACTION
        with back(url, "away", present=False):
            pass
        settled(realm)
        (listed,) = session.mqtt.sessions()
        with pytest.raises(NameDoesNotExist, match="of user 'somebody' has no session"):
            session.mqtt.end_session("away", "somebody")
        session.mqtt.end_session("away", listed.user)
        with pytest.raises(NameDoesNotExist, match="'nobody' has no session"):
            session.mqtt.end_session("nobody")

        assert session.mqtt.sessions() == []
        assert session.channels.get("mqtt").durables.list() == []
        assert stored(realm, "bye") == [b""]
        with back(url, "here", present=False, properties=HOUR):
            pass
