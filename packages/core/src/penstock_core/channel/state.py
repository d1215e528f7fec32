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
"""Maximum number of events in one delivery."""
CHUNK_BYTES_MAX = 4 << 20
"""Approximate limit of the bytes of one delivery if the channel caches its files; otherwise the
channel's read buffer size is the limit."""
_ONE_EVENT = Digest(count=1, size=0, largest=0)
"""A publish without any option; used to ask a channel type where such an event is kept."""
_NO_SELECTORS: Final[KeysView[str]] = dict[str, str]().keys()


class RealmRules(Struct, frozen=True):
    """Registries and limits that all channels of a realm share."""

    types: ChannelTypes
    engines: Engines
    kinds: Kinds
    event_bytes_max: int
    event_timeout_us: int = 60_000_000
    """Time that an event without a TTL waits for a disconnected subscriber, in microseconds
    (SEM J5)."""
    stores_max: int = 0
    """Maximum number of channels and queues together; 0 means no limit."""
    reattach_us: int = 10_000_000
    """Time that seats are reserved for their sessions after a failover, in microseconds
    (SEM N6)."""
    durables_max: int = 0
    """Maximum number of durables of one channel; 0 means no limit. Existing durables stay if the
    limit is lowered."""
    is_cluster: bool = False
    """Whether the realm is a cluster, so that another node may own its channels later."""
    local_to: str = ""
    """The cluster node that these local channels belong to; empty if they are not local (SEM
    N8)."""
    mqtt_channel: str = "mqtt"
    """The channel for all MQTT topics (``listen.mqtt_channel``). The names of its internal stores
    are reserved even if MQTT is not served."""
    outbox_bytes_max: int = 1 << 30
    """Bytes that may wait in the outbox of a join; beyond this limit, publishes that the join would
    copy are refused (SEM N9)."""

    def type_of(self, definition: Definition) -> ChannelType:
        """Return the rules of a channel's type; in a cluster, of its cluster-wide form."""
        type = self.types[definition.type]
        return ClusterWide(type) if self.is_cluster and definition.cluster_wide else type

    def counting(self, definition: Definition) -> Definition:
        """Return the attributes that apply in this realm. Without a cluster no store is
        cluster-wide, even if an earlier version accepted the attribute (SEM C5)."""
        return definition if self.is_cluster else without_cluster(definition)

    def effective_for_durable(self, attributes: DurableAttributes) -> DurableAttributes:
        """Return the attributes of a durable that apply in this realm."""
        if attributes.cluster_wide and not self.is_cluster:
            return replace(attributes, cluster_wide=False)
        return attributes


