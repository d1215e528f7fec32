"""The messages being delivered to one client: waiting ones and those in flight."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Protocol, TypeGuard
from weakref import proxy

from penstock_core.vocabulary.ports import Clock
from penstock_mqtt.expressing import TOO_LARGE, count_unsent
from penstock_mqtt.filters import ClientConnection, Filter
from penstock_mqtt.held_bytes import ClientBytes, size_of
from penstock_mqtt.in_flight import InFlight, MessageSource, WaitingMessage
from penstock_mqtt.messages import TopicMessage, published_parts
from penstock_mqtt.session_store import Entry, SentRecord, sent_entry
from penstock_mqtt.wire.packets import Packet, PublishPacket, PubrelPacket
from penstock_mqtt.wire.plain_messages import plain_pubacks
from penstock_mqtt.wire.reading import SHARED
from penstock_mqtt.wire.reasons import MqttViolation, Reason
from penstock_mqtt.wire.writing import packet_bytes

if TYPE_CHECKING:
    from penstock_mqtt.mqtt_realm import MqttLimits
    from penstock_server.runtime.access.open_connections import MessageCounts


class OutboxSession(Protocol):
    """The session of the client, which creates its outbox."""

    place: str
    """The place where the session is stored."""
    connection: ClientConnection | None
    """The current connection of the client."""

    def count_bytes(self, change: int) -> None:
        """Change the bytes held for the clients of the user."""
        ...

    def store(
        self,
        entries: Sequence[Entry],
        then: Callable[[], None] | None = None,
        failed: Callable[[], None] | None = None,
    ) -> None:
        """Store entries. ``then`` is called once they are on disk, ``failed`` if they cannot be
        stored."""
        ...

    def answer(self, packet: Packet) -> None:
        """Send a packet to the client if it is connected."""
        ...

    def settle(
        self,
        text: str,
        channel: str,
        event_ids: Sequence[int],
        then: Callable[[], None] | None = None,
        *,
        from_retained: bool,
    ) -> None:
        """End the delivery of events of a filter's durable in a channel, or of retained messages.
        ``then`` is called for each event once the durable has stored its settlement."""
        ...

    def will_resend(self, source: MessageSource) -> bool:
        """Return whether the next connection receives a message in flight from its durable or from
        the retained messages."""
        ...


class Outbox:
    """The messages being delivered to one client. Those of a lasting session outlive its
    connection."""

    def __init__(
        self,
        session: OutboxSession,
        counts: MessageCounts,
        clock: Clock,
        limits: MqttLimits,
    ) -> None:
        session = proxy(session)  # the session refers to its outbox; a weak reference: no cycle
        self._session = session
        self._counts = counts
        self._clock, self._limits = clock, limits
        self.newer_topics: list[set[str]] = []
        """One set for each running delivery of retained messages, with the topics that have sent
        the client a newer message since it began."""
        self.in_flight_max = limits.packet_ids
        """Maximum number of messages of QoS 1 and 2 that the client accepts before it acknowledges
        the first."""
        self.in_flight: dict[int, InFlight] = {}
        """Messages by packet id, in the order of their first sending."""
        self._ids_by_source: dict[MessageSource, int] = {}
        """Packet ids of messages in flight, by the event that they come from."""
        self._sent: set[int] = set()
        """Packet ids sent over this connection that count against `in_flight_max`."""
        self._waiting: deque[WaitingMessage] = deque()
        self.bytes = ClientBytes(
            lambda change: session.count_bytes(change), limits.client_bytes_max
        )
        """Bytes of messages that wait, or are in flight and may be sent again."""
        self._last_id = 0
        """The packet id that was assigned last."""
        self._room = asyncio.Event()
        """Set when the queue was emptied; `wait_for_room` waits for it."""
        self._room.set()

    def forget_newer(self, topics: set[str]) -> None:
        """Remove a set from :attr:`newer_topics` by identity, since others may be equal to it."""
        self.newer_topics = [newer for newer in self.newer_topics if newer is not topics]

    # --- new messages --------------------------------------------------------------------

    def send_messages(
        self,
        messages: Sequence[TopicMessage],
        filters: Sequence[Filter],
        *,
        from_store: bool = False,
        sources: Iterable[MessageSource | None] = repeat(None),
    ) -> None:
        """Send messages that these filters match. ``from_store`` marks messages that were retained
        before the client subscribed. Messages of QoS 0 are dropped while the client does not
        read."""
        connection = self._session.connection
        if connection is None:
            return
        if self.newer_topics and not from_store:
            retained = [message.topic for message in messages if message.is_retained]
            for topics in self.newer_topics:
                topics.update(retained)
        queue, size, newest = self._waiting, 0, None
        as_published = any([subscribed.retain_as_published for subscribed in filters])
        numbers = tuple(
            [subscribed.number for subscribed in filters if subscribed.number is not None]
        )
        qos_max = max([subscribed.qos for subscribed in filters])
        try:
            for message, source in zip(messages, sources, strict=False):
                retain = from_store or (message.is_retained and as_published)
                qos = message.qos if message.qos < qos_max else qos_max
                waiting = WaitingMessage(message, qos, numbers, retain, source, size_of(message))
                if qos or (source is not None and _is_drained(message, source)):
                    queue.append(waiting)
                    size += waiting.size
                    newest = waiting
                else:
                    self._send_unconfirmed(waiting, connection)
        finally:  # the session subtracts the queued bytes when its connection ends
            if size:
                self.bytes.add(size)
        if newest is not None:
            self.send_waiting()
            if newest.source is None:
                self._check_held(newest, connection)

    def _send_unconfirmed(self, waiting: WaitingMessage, connection: ClientConnection) -> None:
        """Send a message of QoS 0 immediately, or drop it while the client does not read."""
        self.send_waiting()  # keep the order of messages
        if connection.is_writable:
            self.put(waiting, 0, 0)
        else:
            self._counts.dropped += 1
        if waiting.source is not None:
            self.settle((waiting.source,))

    def _check_held(self, newest: WaitingMessage, connection: ClientConnection) -> None:
        """End the connection if too many messages or bytes are held for its client. Messages of
        durables do not count, because the realm limits them."""
        fault, waiting_max = self.bytes.fault(newest.size), self._limits.waiting_max
        if fault or len(self._waiting) > waiting_max:
            why = fault or f"{waiting_max} messages wait to be acknowledged"
            connection.end(MqttViolation(Reason.QUOTA_EXCEEDED, why))

    def _keep_waiting(self, keep: Callable[[MessageSource | None], bool]) -> None:
        """Drop the queued messages whose source ``keep`` rejects."""
        remaining = deque(waiting for waiting in self._waiting if keep(waiting.source))
        self.bytes.add(
            sum(waiting.size for waiting in remaining)
            - sum(waiting.size for waiting in self._waiting)
        )
        self._waiting = remaining

    def _release_content(self, flight: InFlight) -> None:
        """Release the message of a packet id that stays in use."""
        if flight.waiting is not None:
            self.bytes.add(-flight.waiting.size)
            flight.waiting = None

    def recall(self, text: str, event_ids: frozenset[int], channel: str = "") -> None:
        """Drop waiting events of a filter in a channel, because the durable delivers them again."""
        self._keep_waiting(
            lambda source: not _is_from(source, text, channel) or source.event_id not in event_ids
        )

    async def wait_for_room(self) -> None:
        """Wait until the queue is empty and the client reads, or its connection is closed."""
        while (connection := self._session.connection) is not None and connection.is_open:
            if not self._waiting and connection.is_writable:
                return
            self._room.clear()
            await self._room.wait()

    def send_waiting(self) -> None:
        """Send queued messages within the client's limits."""
        connection = self._session.connection
        if connection is None:
            return
        queue, sent, in_flight = self._waiting, self._sent, self.in_flight
        while (
            queue
            and len(sent) < self.in_flight_max
            and len(in_flight) < self._limits.packet_ids
            and connection.is_writable
        ):
            self._begin(queue.popleft())
        if not queue:
            self._room.set()

    def _begin(self, waiting: WaitingMessage) -> None:
        """Begin the delivery of a queued message: assign a packet id, and send the message as soon
        as it may be sent."""
        source, qos = waiting.source, waiting.qos
        if not qos and source is not None:
            self.bytes.add(-waiting.size)
            self.put(waiting, 0, 0)
            self.settle((source,))
            return
        if source is not None and (earlier_id := self._ids_by_source.get(source)) is not None:
            self._resend(earlier_id, waiting)
            return
        # Ids are assigned in turn, so that an id is reused as late as possible.
        packet_id = self._last_id % self._limits.packet_ids + 1
        while packet_id in self.in_flight:
            packet_id = packet_id % self._limits.packet_ids + 1
        self._last_id = packet_id
        has_no_source = source is None
        is_stored = has_no_source or qos == 1
        flight = InFlight(qos, waiting, source, is_stored, is_stored, is_settled=has_no_source)
        self.in_flight[packet_id] = flight
        self._sent.add(packet_id)
        if source is not None:
            self._ids_by_source[source] = packet_id
        if source is None or qos == 1:
            if not self.put(waiting, qos, packet_id):
                self._finish((packet_id,))
            return
        # The packet id is stored before it is sent. Otherwise a restarted server could use it for
        # another message, which the client would take for a repetition (4.3.3).
        record = SentRecord(*source[:3], channel=source.channel)
        entry = sent_entry(self._session.place, packet_id, record)

        def stored() -> None:
            flight.is_stored = True
            self._transmit(packet_id, flight)

        def failed() -> None:
            self._ids_by_source.pop(source, None)
            self.in_flight.pop(packet_id, None)
            self._release_content(flight)

        self._session.store((entry,), stored, failed)

    def _resend(self, packet_id: int, waiting: WaitingMessage) -> None:
        """Send a message under its earlier packet id again, after the connection that it was sent
        over was lost. A message of QoS 2 that the client has received is not sent again."""
        flight = self.in_flight[packet_id]
        flight.is_settled = False
        if flight.is_released or packet_id in self._sent:
            self.bytes.add(-waiting.size)
            if flight.is_released:
                self._settle_released(packet_id, flight)
            return
        self._release_content(flight)
        flight.waiting = waiting
        self._sent.add(packet_id)
        if flight.is_stored:
            self._transmit(packet_id, flight, is_duplicate=True)

    def _transmit(self, packet_id: int, flight: InFlight, *, is_duplicate: bool = False) -> None:
        """Send a message in flight. If it cannot be sent, end its delivery."""
        if packet_id not in self._sent or flight.waiting is None:  # another connection, or released
            return
        if self.put(flight.waiting, flight.qos, packet_id, is_duplicate=is_duplicate):
            flight.is_sent = True
        elif is_duplicate and flight.qos == 2:  # the client may hold the message and its id
            self._release_when_stored(packet_id, flight)
        else:
            self._finish((packet_id,))

    # --- answers of the client -----------------------------------------------------------

    def acknowledged(self, packet_ids: Iterable[int]) -> None:
        """End the delivery of messages of QoS 1 that the client has acknowledged (PUBACK)."""
        in_flight = self.in_flight
        self._finish(
            [
                packet_id
                for packet_id in dict.fromkeys(packet_ids)
                if (flight := in_flight.get(packet_id)) is not None and flight.qos == 1
            ]
        )

    def acknowledged_in(self, data: bytes) -> bytes:
        """Process the PUBACKs without a reason code at the start of received bytes, and return the
        remaining bytes."""
        packet_ids, end = plain_pubacks(data)
        if packet_ids:
            self.acknowledged(packet_ids)
        return data[end:]

    def received(self, packet_id: int, reason: Reason) -> None:
        """Mark a message of QoS 2 as received or refused by the client (PUBREC)."""
        flight = self.in_flight.get(packet_id)
        if flight is None or flight.qos != 2:
            self._session.answer(PubrelPacket(packet_id, Reason.PACKET_ID_NOT_FOUND))
        elif reason.is_failure:
            self._finish((packet_id,))
        elif flight.is_released:
            self._session.answer(PubrelPacket(packet_id))
        else:
            self._release_when_stored(packet_id, flight)

    def _release_when_stored(self, packet_id: int, flight: InFlight) -> None:
        """Release a message of QoS 2 once the release is on disk."""
        if (source := flight.source) is None:
            self._release(packet_id, flight)
            return
        record = SentRecord(*source[:3], is_released=True, channel=source.channel)
        entry = sent_entry(self._session.place, packet_id, record)
        self._session.store((entry,), lambda: self._release(packet_id, flight))

    def _release(self, packet_id: int, flight: InFlight) -> None:
        """Release a message of QoS 2 (PUBREL) after its receipt was stored, so that it is never
        sent again."""
        flight.is_released = True
        self._release_content(flight)
        self._settle_released(packet_id, flight)
        self._session.answer(PubrelPacket(packet_id))

    def completed(self, packet_id: int) -> None:
        """End a message of QoS 2 that the client has completed (PUBCOMP)."""
        flight = self.in_flight.get(packet_id)
        if flight is None or not flight.is_released or flight.is_complete:
            return
        flight.is_complete = True
        self._sent.discard(packet_id)
        if flight.is_settled:
            self._forget(packet_id, flight)
        self.send_waiting()

    def _settle_released(self, packet_id: int, flight: InFlight) -> None:
        """Acknowledge a message of QoS 2 to its durable, or count a retained message as delivered.
        The message stays in :attr:`in_flight` until the durable has stored the acknowledgement or
        the client has all retained messages."""

        def settled() -> None:
            flight.is_settled = True
            if flight.is_complete and self.in_flight.get(packet_id) is flight:
                self._forget(packet_id, flight)

        if not flight.is_settled and flight.source is not None:
            self.settle((flight.source,), settled)

    def _finish(self, packet_ids: Iterable[int]) -> None:
        """End the delivery of messages: acknowledged, refused, or impossible to send."""
        ended: list[MessageSource] = []
        for packet_id in packet_ids:
            flight = self.in_flight[packet_id]
            self._forget(packet_id, flight)
            self._sent.discard(packet_id)
            if flight.source is not None:
                ended.append(flight.source)
        self.settle(ended)
        self.send_waiting()

    def settle(
        self, sources: Iterable[MessageSource], then: Callable[[], None] | None = None
    ) -> None:
        """Settle the delivered events with each durable in one call."""
        settled: dict[tuple[str, str, bool], list[int]] = {}
        for text, event_id, from_retained, channel in sources:
            settled.setdefault((text, channel, from_retained), []).append(event_id)
        for (text, channel, from_retained), event_ids in settled.items():
            self._session.settle(text, channel, event_ids, then, from_retained=from_retained)

    def _forget(self, packet_id: int, flight: InFlight) -> None:
        """Remove a message in flight, with its stored entry, and free its packet id."""
        del self.in_flight[packet_id]
        self._release_content(flight)
        if flight.source is None:
            return
        self._ids_by_source.pop(flight.source, None)
        if flight.qos == 2:
            self._session.store((sent_entry(self._session.place, packet_id, None),))

    # --- loss and resumption of the connection -------------------------------------------

    def connection_lost(self) -> None:
        """Drop queued messages. In-flight messages are read again from their durable if the
        durable still exists."""
        self._keep_waiting(lambda _: False)
        self._sent.clear()
        self._room.set()
        for packet_id, flight in list(self.in_flight.items()):
            if flight.source is None:
                continue
            if flight.source.text.startswith(SHARED):  # another member of the group receives it
                self._forget(packet_id, flight)
            elif self._session.will_resend(flight.source):
                self._release_content(flight)

    def restore(self, packet_id: int, record: SentRecord) -> None:
        """Restore a message of QoS 2 that was in flight when the server stopped."""
        source = MessageSource(
            record.source,
            record.event_id,
            from_retained=record.from_retained,
            channel=record.channel,
        )
        flight = InFlight(
            qos=2,
            waiting=None,
            source=source,
            is_stored=True,
            is_sent=True,
            is_released=record.is_released,
        )
        self.in_flight[packet_id] = flight
        self._ids_by_source[source] = packet_id

    def resume(self) -> None:
        """Continue deliveries over a new connection, except those that a durable repeats."""
        for packet_id, flight in list(self.in_flight.items()):
            if flight.source is not None and not self._session.will_resend(flight.source):
                flight.is_settled = True
            if flight.is_released:
                self._session.answer(PubrelPacket(packet_id))
            elif flight.waiting is not None:
                self._sent.add(packet_id)
                if flight.is_stored:
                    self._transmit(packet_id, flight, is_duplicate=True)
            elif flight.is_settled:  # its subscription ended before the server started
                self._give_up(packet_id, flight)

    def unsettled(self, text: str, channel: str = "") -> list[int]:
        """Return the ids of a filter's events in a channel that the client has received and that
        the durable may still count as outstanding."""
        return [
            flight.source.event_id
            for flight in self.in_flight.values()
            if _is_from(flight.source, text, channel)
            and flight.is_released
            and not flight.is_settled
        ]

    def channels_of(self, text: str) -> set[str]:
        """Return the channels with topics whose messages are in flight for a filter."""
        sources = (flight.source for flight in self.in_flight.values())
        return {
            source.channel
            for source in sources
            if source and source.text == text and source.channel
        }

    def unacknowledged(self, text: str, channel: str = "") -> list[int]:
        """Return the ids of a filter's events in a channel that are in flight and not settled."""
        return [
            flight.source.event_id
            for flight in self.in_flight.values()
            if _is_from(flight.source, text, channel) and not flight.is_settled
        ]

    def end_redelivery(self, text: str, event_ids: Collection[int], channel: str = "") -> None:
        """End the redelivery of a filter's events that the durable has settled or that were
        deleted. Give up those in flight that cannot be sent again."""
        self._settle_where(
            lambda source: _is_from(source, text, channel) and source.event_id in event_ids
        )

    def end_subscription(self, text: str) -> None:
        """Drop the queued messages of a subscription that has ended. Messages in flight can be
        completed but not read again."""
        self._keep_waiting(lambda source: source is None or source.text != text)
        self._settle_where(lambda source: source.text == text)

    def end_retained(self, text: str) -> None:
        """Settle the retained messages of a filter, because the client has all of them. A message
        that is still in flight was sent over an earlier connection and then replaced."""
        self._settle_where(lambda source: source.from_retained and source.text == text)

    def _settle_where(self, is_ended: Callable[[MessageSource], bool]) -> None:
        """Mark messages in flight as settled. Forget completed ones, and give up those that cannot
        be sent again."""
        waiting = {message.source for message in self._waiting}
        for packet_id, flight in list(self.in_flight.items()):
            if (source := flight.source) is None or not is_ended(source):
                continue
            flight.is_settled = True
            if flight.is_complete:
                self._forget(packet_id, flight)
            elif flight.waiting is None and not flight.is_released and source not in waiting:
                self._give_up(packet_id, flight)

    def _give_up(self, packet_id: int, flight: InFlight) -> None:
        """Stop sending a message. A client may hold a message of QoS 2, and would take the next
        message with the same packet id for a repetition. So the packet id is released first
        (PUBREL)."""
        if flight.qos == 2 and flight.is_sent:
            self._release_when_stored(packet_id, flight)
        else:
            self._forget(packet_id, flight)

    # --- encoding and sending ------------------------------------------------------------

    def put(
        self, waiting: WaitingMessage, qos: int, packet_id: int, *, is_duplicate: bool = False
    ) -> bool:
        """Send a message. Return False if it has expired or cannot be sent, which is counted. The
        caller then frees its packet id and its place in the window."""
        connection, message = self._session.connection, waiting.message
        if connection is None:
            return True  # not a failure: the next connection sends it
        try:
            if is_duplicate or message.ends_us or waiting.numbers:
                encoded = self._encode(
                    connection.version, waiting, qos, packet_id, is_duplicate=is_duplicate
                )
            else:
                before, behind = published_parts(
                    message, connection.version, qos, retain=waiting.retain
                )
                encoded = before + (packet_id.to_bytes(2) if qos else b"") + behind
        except Exception as error:  # noqa: BLE001  later messages must still reach the client
            count_unsent(self._counts, message.topic, repr(error))
            return False
        if encoded is None:
            return False
        if len(encoded) > connection.packet_bytes_max:
            count_unsent(self._counts, message.topic, TOO_LARGE)
            return False
        connection.write(encoded)
        self._counts.sent[qos] += 1
        return True

    def _encode(
        self,
        version: int,
        waiting: WaitingMessage,
        qos: int,
        packet_id: int,
        *,
        is_duplicate: bool,
    ) -> bytes | None:
        """Return a message encoded for one receiver at this time, or None if it has expired."""
        message, now_us = waiting.message, self._clock.now_us()
        if is_duplicate and message.ends_us:  # its delivery began before it expired
            now_us = min(now_us, message.ends_us - 1)
        properties = waiting.properties_at(now_us)
        if properties is None:
            return None
        packet = PublishPacket(
            message.topic,
            message.payload,
            qos,
            packet_id=packet_id,
            retain=waiting.retain,
            is_duplicate=is_duplicate,
            properties=properties,
        )
        return packet_bytes(packet, version)


def _is_drained(message: TopicMessage, source: MessageSource) -> bool:
    """Return whether a message of QoS 0 comes from the durable of a subscription that was lowered
    to QoS 0. It is not dropped while the client does not read."""
    return message.qos > 0 and not source.text.startswith(SHARED)


def _is_from(source: MessageSource | None, text: str, channel: str) -> TypeGuard[MessageSource]:
    """Return whether a message comes from the durable of a filter in a channel."""
    if source is None or source.from_retained:
        return False
    return (source.text, source.channel) == (text, channel)
