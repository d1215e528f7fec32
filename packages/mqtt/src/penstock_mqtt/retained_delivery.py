"""Sends retained messages to a client that has subscribed (SEM M5)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock_core.vocabulary.errors import PenstockError
from penstock_mqtt.expressing import TOO_LARGE, count_unsent
from penstock_mqtt.filters import ClientConnection, Filter
from penstock_mqtt.in_flight import MessageSource
from penstock_mqtt.messages import TopicMessage
from penstock_mqtt.retained import EVERY
from penstock_mqtt.topic_index import TopicIndex
from penstock_mqtt.wire.properties import NO_PROPERTIES
from penstock_mqtt.wire.writing import publish_parts

if TYPE_CHECKING:
    from penstock_mqtt.mqtt_realm import MqttRealm
    from penstock_mqtt.session import MqttSession


class ReadingConnection(ClientConnection, Protocol):
    """The connection of a client that receives retained messages as fast as it reads them."""

    def flush(self) -> None:
        """Send pending output now."""
        ...


class RetainedDelivery:
    """Sends retained messages to a client that has subscribed."""

    def __init__(
        self,
        mqtt: MqttRealm,
        session: MqttSession,
        connection: ReadingConnection,
        filters: Sequence[Filter],
    ) -> None:
        """``filters`` are new filters of the session, which already receive published messages."""
        self._mqtt = mqtt
        self._session = session
        self._connection = connection
        self._filters: TopicIndex[Filter] = TopicIndex()
        self._new_filters = filters
        self._texts = [topic_filter.text for topic_filter in filters]
        for topic_filter in filters:
            self._filters.add(topic_filter.text, topic_filter)
        self._superseded: set[str] = set()
        """Topics with a newer message that the client has been sent since the search began."""

    async def run(self) -> None:
        """Send the retained messages as fast as the client reads them."""
        mqtt, session = self._mqtt, self._session
        session.outbox.newer_topics.append(self._superseded)
        for topic_filter in self._new_filters:
            topic_filter.retained.begin_search()
        try:
            async for page in mqtt.retained.pages(self._texts, mqtt.counts, mqtt.limits.page_max):
                if not await self._send_page(page):
                    return
            for topic_filter in self._new_filters:
                session.end_retained_search(topic_filter)
        except PenstockError as error:  # otherwise the client would miss messages without noticing
            self._connection.end(error)
        finally:
            session.outbox.forget_newer(self._superseded)

    async def _send_page(self, page: Sequence[tuple[int, TopicMessage]]) -> bool:
        """Send a page of messages. Return False if the client has disconnected."""
        connection = self._connection
        if len(self._new_filters) == 1 and self._needs_no_state(self._new_filters[0]):
            together = self._mqtt.limits.together
            for begin in range(0, len(page), together):
                await self._session.outbox.wait_for_room()
                if not connection.is_open:
                    return False
                remaining = self._send_in_one_write(
                    page[begin : begin + together], self._new_filters[0]
                )
                if not await self._send_separately(remaining):
                    return False
                await asyncio.sleep(0)  # let other tasks run
            return True
        return await self._send_separately(page)

    def _needs_no_state(self, topic_filter: Filter) -> bool:
        """Return whether the messages for a filter need neither a packet id nor a subscription
        identifier, and no other filter is matched: the filter is `EVERY` with QoS 0."""
        return topic_filter.text == EVERY and not topic_filter.qos and topic_filter.number is None

    def _send_in_one_write(
        self, page: Sequence[tuple[int, TopicMessage]], topic_filter: Filter
    ) -> Sequence[tuple[int, TopicMessage]]:
        """Send plain messages in one write and return the others."""
        connection, remaining, packets = (
            self._connection,
            list[tuple[int, TopicMessage]](),
            list[bytes](),
        )
        size_max, version = connection.packet_bytes_max, connection.version
        if not self._session.has(topic_filter):
            return ()
        for event_id, message in page:
            if message.properties is not NO_PROPERTIES or message.ends_us:
                remaining.append((event_id, message))
                continue
            # The filter # does not match topics that begin with $ (4.7.2).
            if message.topic.startswith("$") or message.topic in self._superseded:
                continue
            if topic_filter.accepts(message) and self._may_read(message, topic_filter):
                written = None
                with contextlib.suppress(ValueError):  # the message is longer than any packet
                    written = b"".join(publish_parts(message, version, 0, retain=True))
                if written is not None and len(written) <= size_max:
                    packets.append(written)
                else:
                    count_unsent(self._mqtt.counts, message.topic, TOO_LARGE)
        if packets:
            self._mqtt.counts.sent[0] += len(packets)
            connection.write(b"".join(packets))
            connection.flush()
        return remaining

    async def _send_separately(self, page: Sequence[tuple[int, TopicMessage]]) -> bool:
        """Send messages one by one. Return False if the client has disconnected."""
        connection, unsent = self._connection, 0
        for event_id, message in page:
            for topic_filter in self._filters.find(message.topic):
                await self._session.outbox.wait_for_room()
                if not connection.is_open:
                    return False
                if message.topic in self._superseded:
                    break
                if (
                    self._session.has(topic_filter)
                    and topic_filter.accepts(message)
                    and self._may_read(message, topic_filter)
                ):
                    self._enqueue(event_id, message, topic_filter)
                    unsent += len(message.payload)
            if unsent > self._mqtt.limits.flush_bytes:
                unsent = 0
                connection.flush()
                await asyncio.sleep(0)
        return True

    def _may_read(self, message: TopicMessage, topic_filter: Filter) -> bool:
        """Return whether the client may read the channel that the message was published to."""
        if self._mqtt.realm.access.is_open:
            return True
        owner = self._mqtt.topics.owner_of(message.topic)
        return self._connection.rights.may_read(topic_filter.text, owner and owner[0])

    def _enqueue(self, event_id: int, message: TopicMessage, topic_filter: Filter) -> None:
        """Send a message through the outbox, which waits for the client's acknowledgement. A
        lasting session records the message until then."""
        source = None
        if topic_filter.retained.is_owed:
            source = MessageSource(topic_filter.text, event_id, from_retained=True)
            topic_filter.retained.begin_message(event_id)
        self._session.outbox.send_messages(
            (message,), (topic_filter,), from_store=True, sources=(source,)
        )