class ChannelState:
    """Hard state (rebuilt from facts) and soft state (sessions) of one channel.

    Most channels of a large realm are idle. Parts that only active channels need are therefore
    created on first access.
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
        "durables",
        "engine",
        "event_bytes",
        "granted_end",
        "has_left",
        "leaving",
        "lost",
        "may_deliver",
        "may_pass",
        "moves_dead",
        "name",
        "next_id",
        "overdue",
        "passing",
        "places",
        "places_over",
        "recalls",
        "refuses_reconnects",
        "relayed",
        "removal_candidates",
        "removes_consumed",
        "reserved",
        "rules",
        "seats",
        "sent_end",
        "sizes",
        "stored",
        "subscribers",
        "swept_us",
        "topics_since",
        "type",
        "unwritten",
        "volatile",
        "waits",
        "wakes_us",
        "writes_only_events",
    )

    reserved: int
    """Hard state, rebuilt from facts: the id below which ids may have been assigned to events in
    memory (SEM E4)."""
    topics_since: int
    """Hard state, rebuilt from facts: the first event id that was published after the channel got
    topics (SEM M12)."""
    has_left: bool
    """Soft state, which a restart forgets: whether a client left, or a manual-ack client joined, so
    events that pass through memory may have to be written (SEM J7)."""
    removal_candidates: IdSet
    """Soft state, which a restart forgets: events to be examined by the next sweep. They were
    acknowledged since the last sweep, or a subscriber has moved past them or left."""
    absent: int
    """Soft state, which a restart forgets: number of subscribers that have lost their connection
    and may reconnect (SEM J5)."""
    places_over: bool
    """Soft state, which a restart forgets: whether ``places`` may contain subscribers that did not
    reconnect in time (SEM J5)."""
    awaits_seats: bool
    """Soft state, which a restart forgets: whether some seats may be reserved for sessions that can
    still reconnect (SEM N6)."""
    awaited_from_us: int | None
    """Soft state, which a restart forgets: start of the waiting time for reserved seats that is not
    recorded in a fact yet; None if the next sweep starts it."""
    awaited_until_us: int
    """Soft state, which a restart forgets: time by which the waiting time has to be recorded, in
    microseconds."""
    refuses_reconnects: bool
    """Soft state, which a restart forgets: whether the realm has closed the connections itself and
    accepts no reconnection yet (SEM N6)."""
    lost: int
    """Soft state, which a restart forgets: number of events whose block was damaged when the realm
    started; counted as quarantined, too (SEM S1)."""
    overdue: int
    """Soft state, which a restart forgets: number of events, expired or above the capacity, that
    still have to move to the dead event store. Delivery stops while it is not 0, because one of
    these events might be delivered (SEM T1)."""
    delivered: int
    """Soft state, which a restart forgets: number of events sent since the realm started to plain
    subscribers and by durables that were deleted since; browses do not count."""
    acknowledged: int
    """Soft state, which a restart forgets: number of events acknowledged by clients of durables
    that were deleted since."""
    may_deliver: bool
    """Soft state, which a restart forgets: whether a change since the last offer may cause a
    delivery."""
    granted_end: int
    """Soft state, which a restart forgets: id below which clients of durables have been offered
    every event."""
    sent_end: int
    """Soft state, which a restart forgets: id below which plain subscribers have been offered every
    event."""
    may_pass: bool
    """Soft state, which a restart forgets: whether ``relayed``, ``passing`` or ``leaving`` may
    contain events."""
    swept_us: int
    """Soft state, which a restart forgets: time of the last sweep, in microseconds since 1970."""
    wakes_us: int
    """Soft state, which a restart forgets: time when the first delayed event may be redelivered
    (SEM D18) or the first acknowledgement deadline passes (SEM D19), in microseconds since 1970.
    The time may be too early; 0 if no event is delayed or has a deadline."""
    event_bytes: float
    """Soft state, which a restart forgets: estimated size of the larger recent events, in bytes."""
    sizes: EventSizes
    """Soft state, which a restart forgets: estimated sizes of the stored events."""
    dead_work: int
    """Soft state, which a restart forgets: selector evaluations that a dead event causes on its
    dead event store."""
    dead_copies: int
    """Soft state, which a restart forgets: number of stores that receive a dead event, including
    copies made by joins."""

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
        """The part of ``volatile`` that leaves once connected subscribers have received it (SEM
        J4)."""
        self.unwritten = IdSet()
        """The part of ``passing`` that the channel's type stores on disk if it has to be kept."""
        self.waits: dict[int, IdSet] = {}
        """Soft state, which a restart forgets: stored events with an event TTL that are kept for
        disconnected subscribers, by the TTL in ms."""
        self.relayed = IdSet()
        """Soft state, which a restart forgets: events delivered to connected clients in this turn
        and never stored (SEM E8)."""
        self.leaving = IdSet()
        """Soft state, which a restart forgets: events evicted in this turn that connected clients
        are still offered."""
        self.durables = _own_durables(definition, self.type)
        self._selectors_in_use: SelectorsInUse | None = None
        self.counters = Counters()
        self.departures = Departures(definition.start_event_id, keyed=bool(definition.keys))
        self.ages = Ages(is_exact=definition.kind == "schedule")
        self._producers: Producers | None = None
        self.died: dict[tuple[str, str], int] = {}
        """Number of copies made in the dead event store, by durable and cause. The durable is empty
        for copies that are not made for a single durable."""
        self.removal_candidates = IdSet()
        self.acked = IdSet()
        """Stored events that at least one durable has acknowledged (SEM D6)."""
        self.subscribers: dict[int, Subscriber] = {}
        self._followers: Followers | None = None
        self.places: dict[str, Interested] = {}
        """Hard state (rebuilt from facts) in a cluster: subscribers on the JMS engine that wait for
        events, even if their connection is lost."""
        self.seats: dict[int, tuple[Durable, Seat]] = {}
        self._touched: TouchedDurables | None = None
        self.cancelled: list[int] = []
        """Soft state, which a restart forgets: subscriptions whose demand was cancelled and not
        confirmed yet."""
        self.recalls: list[Recall] = []
        """Soft state, which a restart forgets: recalls that have not been sent to their clients
        yet."""

    def _begin(self) -> None:
        """Set the values of a channel without any history."""
        self.reserved = self.absent = self.lost = self.overdue = 0
        self.delivered = self.acknowledged = self.dead_work = 0
        self.dead_copies = 1
        self.granted_end = self.sent_end = self.swept_us = self.wakes_us = 0
        self.has_left = self.places_over = self.may_deliver = self.may_pass = False
        self.awaits_seats = self.refuses_reconnects = False
        self.awaited_from_us, self.awaited_until_us = None, 0
        self.event_bytes = 0.0
        self.sizes = EventSizes()

    @property
    def selectors_in_use(self) -> SelectorsInUse:
        """Soft state, which a restart forgets: the selectors applied to every published event, with
        their holders."""
        if self._selectors_in_use is None:
            self._selectors_in_use = SelectorsInUse()
        return self._selectors_in_use

    @property
    def producers(self) -> Producers:
        """Remembered publishes, which identify retries."""
        if self._producers is None:
            self._producers = Producers()
        return self._producers

    @property
    def kept_producers(self) -> tuple[ProducerState, ...]:
        """Remembered publishes in the form that snapshots hold."""
        return () if self._producers is None else self._producers.state()

    def lower_producers(self, now_us: int) -> None:
        """Set the time of remembered publishes that are later than ``now_us`` to ``now_us``."""
        if self._producers is not None:
            self._producers.lower(now_us)

    @property
    def followers(self) -> Followers:
        """Soft state, which a restart forgets: plain subscribers, divided into those served
        individually and those served together."""
        if self._followers is None:
            self._followers = Followers()
        return self._followers

    @property
    def touched(self) -> TouchedDurables:
        """Soft state, which a restart forgets: durables that may have events to deliver."""
        if self._touched is None:
            self._touched = TouchedDurables()
        return self._touched

    def edit(self, definition: Definition) -> None:
        """Apply edited attributes."""
        if not self.definition.topics:
            self.topics_since = self.next_id
        self.define(definition)

    def define(self, definition: Definition) -> None:
        """Apply attributes and derive the values that every publish uses until the next edit."""
        self.definition = definition = self.rules.counting(definition)
        type, engine = self.type, self.engine
        self.moves_dead = bool(definition.dead_event_store)
        """Whether events that leave unconsumed move to a dead event store (SEM T5)."""
        self.writes_only_events = not (
            self.moves_dead or type.home == "pages" or engine.needs_interest
        )
        """Whether a publish, with the sweep before it, writes only its own events: no event moves
        to a dead event store, into pages, or out of memory."""
        # The rules never compare the name of a type, so the type itself is asked about an event.
        is_on_disk = type.home == "journal" and not type.volatile(_ONE_EVENT)
        is_limited = bool(definition.capacity or definition.keys)
        self.adds_only = (
            is_on_disk
            and not (is_limited or type.relays)
            and not (engine.merges or engine.needs_interest)
        )
        """Whether a publish only appends: no limit, key, type or engine affects other events."""
        storage = definition.storage
        self.adds_columns = storage.priority != PRIORITY_DEFAULT or storage.stamp_dictionary
        """Whether the channel adds columns to every event (SEM S)."""
        self.removes_consumed = engine.needs_interest or not self.retains_consumed
        """Whether acknowledged events may have to leave."""

    @property
    def delivered_and_acknowledged(self) -> tuple[int, int]:
        """Deliveries and acknowledgements since the realm started; repeated ones count again."""
        durables = self.durables.values()
        delivered = self.delivered + sum(durable.delivered for durable in durables)
        return delivered, self.acknowledged + sum(durable.acknowledged for durable in durables)

    @property
    def chunk(self) -> int:
        """Maximum number of events in one delivery, so that its size stays within some
        megabytes."""
        storage = self.definition.storage
        bytes_max = CHUNK_BYTES_MAX if storage.enable_caching else storage.read_buffer_size
        return int(max(1, min(CHUNK_EVENTS_MAX, bytes_max / max(1.0, self.event_bytes))))

    @property
    def selectors(self) -> KeysView[str]:
        """The selectors applied to every event published on the channel."""
        return _NO_SELECTORS if self._selectors_in_use is None else self._selectors_in_use.texts

    def add_durable(self, durable: Durable) -> None:
        """Add a durable, which replaces an existing durable with the same name."""
        if (former := self.durables.get(durable.name)) is not None:
            self.selectors_in_use.remove(former)
        self.durables[durable.name] = durable
        if durable.selector:
            self.selectors_in_use.add(durable)

    def remove_durable(self, name: str) -> Durable | None:
        """Remove a durable with its seats and return it; None if it does not exist."""
        durable = self.durables.pop(name, None)
        if durable is not None:
            self.selectors_in_use.remove(durable)
            for seat in durable.seats:
                self.remove_seat(seat.subscription)
            self.touched.forget(name)
        return durable

    def add_seat(self, durable: Durable, seat: Seat) -> None:
        self.seats[seat.subscription] = durable, seat
        self.selectors_in_use.add(seat)
        self.touched.seat_added(durable)
        self.may_deliver = True

    def remove_seat(self, subscription: int) -> tuple[Durable, Seat] | None:
        """Remove the seat of a subscription; return it with its durable, or None if the
        subscription has no seat."""
        removed = self.seats.pop(subscription, None)
        if removed is not None:
            self.selectors_in_use.remove(removed[1])
        return removed

    def touch(self, durable: Durable) -> None:
        """Record a change that may cause a delivery by this durable."""
        self.may_deliver = True
        # Before the first seat is added, no durable has anybody to deliver to.
        if self._touched is not None:
            self._touched.add(durable)

    def touch_all(self) -> None:
        """Record a change that may cause a delivery by any durable."""
        self.may_deliver = True
        if self._touched is not None:
            self._touched.add_all()

    def add_subscriber(self, subscriber: Subscriber) -> None:
        self.subscribers[subscriber.subscription] = subscriber
        self.followers.add(subscriber)
        self.selectors_in_use.add(subscriber)

    def remove_subscriber(self, subscription: int) -> Subscriber | None:
        """Remove a plain subscriber and return it; None if it does not exist."""
        subscriber = self.subscribers.pop(subscription, None)
        if subscriber is not None:
            self.followers.remove(subscriber)
            self.selectors_in_use.remove(subscriber)
        return subscriber

    @property
    def chosen_by(self) -> set[str]:
        """Selectors of the plain subscribers that have interest (SEM J2)."""
        if not self.engine.needs_interest:
            return set()
        return {s.selector for s in self.subscribers.values() if s.selector and s.has_interest}

    @property
    def is_full(self) -> bool:
        """Whether the capacity is reached (SEM T3)."""
        capacity = self.definition.capacity
        return 0 < capacity <= len(self.stored) - self.overdue

    def seat(self, subscription: int) -> tuple[Durable, Seat]:
        """Return the seat of a subscription, with its durable. Raises ``IllegalState`` if it has
        none."""
        try:
            return self.seats[subscription]
        except KeyError:
            raise IllegalState(
                f"subscription {subscription} has no durable of {self.name}: it was closed, or "
                f"its durable was deleted; subscribe again"
            ) from None

    @property
    def readable(self) -> IdSet:
        """Stored events, and removed events that are still offered to connected clients."""
        if not (self.relayed or self.leaving):
            return self.stored
        ids = self.stored.copy()
        ids.add_all(self.relayed)
        ids.add_all(self.leaving)
        return ids

    def stored_part(self, spans: Spans) -> IdSet:
        """Return the stored events of ``spans``."""
        ids = IdSet()
        for span in spans:
            ids.add_all(self.stored.within(span))
        return ids

    def durable(self, name: str) -> Durable:
        """Return the durable with this name, in any Unicode normalization. Raises
        ``NameDoesNotExist``."""
        durable = self.durables.get(name)
        if durable is None:
            # Names are kept in NFC. The lookup above saves normalizing a name that has this form
            # already.
            durable = self.durables.get(normalize("NFC", name))
        if durable is None:
            raise NameDoesNotExist(f"{self.name} has no durable {name}")
        return durable

    def expired(self, now_us: int) -> IdSet:
        """Return the stored events whose TTL is over at ``now_us`` (SEM T1)."""
        return self.ages.expired(self.definition.ttl, self.next_id, self.stored, now_us=now_us)

    def wake(self, now_us: int) -> None:
        """Make delayed events ready whose delay has ended (SEM D18).

        The sweep has already taken back the events whose acknowledgement deadline has passed.
        """
        if not self.wakes_us or self.wakes_us > now_us:
            return
        self.touch_all()
        for durable in self.durables.values():
            durable.wake(now_us)
        self.set_alarm()

    def wake_by(self, at_us: int) -> None:
        """Set the alarm to the end of a delay or deadline if it is earlier than the current
        alarm."""
        self.wakes_us = min(at_us, self.wakes_us or at_us)

    def set_alarm(self) -> None:
        """Set the alarm to the earliest end of a delay or deadline of any durable."""
        if not self.durables:
            self.wakes_us = 0
            return
        durables = self.durables.values()
        times = [durable.waiting.next_us for durable in durables if durable.waiting]
        times += [durable.deadlines.next_us for durable in durables if durable.deadlines]
        self.wakes_us = min(times, default=0)

    def recheck_from(self, event_id: int) -> None:
        """Check in the next sweep whether events from ``event_id`` on have become unwanted, because
        a durable or subscriber with interest in them has left."""
        if self.engine.needs_interest:
            self.removal_candidates.add_all(self.stored.within(Span(event_id, 1 << 62)))
        # On other engines only events that some durable has acknowledged can become unwanted.
        elif self.acked or self.removal_candidates:
            self.removal_candidates = self.acked.copy()

    @property
    def excess(self) -> int:
        """Number of stored events above the capacity, after it was lowered; evicted in steps.
        0 if the channel refuses events instead of evicting."""
        definition = self.definition
        if not definition.capacity or definition.storage.honour_capacity:
            return 0
        return max(0, len(self.stored) - definition.capacity)

    @property
    def retains_consumed(self) -> bool:
        """Whether events that all durables have acknowledged stay (SEM D6). The attribute decides,
        but on the merge engine they always stay, because later events are merged into them."""
        return self.definition.retain_consumed or self.engine.merges

    @property
    def has_consumed(self) -> bool:
        """Whether consumed or unwanted events may have to leave (SEM D6, J2). This is not urgent,
        because no time limit applies."""
        may_remove = self.durables or self.engine.needs_interest
        return bool(may_remove and self.removes_consumed and self.removal_candidates)

    @property
    def alarm_us(self) -> int:
        """Time of the next end of a delay or deadline, or of the next publish of a schedule, in
        microseconds (SEM D18, D19, X4). Clients have set this time, so it is met exactly; other
        work of a sweep may be late."""
        if self.ages.is_exact:
            return self.ages.due_us(0)
        return self.wakes_us or NEVER_US

    @property
    def next_due_us(self) -> int:
        """Time of the next sweep that the channel needs, in microseconds; no other code decides
        this.

        0 means now, because the next sweep continues work that is done in steps, such as moving
        dead events. ``NEVER_US`` means that no sweep is due unless the state changes.
        """
        # `overdue` may be out of date after a TTL was edited or events have left; a sweep recounts.
        if self.overdue or self.absent or self.places_over:
            return 0
        if (self.has_left and self.passing) or (self.moves_dead and self.excess):
            return 0
        due_us = self.wakes_us or NEVER_US
        if self.awaits_seats and not self.refuses_reconnects:
            due_us = 0 if self.awaited_from_us is None else min(due_us, self.awaited_until_us)
        if self.definition.ttl or self.ages.ends_us:
            due_us = min(due_us, self.ages.due_us(self.definition.ttl))
        return due_us

    def is_due(self, now_us: int) -> bool:
        """Whether the channel needs a sweep now because of time."""
        return self.next_due_us <= now_us

    def needs_sweep(self, now_us: int) -> bool:
        """Whether a sweep has work: it is due, or consumed events may leave."""
        return self.has_consumed or self.next_due_us <= now_us


def _own_durables(definition: Definition, type: ChannelType) -> dict[str, Durable]:
    """Return the durables that exist from creation: the readers of a queue."""
    if definition.kind != "queue":
        return {}
    return {READERS: readers_of(definition, persistent=type.survives_restart)}
