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
        self._last_refusal = ""
        """Error text of the last refused filter of the packet; empty without one."""

    async def subscribe(self, packet: SubscribePacket) -> list[Filter]:
        """Subscribe and answer. Return the filters whose retained messages the client is to be
        sent."""
        connection = self._connection
        await self._following.begin()
        if not connection.is_open:
            return []
        number = next(iter(packet.properties.subscription_ids), None)
        self._last_refusal, new_filters = "", list[Filter]()
        granted = list[Reason]()
        for subscription in packet.subscriptions:
            if not connection.is_open:  # another connection may use the session by now
                return []
            granted.append(await self._subscribe_one(subscription, number, new_filters))
        session = connection.client
        if session.is_lasting and connection.is_open:
            await self._sessions.save(session)
        properties = explanation(self._last_refusal) if self._last_refusal else NO_PROPERTIES
        if connection.is_open:
            connection.send(SubackPacket(packet.packet_id, tuple(granted), properties))
        return new_filters

    async def _subscribe_one(
        self, subscription: TopicSubscription, number: int | None, retained_for: list[Filter]
    ) -> Reason:
        """Subscribe to one filter. Append it to ``retained_for`` if retained messages
        are to be sent."""
        connection, is_shared = self._connection, subscription.filter.startswith(SHARED)
        session = connection.client
        try:
            # MQTT clients need the same rights as other clients (SEM M4).
            makes_durable = is_shared or bool(session.is_lasting and subscription.qos)
            connection.rights.check_subscribe(subscription.filter, makes_durable=makes_durable)
            if subscription.filter not in session.filters:
                self._mqtt.listener.limits.each.check_subscriptions(len(session.filters))
        except PenstockError as error:
            return self._refuse(error)
        new_filter, is_new = session.subscribe(subscription, number)
        sends_retained = subscription.retain_handling == 0 or (
            subscription.retain_handling == 1 and is_new
        )
        if sends_retained and not is_shared:
            new_filter.retained.is_owed = bool(new_filter.durable)
            retained_for.append(new_filter)
        if new_filter.is_open:
            if new_filter.is_draining:
                await session.end_draining(new_filter)
            return Reason(new_filter.qos)
        try:
            await self._sessions.open(session, new_filter)
        except PenstockError as error:
            if session.unsubscribe(new_filter.text) is new_filter and new_filter.durable:
                await self._sessions.delete_durables(session, [new_filter.durable])
            if new_filter in retained_for:
                retained_for.remove(new_filter)
            return self._refuse(error)
        return Reason(new_filter.qos)

    def _refuse(self, error: PenstockError) -> Reason:
        """Record the error of a filter, and return its reason code for the SUBACK."""
        self._last_refusal = str(error)
        self._mqtt.realm.connections.count_error(error)
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
