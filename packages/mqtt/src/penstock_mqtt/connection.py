"""The connection of one MQTT client: its packets, its subscriptions and how it ends."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from msgspec.structs import replace

from penstock_core.access.rights import Principal
from penstock_core.api.publishing import PublishEvents
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import ConnectionLost, PenstockError
from penstock_mqtt.filters import Filter
from penstock_mqtt.held_bytes import ReceivedBytes
from penstock_mqtt.incoming import ALIASES_MAX, Incoming
from penstock_mqtt.reasons import (
    connack_reason,
    ending_reason,
    explanation,
    invalid_client_id,
    reason_of,
    reason_within,
    return_code,
    version_refusal,
)
from penstock_mqtt.retained_delivery import RetainedDelivery
from penstock_mqtt.session import ClientKey, MqttSession
from penstock_mqtt.signing_in import TOO_LARGE_FOR_CLIENT, MqttSignIn, response_prefix
from penstock_mqtt.subscribing import Subscribing
from penstock_mqtt.wire import reasons
from penstock_mqtt.wire.framing import PacketReader
from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    PACKET_BYTES_MAX,
    Acknowledgement,
    AuthPacket,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    Packet,
    PingreqPacket,
    PingrespPacket,
    PubackPacket,
    PubcompPacket,
    PublishPacket,
    PubrecPacket,
    PubrelPacket,
    SubackPacket,
    SubscribePacket,
    UnsubackPacket,
    UnsubscribePacket,
)
from penstock_mqtt.wire.plain_messages import PlainMessage, plain_messages
from penstock_mqtt.wire.properties import NO_PROPERTIES, PacketProperties, without_problem
from penstock_mqtt.wire.reading import packet_of
from penstock_mqtt.wire.reasons import MqttViolation, Reason, UnknownVersion, protocol_error
from penstock_mqtt.wire.writing import packet_bytes_within
from penstock_server.frontends.native.hosted_connection import HostedConnection
from penstock_server.frontends.shared.backpressure import ReadThrottle
from penstock_server.frontends.shared.transports import close
from penstock_server.runtime.access.open_connections import ConnectionState

if TYPE_CHECKING:
    from penstock_mqtt.following import FollowedChannels
    from penstock_mqtt.mqtt_realm import MqttRealm
    from penstock_mqtt.sessions import MqttSessions

CONNECT_BYTES_MAX: Final = 1 << 18
"""Largest CONNECT packet in bytes."""
HELD_BYTES_MAX: Final = 1 << 16
"""Bytes of packets that wait for a sign-in or a subscription. Above this the connection is not
read."""
PACKETS_A_TURN: Final = 256
"""Maximum number of packets of one connection that are processed before other tasks run."""
_FEW_BYTES: Final = 4_096
"""Chunks up to this size cannot hold enough packets to delay other clients."""
_PUBACK: Final = bytes((0x40, 2))
"""First bytes of a PUBACK without a reason code; the packet id follows."""
_PUBACK_BYTES: Final = 4

_EXPLAINED_PACKETS: Final = (Acknowledgement, AuthPacket, SubackPacket, UnsubackPacket)
"""Packets whose explanations are removed if the client does not want them (3.1.2.11.7)."""

P = ParamSpec("P")

_log = logger("penstock.mqtt")


class MqttConnection(HostedConnection):
    """The server's side of one client's connection, from its CONNECT to its end."""

    protocol = "mqtt"

    def __init__(
        self, mqtt: MqttRealm, sessions: MqttSessions, following: FollowedChannels
    ) -> None:
        super().__init__(mqtt.listener)
        self._mqtt = mqtt
        self._sessions = sessions
        self._following = following
        self.client_id = ""
        self.version = MQTT_5
        self.is_ending = False
        """Whether the connection ignores further packets of the client."""
        self._connect: ConnectPacket | None = None
        """The client's CONNECT; None until it is received."""
        self._sign_in = MqttSignIn(self.realm, self)
        self._sends_explanations = True
        """Whether answers contain reason strings; the client may decline them in its CONNECT."""
        self._reader = PacketReader(CONNECT_BYTES_MAX)
        self._received = ReceivedBytes(mqtt.unknown, mqtt.listener.incomplete)
        self._out: list[bytes] = []
        """Encoded packets that the next flush writes to the transport."""
        self.is_writable = True
        """Whether the transport accepts output; False while the client reads too slowly."""
        self._reading = ReadThrottle(self._may_read, self._reading_resumed, self._process_and_count)
        self._keep_alive_s = 0.0
        """Seconds of silence after which the connection ends; 0 means no limit."""
        self.packet_bytes_max = PACKET_BYTES_MAX
        """Largest packet that the client accepts, in bytes."""
        self.rights = mqtt.rights_of(self.principal, "")
        """Rights of the client's user."""
        self.incoming = Incoming(mqtt, self)
        self._subscriber = Subscribing(mqtt, sessions, following, connection=self)
        self.client = MqttSession(mqtt, client_id="", principal=self.principal, place="")
        """The client's session; a placeholder until the client is signed in."""
        self._subscribing = 0
        """SUBSCRIBE and UNSUBSCRIBE packets that are being processed; later packets wait."""

    @property
    def key(self) -> ClientKey:
        """The key of the client's session."""
        return ClientKey(self.client_id, self.principal.user)

    # --- asyncio -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._received.begin(self.host)
        if not self.listener.opened(self, is_refused_later=True):
            self.abort()

    def data_received(self, data: bytes) -> None:
        self.heard_s = self._loop.time()
        self._mqtt.traffic.received_bytes += len(data)
        if self.is_open and not self._reader.held_bytes and len(data) <= _FEW_BYTES:
            # Most chunks consist of complete plain messages, which need no buffering.
            data = self._receive_plain(data)
            if not data:
                return
        elif not self.is_open and not self._count_before_sign_in(len(data)):
            return
        self._reader.receive(data)
        self._reading.data_arrived()

    def _count_before_sign_in(self, size: int) -> bool:
        """Count bytes of a client that is not signed in. End the connection and return False if the
        limit is reached."""
        if self.is_ending:
            return False
        try:
            self._received.add(size)
        except PenstockError as error:
            _log.warning("mqtt.refused", connection=self.number, host=self.host, reason=str(error))
            self.end(error)
            return False
        return True

    def _receive_plain(self, data: bytes) -> bytes:
        """Receive the PUBACKs without a reason code at the start of ``data`` and the messages
        without properties that follow, and return the remaining bytes. Most messages need only this
        fast path."""
        if self.is_ending or self._subscribing:
            return data
        if data.startswith(_PUBACK):
            data = self.client.outbox.acknowledged_in(data)
            if self._holds_packets:
                return data
        size_max = self._reader.packet_bytes_max
        messages, end = plain_messages(data, self.version, PACKETS_A_TURN, size_max)
        if messages:
            self._receive_messages(messages)
        if end < len(data):
            return data[end:]
        if not self.is_writable or self._mqtt.publisher.is_held_up or self.pace.per_s:
            self._reading.check()
        return b""

    def _receive_messages(self, messages: Sequence[PlainMessage]) -> None:
        if self.pace.per_s:
            self.pace.count(len(messages))
        try:
            self.incoming.received_together(messages)
        except MqttViolation as error:
            self._end_for_violation(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._reading.end()
        self._sign_in.lost()
        self._received.end()
        self._leave()
        self.incoming.end()
        self.listener.closed(self)

    def pause_writing(self) -> None:
        self.is_writable = False
        self._reading.check()

    def resume_writing(self) -> None:
        self.is_writable = True
        self.client.outbox.send_waiting()

    def _may_read(self) -> bool:
        """Return False while the client has to wait: it does not read what is sent to it, exceeds
        its rate, publishes faster than the realm stores, or has too many packets buffered."""
        listener = self.listener
        # Congestion delays publishing clients only: acknowledgements of others are still read.
        waits = self.incoming.publishes and listener.is_congested
        is_held_up = self.pace.is_ahead or waits or listener.is_draining
        is_held = self._reader.held_bytes > HELD_BYTES_MAX and self._holds_packets
        return self.is_writable and not is_held_up and not is_held

    @property
    def owes_answers(self) -> bool:
        """Whether a message or a subscription waits to be acknowledged."""
        return self.incoming.unanswered > 0 or self._subscribing > 0

    def _reading_resumed(self, now_s: float) -> None:
        # The time without reading does not count as silence of the client (keep-alive).
        self.heard_s = now_s

    # --- received packets ----------------------------------------------------------------

    def _process_and_count(self) -> bool:
        """Process buffered packets, and update the count of incomplete bytes. Return whether more
        packets may be complete."""
        has_more = self._process_packets()
        if self._received.is_incomplete or self._reader.held_bytes > HELD_BYTES_MAX:
            self._count_incomplete(self._reader.held_bytes)
        return has_more

    def _count_incomplete(self, size: int) -> None:
        """Count the bytes of an incomplete packet against the limit of the user. End the connection
        if the limit is reached."""
        is_counted = size > HELD_BYTES_MAX and self.is_open and not self.is_ending
        try:
            self._received.hold(self.principal, size if is_counted else 0)
        except MqttViolation as error:
            self._end_for_violation(error)

    def _process_packets(self) -> bool:
        """Process at most `PACKETS_A_TURN` buffered packets. Return whether more packets may be
        complete."""
        count = 0
        try:
            if self._holds_packets:
                return False
            if self.is_open:
                count = self._process_plain()
                if self._holds_packets:
                    return False
            if count == PACKETS_A_TURN:
                return True
            for first, body in self._reader.packets():
                self._receive(packet_of(first, body, self.version))
                count += 1
                if self._holds_packets:
                    return False
                if count == PACKETS_A_TURN:
                    return True
        except MqttViolation as error:
            self._end_for_violation(error)
        return False

    def _process_plain(self) -> int:
        """Process the next PUBACKs and messages as long as they have no properties. Return the
        number of messages."""
        if acknowledged := self._reader.pubacks():
            self.client.outbox.acknowledged(acknowledged)
            if self._holds_packets:
                return 0
        messages = self._reader.publishes(self.version, PACKETS_A_TURN)
        if messages:
            self._receive_messages(messages)
        return len(messages)

    @property
    def _holds_packets(self) -> bool:
        """Whether received packets must wait or are ignored."""
        return self.is_ending or self._subscribing > 0 or self._sign_in.holds_packets

    def _end_for_violation(self, error: MqttViolation) -> None:
        """End the connection of a client that has broken the protocol. Before the client is signed
        in, the last packet is a CONNACK."""
        _log.warning("mqtt.refused", connection=self.number, host=self.host, reason=str(error))
        if isinstance(error, UnknownVersion) and self._connect is None:
            self.write(version_refusal(error))
        if self._connect is None or self.is_open:
            self.end(error)
            return
        self.realm.connections.count_error(error)
        self.refuse(reason_within(error, reasons.ALLOWED[reasons.CONNACK]), str(error))

    def _receive(self, packet: Packet) -> None:
        if self.is_open and isinstance(packet, PublishPacket):  # the most frequent packet
            self.pace.count(1)
            self.incoming.received(packet)
            return
        if self._connect is None:
            if not isinstance(packet, ConnectPacket):
                raise protocol_error("the first packet must be a CONNECT")
            self._begin_sign_in(packet)
            return
        if not self.is_open and not isinstance(packet, AuthPacket | DisconnectPacket):
            raise protocol_error("before the CONNACK a client may send only AUTH")
        match packet:
            case AuthPacket():
                self._sign_in.received(packet)
            case SubscribePacket() | UnsubscribePacket():
                self._subscribing += 1
                self.run(self._subscribe, packet)
            case PingreqPacket():
                self.send(PingrespPacket())
            case DisconnectPacket():
                self._process_disconnect(packet)
            case _:
                self._receive_acknowledgement(packet)

    def _receive_acknowledgement(self, packet: Packet) -> None:
        """Receive the client's acknowledgement of a message."""
        match packet:
            case PubackPacket(packet_id):
                self.client.outbox.acknowledged((packet_id,))
            case PubrecPacket(packet_id, reason):
                self.client.outbox.received(packet_id, reason)
            case PubrelPacket(packet_id):
                self.incoming.release(packet_id)
            case PubcompPacket(packet_id):
                self.client.outbox.completed(packet_id)
            case _:
                raise protocol_error(f"{type(packet).__name__} is not expected here")

    def run(
        self, work: Callable[P, Coroutine[Any, Any, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Run a coroutine as a task. An unexpected exception in it ends only this connection."""
        self.listener.spawn(self._run_contained, work, *args, **kwargs)

    async def _run_contained(
        self, work: Callable[P, Coroutine[Any, Any, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        try:
            await work(*args, **kwargs)
        except Exception:  # noqa: BLE001  other connections must not end with it
            _log.exception("mqtt.failed", connection=self.number)
            self.abort()

    def _process_disconnect(self, packet: DisconnectPacket) -> None:
        """Receive a DISCONNECT: set the session's expiry, drop the will unless the client asks for
        it, and close the connection."""
        expiry_s = packet.properties.session_expiry_s
        if expiry_s is not None:
            if expiry_s and not self.client.expiry_s:
                raise protocol_error(
                    "a DISCONNECT cannot set an expiry if the CONNECT has set none"
                )
            self.client.expiry_s = expiry_s
        if packet.reason == Reason.SUCCESS:
            self.client.will = None
        self._leave()
        self.is_ending = True
        self._close()

    # --- CONNECT -------------------------------------------------------------------------

    def _begin_sign_in(self, packet: ConnectPacket) -> None:
        self._connect, self.version = packet, packet.version
        self.packet_bytes_max = packet.packet_bytes_max
        if fault := invalid_client_id(packet):
            self.refuse(Reason.CLIENT_IDENTIFIER_NOT_VALID, fault)
            return
        if (refusal := self.listener.suspended or self._mqtt.fault) is not None:
            self.refuse(connack_reason(refusal), str(refusal))
            return
        self._sign_in.begin(packet)

    def resume_reading(self) -> None:
        """Process packets that the client sent while it had to wait."""
        self._reading.data_arrived()

    @property
    def is_gone(self) -> bool:
        """Whether the client has disconnected, or its connection is ending."""
        return self._transport is None or self.is_ending

    def transport_info(self, name: str) -> Any:
        """Return an item of the transport's extra information, or None."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    def mark_open(self, packet: ConnectPacket, packet_bytes_max: int) -> None:
        """Mark the connection as open, and apply its limits of silence and of packet size."""
        # A client may be silent for one and a half times its keep-alive (3.1.2.10).
        self._keep_alive_s = 1.5 * packet.keep_alive_s
        self._sends_explanations = packet.properties.request_problem_information != 0
        self._reader.packet_bytes_max, self._reader.is_strict = packet_bytes_max, True
        self._received.signed_in()
        self.is_open = True

    async def open_session(
        self, packet: ConnectPacket, principal: Principal, proof: PacketProperties
    ) -> None:
        """Open or resume the session of a client. ``proof`` holds the properties that end its
        authentication."""
        self.principal, self.publisher = principal, principal.name
        self.client_id = packet.client_id or f"auto-{secrets.token_hex(12)}"
        self.rights = self._mqtt.rights_of(principal, self.client_id)
        if packet.will is not None:  # a will without the right to publish it is refused now
            self.rights.check_publish(packet.will.topic, PublishEvents)
        self.listener.greeted(self, f"mqtt-{self.number}")
        self.session = f"mqtt-{self.number}"
        session, present = await self._sessions.enter(self, packet, principal)
        self.client = session
        requested = packet.properties
        session.outbox.in_flight_max = requested.receive_maximum or 65_535
        if self.is_gone:  # the client disconnected while its session was being opened
            self._sessions.forget(self)
            self._sessions.leave(session)
            return
        size_max = min(self._mqtt.packet_bytes_max, PACKET_BYTES_MAX)
        self.mark_open(packet, size_max)
        offered = replace(
            proof,
            assigned_client_id=None if packet.client_id else self.client_id,
            receive_maximum=self._mqtt.limits.receive_maximum,
            topic_alias_maximum=ALIASES_MAX,
            retain_available=1,
            maximum_packet_bytes=size_max,
            response_information=response_prefix(self.client_id, requested),
        )
        if not self.send(ConnackPacket(0, present, offered)):
            _log.warning("mqtt.sign_in_refused", host=self.host, reason=TOO_LARGE_FOR_CLIENT)
            self.abort()  # a DISCONNECT may not come before the CONNACK
            return
        # Deliveries begin only now, because the CONNACK must be the first packet.
        filters = []
        if present:
            await self._following.begin()
            filters = await self._sessions.resume(session, self)
        if filters:
            self.run(self._send_retained, filters)

    def use_new_principal(self, principal: Principal) -> None:
        """Use the principal of a client that has authenticated again."""
        self.principal = self.client.principal = principal
        self.quiet_until_s = 0.0  # the new proof may expire
        self.rights = self._mqtt.rights_of(principal, self.client_id)
        # The cached receivers were found with the rights of the earlier principal.
        self._mqtt.fan_out.forget()
        if self.client.has_record:
            self.client.store((self.client.entry,))
        self.check_rights()

    def refuse(self, reason: Reason, text: str) -> None:
        """Answer a CONNECT with a refusal, and close."""
        _log.warning("mqtt.refused", connection=self.number, host=self.host, reason=text)
        code = int(reason) if self.version == MQTT_5 else return_code(reason)
        self.send(ConnackPacket(code, properties=explanation(text)))
        self.is_ending = True
        self._sessions.forget(self)
        self._close()

    # --- subscribing ---------------------------------------------------------------------

    async def _subscribe(self, packet: SubscribePacket | UnsubscribePacket) -> None:
        new_filters: list[Filter] = []
        try:
            if isinstance(packet, SubscribePacket):
                new_filters = await self._subscriber.subscribe(packet)
            else:
                await self._subscriber.unsubscribe(packet)
        except PenstockError as error:
            self.end(error)
            return
        finally:
            self._subscribing -= 1
        self._reading.data_arrived()
        await self._send_retained(new_filters)

    async def _send_retained(self, filters: Sequence[Filter]) -> None:
        """Send the client the retained messages that its filters match."""
        if filters and self.is_open:
            await RetainedDelivery(self._mqtt, self.client, self, filters=filters).run()

    # --- sent packets --------------------------------------------------------------------

    def send(self, packet: Packet) -> bool:
        """Send a packet. Return False if it is larger than the client accepts."""
        if not self._sends_explanations and isinstance(packet, _EXPLAINED_PACKETS):
            packet = replace(packet, properties=without_problem(packet.properties))
        written = packet_bytes_within(packet, self.version, self.packet_bytes_max)
        if written is not None:
            self.write(written)
        return written is not None

    def acknowledge(self, packet_ids: Sequence[int]) -> None:
        """Acknowledge stored messages of QoS 1 (PUBACK, the most frequent packet)."""
        if self.packet_bytes_max < _PUBACK_BYTES:
            return  # the client accepts no packet of this size
        if len(packet_ids) == 1:
            self.write(_PUBACK + packet_ids[0].to_bytes(2))
        else:
            self.write(b"".join([_PUBACK + packet_id.to_bytes(2) for packet_id in packet_ids]))

    def write(self, data: bytes) -> None:
        # The listener flushes once in a turn of the loop: one system call for several packets.
        if not (out := self._out):
            self.listener.flush_soon(self)
        out.append(data)

    def flush(self) -> None:
        """Send pending output now."""
        out, self._out = self._out, []
        data = out[0] if len(out) == 1 else b"".join(out)
        if data and self._transport is not None and not self._transport.is_closing():
            self._mqtt.traffic.sent_bytes += len(data)
            self._transport.write(data)

    def _close(self) -> None:
        self.flush()
        close(self._transport)

    # --- ends ----------------------------------------------------------------------------

    def close_replaced(self) -> None:
        """Close the connection, because its client has connected again."""
        self._end(Reason.SESSION_TAKEN_OVER, "the client has connected again")

    def end(self, reason: PenstockError | None) -> None:
        """Close the connection with a reason."""
        if reason is None:
            self._end(Reason.SUCCESS, "")
            return
        self.realm.connections.count_error(reason)
        self._end(reason_of(reason), str(reason))

    def _end(self, reason: Reason, text: str) -> None:
        if self.is_ending:
            return
        if self.is_open and self.version == MQTT_5:
            properties = explanation(text) if text else NO_PROPERTIES
            self.send(DisconnectPacket(ending_reason(reason), properties))
        elif self._connect is not None and not self.is_open:
            self._refuse_late(reason, text)
        self.is_ending = True
        self._leave()
        self._close()

    def _refuse_late(self, reason: Reason, text: str) -> None:
        """Answer a CONNECT that is still being processed with a refusal."""
        code = reason if reason in reasons.ALLOWED[reasons.CONNACK] else Reason.SERVER_UNAVAILABLE
        if self.version == MQTT_5:
            self.send(ConnackPacket(code, properties=explanation(text)))
        else:
            self.send(ConnackPacket(return_code(code)))

    def cut(self) -> None:
        """End the connection because another node serves the realm now. Pending output is
        dropped."""
        # A DISCONNECT would have to wait behind output that the client has not read.
        if self._transport is not None and self._transport.get_write_buffer_size():
            self.abort()
        self._out.clear()
        self._end(Reason.USE_ANOTHER_SERVER, "another node of the cluster serves this realm now")

    def _leave(self) -> None:
        """End the subscriptions of a session without expiry, and publish the will unless the client
        withdrew it."""
        if not self.is_open:
            return
        self.is_open = False
        self._sessions.forget(self)
        self._sessions.leave(self.client)

    def check(self, now_s: float) -> None:
        """End a connection that exceeds its keep-alive or does not sign in in time."""
        if self._transport is None:
            return
        if self.is_open:
            if self.principal.until_us:  # a token or certificate that expires
                self.check_rights()
            allowed_s = 0.0 if self.principal.until_us else self._keep_alive_s or float("inf")
            self.quiet_until_s = self.heard_s + allowed_s if allowed_s else 0.0
            is_silent = self._keep_alive_s and now_s - self.heard_s > self._keep_alive_s
            if is_silent and not self._reading.is_paused:
                self.end(
                    MqttViolation(
                        Reason.KEEP_ALIVE_TIMEOUT,
                        f"the client sent nothing for {self._keep_alive_s:g} s",
                    )
                )
        elif now_s - self._opened_s > self.listener.limits.hello_timeout_s:
            self.end(ConnectionLost("the client sent no CONNECT in time"))

    def check_rights(self) -> None:
        """End the connection if changed rights no longer allow it or one of its subscriptions."""
        access = self.realm.access
        if not self.is_open or access.is_open:
            return
        try:
            access.check_still(self.principal, self.realm.clock.now_us())
            for subscribed in self.client.filters.values():
                self.rights.check_subscribe(subscribed.text, makes_durable=False)
        except PenstockError as error:
            self.end(error)

    def describe(self) -> ConnectionState:
        """Return a description of the connection for administrators."""
        return self._description(
            f"MQTT {'3.1.1' if self.version == MQTT_3 else '5'} {self.client_id}",
            subscriptions=len(self.client.filters),
            requests=self.incoming.unanswered,
            is_stalled=not self.is_writable,
        )
