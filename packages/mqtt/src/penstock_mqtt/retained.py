"""Retained messages: the newest of each topic, in a channel of their own (SEM M5)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from penstock_core.realm.internal_stores import retained_store
from penstock_core.vocabulary.topics import has_wildcards
from penstock_mqtt.messages import Received, TopicMessage, messages_of
from penstock_mqtt.newest_events import KeyedChannel
from penstock_mqtt.wire.reasons import MqttViolation, Reason
from penstock_server.runtime.access.open_connections import MessageCounts
from penstock_server.runtime.reading.stretches import batches_at, batches_of
from penstock_server.runtime.realm import RunningRealm

EVERY: Final = "#"
"""The filter for which everything is read."""


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
