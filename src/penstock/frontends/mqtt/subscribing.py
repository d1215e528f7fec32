"""What one client subscribes to, and what it gives up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.vocabulary.errors import PenstockError
from penstock.frontends.mqtt.outbox import Filter
from penstock.frontends.mqtt.reasons import explanation, reason_within
from penstock.frontends.mqtt.retained import RetainedDelivery
from penstock.wire.mqtt import reasons
from penstock.wire.mqtt.packets import (
    SubackPacket,
    SubscribePacket,
    TopicSubscription,
    UnsubackPacket,
    UnsubscribePacket,
)
from penstock.wire.mqtt.properties import NO_PROPERTIES
from penstock.wire.mqtt.reading import SHARED
from penstock.wire.mqtt.reasons import Reason

if TYPE_CHECKING:
    from penstock.frontends.mqtt.connection import MqttConnection


class Subscribing:
    """Answers the SUBSCRIBE and UNSUBSCRIBE of one connection, in their order."""

    def __init__(self, connection: MqttConnection) -> None:
        self._connection = connection
        self._refused: PenstockError | None = None
        """Why a filter of the packet was refused last."""

    async def subscribe(self, packet: SubscribePacket) -> list[Filter]:
        """Subscribe, and answer; gives the filters that retained messages go to."""
        connection = self._connection
        await connection.hub.follow()
        if not connection.is_open:
            return []
        number = next(iter(packet.properties.subscription_ids), None)
        self._refused, made = None, list[Filter]()
        granted = list[Reason]()
        for each in packet.subscriptions:
            if not connection.is_open:  # the session may have another one by now
                return []
            granted.append(await self._granted(each, number, made))
        session = connection.client
        if session.is_lasting and connection.is_open:
            await connection.hub.sessions.save(session)
        own = NO_PROPERTIES if self._refused is None else explanation(str(self._refused))
        if connection.is_open:
            connection.send(SubackPacket(packet.packet_id, tuple(granted), own))
        return made

    async def _granted(
        self, wanted: TopicSubscription, number: int | None, retained_for: list[Filter]
    ) -> Reason:
        """Subscribe; ``retained_for`` gets the filter if retained messages go to it."""
        connection, is_shared = self._connection, wanted.filter.startswith(SHARED)
        session = connection.client
        try:
            # over MQTT nobody may more than over others (SEM M4)
            makes_durable = is_shared or bool(session.is_lasting and wanted.qos)
            connection.rights.check_subscribe(wanted.filter, makes_durable=makes_durable)
            if wanted.filter not in session.filters:
                connection.listener.limits.each.check_subscriptions(len(session.filters))
        except PenstockError as error:
            return self._refusal(error)
        made, is_new = session.subscribe(wanted, number)
        gives = wanted.retain_handling == 0 or (wanted.retain_handling == 1 and is_new)
        if gives and not is_shared:
            made.owes_retained = bool(made.durable)
            retained_for.append(made)
        if made.is_open:
            return Reason(made.qos)
        try:
            await connection.hub.sessions.open(session, made)
        except PenstockError as error:
            if session.unsubscribe(made.text) is made and made.durable:
                await connection.hub.sessions.delete_durables(session, [made.durable])
            if made in retained_for:
                retained_for.remove(made)
            return self._refusal(error)
        return Reason(made.qos)

    def _refusal(self, error: PenstockError) -> Reason:
        self._refused = error
        self._connection.realm.connections.refused(error)
        return reason_within(error, reasons.ALLOWED[reasons.SUBACK])

    async def unsubscribe(self, packet: UnsubscribePacket) -> None:
        """Give filters up, and answer."""
        connection = self._connection
        session = connection.client
        found = [session.unsubscribe(each) for each in packet.filters]
        durables = [each.durable for each in found if each is not None and each.durable]
        if durables:
            if session.is_lasting:
                await connection.hub.sessions.save(session)
            await connection.hub.sessions.delete_durables(session, durables)
        codes = (
            Reason.NO_SUBSCRIPTION_EXISTED if each is None else Reason.SUCCESS for each in found
        )
        connection.send(UnsubackPacket(packet.packet_id, tuple(codes)))


async def give_retained(connection: MqttConnection, filters: list[Filter]) -> None:
    """Give a client the retained messages of the topics that its filters take."""
    if filters and connection.is_open:
        await RetainedDelivery(connection, filters).run()
