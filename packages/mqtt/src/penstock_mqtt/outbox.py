"""What one client gets: its filters, the messages in flight to it, and those that wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final, Protocol, TypeGuard
from weakref import proxy

from penstock_core.vocabulary.ports import Clock
from penstock_mqtt.expressing import TOO_LARGE, give_up
from penstock_mqtt.filters import ClientConnection, Filter
from penstock_mqtt.held_bytes import ClientBytes, size_of
from penstock_mqtt.in_flight import InFlight, MessageSource, WaitingMessage
from penstock_mqtt.messages import TopicMessage, published_parts
from penstock_mqtt.session_store import Entry, SentRecord, sent_entry
from penstock_mqtt.wire.packets import Packet, PublishPacket, PubrelPacket
from penstock_mqtt.wire.reading import SHARED
from penstock_mqtt.wire.reasons import MqttViolation, Reason
from penstock_mqtt.wire.writing import packet_bytes

if TYPE_CHECKING:
    from penstock_server.runtime.access.open_connections import MessageCounts

WAITING_MAX: Final = 10_000
"""Most messages of QoS 1 and 2 that wait for a client to acknowledge earlier ones."""
_IDS: Final = 65_535


class OutboxSession(Protocol):
    """The session of the client, which makes its outbox."""

    place: str
    """Where the session is stored."""
    connection: ClientConnection | None
    """The connection that the client has now."""

    def count_bytes(self, change: int) -> None:
        """Change the sum of what is kept for clients of the user."""
        ...

    def store(
        self,
        entries: Sequence[Entry],
        then: Callable[[], None] | None = None,
        failed: Callable[[], None] | None = None,
    ) -> None:
        """Store entries; ``then`` is called once they are on disk, ``failed`` if they cannot be."""
        ...

    def answer(self, packet: Packet) -> None:
        """Send the client a packet, if it is connected."""
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
        """End the delivery of events of a filter's durable in a channel, or of retained messages;
        ``then`` is called for each once the durable has stored that."""
        ...

    def will_resend(self, source: MessageSource) -> bool:
        """Whether the next connection is sent a message in flight from its durable, or from the
        retained messages."""
        ...


class Outbox:
    """The messages on their way to one client; those of a lasting session outlive its
    connection."""

    def __init__(self, session: OutboxSession, counts: MessageCounts, clock: Clock) -> None:
        session = proxy(session)  # it has the outbox: no cycle
        self._session = session
        self._counts = counts
        self._clock = clock
        self.newer_topics: list[set[str]] = []
        """A set for each delivery of retained messages that is under way: the topics of which the
        client has been given something newer since."""
        self.in_flight_max = _IDS
        """Most messages of QoS 1 and 2 that the client takes before it acknowledges the first."""
        self.in_flight: dict[int, InFlight] = {}
        """Messages by packet id, in the order in which they were sent first."""
        self._known: dict[MessageSource, int] = {}
        self._sent: set[int] = set()
        """Ids of what was sent by this connection and takes room."""
        self._waiting: deque[WaitingMessage] = deque()
        self.bytes = ClientBytes(lambda change: session.count_bytes(change))
        """Bytes of messages that wait, or are in flight and may be sent again."""
        self._last_id = 0
        self._room = asyncio.Event()
        self._room.set()

    def forget_newer(self, topics: set[str]) -> None:
        """Remove a set from :attr:`newer_topics`; others may be equal to it."""
        self.newer_topics = [each for each in self.newer_topics if each is not topics]

    # --- messages come -------------------------------------------------------------------

    def give(
        self,
        messages: Sequence[TopicMessage],
        filters: Sequence[Filter],
        *,
        from_store: bool = False,
        sources: Iterable[MessageSource | None] = repeat(None),
    ) -> None:
        """Send messages that these filters take; ``from_store``: they were retained before the
        client subscribed. Those of QoS 0 are left out while the client does not read."""
        connection = self._session.connection
        if connection is None:
            return
        if self.newer_topics and not from_store:
            retained = [each.topic for each in messages if each.is_retained]
            for topics in self.newer_topics:
                topics.update(retained)
        queue, size, newest = self._waiting, 0, None
        as_published = any([each.retain_as_published for each in filters])
        numbers = tuple([each.number for each in filters if each.number is not None])
        qos_max = max([each.qos for each in filters])
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
        if newest is not None:
            self.bytes.add(size)
            self.send_waiting()
            if newest.source is None:
                self._check_held(newest, connection)

    def _send_unconfirmed(self, waiting: WaitingMessage, connection: ClientConnection) -> None:
        self.send_waiting()  # in the order in which they were given
        if connection.takes_more:
            self._put(waiting, 0, 0)
        else:
            self._counts.dropped += 1
        if waiting.source is not None:
            self._settle((waiting.source,))

    def _check_held(self, newest: WaitingMessage, connection: ClientConnection) -> None:
        """End the connection if too much is kept for its client. Of messages of a durable the
        realm keeps what has no room."""
        is_many, fault = len(self._waiting) > WAITING_MAX, self.bytes.fault(newest.size)
        if is_many or fault:
            text = fault or f"{WAITING_MAX} messages wait to be acknowledged"
            connection.end(MqttViolation(Reason.QUOTA_EXCEEDED, text))

    def _drop_waiting(self, keep: Callable[[MessageSource | None], bool]) -> None:
        kept = deque(each for each in self._waiting if keep(each.source))
        self.bytes.add(sum(each.size for each in kept) - sum(each.size for each in self._waiting))
        self._waiting = kept

    def _empty(self, flight: InFlight) -> None:
        """Keep a message no more: its id stays."""
        if flight.waiting is not None:
            self.bytes.add(-flight.waiting.size)
            flight.waiting = None

    def recall(self, text: str, event_ids: frozenset[int], channel: str = "") -> None:
        """Forget events of a filter in a channel that wait: they are to come again."""
        self._drop_waiting(
            lambda source: not _is_from(source, text, channel) or source.event_id not in event_ids
        )

    async def room(self) -> None:
        """Wait until nothing waits, and the client reads, or is gone."""
        while (connection := self._session.connection) is not None and connection.is_open:
            if not self._waiting and connection.takes_more:
                return
            self._room.clear()
            await self._room.wait()

    def send_waiting(self) -> None:
        """Send what waits, as far as the client takes it."""
        connection = self._session.connection
        if connection is None:
            return
        queue, sent, in_flight = self._waiting, self._sent, self.in_flight
        while (
            queue
            and len(sent) < self.in_flight_max
            and len(in_flight) < _IDS
            and connection.takes_more
        ):
            self._begin(queue.popleft())
        if not queue:
            self._room.set()

    def _begin(self, waiting: WaitingMessage) -> None:
        source, qos = waiting.source, waiting.qos
        if not qos and source is not None:
            self.bytes.add(-waiting.size)
            self._put(waiting, 0, 0)
            self._settle((source,))
            return
        if source is not None and (known := self._known.get(source)) is not None:
            self._resend(known, waiting)
            return
        packet_id = self._last_id % _IDS + 1
        while packet_id in self.in_flight:
            packet_id = packet_id % _IDS + 1
        self._last_id = packet_id
        is_whole = source is None
        is_stored = is_whole or qos == 1
        found = InFlight(qos, waiting, source, is_stored, is_stored, is_settled=is_whole)
        self.in_flight[packet_id] = found
        self._sent.add(packet_id)
        if source is not None:
            self._known[source] = packet_id
        if source is None or qos == 1:
            if not self._put(waiting, qos, packet_id):
                self._finish((packet_id,))
            return
        record = SentRecord(*source[:3], channel=source.channel)
        entry = sent_entry(self._session.place, packet_id, record)

        def stored() -> None:
            found.is_stored = True
            self._transmit(packet_id, found)

        def failed() -> None:
            self._known.pop(source, None)
            self.in_flight.pop(packet_id, None)
            self._empty(found)

        self._session.store((entry,), stored, failed)

    def _resend(self, packet_id: int, waiting: WaitingMessage) -> None:
        """Send a message that an earlier connection was sent; with QoS 2, unless the client has
        it."""
        found = self.in_flight[packet_id]
        found.is_settled = False
        if found.is_released or packet_id in self._sent:
            self.bytes.add(-waiting.size)
            if found.is_released:
                self._settle_released(packet_id, found)
            return
        self._empty(found)
        found.waiting = waiting
        self._sent.add(packet_id)
        if found.is_stored:
            self._transmit(packet_id, found, is_duplicate=True)

    def _transmit(self, packet_id: int, found: InFlight, *, is_duplicate: bool = False) -> None:
        if packet_id not in self._sent or found.waiting is None:  # the connection is another
            return
        if self._put(found.waiting, found.qos, packet_id, is_duplicate=is_duplicate):
            found.is_sent = True
        elif is_duplicate and found.qos == 2:  # the client may hold it, and its id
            self._release_when_stored(packet_id, found)
        else:
            self._finish((packet_id,))

    # --- the client answers --------------------------------------------------------------

    def acknowledged(self, packet_ids: Iterable[int]) -> None:
        """End the delivery of messages of QoS 1 that the client has (PUBACK)."""
        in_flight = self.in_flight
        self._finish(
            [
                each
                for each in dict.fromkeys(packet_ids)
                if (found := in_flight.get(each)) is not None and found.qos == 1
            ]
        )

    def received(self, packet_id: int, reason: Reason) -> None:
        """The client has a message of QoS 2, or refuses it (PUBREC)."""
        found = self.in_flight.get(packet_id)
        if found is None or found.qos != 2:
            self._session.answer(PubrelPacket(packet_id, Reason.PACKET_ID_NOT_FOUND))
        elif reason.is_failure:
            self._finish((packet_id,))
        elif found.is_released:
            self._session.answer(PubrelPacket(packet_id))
        else:
            self._release_when_stored(packet_id, found)

    def _release_when_stored(self, packet_id: int, found: InFlight) -> None:
        if (source := found.source) is None:
            self._release(packet_id, found)
            return
        record = SentRecord(*source[:3], is_released=True, channel=source.channel)
        entry = sent_entry(self._session.place, packet_id, record)
        self._session.store((entry,), lambda: self._release(packet_id, found))

    def _release(self, packet_id: int, found: InFlight) -> None:
        """It is on disk that the client has it, so that it is never sent again."""
        found.is_released = True
        self._empty(found)
        self._settle_released(packet_id, found)
        self._session.answer(PubrelPacket(packet_id))

    def completed(self, packet_id: int) -> None:
        """The client is done with a message of QoS 2 (PUBCOMP)."""
        found = self.in_flight.get(packet_id)
        if found is None or not found.is_released or found.is_complete:
            return
        found.is_complete = True
        self._sent.discard(packet_id)
        if found.is_settled:
            self._forget(packet_id, found)
        self.send_waiting()

    def _settle_released(self, packet_id: int, found: InFlight) -> None:
        """Acknowledge a message of QoS 2 to its durable, or count a retained one as delivered. It
        stays in :attr:`in_flight` until the durable has stored that, or the client all retained
        ones."""

        def settled() -> None:
            found.is_settled = True
            if found.is_complete and self.in_flight.get(packet_id) is found:
                self._forget(packet_id, found)

        if not found.is_settled and found.source is not None:
            self._settle((found.source,), settled)

    def _finish(self, packet_ids: Iterable[int]) -> None:
        """End the delivery of messages: acknowledged, refused, or impossible to send."""
        ended: list[MessageSource] = []
        for packet_id in packet_ids:
            found = self.in_flight[packet_id]
            self._forget(packet_id, found)
            self._sent.discard(packet_id)
            if found.source is not None:
                ended.append(found.source)
        self._settle(ended)
        self.send_waiting()

    def _settle(
        self, sources: Iterable[MessageSource], then: Callable[[], None] | None = None
    ) -> None:
        """Tell each durable once which of its events are delivered."""
        settled: dict[tuple[str, str, bool], list[int]] = {}
        for text, event_id, from_retained, channel in sources:
            settled.setdefault((text, channel, from_retained), []).append(event_id)
        for (text, channel, from_retained), event_ids in settled.items():
            self._session.settle(text, channel, event_ids, then, from_retained=from_retained)

    def _forget(self, packet_id: int, found: InFlight) -> None:
        del self.in_flight[packet_id]
        self._empty(found)
        if found.source is None:
            return
        self._known.pop(found.source, None)
        if found.qos == 2:
            self._session.store((sent_entry(self._session.place, packet_id, None),))

    # --- connections come and go ---------------------------------------------------------

    def connection_lost(self) -> None:
        """Drop queued messages. In-flight messages are read again from their durable if the
        durable still exists."""
        self._drop_waiting(lambda _: False)
        self._sent.clear()
        self._room.set()
        for packet_id, each in list(self.in_flight.items()):
            if each.source is None:
                continue
            if each.source.text.startswith(SHARED):  # another member of its group gets it
                self._forget(packet_id, each)
            elif self._session.will_resend(each.source):
                self._empty(each)

    def restore(self, packet_id: int, record: SentRecord) -> None:
        """Restore a message of QoS 2 that was in flight when the server stopped."""
        source = MessageSource(
            record.source,
            record.event_id,
            from_retained=record.from_retained,
            channel=record.channel,
        )
        found = InFlight(
            qos=2,
            waiting=None,
            source=source,
            is_stored=True,
            is_sent=True,
            is_released=record.is_released,
        )
        self.in_flight[packet_id] = found
        self._known[source] = packet_id

    def resume(self) -> None:
        """Go on by a new connection with what does not come from a durable."""
        for packet_id, found in list(self.in_flight.items()):
            if found.source is not None and not self._session.will_resend(found.source):
                found.is_settled = True
            if found.is_released:
                self._session.answer(PubrelPacket(packet_id))
            elif found.waiting is not None:
                self._sent.add(packet_id)
                if found.is_stored:
                    self._transmit(packet_id, found, is_duplicate=True)
            elif found.is_settled:  # its subscription was given up before the server was started
                self._give_up(packet_id, found)

    def unsettled(self, text: str, channel: str = "") -> list[int]:
        """Events of a filter in a channel that the client has, while the durable may not know
        it."""
        return [
            each.source.event_id
            for each in self.in_flight.values()
            if _is_from(each.source, text, channel) and each.is_released and not each.is_settled
        ]

    def channels_of(self, text: str) -> set[str]:
        """The channels with topics that messages in flight by a filter come from."""
        sources = (each.source for each in self.in_flight.values())
        return {each.channel for each in sources if each and each.text == text and each.channel}

    def unacknowledged(self, text: str, channel: str = "") -> list[int]:
        """Events of a filter in a channel that are in flight, as far as the durable knows."""
        return [
            each.source.event_id
            for each in self.in_flight.values()
            if _is_from(each.source, text, channel) and not each.is_settled
        ]

    def end_redelivery(self, text: str, event_ids: Collection[int], channel: str = "") -> None:
        """End the redelivery of events of a filter's durable: the durable has stored their
        acknowledgement, or the events are deleted. One in flight that cannot be sent again is
        given up."""
        self._settle_where(
            lambda source: _is_from(source, text, channel) and source.event_id in event_ids
        )

    def end_subscription(self, text: str) -> None:
        """Drop the queued messages of a subscription that has ended. Those in flight can be
        completed, but not read again."""
        self._drop_waiting(lambda source: source is None or source.text != text)
        self._settle_where(lambda source: source.text == text)

    def end_retained(self, text: str) -> None:
        """Forget which retained messages the client has: it has all of them. One in flight that
        it has not was replaced since an earlier connection was sent it."""
        self._settle_where(lambda source: source.from_retained and source.text == text)

    def _settle_where(self, is_ended: Callable[[MessageSource], bool]) -> None:
        """Remember that messages in flight are not given to the client again. One that is complete
        is forgotten, and one that cannot be sent again is given up."""
        waiting = {each.source for each in self._waiting}
        for packet_id, found in list(self.in_flight.items()):
            if (source := found.source) is None or not is_ended(source):
                continue
            found.is_settled = True
            if found.is_complete:
                self._forget(packet_id, found)
            elif found.waiting is None and not found.is_released and source not in waiting:
                self._give_up(packet_id, found)

    def _give_up(self, packet_id: int, found: InFlight) -> None:
        """A message is not sent again. With QoS 2 its client may hold it, and would take the next
        one under its id for it: so it is told to let go of the id (PUBREL) first."""
        if found.qos == 2 and found.is_sent:
            self._release_when_stored(packet_id, found)
        else:
            self._forget(packet_id, found)

    # --- out -----------------------------------------------------------------------------

    def _put(
        self, waiting: WaitingMessage, qos: int, packet_id: int, *, is_duplicate: bool = False
    ) -> bool:
        """Send a message; False: it has expired, or cannot be sent, which is counted. Whatever is
        wrong with it, its id and its place in the window are given back."""
        connection, message = self._session.connection, waiting.message
        if connection is None:
            return True
        try:
            if is_duplicate or message.ends_us or waiting.numbers:
                written = self._written(
                    connection.version, waiting, qos, packet_id, is_duplicate=is_duplicate
                )
            else:
                before, behind = published_parts(
                    message, connection.version, qos, retain=waiting.retain
                )
                written = before + (packet_id.to_bytes(2) if qos else b"") + behind
        except Exception as error:  # noqa: BLE001  the client gets what comes behind it
            give_up(self._counts, message.topic, repr(error))
            return False
        if written is None:
            return False
        if len(written) > connection.packet_bytes_max:
            give_up(self._counts, message.topic, TOO_LARGE)
            return False
        connection.write(written)
        self._counts.sent[qos] += 1
        return True

    def _written(
        self,
        version: int,
        waiting: WaitingMessage,
        qos: int,
        packet_id: int,
        *,
        is_duplicate: bool,
    ) -> bytes | None:
        """A message as one receiver is sent it at this time; None: it has expired."""
        message, now_us = waiting.message, self._clock.now_us()
        if is_duplicate and message.ends_us:  # its delivery had begun before it expired
            now_us = min(now_us, message.ends_us - 1)
        own = waiting.properties_at(now_us)
        if own is None:
            return None
        packet = PublishPacket(
            message.topic,
            message.payload,
            qos,
            packet_id=packet_id,
            retain=waiting.retain,
            is_duplicate=is_duplicate,
            properties=own,
        )
        return packet_bytes(packet, version)


def _is_drained(message: TopicMessage, source: MessageSource) -> bool:
    """Whether a message that is sent with QoS 0 comes from a durable of a subscription that was
    lowered to it: unlike others of QoS 0 it is not left out while the client does not read."""
    return message.qos > 0 and not source.text.startswith(SHARED)


def _is_from(source: MessageSource | None, text: str, channel: str) -> TypeGuard[MessageSource]:
    """Whether a message comes from the durable of a filter in a channel."""
    if source is None or source.from_retained:
        return False
    return (source.text, source.channel) == (text, channel)
