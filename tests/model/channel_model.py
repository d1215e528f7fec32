"""A simple model of a channel, made of sets, loops and one entry for each event. It is slow, and
easy to check."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.counters import Counters
from penstock_core.vocabulary.definitions import Definition

SURVIVING = ("persistent", "mixed", "paged")
"""Types whose events survive a restart, all or some of them."""
FORGETTING = ("simple", "transient")
"""Types whose ids start again after a restart."""
CUMULATIVE = ("exclusive", "priority")
"""Types of durables that acknowledge up to and including an event, and do not redeliver at once."""
IN_ORDER = ("exclusive", "priority", "serial")
"""Types of durables on which a waiting event delays those after it."""
WITH_TRANSIENT = ("exclusive", "priority", "shared_queued")
"""Types of durables whose clients also receive events that are not stored."""


def lane_of(event_id: int) -> int | None:
    """Return the lane of an event, from a property that every third event does not have."""
    return event_id % 3 or None


@dataclass
class Kept:
    """A stored event."""

    at_us: int
    even: bool
    volatile: bool = False
    ttl_ms: int = 0
    key: int | None = None
    relayed: bool = False
    of_type: bool = False
    """Whether the channel's type stores it only in memory, even if it is on disk now."""
    passing: bool = False
    """Whether only connected subscribers keep an event on the JMS engine."""
    waits_ms: int = 0
    """Milliseconds that the JMS engine waits for an absent subscriber; 0 means the default."""


@dataclass
class Seat:
    durable: str
    session: str
    window: int
    demand: int | None = None
    held: set[int] = field(default_factory=set)
    stalled: bool = False
    selective: bool = False
    """Whether this is a reader of a queue with a selector for even events."""
    auto_ack: bool = False
    sole: bool = False
    was_served: bool = False
    timeout_ms: int = 0
    until: dict[int, int] = field(default_factory=dict)
    """Time by which the seat's events must be acknowledged (SEM D19), including those it held
    before."""
    got_us: dict[int, int] = field(default_factory=dict)
    """Time at which the seat last received each of its events (SEM D23), including those it held
    before."""
    recalls: list[set[int]] = field(default_factory=list)
    """Recalled events, until the client confirms the recall (SEM D11)."""
    sought: set[int] = field(default_factory=set)
    """Part of ``recalls`` that a seek has recalled (SEM D20)."""

    @property
    def credit(self) -> int:
        if self.stalled or self.recalls or self.sole:
            return 0
        return self.window - len(self.held) if self.demand is None else self.demand


@dataclass
class Ledger:
    """The state of one durable."""

    kind: str
    start: int
    selector: str
    persistent: bool
    limit: int = 0
    due: set[int] = field(default_factory=set)
    counts: dict[int, int] = field(default_factory=dict)
    parked: set[int] = field(default_factory=set)
    rolled_back: set[int] = field(default_factory=set)
    """Events of a cumulative kind that were given back and are not settled since."""
    waits: dict[int, int] = field(default_factory=dict)
    """The times until which rolled-back events wait (SEM D18), in microseconds."""
    backoff: Backoff | None = None
    timeout_ms: int = 0
    strict: bool = False
    lanes: bool = False
    turn: list[int] = field(default_factory=list)
    """Its subscriptions in the order of service: the one served longest ago comes first."""
    knows_turn: bool = True
    """Whether ``turn`` is exact: False once a reader with a selector may have let its turn pass,
    which the model cannot see."""

    @property
    def is_cumulative(self) -> bool:
        return self.kind in CUMULATIVE

    def follows(self, event_id: int, other: int) -> bool:
        """Whether ``event_id`` must be delivered after ``other`` (SEM D11)."""
        same = self.strict or (self.lanes and lane_of(event_id) == lane_of(other))
        return same and event_id > other

    def has_to_wait(self, event_id: int) -> bool:
        """Whether the event has to wait (SEM D18): for its own delay, or for that of an event
        before it."""
        late = self.waits.keys() - self.parked
        if self.lanes:
            return any(one <= event_id and lane_of(one) == lane_of(event_id) for one in late)
        if self.kind in IN_ORDER:
            return any(one <= event_id for one in late)
        return event_id in late

    def wants(self, event_id: int, kept: Kept) -> bool:
        return event_id >= self.start and (kept.even or not self.selector)


@dataclass
class Reader:
    """A plain subscription."""

    cursor: int
    credit: int
    stop: int | None = None
    got: list[int] = field(default_factory=list)


