"""The messages that one client publishes: their topics, limits and acknowledgements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from penstock_core.api.publishing import PublishEvents
from penstock_core.printable import is_utf8
from penstock_core.vocabulary.errors import PenstockError
from penstock_mqtt.filters import ClientConnection
from penstock_mqtt.messages import (
    Gathered,
    GatheredTogether,
    Received,
    plain_packet,
)
from penstock_mqtt.reasons import explanation, reason_within
from penstock_mqtt.session_store import Entry, received_entry
from penstock_mqtt.wire import reasons
from penstock_mqtt.wire.packets import (
    MQTT_5,
    PubackPacket,
    PubcompPacket,
    PublishPacket,
    PubrecPacket,
)
from penstock_mqtt.wire.plain_messages import PlainMessage
from penstock_mqtt.wire.properties import NO_PROPERTIES
from penstock_mqtt.wire.reasons import MqttViolation, Reason, protocol_error
from penstock_server.frontends.shared.parts import ConnectionPart

if TYPE_CHECKING:
    from penstock_mqtt.mqtt_realm import MqttRealm
    from penstock_mqtt.session import MqttSession

ALIASES_MAX: Final = 100
"""Largest topic alias that a client may use."""


class PublishingConnection(ClientConnection, Protocol):
    """The connection of a client that publishes; acknowledgements are sent over it."""

    publisher: str
    """The client's principal, as events name their publisher."""
    client: MqttSession
    is_ending: bool
    """Whether the connection ignores further packets of the client."""

    def acknowledge(self, packet_ids: Sequence[int]) -> None:
        """Acknowledge stored messages of QoS 1."""
        ...


