"""Which channel a topic belongs to (SEM M12), and how its messages and events are one another."""

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
from penstock_mqtt.wire.reading import wanted_of
from penstock_mqtt.wire.reasons import MqttViolation
from penstock_server.runtime.store.bodies import Body, body_from

if TYPE_CHECKING:
    from penstock_core.vocabulary.definitions import Definition
    from penstock_server.runtime.realm import RunningRealm

_WHOLE: Final = ("int8", "int16", "int32", "int64")


class TopicChannel:
    """A channel with the attribute ``topics``."""

    def __init__(
        self, realm: RunningRealm, number: ChannelId, name: str, definition: Definition
    ) -> None:
        self._realm = realm
        self.number = number
        self.name = name
        self.templates = tuple(map(template_of, definition.topics))
        self._levels = {name for each in self.templates for _, name in each.names}
        self._message_type = sole_type(definition.descriptors)
        self._json = None
        if definition.payload == "json":
            self._json = JsonColumns({TOPIC, *self._levels})
        self.reading = Reading(self._told, frozenset(self._levels) if self._json is None else None)
        """How its events are read as messages: the topic is the property, or made of its levels."""

    def meets(self, wanted: str) -> bool:
        """Whether it has topics that a filter of a client takes."""
        return any(may_meet(wanted, each.filter) for each in self.templates)

    def selector_of(self, wanted: str) -> str:
        """The selector that takes what a topic filter takes."""
        return selector_of(wanted, self.templates)

    # --- messages to events --------------------------------------------------------------

    def body_of(
        self, messages: Sequence[tuple[Received, Template]]
    ) -> tuple[Body | None, dict[int, MqttViolation]]:
        """The events of messages, and by its place what is wrong with each that can be none.
        Raises ``InvalidEvent``."""
        received = [message for message, _ in messages]
        if self._json is None:
            rows = [{**user_properties_of(each), **self._own(each, by)} for each, by in messages]
            return body_from(body_of_messages(received, rows, self._message_type)), {}
        whole = self._whole_numbers()
        if not any(each.packet.properties.user_properties for each in received):
            payloads = [each.packet.payload for each in received]
            columns = self._json.columns(payloads, self._columns(messages), whole)
            if columns is not None:
                return body_from(body_of_messages(received, columns)), {}
        return self._one_by_one(messages, whole)

    def _one_by_one(
        self, messages: Sequence[tuple[Received, Template]], whole: frozenset[str]
    ) -> tuple[Body | None, dict[int, MqttViolation]]:
        assert self._json is not None, "it has JSON payloads"
        found = self._json.rows([each.packet.payload for each, _ in messages], whole)
        refused = {at: row for at, row in enumerate(found) if isinstance(row, MqttViolation)}
        kept: list[Received] = []
        rows: list[dict[str, Any]] = []
        for (each, by), row in zip(messages, found, strict=True):
            if not isinstance(row, MqttViolation):
                kept.append(each)
                rows.append({**user_properties_of(each), **row, **self._own(each, by)})
        return body_from(body_of_messages(kept, rows)) if kept else None, refused

    def _own(self, message: Received, by: Template) -> dict[str, str]:
        return {TOPIC: message.topic, **(by.levels_of(message.topic) or {})}

    def _columns(self, messages: Sequence[tuple[Received, Template]]) -> dict[str, list[str]]:
        rows = [self._own(each, by) for each, by in messages]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}  # type: ignore[misc]

    def _whole_numbers(self) -> frozenset[str]:
        """The properties that are whole numbers in the channel, and no other numbers."""
        store = self._realm.view.store(self.number)
        slots = () if store is None else store.properties.slots
        others = {each.logical for each in slots if each.shape in ("float", "double")}
        return frozenset(each.logical for each in slots if each.shape in _WHOLE) - others

    # --- events to messages --------------------------------------------------------------

    def _told(self, event: Event, properties: dict[str, Any]) -> tuple[str | None, bytes]:
        """The topic and the payload of an event; leaves the properties that are neither."""
        topic = properties.pop(TOPIC, None)
        if not isinstance(topic, str):
            made = (each.topic_of(properties) for each in self.templates)
            topic = next((each for each in made if each is not None), None)
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
    """Places of messages, by where they go."""

    others: list[int]
    """Places of messages for the channel of all topics."""
    owned: dict[int, tuple[TopicChannel, list[tuple[int, Template]]]]
    """By channel: their places, and by which template."""


class TopicChannels:
    """The channels of a realm that have topics."""

    def __init__(self, realm: RunningRealm, beside: str) -> None:
        """``beside``: the channel of all topics."""
        self._realm = realm
        self.all_topics = beside
        """Name of the channel of all topics."""
        self._beside = destination_name(beside)
        self._table = realm.view.topics
        self._version = -1
        self._channels: dict[int, TopicChannel] = {}
        self._index: TopicIndex[tuple[int, Template]] = TopicIndex()

    def on_changed(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` when a channel gets topics, or has none any more."""
        self._table.on_changed = tell

    @property
    def version(self) -> int:
        """Grows with each change."""
        return self._table.version

    def channel_id(self) -> ChannelId:
        """The channel of all topics. Raises ``NameDoesNotExist``, ``InvalidArgument``."""
        store = self._realm.view.named(self.all_topics)
        if store is None:
            raise NameDoesNotExist(f"there is no channel {self.all_topics!r} (listen.mqtt_channel)")
        if store.kind != "channel":
            raise InvalidArgument(f"listen.mqtt_channel is {self.all_topics!r}, which is a queue")
        return store.number

    def since(self, number: int) -> int:
        """The id of the first event that was published since the channel has topics."""
        return self._table.since.get(number, 0)

    @property
    def every(self) -> dict[int, TopicChannel]:
        """All of them, by number."""
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
            made = TopicChannel(self._realm, store.number, store.name, definition=store.definition)
            self._channels[number] = made
            for each in made.templates:
                self._index.add(each.filter, (number, each))

    def owner_of(self, topic: str) -> tuple[TopicChannel, Template] | None:
        """The channel that a topic belongs to, and by which of its templates: of the filters that
        take it the most specific. None: the channel of all topics."""
        if not self.every:
            return None
        found = self._index.find(topic)
        if not found:
            return None
        number, template = min(found, key=lambda each: specificity(each[1].filter))
        return self._channels[number], template

    def sorted(self, messages: Sequence[Received]) -> SortedMessages:
        """Messages by the channels that they belong to."""
        found = SortedMessages([], {})
        for at, each in enumerate(messages):
            owner = self.owner_of(each.topic)
            if owner is None:
                found.others.append(at)
            else:
                channel, by = owner
                found.owned.setdefault(channel.number, (channel, []))[1].append((at, by))
        return found

    def left_with(self, name: str, text: str) -> list[TopicChannel]:
        """The channels that have the durable of a client's filter still, and no topics any more
        that the filter takes; ``name``: the durable."""
        met = {each.number for each in self.met_by(text)}
        found = (store for store, _ in self._realm.view.with_durable(name))
        return [
            self.every.get(store.number)
            or TopicChannel(self._realm, store.number, store.name, definition=store.definition)
            for store in found
            if store.number not in met and store.name != self._beside
        ]

    def met_by(self, text: str) -> list[TopicChannel]:
        """The channels with topics that a filter of a client takes, shared or not."""
        if not self.every:
            return []
        wanted = wanted_of(text)
        return [each for each in self._channels.values() if each.meets(wanted)]
