"""The messages of a topic filter of a broker with MQTT, in a session that outlives connections.

MQTT has no message ids that survive a delivery. For QoS 2 the source repeats a message with its
packet id until it is released, so the *session state* has the packet ids of the messages that are
stored and not released. The session state is stored in the same step as the messages, and a release
is answered only after the step that removes its packet id from the state. So each message is stored
once. Messages of QoS 1 are acknowledged after their step: each is stored at least once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from penstock_core.vocabulary.errors import IllegalState, InvalidEvent
from penstock_mqtt.messages import Received, body_of_messages
from penstock_mqtt.wire.framing import PacketReader
from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    Acknowledgement,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    Packet,
    PingreqPacket,
    PubackPacket,
    PubcompPacket,
    PublishPacket,
    PubrecPacket,
    PubrelPacket,
    SubackPacket,
    SubscribePacket,
    TopicSubscription,
)
from penstock_mqtt.wire.properties import PROPERTIES_BYTES_MAX, PacketProperties
from penstock_mqtt.wire.reading import packet_of
from penstock_mqtt.wire.reasons import MqttViolation, Reason
from penstock_mqtt.wire.writing import packet_bytes
from penstock_server.runtime.writer.clock import SystemClock
from penstock_tools.bridge import sources
from penstock_tools.bridge.sources import (
    SourceBatch,
    SourceBounds,
    SourceLost,
    SourceSocket,
    SourceUrl,
    too_large,
)

KEEP_ALIVE_S: Final = 60
"""Seconds of silence after which either side closes the connection."""
NEVER_S: Final = 0xFFFF_FFFF
"""Session expiry of a session that does not end."""
RECEIVE_BYTES: Final = 256 << 10
_SUBSCRIBE_ID: Final = 1
_DIGEST_BYTES: Final = 8
_QOS: Final = 2


class SessionState(Struct, array_like=True):
    """State of the session at the source, which a bridge needs after a restart."""

    unreleased: dict[int, bytes] = {}
    """Digests of the stored messages of QoS 2 that the source has not released, by packet id."""
    is_subscribed: bool = False
    """Whether the source has confirmed the subscription."""


class MqttSource:
    """A persistent session with one subscription. It stops reading while ``window`` messages or
    ``window_bytes`` are not settled."""

    def __init__(
        self,
        url: SourceUrl,
        name: str,
        bounds: SourceBounds,
        *,
        on_notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``name`` identifies the session at the source. ``on_notice`` is called with a
        text if the source grants less than a bridge needs."""
        self._url = url
        self._session_name = f"penstock-bridge-{name}"
        self._version = MQTT_3 if url.version == "3.1.1" else MQTT_5
        self._bounds = bounds
        self._on_notice = on_notice
        self._tls = url.tls_context()
        self._clock = SystemClock()
        self._socket: SourceSocket | None = None
        self._begin(b"")

    def _begin(self, state: bytes) -> None:
        self._stored_state = state
        self._session = (
            msgspec.msgpack.decode(state, type=SessionState) if state else SessionState()
        )
        self._reader = PacketReader(self._bounds.message_bytes_max + PROPERTIES_BYTES_MAX)
        self._messages: list[PublishPacket] = []
        """Messages that are not stored."""
        self._answers: list[Acknowledgement] = []
        """Acknowledgements to send once the messages and the state are stored, in the order of the
        packets that they answer."""
        self._unusable: set[int] = set()
        """Packet ids of the messages that cannot become events."""
        self._count = self._held_bytes = 0
        self._connack: ConnackPacket | None = None
        self._suback: SubackPacket | None = None
        self._must_store = False
        """Whether the state must be stored before the subscription is requested."""
        self._keep_alive_us = KEEP_ALIVE_S * 1_000_000
        self._sent_us = self._clock.steady_us()
        self._pinged_us = 0
        """Time of a PINGREQ since which nothing has arrived; 0 without one."""

    # --- connection ----------------------------------------------------------------------

    def connect(self, state: bytes) -> None:
        self.close()
        self._begin(state)
        self._socket = SourceSocket(self._url, self._tls)
        try:
            self._send(self._connect_packet())
            self._wait_for(lambda: self._connack is not None, sources.CONNECT_S)
        except SourceLost as error:
            self.close()
            raise SourceLost(f"{error}{self._hint}") from error
        connack = self._connack
        if connack is None or connack.reason:
            self.close()
            reason = "it does not answer" if connack is None else _reason_text(connack)
            raise SourceLost(f"{self._url} does not accept the connection: {reason}{self._hint}")
        self._accept(connack)

    @property
    def _hint(self) -> str:
        """Advice for a server that may have only the older version; empty if it does not help."""
        if self._version == MQTT_3 or self._connack is not None:
            return ""
        return "; if it has no MQTT 5, add ?version=3.1.1 to the URL"

    def _connect_packet(self) -> ConnectPacket:
        properties = PacketProperties()
        if self._version == MQTT_5:
            # A maximum packet size is not named, since the source would drop larger messages.
            properties = PacketProperties(
                session_expiry_s=NEVER_S, receive_maximum=self._bounds.window
            )
        url = self._url
        return ConnectPacket(
            self._session_name,
            self._version,
            clean_start=False,
            keep_alive_s=KEEP_ALIVE_S,
            user=url.user or None,
            password=url.password.encode() if url.password else None,
            properties=properties,
        )

    def _accept(self, connack: ConnackPacket) -> None:
        if connack.properties.server_keep_alive_s:
            self._keep_alive_us = connack.properties.server_keep_alive_s * 1_000_000
        expiry_s = connack.properties.session_expiry_s
        if expiry_s is not None and expiry_s < NEVER_S:
            self._on_notice(
                f"{self._url} keeps messages for {expiry_s:,} s only while the bridge is away"
            )
        if not connack.session_present and self._stored_state:
            self._on_notice(f"{self._url} has forgotten the session of the bridge and begins anew")
            # Packet ids of the old session would hide messages of the new one that reuse them.
            self._session = SessionState()
            self._must_store = True

    def _subscribe(self) -> None:
        """Request the subscription, and wait for its confirmation. Raises :class:`SourceLost`, and
        ``IllegalState`` if the source refuses it."""
        # Retained messages come with the subscription. A source with MQTT 5 sends none if the
        # session has the subscription already.
        handling = 1 if self._version == MQTT_5 else 0
        subscription = TopicSubscription(self._url.address, _QOS, retain_handling=handling)
        self._send(SubscribePacket(_SUBSCRIBE_ID, (subscription,)))
        self._wait_for(lambda: self._suback is not None, sources.CONNECT_S)
        if self._suback is None:
            raise SourceLost(f"{self._url} does not confirm the subscription")
        granted = self._suback.reasons[0]
        if granted.is_failure:
            raise IllegalState(f"{self._url} refuses the subscription: {granted.name}")
        if granted < _QOS:
            self._on_notice(
                f"{self._url} grants QoS {granted:d} only: a message may be "
                f"{'stored twice after a failure' if granted else 'lost while the bridge is away'}"
            )
        self._session.is_subscribed = True

    def close(self) -> None:
        opened, self._socket = self._socket, None
        if opened is None:
            return
        with suppress(SourceLost):
            opened.send(packet_bytes(DisconnectPacket(), self._version))
        opened.close()

    # --- messages ------------------------------------------------------------------------

    def receive(self, timeout_s: float) -> SourceBatch | None:
        partial_bytes = self._reader.held_bytes
        if not self._must_store:
            if not self._session.is_subscribed:
                self._subscribe()
            self._wait_for(lambda: bool(self._answers or self._messages), timeout_s)
            # Packets that have arrived meanwhile belong to the same batch.
            while self._may_hold_more and self._exchange(0.0):
                pass
        state = msgspec.msgpack.encode(self._session)
        if not (self._answers or self._messages or state != self._stored_state):
            return SourceBatch(state=state) if self._reader.held_bytes > partial_bytes else None
        body, faults = self._body()
        if faults:
            state = msgspec.msgpack.encode(self._session)
        self._stored_state = state
        bodies = [body] if body is not None else []
        identities = [[None] * len(body) for body in bodies]
        return SourceBatch(bodies, identities, count=self._count, unusable=faults, state=state)

    @property
    def _may_hold_more(self) -> bool:
        is_open = (
            self._held_bytes < self._bounds.window_bytes
            and len(self._messages) < self._bounds.window
        )
        return is_open and len(self._answers) < 2 * self._bounds.window

    def _body(self) -> tuple[pa.RecordBatch | None, Sequence[str]]:
        """Return the events of the messages, and the reasons of those that cannot be events."""
        messages = [Received(packet.topic, packet, self._session_name) for packet in self._messages]
        if not messages:
            return None, ()
        try:
            return body_of_messages(messages), ()
        except InvalidEvent:
            pass
        usable, faults = [], []
        for message in messages:
            try:
                body_of_messages([message])
            except InvalidEvent as error:
                faults.append(str(error))
                self._unusable.add(message.packet.packet_id)
                if self._version == MQTT_5:  # a refusal releases the packet id
                    self._session.unreleased.pop(message.packet.packet_id, None)
            else:
                usable.append(message)
        return (body_of_messages(usable) if usable else None), faults

    def settle(self) -> None:
        answers, unusable = self._answers, self._unusable
        if unusable and self._version == MQTT_5:
            answers = [
                type(answer)(answer.packet_id, Reason.IMPLEMENTATION_SPECIFIC)
                if answer.packet_id in unusable and isinstance(answer, PubackPacket | PubrecPacket)
                else answer
                for answer in answers
            ]
        self._messages, self._answers, self._unusable = [], [], set()
        self._count = self._held_bytes = 0
        self._must_store = False
        if answers:
            self._send(*answers)

    def _take(self, message: PublishPacket) -> None:
        """Take a message, unless it is a repetition of one that is stored."""
        self._count += 1
        if message.qos == 1:
            self._answers.append(PubackPacket(message.packet_id))
        elif message.qos == 2:
            self._answers.append(PubrecPacket(message.packet_id))
            # The digest tells a repetition from a new message of a source that has lost its
            # state in a failure, and uses the packet id again without a release.
            digest = _digest_of(message)
            if self._session.unreleased.get(message.packet_id) == digest:
                return
            self._session.unreleased[message.packet_id] = digest
        self._messages.append(message)
        self._held_bytes += len(message.payload)

    def _release(self, packet_id: int) -> None:
        was_held = self._session.unreleased.pop(packet_id, None) is not None
        is_known = was_held or self._version == MQTT_3
        reason = Reason.SUCCESS if is_known else Reason.PACKET_ID_NOT_FOUND
        self._answers.append(PubcompPacket(packet_id, reason))

    # --- packets -------------------------------------------------------------------------

    def _wait_for(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        """Exchange packets until ``is_done`` or the time is over. Raises :class:`SourceLost`."""
        end_us = self._clock.steady_us() + int(timeout_s * 1_000_000)
        while not is_done() and (remaining_us := end_us - self._clock.steady_us()) > 0:
            self._exchange(min(remaining_us / 1_000_000, 1.0))

    def _exchange(self, timeout_s: float) -> bool:
        """Receive the bytes that arrive within ``timeout_s``, and return whether any did. Raises
        :class:`SourceLost`."""
        now_us = self._clock.steady_us()
        if now_us - self._sent_us > self._keep_alive_us // 3:
            self._send(PingreqPacket())
            self._pinged_us = self._pinged_us or now_us
        data = self._opened.receive(RECEIVE_BYTES, timeout_s)
        if not data:
            if self._pinged_us and now_us - self._pinged_us > self._keep_alive_us:
                raise SourceLost(f"{self._url} does not answer")
            return False
        self._pinged_us = 0
        self._reader.receive(data)
        try:
            for first, body in self._reader.packets():
                self._handle(packet_of(first, body, self._version))
        except MqttViolation as error:
            if error.reason == Reason.PACKET_TOO_LARGE:
                raise too_large(self._url, self._bounds.message_bytes_max) from error
            raise SourceLost(f"{self._url} breaks the protocol of MQTT: {error}") from error
        return True

    def _handle(self, packet: Packet) -> None:
        """Handle a packet. Raises :class:`SourceLost`, ``IllegalState`` and
        :class:`MqttViolation`."""
        if isinstance(packet, PublishPacket):
            if not packet.topic:  # this client allows no topic aliases
                raise MqttViolation(Reason.TOPIC_ALIAS_INVALID, "a message has no topic")
            self._take(packet)
        elif isinstance(packet, PubrelPacket):
            self._release(packet.packet_id)
        elif isinstance(packet, ConnackPacket):
            self._connack = packet
        elif isinstance(packet, SubackPacket):
            self._suback = packet
        elif isinstance(packet, DisconnectPacket):
            if packet.reason == Reason.SESSION_TAKEN_OVER:
                raise IllegalState(
                    f"another client has taken over the session {self._session_name} of "
                    f"{self._url}; run one process for each name"
                )
            raise SourceLost(f"{self._url} has ended the connection: {_reason_text(packet)}")

    @property
    def _opened(self) -> SourceSocket:
        if self._socket is None:
            raise SourceLost(f"{self._url} is not connected")
        return self._socket

    def _send(self, *packets: Packet) -> None:
        self._opened.send(b"".join(packet_bytes(packet, self._version) for packet in packets))
        self._sent_us = self._clock.steady_us()


def _digest_of(message: PublishPacket) -> bytes:
    """Return a digest of topic and payload, which a repetition has in common with its message; the
    message expiry, for example, becomes shorter meanwhile."""
    content = b"\0".join((message.topic.encode(), message.payload))
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _reason_text(packet: Any) -> str:
    """Return the reason of a CONNACK or DISCONNECT as a text."""
    explanation = packet.properties.reason
    name = packet.reason.name if isinstance(packet.reason, Reason) else f"code {packet.reason}"
    return f"{name} ({explanation})" if explanation else name
