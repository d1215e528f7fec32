"""Limits of the MQTT sessions of a user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from packages.mqtt.tests.clients import PacketClient
from packages.mqtt.tests.internal_stores import GUARDED
from packages.mqtt.tests.persistent_sessions import HOUR, back, settled
from penstock_mqtt.wire.packets import Will
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason

pytestmark = pytest.mark.spec("M6")


def as_user(name: str) -> dict[str, Any]:
    return {"user": name, "password": b"pw"}


@pytest.fixture
def guarded() -> Iterator[penstock.Realm]:
    """A realm with two users: one may subscribe and publish, the other may only be there."""
    with penstock.Realm(
        **GUARDED,
        limits__subscriptions_per_connection_max=3,
        limits__mqtt_sessions_per_user_max=2,
        limits__mqtt_session_bytes_per_user_max=4_096,
    ) as realm:
        with realm.connect() as session:
            realm.listen_mqtt()
            for user in ("alice", "low"):
                session.access.create_user(user, "pw")
                session.access.grant(f"{user}@*", "access")
            session.access.grant("alice@*", "full", channel="mqtt")
        yield realm


def test_a_client_has_as_many_filters_as_a_connection_may_have_subscriptions(
    guarded: penstock.Realm,
) -> None:
    with back(guarded.listen_mqtt(), "a", present=False, **as_user("alice")) as client:
        granted = client.subscribe("a", "b", "c", "d", qos=0).reasons
        assert granted == (Reason.SUCCESS,) * 3 + (Reason.QUOTA_EXCEEDED,)
        assert client.subscribe("a", qos=1).reasons == (Reason.GRANTED_QOS_1,)


def test_a_user_has_so_many_stored_sessions_and_others_are_let_in(guarded: penstock.Realm) -> None:
    url = guarded.listen_mqtt()
    for name in ("a", "b"):
        with back(url, name, present=False, **as_user("alice")):
            pass
    settled(guarded)
    with PacketClient(url) as client:
        refused = client.connect("c", clean_start=False, properties=HOUR, **as_user("alice"))
        assert refused.reason == Reason.QUOTA_EXCEEDED
        assert "limits.mqtt_sessions_per_user_max" in str(refused.properties.reason)
    with PacketClient(url) as client:
        assert client.connect("c", **as_user("alice")).reason == Reason.SUCCESS
    with back(url, "a", **as_user("alice")), guarded.connect() as session:
        session.mqtt.end_session("b")
    with back(url, "c", present=False, **as_user("alice")):
        pass


def test_the_bytes_of_a_users_sessions_are_bounded(guarded: penstock.Realm) -> None:
    url = guarded.listen_mqtt()
    will = Will("w", b"x" * 4_096, properties=PacketProperties(will_delay_s=60))
    with PacketClient(url) as client:
        refused = client.connect("a", will=will, properties=HOUR, **as_user("alice"))
        assert refused.reason == Reason.QUOTA_EXCEEDED
        assert "limits.mqtt_session_bytes_per_user_max" in str(refused.properties.reason)
    with guarded.connect() as session:
        assert session.mqtt.sessions() == []


@pytest.mark.spec("M8")
def test_a_will_needs_its_right_and_a_session_that_may_nothing_ends_with_its_connection(
    guarded: penstock.Realm,
) -> None:
    url = guarded.listen_mqtt()
    with PacketClient(url) as client:
        refused = client.connect("a", will=Will("w", b"x"), **as_user("low"))
        assert refused.reason == Reason.NOT_AUTHORIZED
    with back(url, "a", present=False, **as_user("low")) as client:
        assert client.subscribe("a").reasons == (Reason.NOT_AUTHORIZED,)
    settled(guarded)
    with back(url, "a", present=False, **as_user("low")):
        pass