class ChannelModel:
    def __init__(self, definition: Definition) -> None:
        self.type = definition.type
        self.ttl_ms = definition.ttl
        self.capacity = definition.capacity
        self.retain = definition.retain_consumed or definition.engine == "merge"
        self.depth = max(definition.keys.values(), default=0)
        """Depth of the publish key; 0: no key."""
        self.moves_dead = bool(definition.dead_event_store)
        self.start = self.issued = definition.start_event_id
        """``issued``: every lower id may have been given to an event."""
        self.stored: dict[int, Kept] = {}
        self.durables: dict[str, Ledger] = {}
        self.seats: dict[int, Seat] = {}
        self.readers: dict[int, Reader] = {}
        self.passing: dict[int, Kept] = {}
        """Events relayed in this step."""
        self.leaving: dict[int, Kept] = {}
        """Events that were published and evicted in this step: they are only delivered to connected
        subscribers."""
        self.published_from = self.start
        """First id of the newest publish."""
        self.merges = definition.engine == "merge"
        self.fates: dict[int, tuple[Cause, bool]] = {}
        """Why each removed event left, and whether it went to the dead event store."""
        self.acked: set[int] = set()
        self.acked_lasting: set[int] = set()
        self.gone = Counters()
        self.redelivered = 0
        self.recalls: dict[int, set[int]] = {}
        """Recalls to be sent now, by subscription."""

    # --- what happens --------------------------------------------------------------------

    def appended(self, first: int, kept: list[Kept]) -> None:
        assert first >= self.issued, "an id was given twice"
        self.published_from = first
        for event_id, one in enumerate(kept, first):
            if one.relayed:
                self.passing[event_id] = one
                self.gone.relayed += 1
                self.fates[event_id] = (Cause.RELAYED, False)
                continue
            self.stored[event_id] = one
            for ledger in self.durables.values():
                if ledger.wants(event_id, one):
                    ledger.due.add(event_id)
        self.issued = first + len(kept)
        self.gone.published += len(kept)

    def superseded(self, first: int, kept: list[Kept]) -> set[int]:
        """Return all stored events of each key value except the newest ones (SEM K1)."""
        after = dict(self.stored)
        after.update({i: one for i, one in enumerate(kept, first) if not one.relayed})
        superseded: set[int] = set()
        for value in (0, 1):
            holders = sorted(i for i, one in after.items() if one.key == value)
            if self.depth:
                superseded.update(holders[: -self.depth])
        return superseded

    def evict(self) -> None:
        excess = len(self.stored) - self.capacity if self.capacity else 0
        for event_id in sorted(self.stored)[: max(excess, 0)]:
            if event_id >= self.published_from and not self.merges:
                self.leaving[event_id] = self.stored[event_id]
            self.drop(event_id, Cause.EVICTED)

    def drop(self, event_id: int, cause: Cause) -> None:
        dead = cause in (Cause.UNDELIVERABLE, Cause.REJECTED) or (
            cause in (Cause.EXPIRED, Cause.EVICTED) and self.is_unconsumed(event_id, cause)
        )
        del self.stored[event_id]
        self.fates[event_id] = (cause, dead)
        counter = "dead" if dead else cause.value
        setattr(self.gone, counter, getattr(self.gone, counter) + 1)
        for ledger in self.durables.values():
            self._settled(ledger, event_id)
        self._out_of_hands(event_id, None)
        self.acked.discard(event_id)
        self.acked_lasting.discard(event_id)

    def is_unconsumed(self, event_id: int, cause: Cause) -> bool:
        """Whether the event counts as unconsumed (SEM T6), if there is a dead event store."""
        owed = [event_id in ledger.due for ledger in self.durables.values()]
        return self.moves_dead and (any(owed) or not owed)

    def expire(self, now_us: int) -> None:
        for ledger in self.durables.values():
            ledger.waits = {i: until for i, until in ledger.waits.items() if until > now_us}
        for event_id, kept in sorted(self.stored.items()):
            ttl_ms = kept.ttl_ms or self.ttl_ms
            if ttl_ms and now_us - kept.at_us >= ttl_ms * 1_000:
                self.drop(event_id, Cause.EXPIRED)

    def time_out(self, now_us: int) -> None:
        """Apply acknowledgement timeouts (SEM D19)."""
        for subscription, seat in list(self.seats.items()):
            late = {i for i in seat.held if seat.until.get(i, now_us + 1) <= now_us}
            if not late or seat.sole:
                continue
            self.roll_back(seat, late, now_us=now_us)
            back = late & self.durables[seat.durable].due  # its client is not told of dead events
            if subscription in self.recalls:
                seat.recalls[-1] |= back
                self.recalls[subscription] = set(seat.recalls[-1])
            elif back:
                seat.recalls.append(back)
                self.recalls[subscription] = set(back)

    def consume(self) -> None:
        """Remove consumed events (SEM D6)."""
        if self.retain or not self.durables:
            return
        behind = [reader.cursor for reader in self.readers.values() if reader.stop is None]
        for event_id in sorted(self.acked):
            wanted = any(event_id in ledger.due for ledger in self.durables.values())
            unread = any(cursor <= event_id for cursor in behind)
            if not wanted and not unread:
                self.drop(event_id, Cause.CONSUMED)

    def ack(self, seat: Seat, ids: set[int]) -> None:
        ledger = self.durables[seat.durable]
        if ledger.is_cumulative and ids:
            aside = ledger.rolled_back - seat.held
            if seat.sole:  # it holds the whole durable, except for what it has given back
                aside &= ledger.parked
            ids = {i for i in ledger.due | seat.held if i <= max(ids)} - aside
        for event_id in ids:
            self._done(ledger, event_id, seat.durable)

    def take_off(self, durable: str, ids: set[int]) -> None:
        for event_id in ids:
            self._done(self.durables[durable], event_id, durable)

    def roll_back(
        self,
        seat: Seat,
        ids: set[int],
        *,
        detached: bool = False,
        delay_ms: int | None = None,
        now_us: int = 0,
    ) -> None:
        ledger = self.durables[seat.durable]
        seat.held -= ids
        ids = ids & ledger.due  # relayed events are not returned
        if ledger.is_cumulative:
            if not detached:
                ledger.parked |= ids
                ledger.rolled_back |= ids
                if delay_ms:
                    ledger.waits |= dict.fromkeys(ids, now_us + delay_ms * 1_000)
            return
        back = set()
        for event_id in sorted(ids):
            count = ledger.counts.get(event_id, 0) + 1
            if self.moves_dead and 0 < ledger.limit <= count:
                self.bury(event_id, seat.durable)
            else:
                self.redelivered += 1
                ledger.counts[event_id] = count
                back.add(event_id)
                wait_us = (delay_ms or 0) * 1_000
                if delay_ms is None and ledger.backoff is not None and not detached:
                    wait_us = ledger.backoff.wait_us(count, event_id)
                if wait_us:
                    ledger.waits[event_id] = now_us + wait_us
        self.recall(seat.durable, back)

    def skip(self, seat: Seat, ids: set[int]) -> None:
        """Settle events that do not match a subscription's own selector: they count as not
        delivered to it."""
        ledger = self.durables[seat.durable]
        seat.held -= ids
        if ledger.is_cumulative:
            ledger.parked |= ids & ledger.due

    def recall(self, durable: str, back: set[int]) -> None:
        """Recall all events after a rolled-back one, with lanes those of the same lane (SEM
        D11)."""
        ledger = self.durables[durable]
        for subscription, seat in self.seats.items():
            if seat.durable != durable:
                continue
            held = seat.held & ledger.due
            later = {i for i in held if any(ledger.follows(i, one) for one in back)}
            if later:
                seat.held -= later
                seat.recalls.append(later)
                self.recalls[subscription] = later

    def sought(self, durable: str, start: int, after: set[int]) -> None:
        """Set a durable to a new position, with ``after`` as outstanding events (SEM D20)."""
        ledger = self.durables[durable]
        for subscription, seat in self.seats_of(durable).items():
            if seat.held:
                seat.recalls.append(set(seat.held))
                seat.sought |= seat.held
                self.recalls[subscription] = set(seat.held)
            seat.held, seat.was_served = set(), False
        for event_id in ledger.due - after:
            self._done(ledger, event_id, durable)
        ledger.due, ledger.start = set(after), start
        ledger.counts, ledger.waits = {}, {}
        ledger.parked, ledger.rolled_back = set(), set()

    def outstanding_from(self, ledger: Ledger, start: int) -> set[int]:
        return {
            event_id
            for event_id, kept in self.stored.items()
            if event_id >= start and (kept.even or not ledger.selector)
        }

    def attached(self, subscription: int, seat: Seat) -> None:
        ledger = self.durables[seat.durable]
        if not self.seats_of(seat.durable):
            ledger.parked.clear()
        self.seats[subscription] = seat
        served_last = ledger.turn and self.seats[ledger.turn[-1]].was_served
        ledger.turn.insert(len(ledger.turn) - bool(served_last), subscription)
        ledger.knows_turn &= not seat.selective

    def detached(self, subscription: int) -> None:
        """Remove a subscription (SEM D13)."""
        seat = self.seats.pop(subscription)
        ledger = self.durables[seat.durable]
        ledger.turn.remove(subscription)
        self.roll_back(seat, set(seat.held), detached=True)
        if seat.was_served:  # the next client gets what it rolled back
            ledger.parked.clear()

    def bury(self, event_id: int, durable: str, cause: Cause = Cause.UNDELIVERABLE) -> None:
        """Move an event to the dead event store (SEM T10)."""
        others = [one for name, one in self.durables.items() if name != durable]
        if self.retain or any(event_id in one.due for one in others):
            self._done(self.durables[durable], event_id, durable)
        else:
            self.drop(event_id, cause)

    def gone_by(self) -> None:
        """Forget the events that passed in this step."""
        self.passing, self.leaving = {}, {}
        self.published_from = 1 << 60

    def restart(self, *, counted: bool) -> None:
        """Apply a restart, which ends all sessions and loses what was in memory. ``counted``: the
        counters in the snapshot."""
        self.seats, self.readers = {}, {}
        lost = {event_id for event_id, kept in self.stored.items() if kept.volatile}
        self.acked = set(self.acked if counted else self.acked_lasting) - lost
        self.acked_lasting = set(self.acked)
        for event_id in lost:
            del self.stored[event_id]
        self.durables = {
            name: one for name, one in self.durables.items() if one.persistent or not name
        }
        for ledger in self.durables.values():
            ledger.due -= lost
            ledger.rolled_back -= lost
            ledger.parked.clear()
            ledger.turn, ledger.knows_turn = [], True
            ledger.counts = {i: n for i, n in ledger.counts.items() if i not in lost}
            ledger.waits = {i: us for i, us in ledger.waits.items() if i not in lost}
        if self.type in FORGETTING:
            self.issued = self.start
            self.fates = {}
            for ledger in self.durables.values():
                ledger.start = self.start

    # --- questions -----------------------------------------------------------------------

    def seats_of(self, durable: str) -> dict[int, Seat]:
        return {n: seat for n, seat in self.seats.items() if seat.durable == durable}

    def in_hands(self, durable: str) -> set[int]:
        held = [seat.held for seat in self.seats.values() if seat.durable == durable]
        return set().union(*held)

    def may_be_served(self, durable: str) -> list[int]:
        """Return the subscriptions that may get the next event, in order (SEM D, second row of the
        table)."""
        ledger, seats = self.durables[durable], self.seats_of(durable)
        holders = [n for n, seat in seats.items() if seat.held]
        match ledger.kind:
            case "priority":
                allowed = [min(seats)] if seats else []
            case "serial" if ledger.lanes:
                allowed = ledger.turn
            case "serial":
                assert len(holders) <= 1, "two at a time"
                allowed = holders or ledger.turn
            case "shared_queued":
                allowed = [] if holders and len(seats) > 1 else ledger.turn
            case _:
                allowed = ledger.turn
        return [n for n in allowed if seats[n].credit > 0]

    def ready(self, durable: str) -> list[int]:
        ledger = self.durables[durable]
        due = set(ledger.due)
        if ledger.kind in WITH_TRANSIENT or self.type == "transient":
            due |= {i for i, one in self.passing.items() if ledger.wants(i, one)}
        due |= {i for i, one in self.leaving.items() if ledger.wants(i, one)}
        ready = due - self.in_hands(durable) - ledger.parked
        return sorted(event_id for event_id in ready if not ledger.has_to_wait(event_id))

    def ready_for(self, seat: Seat) -> list[int]:
        """Return the events that ``seat`` could be given with unlimited credit."""
        ready = self.ready(seat.durable)
        if self.durables[seat.durable].lanes:
            others = self.in_hands(seat.durable) - seat.held
            busy_lanes = {lane_of(event_id) for event_id in others}
            return [event_id for event_id in ready if lane_of(event_id) not in busy_lanes]
        if not seat.selective:
            return ready
        events = {**self.stored, **self.passing, **self.leaving}
        return [event_id for event_id in ready if events[event_id].even]

    # --- inside --------------------------------------------------------------------------

    def _done(self, ledger: Ledger, event_id: int, durable: str) -> None:
        self._settled(ledger, event_id)
        self._out_of_hands(event_id, durable)
        if event_id in self.stored:
            self.acked.add(event_id)
            if ledger.persistent:
                self.acked_lasting.add(event_id)

    def _settled(self, ledger: Ledger, event_id: int) -> None:
        ledger.due.discard(event_id)
        ledger.parked.discard(event_id)
        ledger.rolled_back.discard(event_id)
        ledger.counts.pop(event_id, None)
        ledger.waits.pop(event_id, None)

    def _out_of_hands(self, event_id: int, durable: str | None) -> None:
        for seat in self.seats.values():
            if durable is None or seat.durable == durable:
                seat.held.discard(event_id)
