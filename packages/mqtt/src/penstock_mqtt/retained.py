"""Retained messages: a channel with the newest one of each topic (SEM M5)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from penstock_core.realm.internal_stores import retained_store
from penstock_core.vocabulary.topics import has_wildcards
from penstock_mqtt.messages import Received, TopicMessage, messages_of
from penstock_mqtt.newest_events import KeyedChannel
from penstock_mqtt.retained_topics import RetainedLimits, RetainedTopics, TopicChanges
from penstock_server.runtime.access.open_connections import MessageCounts
from penstock_server.runtime.reading.stretches import batches_at, batches_of
from penstock_server.runtime.realm import RunningRealm

EVERY: Final = "#"
"""The filter that matches all retained messages."""


class RetainedMessages(KeyedChannel):
    """The channel ``<channel>-retained`` with the last retained event of each topic."""

    def __init__(self, realm: RunningRealm, all_topics: str, limits: RetainedLimits) -> None:
        super().__init__(realm, all_topics, retained_store(all_topics))
        self.topics = RetainedTopics(limits, knows_users=lambda: not realm.access.is_open)

    def _type(self, type_of_all: str) -> str:
        # Retained events persist, which a transient channel cannot guarantee.
        return "mixed" if type_of_all == "transient" else type_of_all

    def admit(self, publisher: str, received: Sequence[Received]) -> TopicChanges:
        """Return the topics that retaining the messages adds and removes, for
        :meth:`RetainedTopics.stored`. Raise :class:`MqttViolation` if that exceeds a limit."""
        store = self.store
        if store is None:
            return TopicChanges(frozenset(), frozenset())
        changes = self.topics.changes(store, received)
        self.topics.check(publisher, store, changes)
        return changes

    async def pages(
        self, filters: Sequence[str], counts: MessageCounts, page_max: int | None = None
    ) -> AsyncIterator[list[tuple[int, TopicMessage]]]:
        """Yield the current retained messages that may match one of the filters, with their event
        ids, in pages of at most ``page_max``. The cost grows with the number of matches."""
        channel = await self.open_channel()
        if EVERY in filters:
            pages = batches_of(self._realm, channel, page_max=page_max)
        else:
            pages = batches_at(self._realm, channel, self._event_ids(filters), page_max=page_max)
        async for page in pages:
            messages: list[tuple[int, TopicMessage]] = []
            for batch in page:
                event_ids = batch.column("event_id").to_pylist()
                pairs = zip(event_ids, messages_of(batch, counts=counts), strict=True)
                messages += [
                    (n, message) for n, message in pairs if message is not None and message.payload
                ]
            yield messages

    def _event_ids(self, filters: Sequence[str]) -> list[int]:
        """Return the ascending ids of the newest events of the topics that filters match. A topic
        is looked up by its key, a filter with wildcards in the tree of all topics."""
        store = self.store
        assert store is not None, "open_channel creates a missing store"
        tree, topics = self._realm.view.topic_tree(store), set[str]()
        for filter_text in filters:
            topics.update(tree.find(filter_text) if has_wildcards(filter_text) else (filter_text,))
        newest_ids = map(store.newest_of, topics)
        return sorted(event_id for event_id in newest_ids if event_id is not None)
