"""Maps topics to channels (SEM M12), and converts the messages and events of channels with
topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock_core.columns.events.event import Event
from penstock_core.columns.protobuf import sole_type
from penstock_core.vocabulary.errors import InvalidArgument, NameDoesNotExist
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.names import destination_name
from penstock_core.vocabulary.topic_templates import (
    TOPIC,
    Template,
    may_meet,
    selector_of,
    specificity,
    template_of,
)
from penstock_mqtt.json_payloads import JsonColumns
from penstock_mqtt.messages import (
    Reading,
    Received,
    body_of_messages,
    user_properties_of,
)
from penstock_mqtt.topic_index import TopicIndex
from penstock_mqtt.wire.reading import filter_of
from penstock_mqtt.wire.reasons import MqttViolation
from penstock_server.runtime.store.bodies import Body, body_from

if TYPE_CHECKING:
    from penstock_core.vocabulary.definitions import Definition
    from penstock_server.runtime.realm import RunningRealm

_WHOLE: Final = ("int8", "int16", "int32", "int64")
"""Column types of whole numbers."""


class TopicChannel:
    """A channel with the attribute ``topics``."""

    def __init__(
        self, realm: RunningRealm, number: ChannelId, name: str, definition: Definition
    ) -> None:
        self._realm = realm
        self.number = number
        self.name = name
        self.templates = tuple(map(template_of, definition.topics))
        self._levels = {name for template in self.templates for _, name in template.names}
        self._message_type = sole_type(definition.descriptors)
        self._json = None
        if definition.payload == "json":
            self._json = JsonColumns({TOPIC, *self._levels})
        self.reading = Reading(
            self._topic_and_payload, frozenset(self._levels) if self._json is None else None
        )
        """Converts its events to messages: the topic is the property ``topic`` or made of its
        levels."""

    def matches(self, filter_text: str) -> bool:
        """Return whether the channel has topics that a client's filter matches."""
        return any(may_meet(filter_text, template.filter) for template in self.templates)

    def selector_of(self, filter_text: str) -> str:
        """Return the selector for the events whose topics a filter matches."""
        return selector_of(filter_text, self.templates)

    # --- messages to events --------------------------------------------------------------

    def body_of(
        self, messages: Sequence[tuple[Received, Template]]
    ) -> tuple[Body | None, dict[int, MqttViolation]]:
        """Return the events of messages, and the errors of messages that cannot be an event, by
        index. Raises ``InvalidEvent``."""
        received = [message for message, _ in messages]
        if self._json is None:
            rows = [
                {**user_properties_of(message), **self._topic_properties(message, template)}
                for message, template in messages
            ]
            return body_from(body_of_messages(received, rows, self._message_type)), {}
        whole_numbers = self._whole_numbers()
        if not any(message.packet.properties.user_properties for message in received):
            payloads = [message.packet.payload for message in received]
            columns = self._json.columns(payloads, self._columns(messages), whole_numbers)
            if columns is not None:
                return body_from(body_of_messages(received, columns)), {}
        return self._one_by_one(messages, whole_numbers)

    def _one_by_one(
        self, messages: Sequence[tuple[Received, Template]], whole_numbers: frozenset[str]
    ) -> tuple[Body | None, dict[int, MqttViolation]]:
        """Convert each JSON payload alone. Return the same values as :meth:`body_of`."""
        assert self._json is not None, "only channels with JSON payloads convert them"
        converted = self._json.rows(
            [message.packet.payload for message, _ in messages], whole_numbers
        )
        refused = {
            index: row for index, row in enumerate(converted) if isinstance(row, MqttViolation)
        }
        accepted: list[Received] = []
        rows: list[dict[str, Any]] = []
        for (message, template), row in zip(messages, converted, strict=True):
            if not isinstance(row, MqttViolation):
                accepted.append(message)
                # Later sources win: a field or user property cannot replace a level of the topic.
                rows.append(
                    {
                        **user_properties_of(message),
                        **row,
                        **self._topic_properties(message, template),
                    }
                )
        return body_from(body_of_messages(accepted, rows)) if accepted else None, refused

    def _topic_properties(self, message: Received, template: Template) -> dict[str, str]:
        return {TOPIC: message.topic, **(template.levels_of(message.topic) or {})}

    def _columns(self, messages: Sequence[tuple[Received, Template]]) -> dict[str, list[str]]:
        """Return the topics of messages and their levels as columns, by property name."""
        rows = [self._topic_properties(message, template) for message, template in messages]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}  # type: ignore[misc]

    def _whole_numbers(self) -> frozenset[str]:
        """Return the properties that are whole numbers in the channel and have no other numeric
        type."""
        store = self._realm.view.store(self.number)
        slots = () if store is None else store.properties.slots
        others = {slot.logical for slot in slots if slot.shape in ("float", "double")}
        return frozenset(slot.logical for slot in slots if slot.shape in _WHOLE) - others

    # --- events to messages --------------------------------------------------------------

    def _topic_and_payload(
        self, event: Event, properties: dict[str, Any]
    ) -> tuple[str | None, bytes]:
        """Return the topic and the payload of an event, and remove both from ``properties``."""
        topic = properties.pop(TOPIC, None)
        if not isinstance(topic, str):
            candidates = (template.topic_of(properties) for template in self.templates)
            topic = next((candidate for candidate in candidates if candidate is not None), None)
        for name in self._levels:
            properties.pop(name, None)
        if self._json is None:
            return topic, event.data
        payload = event.data
        if not payload and properties:
            payload = msgspec.json.encode(properties)
        properties.clear()  # they are fields of the payload
        return topic, payload


