"""Internal stores: channels with state of the realm, which no right allows to open (SEM A6)."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock_core.channel.channel import ChannelMachine
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import IllegalState, InvalidName, NameAlreadyBound
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.topic_templates import TOPIC

ENTRY: Final = "entry"
"""The publish key of the session store, which identifies the entry of an event."""


class InternalStore(Struct, frozen=True):
    """A channel that the realm creates for itself."""

    name: str
    key: str
    """The store's only publish key, of depth 1: only the newest event of each value stays."""
    purpose: str
    """Description of the store's content, for error texts."""
    instead: str
    """The commands that users can send to read or change the content of the store."""

    def fits(self, definition: Definition) -> bool:
        """Whether a store with this definition is the internal store. A store of the same name with
        another definition belongs to a user."""
        return definition.kind == "channel" and definition.keys == {self.key: 1}


def retained_store(mqtt_channel: str) -> InternalStore:
    """Return the internal store with the newest retained message of each topic (SEM M5)."""
    return InternalStore(
        name=f"{mqtt_channel}-retained",
        key=TOPIC,
        purpose="retained messages of MQTT",
        instead="`penstock topic retained` and `penstock topic forget`",
    )


def session_store(mqtt_channel: str) -> InternalStore:
    """Return the internal store with the newest entry of each MQTT session (SEM M6)."""
    return InternalStore(
        name=f"{mqtt_channel}-sessions",
        key=ENTRY,
        purpose="sessions of MQTT",
        instead="`penstock topic sessions` and `penstock topic end`",
    )


class InternalStores:
    """The internal stores of a realm, and the names that are reserved for them."""

    def __init__(self, mqtt_channel: str) -> None:
        self.machines: dict[int, ChannelMachine] = {}
        """The existing internal stores, by id."""
        self.ids_by_name: dict[str, ChannelId] = {}
        """Ids of the internal stores by name, separate from the names that users can find."""
        self.reserved: dict[str, InternalStore] = {}
        """The internal stores by their reserved names."""
        self.is_serving_mqtt = False
        self.reserve(mqtt_channel)

    def reserve(self, mqtt_channel: str) -> None:
        """Reserve the names of the internal stores for this channel of all topics."""
        self.mqtt_channel = mqtt_channel
        for store in (retained_store(mqtt_channel), session_store(mqtt_channel)):
            self.reserved[store.name] = store

    @property
    def retained_id(self) -> ChannelId | None:
        """The id of the store with retained messages; None if it does not exist."""
        return self.ids_by_name.get(retained_store(self.mqtt_channel).name)

    def refuse_as_chosen(self, name: str, definition: Definition) -> None:
        """Raise ``NameAlreadyBound`` if a user chooses the name of an internal store. Raise
        ``InvalidName`` if the store would become internal once MQTT is served with another channel
        (``listen.mqtt_channel``), because the realm trusts the content of internal stores."""
        if (internal := self.reserved.get(name)) is not None:
            raise NameAlreadyBound(
                f"the name {name} is reserved for an internal store ({internal.purpose}); choose "
                f"another name"
            )

        for make in (retained_store, session_store):
            ending = make("").name  # every such store has this name, after that of its channel
            if name.endswith(ending) and make(name.removesuffix(ending)).fits(definition):
                raise InvalidName(
                    f"{name} ends in {ending} and has the publish key {make('').key}, as the "
                    f"{make('').purpose} have; choose another name, or another key"
                )

    def is_internal(self, name: str, definition: Definition) -> bool:
        """Whether an existing store is internal."""
        internal = self.reserved.get(name)
        return internal is not None and internal.fits(definition)

    def add(self, channel_id: int, store: ChannelMachine) -> None:
        """Add a created store."""
        self.machines[channel_id] = store
        self.ids_by_name[store.state.name] = ChannelId(channel_id)

    def remove(self, channel_id: int) -> None:
        """Remove a deleted store."""
        del self.ids_by_name[self.machines.pop(channel_id).state.name]

    def refuse_deletion(self, name: str) -> None:
        """Raise ``IllegalState`` for the channel of all topics while MQTT is served."""
        if self.is_serving_mqtt and name == self.mqtt_channel:
            raise IllegalState(
                f"{name} is the channel of all topics of MQTT (listen.mqtt_channel), which the "
                f"realm serves; purge it, or serve the realm without MQTT before deleting it"
            )
