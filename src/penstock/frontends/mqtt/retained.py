"""Retained messages: the newest of each topic, in a channel of their own (SEM M5)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.core.realm.internal_stores import retained_store
from penstock.core.vocabulary.errors import (
    PenstockError,
)
from penstock.core.vocabulary.topics import has_wildcards
from penstock.frontends.mqtt.expressing import TOO_LARGE, give_up
from penstock.frontends.mqtt.in_flight import MessageSource
from penstock.frontends.mqtt.messages import Received, TopicMessage, messages_of
from penstock.frontends.mqtt.newest_events import KeyedChannel
from penstock.frontends.mqtt.outbox import Filter
from penstock.frontends.mqtt.topic_index import TopicIndex
from penstock.runtime.access.open_connections import MessageCounts
from penstock.runtime.reading.stretches import batches_at, batches_of
from penstock.runtime.realm import RunningRealm
from penstock.wire.mqtt.properties import NO_PROPERTIES
from penstock.wire.mqtt.reasons import MqttViolation, Reason
from penstock.wire.mqtt.writing import plain_publish

if TYPE_CHECKING:
    from penstock.frontends.mqtt.connection import MqttConnection

EVERY: Final = "#"
"""The filter for which everything is read."""
TOGETHER: Final = 256
"""Most messages that a client is given in one write."""
FLUSH_BYTES: Final = 1 << 16
"""Bytes of payload after which what was given to a client is sent."""


class RetainedMessages(KeyedChannel):
    """The channel ``<channel>-retained``: of each topic the event that was retained last."""

    def __init__(self, realm: RunningRealm, beside: str) -> None:
        super().__init__(realm, beside, retained_store(beside))

    def _type(self, beside: str) -> str:
        return "mixed" if beside == "transient" else beside

    def check_room(self, received: Sequence[Received], topics_max: int) -> None:
        """Raise :class:`MqttViolation` where messages are to be retained of more topics than
        ``topics_max`` (0: no limit). One that replaces, or removes, what is retained may always
        come."""
        store = self.store
        if store is None or not topics_max or store.events + len(received) <= topics_max:
            return
        new = {each.topic for each in received if each.packet.payload}
        new = {topic for topic in new if store.newest_of(topic) is None}
        if store.events + len(new) > topics_max and new:
            raise MqttViolation(
                Reason.QUOTA_EXCEEDED,
                f"{store.events} topics have a retained message; allowed are {topics_max} "
                f"(limits.mqtt_retained_messages_max): remove some, or publish without retain",
            )

    async def pages(
        self, filters: Sequence[str], counts: MessageCounts
    ) -> AsyncIterator[list[tuple[int, TopicMessage]]]:
        """What is retained now and may match one of these filters, with its event ids, a page at
        a time. What it costs goes by what matches."""
        channel = await self.open_channel()
        if EVERY in filters:
            pages = batches_of(self._realm, channel)
        else:
            pages = batches_at(self._realm, channel, self._event_ids(filters))
        async for page in pages:
            found: list[tuple[int, TopicMessage]] = []
            for batch in page:
                event_ids = batch.column("event_id").to_pylist()
                pairs = zip(event_ids, messages_of(batch, counts=counts), strict=True)
                found += [(n, each) for n, each in pairs if each is not None and each.payload]
            yield found

    def _event_ids(self, filters: Sequence[str]) -> list[int]:
        """The events of the topics that filters take: a topic is known by its key, and a filter
        with wildcards is looked up in the tree of all topics."""
        store = self.store
        assert store is not None, "it was opened"
        tree, topics = self._realm.view.topic_tree(store), set[str]()
        for each in filters:
            topics.update(tree.find(each) if has_wildcards(each) else (each,))
        known = map(store.newest_of, topics)
        return sorted(each for each in known if each is not None)


class RetainedDelivery:
    """Retained messages on their way to a client that has subscribed."""

    def __init__(self, connection: MqttConnection, filters: Sequence[Filter]) -> None:
        """``filters`` take what is published by now."""
        self._connection = connection
        self._filters: TopicIndex[Filter] = TopicIndex()
        self._wanted = filters
        self._texts = [each.text for each in filters]
        for each in filters:
            self._filters.add(each.text, each)
        self.superseded: set[str] = set()
        """Topics of which the client has been given something newer since."""

    async def run(self) -> None:
        """Give the client what is retained, as fast as it takes it."""
        deliveries, session = self._connection.retained_deliveries, self._connection.client
        deliveries.append(self)
        for each in self._wanted:
            session.retained_begun(each)
        try:
            async for page in self._connection.hub.retained.pages(
                self._texts, self._connection.hub.counts
            ):
                if not await self._give(page):
                    return
            for each in self._wanted:
                if self._connection.has(each):
                    session.retained_done(each.text)
        except PenstockError as error:  # without them the client would know less than it thinks
            self._connection.end(error)
        finally:
            deliveries.remove(self)

    async def _give(self, page: Sequence[tuple[int, TopicMessage]]) -> bool:
        """Give messages; False: the client is gone."""
        connection = self._connection
        if len(self._wanted) == 1 and self._takes_together(self._wanted[0]):
            for begin in range(0, len(page), TOGETHER):
                await connection.client.outbox.room()
                if not connection.is_open:
                    return False
                rest = self._give_together(page[begin : begin + TOGETHER], self._wanted[0])
                if not await self._give_each(rest):
                    return False
                await asyncio.sleep(0)  # others have their turn
            return True
        return await self._give_each(page)

    def _takes_together(self, wanted: Filter) -> bool:
        """Whether nothing is said to its client that depends on it, and nothing acknowledged."""
        return wanted.text == EVERY and not wanted.qos and wanted.number is None

    def _give_together(
        self, page: Sequence[tuple[int, TopicMessage]], wanted: Filter
    ) -> Sequence[tuple[int, TopicMessage]]:
        """Send what is plain in one write; gives the others."""
        connection, rest, packets = (
            self._connection,
            list[tuple[int, TopicMessage]](),
            list[bytes](),
        )
        size_max, version = connection.client.outbox.packet_bytes_max, connection.version
        if not connection.has(wanted):
            return ()
        for event_id, message in page:
            if message.properties is not NO_PROPERTIES or message.ends_us:
                rest.append((event_id, message))
                continue
            if message.topic.startswith("$") or message.topic in self.superseded:
                continue
            if wanted.takes(message) and self._may_have(message, wanted):
                written = None
                with contextlib.suppress(ValueError):  # it is longer than any packet
                    written = plain_publish(message.topic, message.payload, version, retain=True)
                if written is not None and len(written) <= size_max:
                    packets.append(written)
                else:
                    give_up(connection.hub.counts, message.topic, TOO_LARGE)
        if packets:
            connection.hub.counts.sent[0] += len(packets)
            connection.write(b"".join(packets))
            connection.flush()
        return rest

    async def _give_each(self, page: Sequence[tuple[int, TopicMessage]]) -> bool:
        """As :meth:`_give`, one by one."""
        connection, unsent = self._connection, 0
        for event_id, message in page:
            for each in self._filters.find(message.topic):
                await connection.client.outbox.room()
                if not connection.is_open:
                    return False
                if message.topic in self.superseded:
                    break
                if connection.has(each) and each.takes(message) and self._may_have(message, each):
                    self._put(event_id, message, each)
                    unsent += len(message.payload)
            if unsent > FLUSH_BYTES:
                unsent = 0
                connection.flush()
                await asyncio.sleep(0)
        return True

    def _may_have(self, message: TopicMessage, wanted: Filter) -> bool:
        if self._connection.realm.access.is_open:
            return True
        owner = self._connection.hub.topics.owner_of(message.topic)
        return self._connection.rights.may_have(wanted.text, owner and owner[0])

    def _put(self, event_id: int, message: TopicMessage, wanted: Filter) -> None:
        session, source = self._connection.client, None
        if wanted.owes_retained:
            source = MessageSource(wanted.text, event_id, True)
            session.retained_begun(wanted)
        session.outbox.give(message, (wanted,), from_store=True, source=source)
