"""One MQTT connection: packets in and out, what it subscribes to, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.api.publishing import PublishEvents
from penstock.api.requests import Request
from penstock.api.subscriptions import Subscribe
from penstock.core.access.rights import Principal
from penstock.core.vocabulary.errors import (
    AuthenticationFailed,
    ConnectionLost,
    PenstockError,
)
from penstock.frontends.mqtt.messages import Received
from penstock.frontends.mqtt.outbox import Filter, Outbox
from penstock.frontends.mqtt.reasons import not_offered, reason_of, reason_within, return_code
from penstock.frontends.mqtt.retained import RetainedDelivery
from penstock.frontends.native.hosted_connection import HostedConnection
from penstock.frontends.shared.backpressure import ReadThrottle
from penstock.frontends.shared.transports import close
from penstock.runtime.access.open_connections import ConnectionState
from penstock.runtime.operations.callers import Caller
from penstock.runtime.operations.door import check_on
from penstock.wire.mqtt import reasons
from penstock.wire.mqtt.framing import PACKET_BYTES_MAX, PacketReader
from penstock.wire.mqtt.packets import (
    MQTT_3,
    MQTT_5,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    Packet,
    PingreqPacket,
    PingrespPacket,
    PubackPacket,
    PublishPacket,
    SubackPacket,
    SubscribePacket,
    TopicSubscription,
    UnsubackPacket,
    UnsubscribePacket,
    Will,
)
from penstock.wire.mqtt.properties import NO_PROPERTIES, PacketProperties
from penstock.wire.mqtt.reading import SHARED, packet_of
from penstock.wire.mqtt.reasons import MqttViolation, Reason, protocol_error
from penstock.wire.mqtt.writing import packet_bytes_within

if TYPE_CHECKING:
    from penstock.frontends.mqtt.hub import MqttHub

CONNECT_BYTES_MAX: Final = 1 << 18
"""Largest CONNECT packet in bytes."""
ROOM_BYTES: Final = 1 << 17
"""Bytes of a packet beside its payload."""
PACKETS_A_TURN: Final = 256
RECEIVE_MAXIMUM: Final = 1_000
"""Messages of QoS 1 that a client may send before the first is acknowledged."""
ALIASES_MAX: Final = 100

_log = structlog.get_logger("penstock.mqtt")


class MqttConnection(HostedConnection):
    protocol = "mqtt"

    def __init__(self, hub: MqttHub) -> None:
        super().__init__(hub.listener)
        self.hub = hub
        self.client_id = ""
        self.version = MQTT_5
        self._is_ending = False
        self._connect: ConnectPacket | None = None
        self._is_signing_in = False
        self._reader = PacketReader(CONNECT_BYTES_MAX)
        self._out: list[bytes] = []
        self.takes_more = True
        self._reading = ReadThrottle(self._may_read, self._reads_again, self._take_in)
        self._keep_alive_s = 0.0
        self._will: Will | None = None
        self.outbox = Outbox(self)
        self._aliases: dict[int, str] = {}
        self._filters: dict[str, Filter] = {}
        self.retained_deliveries: list[RetainedDelivery] = []
        self._unanswered = 0
        self._subscribing = 0

    # --- asyncio -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.listener.opened(self):
            self.abort()

    def data_received(self, data: bytes) -> None:
        self.heard_s = self._loop.time()
        self.hub.traffic.received_bytes += len(data)
        self._reader.receive(data)
        self._reading.came()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._reading.end()
        self._leave()
        self.listener.closed(self)

    def pause_writing(self) -> None:
        self.takes_more = False
        self._reading.check()

    def resume_writing(self) -> None:
        self.takes_more = True
        self.outbox.send_waiting()

    def _may_read(self) -> bool:
        is_held_up = self.pace.is_ahead or self.listener.is_congested or self.listener.is_draining
        return self.takes_more and not is_held_up

    @property
    def owes_answers(self) -> bool:
        """Whether a message or a subscription waits to be acknowledged."""
        return self._unanswered > 0 or self._subscribing > 0

    def _reads_again(self, now_s: float) -> None:
        self.heard_s = now_s

    # --- in ------------------------------------------------------------------------------

    def _take_in(self) -> bool:
        """Receive some of the packets that are here; returns whether there may be more."""
        taken = 0
        try:
            if self._is_ending or self._is_signing_in or self._subscribing:
                return False
            for first, body in self._reader.packets():
                self._receive(packet_of(first, body, self.version))
                taken += 1
                if self._is_ending or self._is_signing_in or self._subscribing:
                    return False
                if taken == PACKETS_A_TURN:
                    return True
        except MqttViolation as error:
            _log.warning("mqtt.refused", connection=self.number, host=self.host, reason=str(error))
            self.end(error)
        return False

    def _receive(self, packet: Packet) -> None:
        if self._connect is None:
            if not isinstance(packet, ConnectPacket):
                raise protocol_error("the first packet has to be a CONNECT")
            self._greet(packet)
            return
        match packet:
            case PublishPacket():
                self.pace.came(1)
                self._received(packet)
            case PubackPacket(packet_id):
                self.outbox.acknowledged(packet_id)
            case SubscribePacket():
                self._subscribing += 1
                self.listener.spawn(self._contained(self._subscribe(packet)))
            case UnsubscribePacket():
                self._unsubscribe(packet)
            case PingreqPacket():
                self._send(PingrespPacket())
            case DisconnectPacket():
                self._parted(packet)
            case _:
                raise protocol_error(f"{type(packet).__name__} is not expected here")

    async def _contained(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that has to wait for the realm. If it fails unexpectedly, only this
        connection ends."""
        try:
            await work
        except Exception:  # noqa: BLE001  whatever it is, the others must live on
            _log.exception("mqtt.failed", connection=self.number)
            self.abort()

    def _parted(self, packet: DisconnectPacket) -> None:
        if packet.properties.session_expiry_s:
            raise protocol_error("a session that ends with its connection is made to last")
        if packet.reason == Reason.SUCCESS:
            self._will = None
        self._leave()
        self._is_ending = True
        self._close()

    # --- CONNECT -------------------------------------------------------------------------

    def _greet(self, packet: ConnectPacket) -> None:
        self._connect, self.version = packet, packet.version
        own = packet.properties
        self.outbox.packet_bytes_max = own.maximum_packet_bytes or PACKET_BYTES_MAX
        self.outbox.in_flight_max = own.receive_maximum or 65_535
        if refused := not_offered(packet):
            self._refuse(*refused)
            return
        self._is_signing_in = True
        self.listener.spawn(self._contained(self._sign_in(packet)))

    async def _sign_in(self, packet: ConnectPacket) -> None:
        try:
            principal = await self._principal(packet)
            access = self.realm.access
            if not access.is_open:
                access.require(principal, "session.open")
            access.signed_in(principal, "mqtt")
            if self._transport is None:
                return
            self._welcome(packet, principal)
        except PenstockError as error:
            _log.warning("mqtt.sign_in_refused", host=self.host, reason=str(error))
            self.realm.connections.refused(error)
            self._refuse(reason_within(error, reasons.ALLOWED[reasons.CONNACK]), str(error))
            return
        finally:
            self._is_signing_in = False
        self._reading.came()

    async def _principal(self, packet: ConnectPacket) -> Principal:
        access, transport = self.realm.access, self._transport
        assert transport is not None, "it has just sent something"
        secure = transport.get_extra_info("sslcontext") is not None
        if packet.user is None:
            certificate: Mapping[str, Any] | None = transport.get_extra_info("peercert")
            return access.certificate(certificate, self.host) or access.anonymous(self.host)
        if access.is_open:
            return access.anonymous(self.host, packet.user)
        try:
            password = (packet.password or b"").decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed("the password is not UTF-8") from None
        return await access.password(packet.user, password, self.host, secure=secure)

    def _welcome(self, packet: ConnectPacket, principal: Principal) -> None:
        self.principal = principal
        self.publisher = principal.name
        self.client_id = packet.client_id or self.hub.new_client_id()
        self.listener.greeted(self, f"mqtt-{self.number}")
        self.session = f"mqtt-{self.number}"
        self.hub.enter(self.client_id, self)
        self._will = packet.will
        self._keep_alive_s = 1.5 * packet.keep_alive_s
        most = self.realm.limits.event_bytes_max + ROOM_BYTES
        self._reader.packet_bytes_max = min(most, PACKET_BYTES_MAX)
        self.is_open = True
        offered = PacketProperties(
            session_expiry_s=0 if packet.properties.session_expiry_s else None,
            assigned_client_id=None if packet.client_id else self.client_id,
            receive_maximum=RECEIVE_MAXIMUM,
            topic_alias_maximum=ALIASES_MAX,
            maximum_qos=1,
            retain_available=1,
            shared_available=0,
            maximum_packet_bytes=self._reader.packet_bytes_max,
        )
        self._send(ConnackPacket(0, properties=offered))

    def _refuse(self, reason: Reason, text: str) -> None:
        """Answer a CONNECT with a refusal, and close."""
        _log.warning("mqtt.refused", connection=self.number, host=self.host, reason=text)
        code = int(reason) if self.version == MQTT_5 else return_code(reason)
        self._send(ConnackPacket(code, properties=PacketProperties(reason=text)))
        self._is_ending = True
        self._close()

    # --- publishing ----------------------------------------------------------------------

    def _received(self, packet: PublishPacket) -> None:
        if packet.properties.subscription_ids:
            raise protocol_error("a client sends no subscription identifiers")
        topic = self._topic(packet)
        if packet.qos > 1:
            raise MqttViolation(Reason.QOS_NOT_SUPPORTED, "QoS 2 is not supported here")
        if packet.qos:
            if self._unanswered >= RECEIVE_MAXIMUM:
                text = f"more than {RECEIVE_MAXIMUM} messages are not acknowledged"
                raise MqttViolation(Reason.RECEIVE_MAXIMUM_EXCEEDED, text)
            self._unanswered += 1
        try:
            self._check(PublishEvents)
        except PenstockError as error:
            self.not_stored(packet, error)
            return
        if packet.properties.payload_format == 1 and not _is_text(packet.payload):
            text = "the payload is not UTF-8, as it says"
            self.not_stored(packet, MqttViolation(Reason.PAYLOAD_FORMAT_INVALID, text))
            return
        self.hub.gather(self, Received(topic, packet, self.client_id))

    def _topic(self, packet: PublishPacket) -> str:
        alias = packet.properties.topic_alias
        if alias is None:
            return packet.topic
        if alias > ALIASES_MAX or not (packet.topic or alias in self._aliases):
            text = f"topic alias {alias} is not known; {ALIASES_MAX} is the largest"
            raise MqttViolation(Reason.TOPIC_ALIAS_INVALID, text)
        if packet.topic:
            self._aliases[alias] = packet.topic
        return self._aliases[alias]

    def stored(self, packet: PublishPacket) -> None:
        """Acknowledge a message that is stored."""
        if packet.qos:
            self._unanswered -= 1
            self._send(PubackPacket(packet.packet_id))

    def not_stored(self, packet: PublishPacket, error: PenstockError) -> None:
        """Refuse a message: with a reason where the version has one, else by closing."""
        self.realm.connections.refused(error)
        if packet.qos and self.version == MQTT_5:
            self._unanswered -= 1
            reason = reason_within(error, reasons.ALLOWED[reasons.PUBLISHED])
            own = PacketProperties(reason=str(error))
            self._send(PubackPacket(packet.packet_id, reason, own))
        else:
            self.end(error)

    def _check(self, asked: type[Request[Any]]) -> None:
        """Raise ``AccessDenied`` unless the user may ask this of the channel of all topics."""
        check_on(Caller(self.realm, self.principal), "channel", self.hub.channel, asked)

    # --- subscribing ---------------------------------------------------------------------

    @property
    def has_filters(self) -> bool:
        return bool(self._filters)

    def has(self, filter_: Filter) -> bool:
        """Whether the client is still subscribed by this filter."""
        return self._filters.get(filter_.text) is filter_

    async def _subscribe(self, packet: SubscribePacket) -> None:
        try:
            await self.hub.follow()
        except PenstockError as error:
            self.end(error)
            return
        finally:
            self._subscribing -= 1
        if not self.is_open:
            return
        number = next(iter(packet.properties.subscription_ids), None)
        denied, own = self._denied, NO_PROPERTIES
        if denied is not None:
            own = PacketProperties(reason=str(denied))
            self.realm.connections.refused(denied, len(packet.subscriptions))
        made: list[Filter] = []
        granted = [self._granted(each, number, denied, made) for each in packet.subscriptions]
        self._send(SubackPacket(packet.packet_id, tuple(granted), own))
        self._reading.came()
        if made:
            await RetainedDelivery(self, made).run()

    @property
    def _denied(self) -> PenstockError | None:
        """Why the user may not subscribe; None: they may."""
        try:
            self._check(Subscribe)
        except PenstockError as error:
            return error
        return None

    def _granted(
        self,
        wanted: TopicSubscription,
        number: int | None,
        denied: PenstockError | None,
        retained_for: list[Filter],
    ) -> Reason:
        """Subscribe; ``retained_for`` gets the filter if retained messages go to it."""
        if wanted.filter.startswith(SHARED):
            return Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        if denied is not None:
            return reason_within(denied, reasons.ALLOWED[reasons.SUBACK])
        is_new = not self._drop(wanted.filter)
        made = self._filters[wanted.filter] = Filter(self, wanted, number)
        self.hub.filters.add(made.text, made)
        if wanted.retain_handling == 0 or (wanted.retain_handling == 1 and is_new):
            retained_for.append(made)
        return Reason(made.qos)

    def _unsubscribe(self, packet: UnsubscribePacket) -> None:
        found = [self._drop(each) for each in packet.filters]
        codes = (Reason.SUCCESS if each else Reason.NO_SUBSCRIPTION_EXISTED for each in found)
        self._send(UnsubackPacket(packet.packet_id, tuple(codes)))

    def _drop(self, text: str) -> bool:
        known = self._filters.pop(text, None)
        if known is not None:
            self.hub.filters.remove(text, known)
        return known is not None

    # --- out -----------------------------------------------------------------------------

    def _send(self, packet: Packet) -> None:
        written = packet_bytes_within(packet, self.version, self.outbox.packet_bytes_max)
        if written is not None:
            self.write(written)

    def write(self, data: bytes) -> None:
        if not self._out:
            self.listener.flush_soon(self)
        self._out.append(data)

    def flush(self) -> None:
        """Send pending output now."""
        data, self._out = b"".join(self._out), []
        if data and self._transport is not None and not self._transport.is_closing():
            self.hub.traffic.sent_bytes += len(data)
            self._transport.write(data)

    def _close(self) -> None:
        self.flush()
        close(self._transport)

    # --- ends ----------------------------------------------------------------------------

    def replaced(self) -> None:
        """Close the connection, because its client has connected again."""
        self._end(Reason.SESSION_TAKEN_OVER, "the client has connected again")

    def end(self, reason: PenstockError | None) -> None:
        """Close the connection with a reason."""
        if reason is None:
            self._end(Reason.SUCCESS, "")
            return
        self.realm.connections.refused(reason)
        self._end(reason_of(reason), str(reason))

    def _end(self, reason: Reason, text: str) -> None:
        if self._is_ending:
            return
        if self.is_open and self.version == MQTT_5:
            code = reason if reason in reasons.ALLOWED[reasons.DISCONNECT] else Reason.UNSPECIFIED
            own = PacketProperties(reason=text) if text else NO_PROPERTIES
            self._send(DisconnectPacket(code, own))
        elif self._connect is None and reason == Reason.UNSUPPORTED_VERSION:
            self.version = MQTT_3  # what older clients understand; others see that it is closed
            self._send(ConnackPacket(return_code(reason)))
        self._is_ending = True
        self._leave()
        self._close()

    def _leave(self) -> None:
        """Give up all subscriptions, and publish the will unless it was taken back."""
        for text in list(self._filters):
            self._drop(text)
        self.outbox.clear()
        if not self.is_open:
            return
        self.is_open = False
        self.hub.leave(self.client_id, self)
        will, self._will = self._will, None
        if will is not None:
            own = will.properties
            packet = PublishPacket(will.topic, will.payload, will.qos, 0, will.retain, False, own)
            try:
                self._check(PublishEvents)
            except PenstockError as error:
                _log.warning("mqtt.will_refused", host=self.host, reason=str(error))
                return
            self.hub.gather(self, Received(will.topic, packet, self.client_id))

    def check(self, now_s: float) -> None:
        """End a connection that is silent for too long, or does not identify itself in time."""
        if self._transport is None:
            return
        if self.is_open:
            if self.principal.until_us:
                self.check_rights()
            is_silent = self._keep_alive_s and now_s - self.heard_s > self._keep_alive_s
            if is_silent and not self._reading.is_paused:
                self.end(MqttViolation(Reason.KEEP_ALIVE_TIMEOUT, "nothing came for too long"))
        elif now_s - self._opened_s > self.listener.limits.hello_timeout_s:
            self.end(ConnectionLost("no CONNECT came in time"))

    def check_rights(self) -> None:
        """Rights have changed: end the connection if it may no longer be here, or subscribe."""
        access = self.realm.access
        if not self.is_open or access.is_open:
            return
        try:
            access.check_still(self.principal, self.realm.clock.now_us())
            if self._filters:
                self._check(Subscribe)
        except PenstockError as error:
            self.end(error)

    def describe(self) -> ConnectionState:
        """A description of the connection for administrators."""
        version = "3.1.1" if self.version == MQTT_3 else "5"
        return self._description(
            f"MQTT {version} {self.client_id}",
            subscriptions=len(self._filters),
            requests=self._unanswered,
            is_stalled=not self.takes_more,
        )


def _is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
