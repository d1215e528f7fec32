"""The subscriptions of one client: SUBSCRIBE and UNSUBSCRIBE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock_core.vocabulary.errors import PenstockError
from penstock_mqtt.filters import ClientConnection, Filter
from penstock_mqtt.reasons import explanation, reason_within
from penstock_mqtt.wire import reasons
from penstock_mqtt.wire.packets import (
    SubackPacket,
    SubscribePacket,
    TopicSubscription,
    UnsubackPacket,
    UnsubscribePacket,
)
from penstock_mqtt.wire.properties import NO_PROPERTIES
from penstock_mqtt.wire.reading import SHARED
from penstock_mqtt.wire.reasons import Reason
from penstock_server.frontends.shared.parts import ConnectionPart

if TYPE_CHECKING:
    from penstock_mqtt.following import FollowedChannels
    from penstock_mqtt.mqtt_realm import MqttRealm
    from penstock_mqtt.session import MqttSession
    from penstock_mqtt.sessions import MqttSessions


class SubscribingConnection(ClientConnection, Protocol):
    """The connection of a client that subscribes; acknowledgements are sent over it."""

    client: MqttSession


class Subscribing(ConnectionPart[SubscribingConnection]):
    """Answers the SUBSCRIBE and UNSUBSCRIBE of one connection, in their order."""

    def __init__(
        self,
        mqtt: MqttRealm,
        sessions: MqttSessions,
        following: FollowedChannels,
        connection: SubscribingConnection,
    ) -> None:
        super().__init__(connection)
        self._mqtt = mqtt
        self._sessions = sessions
        self._following = following
        self._refused = ""
        """Why a filter of the packet was refused last."""

    async def subscribe(self, packet: SubscribePacket) -> list[Filter]:
        """Subscribe and answer. Return the filters that retained messages are sent for."""
        connection = self._connection
        await self._following.begin()
        if not connection.is_open:
            return []
        number = next(iter(packet.properties.subscription_ids), None)
        self._refused, made = "", list[Filter]()
        granted = list[Reason]()
        for wanted in packet.subscriptions:
            if not connection.is_open:  # another connection may use the session by now
                return []
            granted.append(await self._granted(wanted, number, made))
        session = connection.client
        if session.is_lasting and connection.is_open:
            await self._sessions.save(session)
        properties = explanation(self._refused) if self._refused else NO_PROPERTIES
        if connection.is_open:
            connection.send(SubackPacket(packet.packet_id, tuple(granted), properties))
        return made

    async def _granted(
        self, wanted: TopicSubscription, number: int | None, retained_for: list[Filter]
    ) -> Reason:
        """Subscribe to one filter. Append it to ``retained_for`` if retained messages
        are to be sent."""
        connection, is_shared = self._connection, wanted.filter.startswith(SHARED)
        session = connection.client
        try:
            # MQTT clients have the same rights as others (SEM M4)
            makes_durable = is_shared or bool(session.is_lasting and wanted.qos)
            connection.rights.check_subscribe(wanted.filter, makes_durable=makes_durable)
            if wanted.filter not in session.filters:
                self._mqtt.listener.limits.each.check_subscriptions(len(session.filters))
        except PenstockError as error:
            return self._refusal(error)
        made, is_new = session.subscribe(wanted, number)
        gives = wanted.retain_handling == 0 or (wanted.retain_handling == 1 and is_new)
        if gives and not is_shared:
            made.retained.is_owed = bool(made.durable)
            retained_for.append(made)
        if made.is_open:
            if made.is_draining:
                await session.end_draining(made)
            return Reason(made.qos)
        try:
            await self._sessions.open(session, made)
        except PenstockError as error:
            if session.unsubscribe(made.text) is made and made.durable:
                await self._sessions.delete_durables(session, [made.durable])
            if made in retained_for:
                retained_for.remove(made)
            return self._refusal(error)
        return Reason(made.qos)

    def _refusal(self, error: PenstockError) -> Reason:
        self._refused = str(error)
        self._mqtt.realm.connections.refused(error)
        return reason_within(error, reasons.ALLOWED[reasons.SUBACK])

    async def unsubscribe(self, packet: UnsubscribePacket) -> None:
        """Unsubscribe from filters and answer."""
        connection = self._connection
        session = connection.client
        removed = [session.unsubscribe(text) for text in packet.filters]
        durables = [
            subscribed.durable
            for subscribed in removed
            if subscribed is not None and subscribed.durable
        ]
        if durables:
            if session.is_lasting:
                await self._sessions.save(session)
            await self._sessions.delete_durables(session, durables)
        codes = (
            Reason.NO_SUBSCRIPTION_EXISTED if subscribed is None else Reason.SUCCESS
            for subscribed in removed
        )
        connection.send(UnsubackPacket(packet.packet_id, tuple(codes)))