class SortedMessages(NamedTuple):
    """Indexes of messages by destination."""

    others: list[int]
    """Indexes of messages for the channel of all topics."""
    owned: dict[int, tuple[TopicChannel, list[tuple[int, Template]]]]
    """The channel, and indexes with the matching templates, by channel number."""


class TopicChannels:
    """The channels of a realm that have topics."""

    def __init__(self, realm: RunningRealm, all_topics: str) -> None:
        """``all_topics`` is the name of the channel of all topics."""
        self._realm = realm
        self.all_topics = all_topics
        """Name of the channel of all topics."""
        self._all_topics_name = destination_name(all_topics)
        self._table = realm.view.topics
        self._version = -1
        """Version of the realm's topics that `_channels` and `_index` were made from."""
        self._channels: dict[int, TopicChannel] = {}
        self._index: TopicIndex[tuple[int, Template]] = TopicIndex()

    def on_changed(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when a channel gains its first or loses its last topic."""
        self._table.on_changed = callback

    @property
    def version(self) -> int:
        """Number that grows with each change of the topics of channels."""
        return self._table.version

    def channel_id(self) -> ChannelId:
        """Return the channel of all topics. Raises ``NameDoesNotExist``, ``InvalidArgument``."""
        store = self._realm.view.named(self.all_topics)
        if store is None:
            raise NameDoesNotExist(
                f"channel {self.all_topics!r} (listen.mqtt_channel) does not exist"
            )
        if store.kind != "channel":
            raise InvalidArgument(f"listen.mqtt_channel is {self.all_topics!r}, which is a queue")
        return store.number

    def since(self, number: int) -> int:
        """Return the id of the first event published after the channel gained topics."""
        return self._table.since.get(number, 0)

    @property
    def all_channels(self) -> dict[int, TopicChannel]:
        """All channels with topics, by number."""
        if self._version != self._table.version:
            self._version = self._table.version
            self._renew()
        return self._channels

    def _renew(self) -> None:
        self._channels, self._index = {}, TopicIndex()
        for number in self._table.since:
            store = self._realm.view.store(ChannelId(number))
            if store is None or not store.definition.topics:
                continue
            channel = TopicChannel(
                self._realm, store.number, store.name, definition=store.definition
            )
            self._channels[number] = channel
            for template in channel.templates:
                self._index.add(template.filter, (number, template))

    def owner_of(self, topic: str) -> tuple[TopicChannel, Template] | None:
        """Return the channel of a topic and the most specific of its templates that match, or None
        for the channel of all topics."""
        if not self.all_channels:
            return None
        matches = self._index.find(topic)
        if not matches:
            return None
        number, template = min(matches, key=lambda match: specificity(match[1].filter))
        return self._channels[number], template

    def sorted(self, messages: Sequence[Received]) -> SortedMessages:
        """Sort messages by their channels."""
        destinations = SortedMessages([], {})
        for index, message in enumerate(messages):
            owner = self.owner_of(message.topic)
            if owner is None:
                destinations.others.append(index)
            else:
                channel, template = owner
                destinations.owned.setdefault(channel.number, (channel, []))[1].append(
                    (index, template)
                )
        return destinations

    def stores_without_topics(self, name: str, text: str) -> list[TopicChannel]:
        """Return the channels that still have a filter's durable ``name`` but no topics that match
        the filter."""
        matching = {channel.number for channel in self.matching_channels(text)}
        stores = (store for store, _ in self._realm.view.with_durable(name))
        return [
            self.all_channels.get(store.number)
            or TopicChannel(self._realm, store.number, store.name, definition=store.definition)
            for store in stores
            if store.number not in matching and store.name != self._all_topics_name
        ]

    def matching_channels(self, text: str) -> list[TopicChannel]:
        """Return the channels with topics that a client's filter matches, shared or not."""
        if not self.all_channels:
            return []
        filter_text = filter_of(text)
        return [channel for channel in self._channels.values() if channel.matches(filter_text)]
