"""Sessions and retained messages of MQTT go with their realm into a cluster and out of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from packages.cluster.tests.relocation import moved_in, moved_out, owned
from packages.mqtt.tests.clients import connected
from packages.mqtt.tests.internal_stores import number_of
from packages.mqtt.tests.persistent_sessions import HOUR, back
from packages.server.tests.runtime.living import body, publish
from penstock_mqtt.hub import MqttHub
from penstock_mqtt.wire.packets import (
    PubackPacket,
    PubcompPacket,
    PublishPacket,
    PubrecPacket,
    PubrelPacket,
)
from penstock_server.frontends.native.listener import NativeLimits, NativeListener
from penstock_testing.engine import EngineServers
from tests.loops import on_a_loop

pytestmark = pytest.mark.slow


def live(directory: Path) -> None:
    """A realm with a session that is in the middle of everything."""
    with penstock.Realm(directory) as realm:
        url = realm.listen_mqtt()
        with connected(url, "reader", properties=HOUR) as reader:
            reader.subscribe("t/#", qos=2)
        with connected(url, "writer", properties=HOUR) as writer:
            assert writer.publish("t/1", b"state", retain=True) == PubackPacket(1)
            writer.send(PublishPacket("t/2", b"once", 2, packet_id=7))
            assert writer.receive() == PubrecPacket(7)


@pytest.mark.spec("M13", "E4")
@on_a_loop
async def test_a_session_goes_on_in_the_cluster_and_behind_it(tmp_path: Path) -> None:
    servers = EngineServers()
    live(tmp_path / "one")

    await moved_in(tmp_path / "one", servers)
    async with owned(servers, 2) as realm:
        assert (await realm.describe_channel("mqtt")).definition.cluster_wide
        for name in ("mqtt-retained", "mqtt-sessions"):
            number = number_of(realm, name)
            assert realm.directory.channels[number].state.definition.cluster_wide
        hub = MqttHub(NativeListener(realm, "1", NativeLimits()), "mqtt")
        await hub.sessions.load()
        assert len(hub.sessions) == 2
        await publish(realm, hub.mqtt.topics.channel_id(), body([b"of the cluster"], topic="t/3"))
    await moved_out(servers, tmp_path / "two")

    with penstock.Realm(tmp_path / "two") as target:
        url = target.listen_mqtt()
        with back(url, "writer") as writer:
            writer.send(
                PublishPacket("t/2", b"once", 2, packet_id=7, retain=False, is_duplicate=True),
                PubrelPacket(7),
            )
            assert [writer.receive() for _ in range(2)] == [PubrecPacket(7), PubcompPacket(7)]
        with back(url, "reader") as reader:
            payloads = {
                reader.receive().payload for _ in range(3)
            }  # each QoS is in order for itself
            assert payloads == {b"state", b"once", b"of the cluster"}
        with connected(url, "late") as late:
            late.subscribe("t/1")
            assert late.receive().payload == b"state"
