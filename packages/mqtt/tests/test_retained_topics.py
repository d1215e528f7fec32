"""The topics that have a retained message are bounded, in number and in bytes of memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from packages.mqtt.tests.clients import PacketClient, connected
from packages.mqtt.tests.internal_stores import GUARDED
from penstock_mqtt.wire.reasons import Reason

pytestmark = pytest.mark.spec("M5")


def retain_until_refused(client: PacketClient, name: str, most: int = 100) -> tuple[int, str]:
    """Retain messages of new topics. Returns how many were taken, and why the next was not."""
    for count in range(most):
        answer = client.publish(f"{name}{count}", b"1", retain=True)
        if answer.reason.is_failure:
            assert answer.reason == Reason.QUOTA_EXCEEDED
            return count, str(answer.properties.reason)
    return most, ""


@pytest.fixture
def guarded() -> Iterator[penstock.Realm]:
    """A realm with two users who may retain messages of eight topics together."""
    with penstock.Realm(**GUARDED, limits__mqtt_retained_messages_max=8) as realm:
        with realm.connect() as session:
            realm.listen_mqtt()
            for user in ("alice", "bob"):
                session.access.create_user(user, "pw")
                session.access.grant(f"{user}@*", "access")
                session.access.grant(f"{user}@*", "full", channel="mqtt")
        yield realm


def test_bytes_count_the_text_and_the_levels_of_topics() -> None:
    with penstock.Realm(limits__mqtt_retained_bytes_max=100_000) as realm:
        with connected(realm.listen_mqtt()) as client:
            long, why = retain_until_refused(client, "x" * 9_000)
            assert 9 <= long <= 11
            assert "limits.mqtt_retained_bytes_max" in why
            assert client.publish("x" * 9_000 + "0", b"2", retain=True).reason == Reason.SUCCESS
            for count in range(long):  # a message without a payload removes what is retained
                client.publish("x" * 9_000 + str(count), b"", retain=True)
        with realm.connect() as session:
            session.mqtt.forget("#")
        with connected(realm.listen_mqtt()) as client:
            deep, _ = retain_until_refused(client, "/a" * 100)
            assert 2 <= deep <= 4


def test_the_count_is_right_after_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("realm")
    limits = {"limits__mqtt_retained_bytes_max": 100_000}
    with penstock.Realm(folder, **limits) as realm, connected(realm.listen_mqtt()) as client:
        assert retain_until_refused(client, "x" * 9_000, most=8)[0] == 8
    with penstock.Realm(folder, **limits) as realm, connected(realm.listen_mqtt()) as client:
        assert 1 <= retain_until_refused(client, "y" * 9_000)[0] <= 3


def test_a_user_has_half_of_what_the_others_leave(guarded: penstock.Realm) -> None:
    url = guarded.listen_mqtt()
    with (
        connected(url, "a", user="alice", password=b"pw") as alice,
        connected(url, "b", user="bob", password=b"pw") as bob,
    ):
        count, why = retain_until_refused(alice, "alice/")
        assert count == 4
        assert "of this user" in why
        assert alice.publish("alice/0", b"2", retain=True).reason == Reason.SUCCESS
        assert retain_until_refused(bob, "bob/")[0] == 2

        for number in range(4):
            alice.publish(f"alice/{number}", b"", retain=True)
        assert retain_until_refused(alice, "other/")[0] >= 1
