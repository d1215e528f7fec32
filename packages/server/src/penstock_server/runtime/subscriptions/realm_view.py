"""A read-only view of the realm's present state for front ends: channels, queues and durables.

Front ends read this view in the event loop, without a turn of the writer, and do not depend on the
classes of the state. Requests and answers are in :mod:`penstock_core.api`; the view is for figures
that are shown often, and for facts about a name that a protocol needs before it sends a request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from penstock_core.api.durables import DurableInfo
from penstock_core.channel.channel import ChannelMachine
from penstock_core.columns.keys.keys import KeyIndex
from penstock_core.columns.schema.shapes import StructShape
from penstock_core.durable.durable import Durable
from penstock_core.durable.queue import READERS
from penstock_core.durable.seat import DurableKind as DurableType
from penstock_core.ids.ids import IdSet
from penstock_core.realm.topic_table import TopicTable
from penstock_core.vocabulary.counters import Counters
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.names import destination_name
from penstock_core.vocabulary.ports import Clock, Pages
from penstock_server.runtime.store.schemas import Schemas
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.subscriptions.topic_tree import TopicTree, topic_tree_of
from penstock_server.runtime.subscriptions.views import durable_info


class DurableView:
    """The present state of a durable."""

    __slots__ = ("_channel", "_durable")

    def __init__(self, channel: ChannelMachine, durable: Durable) -> None:
        self._channel = channel
        self._durable = durable

    @property
    def identity(self) -> object:
        """An object that identifies this durable. A later durable of the same name has another."""
        return self._durable

    @property
    def name(self) -> str:
        return self._durable.name

    @property
    def store_name(self) -> str:
        return self._channel.state.name

    @property
    def type(self) -> DurableType:
        return self._durable.kind

    @property
    def selector(self) -> str:
        return self._durable.selector

    @property
    def is_attached(self) -> bool:
        """Whether a client has a seat."""
        return bool(self._durable.seats)

    @property
    def delivered_and_acknowledged(self) -> tuple[int, int]:
        """Deliveries and acknowledgements since the realm started."""
        return self._durable.delivered, self._durable.acknowledged

    def info(self, now_us: int) -> DurableInfo:
        return durable_info(self._channel.state, self._durable, now_us)


class StoreView:
    """The present state of a channel or queue."""

    __slots__ = ("_channel", "_pages", "_state", "number")

    def __init__(
        self, channel_id: ChannelId, channel: ChannelMachine, state: RealmState, pages: Pages
    ) -> None:
        self.number = channel_id
        self._channel = channel
        self._state = state
        self._pages = pages

    @property
    def name(self) -> str:
        return self._channel.state.name

    @property
    def definition(self) -> Definition:
        return self._channel.state.definition

    @property
    def kind(self) -> str:
        """``channel``, ``queue``, or ``schedule`` for a store of scheduled events."""
        return self.definition.kind

    @property
    def is_jms(self) -> bool:
        """Whether the store keeps events only for interested subscribers, as topics of JMS do."""
        return self._channel.state.engine.needs_interest

    @property
    def next_id(self) -> int:
        return self._channel.state.next_id

    @property
    def properties(self) -> StructShape:
        """The columns of the properties of the store's events."""
        return self._state.stores[self.number].columns.properties

    @property
    def stored(self) -> IdSet:
        return self._channel.state.stored

    @property
    def keys(self) -> KeyIndex:
        """The index of the store's publish keys. Only for a store with a publish key."""
        keys = self._state.stores[self.number].keys
        assert keys is not None, "only for a store with a publish key"
        return keys

    def newest_of(self, value: object) -> int | None:
        """Return the id of the newest stored event with this value of the publish key; None if no
        event has it."""
        return self.keys.newest_of(value, self.stored)

    @property
    def events(self) -> int:
        """Number of stored events that have not expired."""
        return len(self._channel.state.stored) - self._channel.state.overdue

    @property
    def event_bytes(self) -> float:
        """The average size of an event in bytes; at least 1."""
        return max(1.0, self._channel.state.event_bytes)

    @property
    def bytes(self) -> int:
        """Bytes of the store's events in memory, pages and files."""
        store = self._state.stores[self.number]
        paged = self._pages.info(self.number).size
        return paged or store.meter.tail_bytes + store.sealed_bytes

    @property
    def files(self) -> int:
        """Number of segment files."""
        return len(self._state.stores[self.number].files)

    @property
    def counters(self) -> Counters:
        return self._channel.state.counters

    @property
    def delivered_and_acknowledged(self) -> tuple[int, int]:
        """Deliveries and acknowledgements since the realm started."""
        return self._channel.state.delivered_and_acknowledged

    @property
    def dead_copies(self) -> Mapping[tuple[str, str], int]:
        """Number of events copied to dead event stores, by durable and cause."""
        return self._channel.state.died

    @property
    def moves_dead(self) -> bool:
        """Whether dead events go to a dead event store."""
        return self._channel.state.moves_dead

    @property
    def subscribers(self) -> int:
        """Number of plain subscriptions, without browses."""
        # Only a browse has an id at which it stops.
        subscribers = self._channel.state.subscribers.values()
        return sum(subscriber.stop_id is None for subscriber in subscribers)

    @property
    def timeout_s(self) -> float:
        """Seconds until a disconnected client loses its place."""
        return self._channel.state.rules.event_timeout_us / 1e6

    def oldest_ms(self, now_us: int) -> int | None:
        """Return the age of the oldest stored event in milliseconds; None for an empty store."""
        lowest = self.stored.lowest
        published_us = None if lowest is None else self._channel.state.ages.oldest_us(lowest)
        # The clock may have been set back since the event was published.
        return None if published_us is None else max(0, now_us - published_us) // 1_000

    def cursor(self, subscription: int) -> int | None:
        """Return the id at which a plain subscription continues; None if it has ended."""
        subscriber = self._channel.state.subscribers.get(subscription)
        return None if subscriber is None else subscriber.cursor

    def durable(self, name: str) -> DurableView | None:
        durable = self._channel.state.durables.get(name)
        return None if durable is None else DurableView(self._channel, durable)

    @property
    def durables(self) -> Iterator[tuple[str, DurableView]]:
        """The visible durables. The readers of a queue are one durable named ``READERS``."""
        for name, durable in self._channel.state.durables.items():
            if (name == READERS) == (self.kind == "queue"):
                yield name, DurableView(self._channel, durable)


