"""A view of the realm's state for front ends: channels, queues and durables as they are now.

It is read in the event loop without disturbing the writer, and hides how the state is kept.
Requests and answers are in :mod:`penstock_core.api`; this view is for figures that are shown all
the time, and for what a protocol has to know of a name before it makes a request.
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
from penstock_server.runtime.subscriptions.topic_tree import TopicTree, TopicTrees
from penstock_server.runtime.subscriptions.views import durable_info


class DurableView:
    """A durable as it is now."""

    __slots__ = ("_channel", "_durable")

    def __init__(self, channel: ChannelMachine, durable: Durable) -> None:
        self._channel = channel
        self._durable = durable

    @property
    def identity(self) -> object:
        """Its own for as long as it lives: another one that gets its name has another."""
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
        """Whether a client has a seat at it."""
        return bool(self._durable.seats)

    @property
    def flow(self) -> tuple[int, int]:
        """Deliveries and acknowledgements since the realm started."""
        return self._durable.delivered, self._durable.acknowledged

    def info(self, now_us: int) -> DurableInfo:
        return durable_info(self._channel.state, self._durable, now_us)


class StoreView:
    """A channel or queue as it is now."""

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
        """``channel``, ``queue``, or ``schedule``: what waits to be published on one."""
        return self.definition.kind

    @property
    def is_jms(self) -> bool:
        """Whether it keeps only what somebody is interested in, as topics of JMS do."""
        return self._channel.state.engine.needs_interest

    @property
    def next_id(self) -> int:
        return self._channel.state.next_id

    @property
    def properties(self) -> StructShape:
        """The columns that its events have for properties."""
        return self._state.stores[self.number].columns.properties

    @property
    def stored(self) -> IdSet:
        return self._channel.state.stored

    @property
    def keys(self) -> KeyIndex:
        """The index of its publish keys; it has one."""
        keys = self._state.stores[self.number].keys
        assert keys is not None, "it has a publish key"
        return keys

    def newest_of(self, value: object) -> int | None:
        """The id of the stored event with this value of the publish key, of which there is one with
        depth 1; None: there is none."""
        return self.keys.newest_of(value, self.stored)

    @property
    def events(self) -> int:
        """Stored and not expired."""
        return len(self._channel.state.stored) - self._channel.state.overdue

    @property
    def event_bytes(self) -> float:
        """The average size of an event in bytes; at least one."""
        return max(1.0, self._channel.state.event_bytes)

    @property
    def bytes(self) -> int:
        """The bytes of its events, wherever they are."""
        store = self._state.stores[self.number]
        paged = self._pages.info(self.number).size
        return paged or store.meter.tail_bytes + store.sealed_bytes

    @property
    def files(self) -> int:
        """Segment files."""
        return len(self._state.stores[self.number].files)

    @property
    def counters(self) -> Counters:
        return self._channel.state.counters

    @property
    def flow(self) -> tuple[int, int]:
        """Deliveries and acknowledgements since the realm started."""
        return self._channel.state.flow

    @property
    def died(self) -> Mapping[tuple[str, str], int]:
        """Copies put into dead event stores, by durable and cause."""
        return self._channel.state.died

    @property
    def moves_dead(self) -> bool:
        """Whether dead events go to a dead event store."""
        return self._channel.state.moves_dead

    @property
    def subscribers(self) -> int:
        """Plain subscriptions without an end."""
        return sum(each.stop_id is None for each in self._channel.state.subscribers.values())

    @property
    def timeout_s(self) -> float:
        """Seconds for which the place of a lost client is kept."""
        return self._channel.state.rules.event_timeout_us / 1e6

    def oldest_ms(self, now_us: int) -> int | None:
        """Age in milliseconds of the oldest stored event; None if there is none."""
        lowest = self.stored.lowest
        published_us = None if lowest is None else self._channel.state.ages.oldest_us(lowest)
        return None if published_us is None else max(0, now_us - published_us) // 1_000

    def cursor(self, subscription: int) -> int | None:
        """The id at which a plain subscription continues; None if it has ended."""
        place = self._channel.state.subscribers.get(subscription)
        return None if place is None else place.cursor

    def durable(self, name: str) -> DurableView | None:
        found = self._channel.state.durables.get(name)
        return None if found is None else DurableView(self._channel, found)

    @property
    def durables(self) -> Iterator[tuple[str, DurableView]]:
        """The durables that are shown. The readers of a queue are one called ``READERS``."""
        for name, durable in self._channel.state.durables.items():
            if (name == READERS) == (self.kind == "queue"):
                yield name, DurableView(self._channel, durable)


class RealmView:
    """Held by the realm as ``realm.view``."""

    def __init__(self, state: RealmState, pages: Pages, clock: Clock) -> None:
        self._state = state
        self._pages = pages
        self._clock = clock
        self._topic_trees = TopicTrees(state.directory.channels.__contains__)

    def store(self, channel_id: ChannelId) -> StoreView | None:
        """The channel or queue with this number; None if it was deleted."""
        channel = self._state.directory.channels.get(channel_id)
        return (
            None
            if channel is None
            else StoreView(ChannelId(channel_id), channel, self._state, pages=self._pages)
        )

    def topic_tree(self, store: StoreView) -> TopicTree:
        """The topics that have occurred in a channel whose publish key is ``topic``."""
        return self._topic_trees.of(store.number, store.keys)

    def has(self, channel_id: ChannelId) -> bool:
        """Whether there is a channel or queue of this number still."""
        return channel_id in self._state.directory.channels

    def named(self, name: str) -> StoreView | None:
        """None: there is no channel or queue of this name, in the one form that names have."""
        channel_id = self._state.directory.find(name)
        return None if channel_id is None else self.store(channel_id)

    def internal(self, name: str) -> StoreView | None:
        """The internal store of this name (SEM A6); None: the realm has not made it yet."""
        channel_id = self._state.directory.internal.ids_by_name.get(name)
        return None if channel_id is None else self.store(channel_id)

    @property
    def internal_stores(self) -> Collection[int]:
        """The numbers of the internal stores, as they are now."""
        return self._state.directory.internal.machines.keys()

    def required(self, name: str) -> StoreView:
        """Raises ``NameDoesNotExist``, ``InvalidName``."""
        channel_id = self._state.directory.channel_id_of(name, None)
        found = self.store(channel_id)
        if found is None:
            raise NameDoesNotExist(f"there is no channel or queue {destination_name(name)}")
        return found

    def stores(self) -> Iterator[StoreView]:
        """Channels and queues, by name; not temporary ones, nor what the realm keeps for
        itself."""
        channels = self._state.directory.channels
        for _, channel_id in sorted(
            (each.state.name, channel_id) for channel_id, each in channels.items()
        ):
            if self._state.directory.is_shown(channel_id):
                yield StoreView(
                    ChannelId(channel_id), channels[channel_id], self._state, pages=self._pages
                )

    def temporary_stores(self) -> Iterator[StoreView]:
        """Temporary destinations, which no list has (SEM R2)."""
        for channel_id, channel in self._state.directory.temporary.items():
            yield StoreView(ChannelId(channel_id), channel, self._state, pages=self._pages)

    def with_durable(self, name: str) -> list[tuple[StoreView, DurableView]]:
        """The stores that have a durable of this name."""
        found = []
        for channel_id in self._state.with_durable(name):
            channel = self._state.directory.channels[channel_id]
            store = StoreView(ChannelId(channel_id), channel, self._state, pages=self._pages)
            found.append((store, DurableView(channel, channel.state.durables[name])))
        return found

    def count(self, kind: str) -> int:
        """Channels, or queues."""
        return len(self._state.directory.names(kind))

    def stores_selector(self, durable_type: str) -> bool:
        """Whether durables of this type keep the selector they were made with."""
        return self._state.directory.rules.kinds[durable_type].stores_selector

    @property
    def topics(self) -> TopicTable:
        """The channels that take topics of MQTT."""
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
        """The schemas with which events are delivered."""
        return self._state.schemas

    @property
    def now_us(self) -> int:
        return self._clock.now_us()
