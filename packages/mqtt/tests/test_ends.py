"""Ends of MQTT connections whose clients are silent or read too slowly; and MQTT over TLS."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import penstock
from packages.mqtt.tests.clients import Hung, PacketClient, connected
from packages.mqtt.tests.limited import limited
from penstock_mqtt.held_bytes import STEP_BYTES
from penstock_mqtt.wire.packets import MQTT_3, MQTT_5, DisconnectPacket
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason
from tests.access.certificates import Authority


def looked_at(realm: penstock.Realm, later_s: float) -> None:
    """Have the realm look at its connections as if so many seconds had passed."""

    async def check_connections() -> None:
        realm.listener.check_connections(asyncio.get_running_loop().time() + later_s)

    realm.loop.call(check_connections())


@pytest.mark.parametrize("version", [MQTT_3, MQTT_5])
def test_a_client_is_silent_for_one_and_a_half_times_its_keep_alive_at_most(version: int) -> None:
    with penstock.Realm() as realm:
        url = realm.listen_mqtt()
        with (
            connected(url, "silent", version, keep_alive_s=100) as silent,
            connected(url, "free", version, keep_alive_s=0) as free,
        ):
            looked_at(realm, 140.0)
            assert not silent.publish("a").reason
            looked_at(realm, 160.0)
            if version == MQTT_5:
                last = silent.receive()
                assert isinstance(last, DisconnectPacket)
                assert last.reason == Reason.KEEP_ALIVE_TIMEOUT
            with pytest.raises(Hung):
                silent.receive()
            looked_at(realm, 1e6)
            assert not free.publish("a").reason


def test_an_idle_connection_is_checked_when_its_keep_alive_ends_or_its_proof_may_expire() -> None:
    with penstock.Realm() as realm:
        url = realm.listen_mqtt()
        with connected(url, "limited", keep_alive_s=100), connected(url, "free", keep_alive_s=0):
            hub: Any = realm.listener.services["mqtt"]
            connections = {connection.client_id: connection for connection in hub.connections()}
            limited_one, free = connections["limited"], connections["free"]
            assert (limited_one.quiet_until_s, free.quiet_until_s) == (0, 0)

            looked_at(realm, 1.0)
            assert limited_one.quiet_until_s == limited_one.heard_s + 150
            assert free.quiet_until_s == math.inf

            async def authenticate_again() -> None:
                free.use_new_principal(replace(free.principal, until_us=1 << 60))

            realm.loop.call(authenticate_again())
            for _ in range(2):
                looked_at(realm, 1.0)
                assert free.quiet_until_s == 0


def test_a_failed_check_is_reported_until_no_connection_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: float) -> None:
        raise RuntimeError("broken")

    with penstock.Realm() as realm:
        url = realm.listen_mqtt()
        with connected(url, "a") as client:
            hub: Any = realm.listener.services["mqtt"]
            (connection,) = hub.connections()
            others = [other for other in realm.listener.connections if other is not connection]
            for other in others:
                monkeypatch.setattr(other, "quiet_until_s", math.inf)
            monkeypatch.setattr(connection, "check", fail)
            looked_at(realm, 1.0)
            assert realm.listener.realm.incidents.channels_of("connections")

            monkeypatch.setattr(connection, "quiet_until_s", math.inf)
            looked_at(realm, 1.0)
            assert not realm.listener.realm.incidents.channels_of("connections")
            assert not client.publish("a").reason


def test_who_lets_messages_wait_is_told_why_it_loses_its_connection() -> None:
    with penstock.Realm() as realm:
        url = realm.listen_mqtt()
        slow = PacketProperties(receive_maximum=1)
        with (
            limited(realm, waiting_max=3),
            connected(url, "slow", properties=slow) as client,
            connected(url) as publisher,
        ):
            client.subscribe("a")
            for _ in range(5):
                publisher.publish("a", bytes(STEP_BYTES))
            assert client.receive().packet_id == 1
            last = client.receive()
            assert isinstance(last, DisconnectPacket)
            assert last.reason == Reason.QUOTA_EXCEEDED
            with pytest.raises(Hung):
                client.receive()
            assert not publisher.publish("a").reason


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.fixture
def guarded(authority: Authority) -> Iterator[penstock.Realm]:
    certificate, key = authority.certificate("localhost", "realm")
    with penstock.Realm(
        access__mode="mandatory",
        access__password_rounds=4_096,
        access__password_length_min=1,
        access__failure_delay_s=0.0,
        listen__tls_certificate=str(certificate),
        listen__tls_key=str(key),
        listen__tls_client_ca=str(authority.file),
    ) as running:
        with running.connect() as root:
            root.channels.create("mqtt")
            root.access.create_user("device", "pw")
            for name in ("device", "certificate:alice"):
                root.access.grant(f"{name}@*", "access")
            root.access.grant("certificate:alice@*", "publish", channel="mqtt")
        yield running


@pytest.mark.spec("A5")
def test_over_tls_a_password_or_a_certificate_says_who_it_is(
    guarded: penstock.Realm, authority: Authority
) -> None:
    url = guarded.listen_mqtt("localhost")
    assert url.startswith("mqtts://")
    plain = ssl.create_default_context(cafile=str(authority.file))
    tls = ssl.create_default_context(cafile=str(authority.file))
    tls.load_cert_chain(*authority.certificate("alice"))
    with (
        PacketClient(url, tls=tls) as alice,
        PacketClient(url, tls=plain) as device,
        PacketClient(url, tls=plain) as nobody,
    ):
        assert alice.connect("alice").reason == Reason.SUCCESS
        assert alice.publish("a").reason == Reason.SUCCESS
        assert device.connect("device", user="device", password=b"pw").reason == Reason.SUCCESS
        assert device.publish("a").reason == Reason.NOT_AUTHORIZED
        assert nobody.connect("nobody").reason == Reason.BAD_USER_OR_PASSWORD