class RealmView:
    """A view of all stores of a realm, available as ``realm.view``."""

    def __init__(self, state: RealmState, pages: Pages, clock: Clock) -> None:
        self._state = state
        self._pages = pages
        self._clock = clock

    def store(self, channel_id: ChannelId) -> StoreView | None:
        """Return the channel or queue of this id; None if it was deleted."""
        channel = self._state.directory.channels.get(channel_id)
        return (
            None
            if channel is None
            else StoreView(ChannelId(channel_id), channel, self._state, pages=self._pages)
        )

    def topic_tree(self, store: StoreView) -> TopicTree:
        """Return the topics that have occurred in a channel whose publish key is ``topic``."""
        return topic_tree_of(store.keys)

    def has(self, channel_id: ChannelId) -> bool:
        """Whether the channel or queue of this id still exists."""
        return channel_id in self._state.directory.channels

    def named(self, name: str) -> StoreView | None:
        """Return the channel or queue of this name, which must be in canonical form; None if it
        does not exist."""
        channel_id = self._state.directory.find(name)
        return None if channel_id is None else self.store(channel_id)

    def internal(self, name: str) -> StoreView | None:
        """Return the internal store of this name (SEM A6); None until the realm has created it."""
        channel_id = self._state.directory.internal.ids_by_name.get(name)
        return None if channel_id is None else self.store(channel_id)

    @property
    def internal_stores(self) -> Collection[int]:
        """The ids of the internal stores."""
        return self._state.directory.internal.machines.keys()

    def required(self, name: str) -> StoreView:
        """Return the channel or queue of this name. Raises ``NameDoesNotExist``,
        ``InvalidName``."""
        channel_id = self._state.directory.channel_id_of(name, None)
        store = self.store(channel_id)
        if store is None:
            raise NameDoesNotExist(f"channel or queue {destination_name(name)} does not exist")
        return store

    def stores(self) -> Iterator[StoreView]:
        """Yield channels and queues, sorted by name, without temporary and internal ones."""
        channels = self._state.directory.channels
        for _, channel_id in sorted(
            (channel.state.name, channel_id) for channel_id, channel in channels.items()
        ):
            if self._state.directory.is_shown(channel_id):
                yield StoreView(
                    ChannelId(channel_id), channels[channel_id], self._state, pages=self._pages
                )

    def temporary_stores(self) -> Iterator[StoreView]:
        """Yield temporary destinations, which lists of channels and queues leave out (SEM R2)."""
        for channel_id, channel in self._state.directory.temporary.items():
            yield StoreView(ChannelId(channel_id), channel, self._state, pages=self._pages)

    def with_durable(self, name: str) -> list[tuple[StoreView, DurableView]]:
        """Return the durables of this name, each with its store."""
        pairs = []
        for channel_id in self._state.with_durable(name):
            channel = self._state.directory.channels[channel_id]
            store = StoreView(ChannelId(channel_id), channel, self._state, pages=self._pages)
            pairs.append((store, DurableView(channel, channel.state.durables[name])))
        return pairs

    def count(self, kind: str) -> int:
        """Return the number of channels or queues."""
        return len(self._state.directory.names(kind))

    def stores_selector(self, durable_type: str) -> bool:
        """Whether durables of this type keep the selector given at their creation."""
        return self._state.directory.rules.kinds[durable_type].stores_selector

    @property
    def topics(self) -> TopicTable:
        """The channels that accept messages of MQTT, with the topics of each."""
        return self._state.directory.topics

    @property
    def is_paused(self) -> bool:
        """Whether clients may not publish."""
        return self._state.directory.publishing_paused

    @property
    def memory_bytes(self) -> int:
        return self._state.meter.memory_bytes

    @property
    def index_bytes(self) -> int:
        """Bytes of publish keys, and of states of merge channels whose events are on disk."""
        return self._state.meter.index_bytes

    @property
    def paged_bytes(self) -> int:
        return self._state.meter.paged_bytes

    @property
    def schemas(self) -> Schemas:
        """The schemas of delivered events."""
        return self._state.schemas

    @property
    def now_us(self) -> int:
        return self._clock.now_us()