class Incoming(ConnectionPart[PublishingConnection]):
    """The messages that one connection receives."""

    def __init__(self, mqtt: MqttRealm, connection: PublishingConnection) -> None:
        super().__init__(connection)
        self._mqtt = mqtt
        self._access = mqtt.realm.access
        self._aliases: dict[int, str] = {}
        """Topics by the client's topic alias."""
        self._answers: PublishAnswers | None = None
        """The object that answers messages of the client's current session; None before the first
        message and after :meth:`end`."""
        self.unanswered = 0
        """Messages that are being stored and not answered yet."""
        self._unreleased: set[int] = set()
        """Stored messages of QoS 2 from this connection that the client has not released."""

    @property
    def publishes(self) -> bool:
        """Whether the connection has received a message."""
        return self._answers is not None

    def end(self) -> None:
        """Drop the reference to the lost connection. Messages that are being stored have their own
        reference."""
        self._answers = None

    def received_together(self, messages: Sequence[PlainMessage]) -> None:
        """Receive plain messages. Raises :class:`MqttViolation` if a message is not allowed."""
        connection, count = self._connection, len(messages)
        if count == 1:  # as from most clients
            confirmed = int(messages[0][2] > 0)
        else:
            confirmed = sum([packet_id > 0 for _, _, packet_id in messages])
        # If one message would exceed a limit or a right, each message is checked alone, so that
        # only those beyond it are refused.
        if not (
            self.unanswered + len(self._unreleased) + confirmed <= self._mqtt.limits.receive_maximum
            and (self._access.is_open or self._may_publish(messages))
        ):
            for message in messages:
                if not connection.is_ending:
                    self.received(plain_packet(*message))
            return
        mqtt, answers = self._mqtt, self._answers
        received = mqtt.counts.received
        received[1] += confirmed
        received[0] += count - confirmed
        self.unanswered += confirmed
        if answers is None or answers.session is not connection.client:
            answers = self._answers_for(connection.client)
        mqtt.publisher.gather(connection.publisher, GatheredTogether(answers, messages))

    def _may_publish(self, messages: Sequence[PlainMessage]) -> bool:
        rights = self._connection.rights
        try:
            for topic, _, _ in messages:
                rights.check_publish(topic, PublishEvents)
        except PenstockError:
            return False
        return True

    def received(self, packet: PublishPacket) -> None:
        """Receive a message. Raises :class:`MqttViolation` if it is not allowed."""
        connection = self._connection
        session = connection.client
        self._mqtt.counts.received[packet.qos] += 1
        topic = packet.topic if packet.properties is NO_PROPERTIES else self._topic(packet)
        if packet.qos == 2 and (is_stored := session.received.get(packet.packet_id)) is not None:
            if is_stored:  # a repetition of a stored message: only acknowledge it again
                connection.send(PubrecPacket(packet.packet_id))
            return
        if packet.qos:
            receive_maximum = self._mqtt.limits.receive_maximum
            if self.unanswered + len(self._unreleased) >= receive_maximum:
                raise MqttViolation(
                    Reason.RECEIVE_MAXIMUM_EXCEEDED,
                    f"more than {receive_maximum} messages are not acknowledged",
                )
            self.unanswered += 1
        entries: tuple[Entry, ...] = ()
        if packet.qos == 2:
            session.begin_receive(packet.packet_id)
            if session.is_lasting:
                entries = (received_entry(session.place, packet.packet_id, is_present=True),)
        answers = self._answers_for(session)
        try:
            connection.rights.check_publish(topic, PublishEvents)
        except PenstockError as error:
            answers.not_stored(packet, error)
            return
        if packet.properties.payload_format == 1 and not is_utf8(packet.payload):
            text = "the payload is not UTF-8, although its format indicator says so"
            answers.not_stored(packet, MqttViolation(Reason.PAYLOAD_FORMAT_INVALID, text))
            return
        message = Received(topic, packet, session.client_id)
        self._mqtt.publisher.gather(connection.publisher, Gathered(answers, message, entries))

    def _answers_for(self, session: MqttSession) -> PublishAnswers:
        """Return the object that answers all messages of a session on this connection."""
        if self._answers is None or self._answers.session is not session:
            self._answers = PublishAnswers(self, self._connection, session)
        return self._answers

    def _topic(self, packet: PublishPacket) -> str:
        """Return the topic of a message, and register or resolve its alias. Raises
        :class:`MqttViolation` for an unknown alias."""
        if packet.properties.subscription_ids:
            raise protocol_error("a PUBLISH of a client must not have subscription identifiers")
        alias = packet.properties.topic_alias
        if alias is None:
            return packet.topic
        if alias > ALIASES_MAX or not (packet.topic or alias in self._aliases):
            text = f"topic alias {alias} has no topic; aliases are 1 to {ALIASES_MAX}"
            raise MqttViolation(Reason.TOPIC_ALIAS_INVALID, text)
        if packet.topic:
            self._aliases[alias] = packet.topic
        return self._aliases[alias]

    def stored(self, packet: PublishPacket) -> None:
        """Update the counts after a message of this connection was stored."""
        if packet.qos:
            self.unanswered -= 1
        if packet.qos == 2:
            self._unreleased.add(packet.packet_id)

    def not_stored(self, packet: PublishPacket, error: PenstockError) -> None:
        """Refuse a message: with a reason code if the client's version and the QoS have an answer
        for it, otherwise by closing the connection."""
        connection = self._connection
        self._mqtt.realm.connections.count_error(error)
        self._mqtt.counts.refused += 1
        if packet.qos:
            self.unanswered -= 1
        if packet.qos and connection.version == MQTT_5:
            reason = reason_within(error, reasons.ALLOWED[reasons.PUBLISHED])
            properties = explanation(str(error))
            answer = PubackPacket if packet.qos == 1 else PubrecPacket
            connection.send(answer(packet.packet_id, reason, properties))
        else:
            connection.end(error)

    def release(self, packet_id: int) -> None:
        """Release a message of QoS 2 (PUBREL). Its packet id is free once the release is on
        disk."""
        session = self._connection.client
        if not session.received.get(packet_id):
            session.answer(PubcompPacket(packet_id, Reason.PACKET_ID_NOT_FOUND))
            return

        def removed() -> None:
            session.received.pop(packet_id, None)
            self._unreleased.discard(packet_id)
            session.answer(PubcompPacket(packet_id))

        if session.is_lasting:
            entry = received_entry(session.place, packet_id, is_present=False)
            session.store((entry,), removed)
        else:
            removed()


class PublishAnswers:
    """Answers a client's messages on one connection, each once it is stored or refused."""

    __slots__ = ("_connection", "_incoming", "client_id", "session")

    def __init__(
        self, incoming: Incoming, connection: PublishingConnection, session: MqttSession
    ) -> None:
        self._incoming = incoming
        self._connection = connection
        self.session = session
        self.client_id = session.client_id

    def stored_together(self, messages: Sequence[PlainMessage]) -> None:
        """Acknowledge plain messages that are stored."""
        if len(messages) == 1:
            packet_ids: Sequence[int] = messages[0][2:] if messages[0][2] else ()
        else:
            packet_ids = [packet_id for _, _, packet_id in messages if packet_id]
        if packet_ids:
            self._incoming.unanswered -= len(packet_ids)
            self._connection.acknowledge(packet_ids)

    def stored(self, packet: PublishPacket) -> None:
        """Acknowledge a stored message. QoS 2 is acknowledged over the client's current connection,
        because the client may have sent the message again there."""
        self._incoming.stored(packet)
        if packet.qos == 1:
            self._connection.acknowledge((packet.packet_id,))
        elif packet.qos == 2:
            self.session.end_receive(packet.packet_id, is_stored=True)
            self.session.answer(PubrecPacket(packet.packet_id))

    def not_stored(self, packet: PublishPacket, error: PenstockError) -> None:
        """Refuse a message that could not be stored. The client may use its packet id again."""
        if packet.qos == 2:
            self.session.end_receive(packet.packet_id, is_stored=False)
        self._incoming.not_stored(packet, error)
