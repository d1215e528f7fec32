"""MQTT in a cluster: every node takes every client, and sessions go on at the next owner."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from packages.cluster.tests.machines import (
    RELAYS_MAX,
    NodeMachine,
    Valve,
    end,
    owner_and_others,
    until,
)
from packages.cluster.tests.mqtt_clients import (
    CLIENT,
    HOUR,
    SECRET,
    Client,
    connect,
    subscribe,
    welcome,
)
from packages.cluster.tests.ordering import orders
from packages.cluster.tests.relaying import connect as call
from packages.cluster.tests.relaying import relaying
from packages.cluster.tests.serving import HOST
from packages.core.tests.wire.frames import masked
from packages.mqtt.tests.internal_stores import replace_by_unfit
from penstock import aio
from penstock_core.wire.websocket import BINARY, frame_bytes
from penstock_mqtt.connection import MqttConnection
from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    ConnectPacket,
    PubackPacket,
    PubcompPacket,
    PublishPacket,
    PubrecPacket,
    PubrelPacket,
    Will,
)
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason
from penstock_mqtt.wire.writing import packet_bytes
from penstock_testing.engine import EngineServers
from penstock_testing.loop import pass_time, simulated


def hosts_at(machine: NodeMachine) -> list[tuple[str, str]]:
    assert machine.listener is not None
    return [
        (connection.protocol, connection.principal.host)
        for connection in machine.listener.connections
        if connection.principal
    ]


@pytest.mark.spec("N1", "M13")
@pytest.mark.parametrize("version", [MQTT_3, MQTT_5])
@simulated
async def test_a_client_is_served_through_any_node_under_its_own_address(version: int) -> None:
    owner, (standby,) = await relaying()

    client, answer = await connect(standby.mqtt, version=version)

    assert answer.reason == 0
    assert hosts_at(owner) == [("mqtt", CLIENT)]
    assert owner.listener is not None
    assert owner.listener.gate is not None
    assert owner.listener.gate.open_by_node() == {standby.name: 1}
    client.say(PublishPacket("t", b"21", 1, packet_id=1))
    assert (await client.hears(PubackPacket)).packet_id == 1
    client.transport.close()
    await until(lambda: not len(standby.relays) and not hosts_at(owner))
    await end(owner, standby)


@pytest.mark.spec("M13", "M10")
@simulated
async def test_a_browser_is_served_through_any_node() -> None:
    owner, (standby,) = await relaying()
    request = (
        f"GET /ws HTTP/1.1\r\nhost: {HOST}\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "sec-websocket-protocol: mqtt\r\n\r\n"
    )
    connack = frame_bytes(BINARY, b"\x20")[:1]

    peer = await call(standby.http, request.encode())
    await until(lambda: peer.heard.endswith(b"\r\n\r\n"))
    peer.transport.write(masked(BINARY, packet_bytes(ConnectPacket("browser"), MQTT_5)))
    await until(lambda: not peer.heard.endswith(b"\r\n\r\n"))

    head, _, frames = peer.heard.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101")
    assert (frames[:1], frames[2:3]) == (connack, b"\x20")
    assert hosts_at(owner) == [("mqtt", CLIENT)]
    await end(owner, standby)


# --- who is not relayed -------------------------------------------------------------------


@pytest.mark.spec("M13")
@simulated
async def test_whom_a_node_cannot_relay_it_tells_where_the_owner_is() -> None:
    owner, (standby,) = await relaying()
    for number in range(RELAYS_MAX):
        await welcome(standby.mqtt, f"d{number}")

    _, connack = await connect(standby.mqtt, "one more")
    _, older = await connect(standby.mqtt, "one more", MQTT_3)

    assert connack.reason == Reason.USE_ANOTHER_SERVER
    assert connack.properties.server_reference == f"{HOST}:{owner.mqtt}"
    assert connack.properties.reason is not None
    assert connack.properties.reason.startswith(f"node {owner.name} serves this realm now")
    assert older.reason == 3
    await end(owner, standby)


@pytest.mark.spec("M13")
@simulated
async def test_an_owner_that_does_not_speak_mqtt_is_told_of_as_unavailable() -> None:
    """It is of a version before, or has no such port."""
    owner, (standby,) = await relaying()
    claims = owner.node.claims
    claims.me = replace(claims.me, serves={"native": claims.me.serves["native"]})
    seen = standby.node.claims.members
    await until(lambda: "mqtt" not in seen[owner.name].serves)

    _, connack = await connect(standby.mqtt)

    assert connack.reason == Reason.SERVER_UNAVAILABLE
    assert connack.properties.server_reference is None
    await end(owner, standby)


@pytest.mark.spec("M13", "M1")
@simulated
async def test_a_node_that_stands_by_is_as_strict_as_the_owner() -> None:
    owner, (standby,) = await relaying()
    standby.relays.relays_max = 0  # it answers by itself
    unsupported = bytes.fromhex("100c00044d5154547f0000000000")

    caller = await call(standby.mqtt, unsupported)
    await until(lambda: caller.has_ended)
    wrong = await call(standby.mqtt, bytes.fromhex("c000"))
    await until(lambda: wrong.has_ended)
    late = await call(standby.mqtt, b"\x10")
    await until(lambda: late.has_ended)

    assert caller.heard == bytes((0x20, 3, 0, 0x84, 0))
    assert wrong.heard == late.heard == b""
    await end(owner, standby)


@pytest.mark.spec("M13", "N2")
@pytest.mark.parametrize("version", [MQTT_3, MQTT_5])
@simulated
async def test_without_a_quorum_a_client_hears_that_the_server_is_unavailable(version: int) -> None:
    valve = Valve()
    owner, (standby,) = await owner_and_others(EngineServers(), 2, valve, secret=SECRET)
    client, _ = await welcome(owner.mqtt, version=version)
    unavailable = Reason.SERVER_UNAVAILABLE if version == MQTT_5 else 3

    valve.open.clear()
    await until(lambda: client.has_ended)
    if version == MQTT_5:
        assert client.heard[0].reason == Reason.SERVER_BUSY
    for machine in (owner, standby):
        _, connack = await connect(machine.mqtt, version=version)
        assert connack.reason == unavailable
        if version == MQTT_5:
            assert "no majority of its servers" in str(connack.properties.reason)
    valve.open.set()

    await until(lambda: owner.serves or standby.serves)
    again, _ = await welcome(standby.mqtt, version=version)
    again.say(PublishPacket("t", b"1", 1, packet_id=1))
    assert (await again.hears(PubackPacket)).packet_id == 1
    await end(owner, standby)


@pytest.mark.spec("M13")
@simulated
async def test_channels_that_are_not_fit_for_mqtt_do_not_keep_the_realm_from_being_served() -> None:
    """Every node would fail alike, and the realm would go round."""
    owner, (standby,) = await relaying()
    await welcome(owner.mqtt)
    session = await aio.connect(f"{owner.url},{HOST}:{standby.native}")
    assert owner.realm is not None
    await replace_by_unfit(owner.realm, "mqtt-sessions")

    owner.node.hand_over(0)
    await until(lambda: standby.serves)

    _, connack = await connect(standby.mqtt)
    assert connack.reason == Reason.SERVER_UNAVAILABLE
    assert "is not a channel with the publish key entry" in str(connack.properties.reason)
    assert "mqtt-sessions" in await session.channels.list()
    await session.close()
    await end(owner, standby)


# --- the owner changes --------------------------------------------------------------------


@pytest.mark.spec("M13", "M6", "N3", "N4")
@pytest.mark.parametrize("how", ["killed", "handed over"])
@pytest.mark.parametrize("version", [MQTT_3, MQTT_5])
@simulated
async def test_a_session_goes_on_at_the_next_owner(version: int, how: str) -> None:
    owner, (standby, third) = await relaying(3)
    lasts: dict[str, Any] = {"version": version, "clean_start": False}
    if version == MQTT_5:
        lasts["properties"] = HOUR
    reader, _ = await welcome(standby.mqtt, "reader", **lasts)
    await subscribe(reader, "t/#", qos=2)
    writer, _ = await welcome(third.mqtt, "writer", **lasts)
    writer.say(
        PublishPacket("t/1", b"1", 1, packet_id=1, retain=True),
        PublishPacket("t/2", b"2", 2, packet_id=2),
    )
    assert (await writer.hears(PubackPacket)).packet_id == 1
    assert (await writer.hears(PubrecPacket)).packet_id == 2
    first, second = [await reader.hears(PublishPacket) for _ in range(2)]
    reader.say(PubrecPacket(second.packet_id))
    await reader.hears(PubrelPacket)

    if how == "killed":
        owner.kill()
    else:
        owner.node.hand_over(0)
    await until(lambda: reader.has_ended and writer.has_ended)
    if how == "handed over" and version == MQTT_5:
        assert reader.heard[-1].reason == Reason.SERVER_SHUTTING_DOWN
    await until(lambda: standby.serves or third.serves)

    writer, present = await welcome(third.mqtt, "writer", **lasts)
    assert present
    writer.say(PublishPacket("t/2", b"2", 2, packet_id=2, retain=False, is_duplicate=True))
    assert (await writer.hears(PubrecPacket)).packet_id == 2
    writer.say(PubrelPacket(2))
    assert (await writer.hears(PubcompPacket)).packet_id == 2
    writer.say(PublishPacket("t/3", b"3", 2, packet_id=2))
    reader, present = await welcome(standby.mqtt, "reader", **lasts)
    assert present
    assert (await reader.hears(PubrelPacket)).packet_id == second.packet_id
    reader.say(PubcompPacket(second.packet_id))
    messages = [await reader.hears(PublishPacket) for _ in range(2)]
    assert [message.payload for message in messages] == [first.payload, b"3"]
    late, _ = await welcome(standby.mqtt, "late", version=version)
    await subscribe(late, "t/#")
    kept = await late.hears(PublishPacket)
    assert (kept.payload, kept.retain) == (b"1", True)
    machines = (standby, third) if how == "killed" else (owner, standby, third)
    await end(*machines)


@pytest.mark.spec("M12", "M13", "M14", "M7")
@simulated
async def test_sessions_go_on_with_channels_that_have_topics() -> None:
    """With QoS 1 and 2, also with a channel that gets topics while a client is away."""
    owner, (standby, third) = await relaying(3)
    lasts: dict[str, Any] = {"clean_start": False, "properties": HOUR}
    native = await aio.connect(f"{owner.url},{HOST}:{standby.native},{HOST}:{third.native}")
    await native.channels.create(
        "cells", topics=["t/{cell}/temp"], payload="json", retain_consumed=True
    )
    reader, _ = await welcome(standby.mqtt, "reader", **lasts)
    await subscribe(reader, "t/#", qos=2)
    writer, _ = await welcome(third.mqtt, "writer", **lasts)
    writer.say(PublishPacket("t/1/temp", b'{"c":21}', 2, packet_id=1))
    await writer.hears(PubrecPacket)
    writer.say(PubrelPacket(1))
    await writer.hears(PubcompPacket)
    first = await reader.hears(PublishPacket)
    reader.say(PubrecPacket(first.packet_id))
    await reader.hears(PubrelPacket)

    owner.kill()
    await until(lambda: reader.has_ended and writer.has_ended)
    await until(lambda: standby.serves or third.serves)

    writer, _ = await welcome(standby.mqtt, "writer", **lasts)
    writer.say(PublishPacket("t/2/temp", b'{"c":22}', 1, packet_id=2))
    await writer.hears(PubackPacket)
    await native.channels.create("fans", topics=["t/{fan}/speed"])
    writer.say(
        PublishPacket("t/2/speed", b"7", 1, packet_id=3), PublishPacket("t/2", b"x", 1, packet_id=4)
    )
    for _ in range(2):
        await writer.hears(PubackPacket)
    reader, present = await welcome(third.mqtt, "reader", **lasts)
    assert present
    assert (await reader.hears(PubrelPacket)).packet_id == first.packet_id
    reader.say(PubcompPacket(first.packet_id))
    messages = [await reader.hears(PublishPacket) for _ in range(3)]
    assert sorted(message.payload for message in messages) == [b"7", b"x", b'{"c":22}']
    rows = [event.properties async for event in (await native.channels.get("cells")).browse()]
    assert [(row["cell"], row["c"]) for row in rows] == [("1", 21.0), ("2", 22.0)]
    await native.close()
    await end(standby, third)


@pytest.mark.spec("M13")
@pytest.mark.parametrize("version", [MQTT_3, MQTT_5])
@simulated
async def test_an_owner_that_is_deposed_sends_its_clients_to_another(version: int) -> None:
    """And it says nothing else: what waits to be sent may not be true any more."""
    owner, (standby,) = await relaying()
    client, _ = await welcome(owner.mqtt, version=version)
    assert owner.listener is not None
    (connection,) = owner.listener.connections
    assert isinstance(connection, MqttConnection)

    connection.send(PubackPacket(7))
    owner.realm.cut()  # type: ignore[union-attr]  # as its node does

    await until(lambda: client.has_ended)
    reasons = [packet.reason for packet in client.heard]
    assert reasons == ([Reason.USE_ANOTHER_SERVER] if version == MQTT_5 else [])
    await end(owner, standby)


@pytest.mark.spec("M13", "N4")
@simulated
async def test_a_client_of_a_node_that_has_lost_the_realm_is_relayed_to_the_next_owner() -> None:
    servers = EngineServers()
    owner, (standby,) = await owner_and_others(servers, 2, secret=SECRET)
    client, _ = await welcome(owner.mqtt)

    await orders(servers).move(standby.name, by_force=True)
    await until(lambda: client.has_ended and standby.serves)

    again, _ = await welcome(owner.mqtt)
    again.say(PublishPacket("t", b"1", 1, packet_id=1))
    assert (await again.hears(PubackPacket)).packet_id == 1
    assert hosts_at(standby) == [("mqtt", CLIENT)]
    await end(owner, standby)


async def listen(port: int) -> Client:
    """A client that is told of wills, also after it was away."""
    heir, present = await welcome(port, "heir", clean_start=False, properties=HOUR)
    if not present:
        await subscribe(heir, "w/#")
    return heir


async def came_to(client: Client) -> list[bytes]:
    """Return the messages that have arrived, after acknowledging them."""
    await pass_time(5)
    messages = [packet for packet in client.heard if isinstance(packet, PublishPacket)]
    client.heard.clear()
    client.say(*(PubackPacket(message.packet_id) for message in messages))
    await pass_time(1)
    return [message.payload for message in messages]


@pytest.mark.spec("M13", "M8")
@pytest.mark.parametrize("how", ["killed", "handed over"])
@simulated
async def test_a_will_is_published_once_though_its_owner_ends_with_it(how: str) -> None:
    owner, (standby, third) = await relaying(3)
    await listen(standby.mqtt)
    await welcome(third.mqtt, "mortal", will=Will("w/1", b"gone", 1))

    if how == "killed":
        owner.kill()
    else:
        owner.node.hand_over(0)
    await until(lambda: standby.serves or third.serves)

    assert await came_to(await listen(standby.mqtt)) == [b"gone"]
    last = standby if standby.serves else third
    last.node.hand_over(0)
    await until(lambda: not last.serves)
    assert await came_to(await listen(last.mqtt)) == []
    await end(*((standby, third) if how == "killed" else (owner, standby, third)))


@pytest.mark.spec("M13", "M8")
@simulated
async def test_a_will_that_waits_goes_on_waiting_at_the_next_owner() -> None:
    owner, (standby,) = await relaying()
    delay = PacketProperties(will_delay_s=60)
    heir = await listen(standby.mqtt)
    for name in ("back", "gone"):
        will = Will(f"w/{name}", name.encode(), 1, properties=delay)
        mortal, _ = await welcome(standby.mqtt, name, will=will, properties=HOUR)
        mortal.transport.abort()
    await pass_time(30)
    owner.node.hand_over(0)
    await until(lambda: standby.serves and heir.has_ended)

    heir = await listen(owner.mqtt)
    await welcome(owner.mqtt, "back", clean_start=False, properties=HOUR)
    assert await came_to(heir) == []
    await pass_time(20)
    assert await came_to(heir) == [b"gone"]
    await pass_time(60)
    assert await came_to(heir) == []
    await end(owner, standby)


@pytest.mark.spec("M13", "M9")
@simulated
async def test_a_group_goes_on_sharing_at_the_next_owner() -> None:
    owner, (standby, third) = await relaying(3)
    members = []
    for name in ("a", "b"):
        member, _ = await welcome(standby.mqtt, name, clean_start=False, properties=HOUR)
        await subscribe(member, "$share/g/t/#")
        members.append(member)
    writer, _ = await welcome(third.mqtt, "writer")
    writer.say(*(PublishPacket("t/1", b"%d" % n, 1, packet_id=n) for n in range(1, 9)))
    await until(lambda: len(writer.heard) == 8)

    owner.kill()
    await until(lambda: standby.serves or third.serves)
    payloads: list[bytes] = []
    for name in ("a", "b"):
        member, present = await welcome(third.mqtt, name, clean_start=False, properties=HOUR)
        assert present
        payloads += await came_to(member)

    assert sorted(payloads) == [b"%d" % n for n in range(1, 9)]
    await end(standby, third)
