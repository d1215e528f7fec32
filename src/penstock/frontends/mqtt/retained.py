"""Retained messages: the newest of each topic, in a channel of their own (SEM M5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.core.vocabulary.errors import (
    PenstockError,
)
from penstock.core.vocabulary.topics import has_wildcards
from penstock.frontends.mqtt.messages import TOPIC, TopicMessage, message_of
from penstock.frontends.mqtt.newest_events import KeyedChannel, events_at, pages_of
from penstock.frontends.mqtt.outbox import Filter, MessageSource
from penstock.frontends.mqtt.topic_index import TopicIndex

if TYPE_CHECKING:
    from penstock.columns.selectors import Selector
    from penstock.frontends.mqtt.connection import MqttConnection

SELECTED_MAX: Final = 32
"""Most filters that become a selector; with more of them everything is read."""
FLUSH_BYTES: Final = 1 << 16
"""Bytes of payload after which what was given to a client is sent."""


class RetainedMessages(KeyedChannel):
    """The channel ``<channel>-retained``: of each topic the event that was retained last."""

    suffix = "retained"
    key = TOPIC
    what = "retained messages"
    why = "MQTT keeps retained messages there"

    def _type(self, beside: str) -> str:
        return "mixed" if beside == "transient" else beside

    async def pages(self, filters: Sequence[str]) -> AsyncIterator[list[tuple[int, TopicMessage]]]:
        """What is retained now and may match one of these filters, with its event ids, a page at
        a time."""
        channel = await self.open_channel()
        if any(map(has_wildcards, filters)):
            selector = await self._selector(filters)
            pages = pages_of(self._realm, channel, self._name, selector)
        else:  # each of these is one topic, whose event is known by its key
            store = self._realm.view.required(self._name)
            known = {store.newest_of(each) for each in filters}
            pages = events_at(
                self._realm, channel, sorted(each for each in known if each is not None)
            )
        async for page in pages:
            found = ((each.event_id, message_of(each)) for each in page)
            yield [(n or 0, each) for n, each in found if each is not None and each.payload]

    async def _selector(self, filters: Sequence[str]) -> Selector | None:
        if len(filters) > SELECTED_MAX or "#" in filters:
            return None
        quoted = (each.replace("'", "''") for each in filters)
        text = " OR ".join(f"{TOPIC} MATCHES '{each}'" for each in quoted)
        return await self._realm.dispatch.choosing.parse(text)


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
            async for page in self._connection.hub.retained.pages(self._texts):
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
        connection, unsent = self._connection, 0
        for event_id, message in page:
            for each in self._filters.find(message.topic):
                await connection.client.outbox.room()
                if not connection.is_open:
                    return False
                if message.topic in self.superseded:
                    break
                if connection.has(each) and each.takes(message):
                    self._put(event_id, message, each)
                    unsent += len(message.payload)
            if unsent > FLUSH_BYTES:
                unsent = 0
                connection.flush()
                await asyncio.sleep(0)
        return True

    def _put(self, event_id: int, message: TopicMessage, wanted: Filter) -> None:
        session, source = self._connection.client, None
        if wanted.owes_retained:
            source = MessageSource(wanted.text, event_id, True)
            session.retained_begun(wanted)
        try:
            session.outbox.give(message, (wanted,), from_store=True, source=source)
        except ValueError:  # a native publisher has said what MQTT cannot
            if source is not None:
                session.retained_done(wanted.text)
