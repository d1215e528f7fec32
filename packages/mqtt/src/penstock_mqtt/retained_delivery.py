"""Sends retained messages to a client that has subscribed (SEM M5)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock_core.vocabulary.errors import PenstockError
from penstock_mqtt.expressing import TOO_LARGE, give_up
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
        self._wanted = filters
        self._texts = [wanted.text for wanted in filters]
        for wanted in filters:
            self._filters.add(wanted.text, wanted)
        self._superseded: set[str] = set()
        """Topics that have sent the client a newer message since."""

    async def run(self) -> None:
        """Send the retained messages as fast as the client reads them."""
        mqtt, session = self._mqtt, self._session
        session.outbox.newer_topics.append(self._superseded)
        for wanted in self._wanted:
            wanted.retained.begin_search()
        try:
            async for page in mqtt.retained.pages(self._texts, mqtt.counts, mqtt.limits.page_max):
                if not await self._give(page):
                    return
            for wanted in self._wanted:
                session.end_retained_search(wanted)
        except PenstockError as error:  # otherwise the client would miss messages without noticing
            self._connection.end(error)
        finally:
            session.outbox.forget_newer(self._superseded)

    async def _give(self, page: Sequence[tuple[int, TopicMessage]]) -> bool:
        """Send a page of messages. Return False if the client has disconnected."""
        connection = self._connection
        if len(self._wanted) == 1 and self._takes_together(self._wanted[0]):
            together = self._mqtt.limits.together
            for begin in range(0, len(page), together):
                await self._session.outbox.room()
                if not connection.is_open:
                    return False
                rest = self._give_together(page[begin : begin + together], self._wanted[0])
                if not await self._give_each(rest):
                    return False
                await asyncio.sleep(0)  # let other tasks run
            return True
        return await self._give_each(page)

    def _takes_together(self, wanted: Filter) -> bool:
        """Return whether messages need neither data of this filter nor acknowledgements."""
        return wanted.text == EVERY and not wanted.qos and wanted.number is None

    def _give_together(
        self, page: Sequence[tuple[int, TopicMessage]], wanted: Filter
    ) -> Sequence[tuple[int, TopicMessage]]:
        """Send plain messages in one write and return the others."""
        connection, rest, packets = (
            self._connection,
            list[tuple[int, TopicMessage]](),
            list[bytes](),
        )
        size_max, version = connection.packet_bytes_max, connection.version
        if not self._session.has(wanted):
            return ()
        for event_id, message in page:
            if message.properties is not NO_PROPERTIES or message.ends_us:
                rest.append((event_id, message))
                continue
            if message.topic.startswith("$") or message.topic in self._superseded:
                continue
            if wanted.takes(message) and self._may_have(message, wanted):
                written = None
                with contextlib.suppress(ValueError):  # it is longer than any packet
                    written = b"".join(publish_parts(message, version, 0, retain=True))
                if written is not None and len(written) <= size_max:
                    packets.append(written)
                else:
                    give_up(self._mqtt.counts, message.topic, TOO_LARGE)
        if packets:
            self._mqtt.counts.sent[0] += len(packets)
            connection.write(b"".join(packets))
            connection.flush()
        return rest

    async def _give_each(self, page: Sequence[tuple[int, TopicMessage]]) -> bool:
        """Send messages one by one. Return False if the client has disconnected."""
        connection, unsent = self._connection, 0
        for event_id, message in page:
            for wanted in self._filters.find(message.topic):
                await self._session.outbox.room()
                if not connection.is_open:
                    return False
                if message.topic in self._superseded:
                    break
                if (
                    self._session.has(wanted)
                    and wanted.takes(message)
                    and self._may_have(message, wanted)
                ):
                    self._put(event_id, message, wanted)
                    unsent += len(message.payload)
            if unsent > self._mqtt.limits.flush_bytes:
                unsent = 0
                connection.flush()
                await asyncio.sleep(0)
        return True

    def _may_have(self, message: TopicMessage, wanted: Filter) -> bool:
        if self._mqtt.realm.access.is_open:
            return True
        owner = self._mqtt.topics.owner_of(message.topic)
        return self._connection.rights.may_have(wanted.text, owner and owner[0])

    def _put(self, event_id: int, message: TopicMessage, wanted: Filter) -> None:
        source = None
        if wanted.retained.is_owed:
            source = MessageSource(wanted.text, event_id, from_retained=True)
            wanted.retained.begin_message(event_id)
        self._session.outbox.give((message,), (wanted,), from_store=True, sources=(source,))
