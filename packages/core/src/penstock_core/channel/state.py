"""The state of a channel: what it stores, its durables and subscribers."""

from __future__ import annotations

from collections.abc import KeysView
from typing import Final
from unicodedata import normalize

from msgspec import Struct
from msgspec.structs import replace

from penstock_core.channel.channel_type import ChannelType, ChannelTypes, ClusterWide
from penstock_core.channel.concerned import SelectorsInUse, TouchedDurables
from penstock_core.channel.engine import Engine, Engines
from penstock_core.channel.event_sizes import EventSizes
from penstock_core.channel.followers import Followers
from penstock_core.channel.producers import Producers
from penstock_core.channel.removal_causes import Departures
from penstock_core.channel.retention import NEVER_US, Ages
from penstock_core.durable.durable import Durable
from penstock_core.durable.queue import READERS, readers_of
from penstock_core.durable.seat import Kinds, Seat
from penstock_core.durable.subscriber import Subscriber
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.messages.snapshots import ProducerState
from penstock_core.messages.subscribers import Interested
from penstock_core.vocabulary.counters import Counters
from penstock_core.vocabulary.definitions import PRIORITY_DEFAULT, Definition
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.durable_attributes import DurableAttributes
from penstock_core.vocabulary.effects import Recall
from penstock_core.vocabulary.errors import IllegalState, NameDoesNotExist
from penstock_core.vocabulary.reach import without_cluster

CHUNK_EVENTS_MAX = 16_384
CHUNK_BYTES_MAX = 4 << 20
"""Where files are mapped and kept; else a delivery is as large as the channel's read buffer."""
_ONE_EVENT = Digest(count=1, size=0, largest=0)
"""A publish that asks for nothing special."""
_NO_SELECTORS: Final[KeysView[str]] = dict[str, str]().keys()


class RealmRules(Struct, frozen=True):
    """What all channels of a realm have in common: the registries and the realm's limits."""

    types: ChannelTypes
    engines: Engines
    kinds: Kinds
    event_bytes_max: int
    event_timeout_us: int = 60_000_000
    """How long an event without a TTL waits for a subscriber that has lost its connection
    (SEM J5)."""
    stores_max: int = 0
    """Most channels and queues together; 0: no limit."""
    reattach_us: int = 10_000_000
    """How long seats wait for their sessions when another node has taken over (SEM N6)."""
    durables_max: int = 0
    """Most durables of one channel; 0: no limit. Those there are stay, however many."""
    is_cluster: bool = False
    """Whether another node may own the realm's channels next."""
    local_to: str = ""
    """The node of a cluster whose local channels these are; empty: of none (SEM N8)."""
    mqtt_channel: str = "mqtt"
    """The channel of all topics (``listen.mqtt_channel``). The names of the internal stores beside
    it are reserved, whether MQTT is served or not."""
    outbox_bytes_max: int = 1 << 30
    """Bytes that may wait in the outbox of a join; above it what it would copy is refused (SEM
    N9)."""

    def type_of(self, definition: Definition) -> ChannelType:
        """The rules of a channel's type, where it is."""
        type = self.types[definition.type]
        return ClusterWide(type) if self.is_cluster and definition.cluster_wide else type

    def counting(self, definition: Definition) -> Definition:
        """The attributes that count where the channel is. Without a cluster nothing is
        cluster-wide, whatever an earlier version took (SEM C5)."""
        return definition if self.is_cluster else without_cluster(definition)

    def counting_of_durable(self, attributes: DurableAttributes) -> DurableAttributes:
        """The attributes of a durable that count where it is."""
        if attributes.cluster_wide and not self.is_cluster:
            return replace(attributes, cluster_wide=False)
        return attributes


