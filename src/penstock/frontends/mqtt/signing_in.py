"""The CONNECT of one client: who it is, and which session it goes on with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.core.access.rights import Principal
from penstock.core.vocabulary.errors import AuthenticationFailed, PenstockError
from penstock.frontends.mqtt.incoming import ALIASES_MAX, RECEIVE_MAXIMUM
from penstock.frontends.mqtt.reasons import reason_within
from penstock.frontends.mqtt.subscribing import give_retained
from penstock.wire.mqtt import reasons
from penstock.wire.mqtt.framing import PACKET_BYTES_MAX
from penstock.wire.mqtt.packets import ConnackPacket, ConnectPacket
from penstock.wire.mqtt.properties import PacketProperties

if TYPE_CHECKING:
    from penstock.frontends.mqtt.connection import MqttConnection

ROOM_BYTES: Final = 1 << 17
"""Bytes of a packet beside its payload."""

_log = structlog.get_logger("penstock.mqtt")


async def sign_in(connection: MqttConnection, packet: ConnectPacket) -> None:
    """Let a client in and go on with its session, or refuse it."""
    access = connection.realm.access
    try:
        principal = await _principal(connection, packet)
        if not access.is_open:
            access.require(principal, "session.open")
        access.signed_in(principal, "mqtt")
        if connection.is_gone:
            return
        await _welcome(connection, packet, principal)
    except PenstockError as error:
        _log.warning("mqtt.sign_in_refused", host=connection.host, reason=str(error))
        connection.realm.connections.refused(error)
        connection.refuse(reason_within(error, reasons.ALLOWED[reasons.CONNACK]), str(error))


async def _principal(connection: MqttConnection, packet: ConnectPacket) -> Principal:
    access, host = connection.realm.access, connection.host
    if packet.user is None:
        certificate: Mapping[str, Any] | None = connection.about("peercert")
        return access.certificate(certificate, host) or access.anonymous(host)
    if access.is_open:
        return access.anonymous(host, packet.user)
    try:
        password = (packet.password or b"").decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("the password is not UTF-8") from None
    secure = connection.about("sslcontext") is not None
    return await access.password(packet.user, password, host, secure=secure)


async def _welcome(connection: MqttConnection, packet: ConnectPacket, principal: Principal) -> None:
    hub = connection.hub
    connection.principal, connection.publisher = principal, principal.name
    connection.client_id = packet.client_id or hub.new_client_id()
    connection.listener.greeted(connection, f"mqtt-{connection.number}")
    connection.session = f"mqtt-{connection.number}"
    session, present = await hub.sessions.enter(connection, packet, principal)
    connection.client = session
    own = packet.properties
    session.outbox.packet_bytes_max = own.maximum_packet_bytes or PACKET_BYTES_MAX
    session.outbox.in_flight_max = own.receive_maximum or 65_535
    if connection.is_gone:
        hub.leave(connection.client_id, connection)
        hub.sessions.leave(session)
        return
    most = connection.realm.limits.event_bytes_max + ROOM_BYTES
    connection.opened(packet, min(most, PACKET_BYTES_MAX))
    offered = PacketProperties(
        assigned_client_id=None if packet.client_id else connection.client_id,
        receive_maximum=RECEIVE_MAXIMUM,
        topic_alias_maximum=ALIASES_MAX,
        retain_available=1,
        maximum_packet_bytes=min(most, PACKET_BYTES_MAX),
    )
    connection.send(ConnackPacket(0, present, offered))
    owed = []
    if present:
        await hub.follow()
        owed = await session.resume()
    if owed:
        connection.listener.spawn(connection.contained(give_retained(connection, owed)))