class ChannelState:
    """Hard state (rebuilt from facts) and soft state (sessions) of one channel.

    Most channels of a realm with many are idle: what only those need where something happens is
    made when it is first asked for.
    """

    __slots__ = (
        "_followers",
        "_producers",
        "_selectors_in_use",
        "_touched",
        "absent",
        "acked",
        "acknowledged",
        "adds_columns",
        "adds_only",
        "ages",
        "awaited_from_us",
        "awaited_until_us",
        "awaits_seats",
        "cancelled",
        "counters",
        "dead_copies",
        "dead_work",
        "definition",
        "delivered",
        "departures",
        "died",
        "dirty",
        "durables",
        "engine",
        "event_bytes",
        "granted_through",
        "has_left",
        "leaving",
        "lost",
        "may_pass",
        "moves_dead",
        "name",
        "next_id",
        "overdue",
        "passing",
        "places",
        "places_over",
        "recalls",
        "relayed",
        "removal_candidates",
        "removes_consumed",
        "reserved",
        "rules",
        "seats",
        "sent_through",
        "sizes",
        "stored",
        "subscribers",
        "swept_us",
        "takes_nobody",
        "topics_since",
        "type",
        "unwritten",
        "volatile",
        "waits",
        "wakes_us",
        "writes_only_events",
    )

    reserved: int
    """Hard: ids below this may have been given to events in memory (SEM E4)."""
    topics_since: int
    """Hard: the id of the first event that was published since it has topics (SEM M12)."""
    has_left: bool
    """Soft: a client left, or a manual-ack client joined: events passing through memory may have to
    be written (SEM J7)."""
    removal_candidates: IdSet
    """Soft: events that nobody may want any more since the last sweep: they were acknowledged, or a
    subscriber has passed them or left."""
    absent: int
    """Soft: how many subscribers have lost their connection and may come back (SEM J5)."""
    places_over: bool
    """Soft: there may be places whose subscribers were given up (SEM J5)."""
    awaits_seats: bool
    """Soft: there may be seats whose sessions may come back to them (SEM N6)."""
    awaited_from_us: int | None
    """Soft: since when the waiting for them is not in a fact yet; None: it begins with the next
    sweep."""
    awaited_until_us: int
    """Soft: when it is to be in one."""
    takes_nobody: bool
    """Soft: the realm has ended the connections itself, and nobody can come back yet (SEM N6)."""
    lost: int
    """Soft: events whose block was damaged when the realm started; part of what counts as
    quarantined (SEM S1)."""
    overdue: int
    """Soft: number of events, expired or above the capacity, that still have to move to the dead
    event store. Nothing is delivered meanwhile, because these must not be (SEM T1)."""
    delivered: int
    """Soft: events sent since the realm started to those who have no durable, and by durables that
    are gone; browses do not count."""
    acknowledged: int
    """Soft: the same of what the clients of durables that are gone acknowledged."""
    dirty: bool
    """Soft: something changed that may lead to a delivery."""
    granted_through: int
    """Soft: id below which clients of durables have been offered everything."""
    sent_through: int
    """Soft: the same of plain subscribers."""
    may_pass: bool
    """Soft: there may be something in ``relayed``, ``passing`` or ``leaving``."""
    swept_us: int
    """Soft: time of the last sweep."""
    wakes_us: int
    """Soft: when the first event that waits after a rollback may come again (SEM D18), or the first
    deadline of a client is over (SEM D19). It may be too early; 0: no such time."""
    event_bytes: float
    """Soft: about how large the larger of the recent events are."""
    sizes: EventSizes
    """Soft: about how large the stored events are."""
    dead_work: int
    """Soft: work of selectors on a dead event where it goes, in examinations."""
    dead_copies: int
    """Soft: how many stores a dead event comes to, with those that joins copy it to."""

    def __init__(self, name: str, definition: Definition, rules: RealmRules) -> None:
        self.name, self.rules = name, rules
        self._begin()
        self.type: ChannelType = rules.type_of(definition)
        self.engine: Engine = rules.engines[definition.engine]
        self.define(definition)
        self.next_id = self.topics_since = definition.start_event_id
        self.stored = IdSet()
        self.volatile = IdSet()
        """Stored events that live in memory only."""
        self.passing = IdSet()
        """The part of ``volatile`` that leaves once connected subscribers have it (SEM J4)."""
        self.unwritten = IdSet()
        """The part of ``passing`` that the channel's type would have kept on disk."""
        self.waits: dict[int, IdSet] = {}
        """Soft: stored events with a TTL of their own that are kept for disconnected subscribers;
        by that TTL in ms."""
        self.relayed = IdSet()
        """Soft: events delivered to connected clients in this turn and never stored (SEM E8)."""
        self.leaving = IdSet()
        """Soft: events that made room in this turn, and pass by connected clients as they leave."""
        self.durables = _own_durables(definition, self.type)
        self._selectors_in_use: SelectorsInUse | None = None
        self.counters = Counters()
        self.departures = Departures(definition.start_event_id, keyed=bool(definition.keys))
        self.ages = Ages(is_exact=definition.kind == "schedule")
        self._producers: Producers | None = None
        self.died: dict[tuple[str, str], int] = {}
        """Copies made in the dead event store, by durable and cause; the durable is empty where
        they are not for a single one."""
        self.acked, self.removal_candidates = IdSet(), IdSet()
        """Stored events that at least one durable has acknowledged (SEM D6)."""
        self.subscribers: dict[int, Subscriber] = {}
        self._followers: Followers | None = None
        self.places: dict[str, Interested] = {}
        """Hard state, in a cluster: those on the JMS engine who wait for events, though they may
        have lost their connection."""
        self.seats: dict[int, tuple[Durable, Seat]] = {}
        self._touched: TouchedDurables | None = None
        self.cancelled: list[int] = []
        """Soft: demands cancelled, to be confirmed."""
        self.recalls: list[Recall] = []
        """Soft: recalls that clients have to be told of."""

    def _begin(self) -> None:
        """Nothing has happened yet."""
        self.reserved = self.absent = self.lost = self.overdue = 0
        self.delivered = self.acknowledged = self.dead_work = 0
        self.dead_copies = 1
        self.granted_through = self.sent_through = self.swept_us = self.wakes_us = 0
        self.has_left = self.places_over = self.dirty = self.may_pass = False
        self.awaits_seats = self.takes_nobody = False
        self.awaited_from_us, self.awaited_until_us = None, 0
        self.event_bytes = 0.0
        self.sizes = EventSizes()

    @property
    def selectors_in_use(self) -> SelectorsInUse:
        """Soft: what is asked of every event published here, and by whom."""
        if self._selectors_in_use is None:
            self._selectors_in_use = SelectorsInUse()
        return self._selectors_in_use

    @property
    def producers(self) -> Producers:
        """What is remembered of publishes, for retries of them."""
        if self._producers is None:
            self._producers = Producers()
        return self._producers

    @property
    def kept_producers(self) -> tuple[ProducerState, ...]:
        """What is remembered of publishes, as snapshots hold it."""
        return () if self._producers is None else self._producers.state()

    def lower_producers(self, now_us: int) -> None:
        """Take publishes that are remembered with a later time as made at ``now_us``."""
        if self._producers is not None:
            self._producers.lower(now_us)

    @property
    def followers(self) -> Followers:
        """Soft: the plain subscribers, by whether they are served one by one."""
        if self._followers is None:
            self._followers = Followers()
        return self._followers

    @property
    def touched(self) -> TouchedDurables:
        """Soft: the durables that may have something for their clients. Before one has taken a
        seat, none has."""
        if self._touched is None:
            self._touched = TouchedDurables()
        return self._touched

    def edit(self, definition: Definition) -> None:
        """Take on other attributes."""
        if not self.definition.topics:
            self.topics_since = self.next_id
        self.define(definition)

    def define(self, definition: Definition) -> None:
        """Take on attributes, and what they mean for every publish until they are edited."""
        self.definition = definition = self.rules.counting(definition)
        type, engine = self.type, self.engine
        self.moves_dead = bool(definition.dead_event_store)
        """Whether events that leave unconsumed go somewhere (SEM T5)."""
        self.writes_only_events = not (
            self.moves_dead or type.home == "pages" or engine.needs_interest
        )
        """Whether a publish, with the events that are due to leave before it, writes nothing but
        its own events: nothing moves to a dead event store, into pages, or out of memory."""
        is_on_disk = type.home == "journal" and not type.volatile(_ONE_EVENT)
        is_limited = bool(definition.capacity or definition.keys)
        self.adds_only = (
            is_on_disk
            and not (is_limited or type.relays)
            and not (engine.merges or engine.needs_interest)
        )
        """Whether no limit, key, type or engine affects what is published."""
        storage = definition.storage
        self.adds_columns = storage.priority != PRIORITY_DEFAULT or storage.stamp_dictionary
        """Whether the channel adds something to every event (SEM S)."""
        self.removes_consumed = engine.needs_interest or not self.retains_consumed
        """Whether events that were acknowledged may have to leave."""

    @property
    def flow(self) -> tuple[int, int]:
        """Events delivered and acknowledged since the realm started, each as often as it was
        delivered or acknowledged."""
        durables = self.durables.values()
        delivered = self.delivered + sum(durable.delivered for durable in durables)
        return delivered, self.acknowledged + sum(durable.acknowledged for durable in durables)

    @property
    def chunk(self) -> int:
        """How many events one delivery may have, so that it stays within some megabytes."""
        storage = self.definition.storage
        bytes_max = CHUNK_BYTES_MAX if storage.enable_caching else storage.read_buffer_size
        return int(max(1, min(CHUNK_EVENTS_MAX, bytes_max / max(1.0, self.event_bytes))))

    @property
    def selectors(self) -> KeysView[str]:
        """The selectors that are asked of every event published here."""
        return _NO_SELECTORS if self._selectors_in_use is None else self._selectors_in_use.texts

    def add_durable(self, durable: Durable) -> None:
        """A durable is there from now on; in the place of one of its name, if there is any."""
        if (former := self.durables.get(durable.name)) is not None:
            self.selectors_in_use.remove(former)
        self.durables[durable.name] = durable
        if durable.selector:
            self.selectors_in_use.add(durable)

    def remove_durable(self, name: str) -> Durable | None:
        """Forget a durable, with its seats; gives it, if there was one."""
        gone = self.durables.pop(name, None)
        if gone is not None:
            self.selectors_in_use.remove(gone)
            for seat in gone.seats:
                self.remove_seat(seat.subscription)
            self.touched.forget(name)
        return gone

    def add_seat(self, durable: Durable, seat: Seat) -> None:
        self.seats[seat.subscription] = durable, seat
        self.selectors_in_use.add(seat)
        self.touched.seat_added(durable)
        self.dirty = True

    def remove_seat(self, subscription: int) -> tuple[Durable, Seat] | None:
        """Forget that a subscription has a seat; gives it, if it had one."""
        held = self.seats.pop(subscription, None)
        if held is not None:
            self.selectors_in_use.remove(held[1])
        return held

    def touch(self, durable: Durable) -> None:
        """Something changed that may lead to a delivery by this durable."""
        self.dirty = True
        if self._touched is not None:
            self._touched.add(durable)

    def touch_all(self) -> None:
        """Something changed that may lead to a delivery by any durable."""
        self.dirty = True
        if self._touched is not None:
            self._touched.add_all()

    def add_subscriber(self, subscriber: Subscriber) -> None:
        self.subscribers[subscriber.subscription] = subscriber
        self.followers.add(subscriber)
        self.selectors_in_use.add(subscriber)

    def remove_subscriber(self, subscription: int) -> Subscriber | None:
        """Forget a plain subscriber; gives it, if there was one."""
        subscriber = self.subscribers.pop(subscription, None)
        if subscriber is not None:
            self.followers.remove(subscriber)
            self.selectors_in_use.remove(subscriber)
        return subscriber

    @property
    def chosen_by(self) -> set[str]:
        """The selectors of plain subscribers, by which they say what they wait for (SEM J2)."""
        if not self.engine.needs_interest:
            return set()
        return {s.selector for s in self.subscribers.values() if s.selector and s.has_interest}

    @property
    def is_full(self) -> bool:
        """Whether the capacity is reached (SEM T3)."""
        capacity = self.definition.capacity
        return 0 < capacity <= len(self.stored) - self.overdue

    def seat(self, subscription: int) -> tuple[Durable, Seat]:
        try:
            return self.seats[subscription]
        except KeyError:
            raise IllegalState(
                f"subscription {subscription} has no durable of {self.name}: it was closed, or "
                f"its durable was deleted"
            ) from None

    @property
    def readable(self) -> IdSet:
        """The stored events, and those that have left and are still offered to connected
        clients."""
        if not (self.relayed or self.leaving):
            return self.stored
        there = self.stored.copy()
        there.add_all(self.relayed)
        there.add_all(self.leaving)
        return there

    def stored_part(self, spans: Spans) -> IdSet:
        found = IdSet()
        for span in spans:
            found.add_all(self.stored.within(span))
        return found

    def durable(self, name: str) -> Durable:
        """However its name was typed. Raises ``NameDoesNotExist``."""
        found = self.durables.get(name)
        if found is None:
            found = self.durables.get(normalize("NFC", name))
        if found is None:
            raise NameDoesNotExist(f"{self.name} has no durable {name}")
        return found

    def expired(self, now_us: int) -> IdSet:
        """Stored events that have outlived their TTL (SEM T1)."""
        return self.ages.expired(self.definition.ttl, self.next_id, self.stored, now_us=now_us)

    def wake(self, now_us: int) -> None:
        """End the delays that are over (SEM D18). Events whose deadline is over were taken back
        before."""
        if not self.wakes_us or self.wakes_us > now_us:
            return
        self.touch_all()
        for durable in self.durables.values():
            durable.wake(now_us)
        self.set_alarm()

    def wake_by(self, at_us: int) -> None:
        """Note the end of a delay or a deadline."""
        self.wakes_us = min(at_us, self.wakes_us or at_us)

    def set_alarm(self) -> None:
        """Note when the next delay or deadline of a durable is over."""
        if not self.durables:
            self.wakes_us = 0
            return
        times = [each.waiting.next_us for each in self.durables.values() if each.waiting]
        times += [each.deadlines.next_us for each in self.durables.values() if each.deadlines]
        self.wakes_us = min(times, default=0)

    def looked_at_from(self, event_id: int) -> None:
        """Note that somebody wants nothing from here on any more, so that events may be removed."""
        if self.engine.needs_interest:
            self.removal_candidates.add_all(self.stored.within(Span(event_id, 1 << 62)))
        elif self.acked or self.removal_candidates:
            self.removal_candidates = self.acked.copy()

    @property
    def excess(self) -> int:
        """Events above a capacity that evicts: it was lowered, and they move in steps."""
        definition = self.definition
        if not definition.capacity or definition.storage.honour_capacity:
            return 0
        return max(0, len(self.stored) - definition.capacity)

    @property
    def retains_consumed(self) -> bool:
        """Whether what all durables have acknowledged stays (SEM D6): as the channel says, and
        always where later events are merged into it."""
        return self.definition.retain_consumed or self.engine.merges

    @property
    def has_consumed(self) -> bool:
        """Whether consumed or unwanted events may have to leave (SEM D6, J2). That is not urgent:
        no limit of time has passed."""
        may_remove = self.durables or self.engine.needs_interest
        return bool(may_remove and self.removes_consumed and self.removal_candidates)

    @property
    def alarm_us(self) -> int:
        """When a delay or a deadline is over, or a schedule publishes (SEM D18, D19, X4). Clients
        have set this time, so it is kept exactly; what else time makes happen may be late."""
        if self.ages.is_exact:
            return self.ages.due_us(0)
        return self.wakes_us or NEVER_US

    @property
    def next_due_us(self) -> int:
        """When time makes something happen on the channel: the only place that knows. 0: now, for
        the next sweep goes on with what is done in steps, such as moving dead events. ``NEVER_US``:
        not unless something else happens before."""
        # `overdue` may be out of date after a TTL was edited or room was made; a sweep recounts.
        if self.overdue or self.absent or self.places_over:
            return 0
        if (self.has_left and self.passing) or (self.moves_dead and self.excess):
            return 0
        due_us = self.wakes_us or NEVER_US
        if self.awaits_seats and not self.takes_nobody:
            due_us = 0 if self.awaited_from_us is None else min(due_us, self.awaited_until_us)
        if self.definition.ttl or self.ages.ends_us:
            due_us = min(due_us, self.ages.due_us(self.definition.ttl))
        return due_us

    def is_due(self, now_us: int) -> bool:
        """Whether time makes something happen now."""
        return self.next_due_us <= now_us

    def needs_sweep(self, now_us: int) -> bool:
        """Whether a sweep has something to do: time makes something happen, or consumed events may
        leave."""
        return self.has_consumed or self.next_due_us <= now_us


def _own_durables(definition: Definition, type: ChannelType) -> dict[str, Durable]:
    """The durables that exist from the beginning: the readers of a queue."""
    if definition.kind != "queue":
        return {}
    return {READERS: readers_of(definition, persistent=type.survives_restart)}
