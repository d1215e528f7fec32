"""The leases that clients have, of one channel or over a pattern: how many there may be, what they
hold, and how they end (SEM H).

Each has a seat at each durable that it has events of, with an acknowledgement timeout of its own,
so the core says who gets what, what goes back when, and who may settle. A lease belongs to a user
and not to a connection. It is kept in memory only: a restart takes everything out of all hands.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from penstock_core.api.consuming import Settled
from penstock_core.durable.durable import Durable
from penstock_core.ids.ids import IdSet
from penstock_core.messages.delivery import SetDemand
from penstock_core.messages.settlements import Release
from penstock_core.vocabulary.errors import (
    LeaseEnded,
    LimitReached,
    PenstockError,
    RealmStopping,
)
from penstock_core.vocabulary.ports import Clock
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.subscriptions.lease import EventLease, without
from penstock_server.runtime.subscriptions.subscriptions import Opened, Subscriptions
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.requests import RunAction
from penstock_server.runtime.writer.shard import Shard

SEAT_S: Final = 1.0
"""Seconds between two looks whether a seat is free that somebody else has without a lease."""
GRACE_S: Final = 0.25
"""Seconds to wait for events that are stored already."""
SOON_S: Final = 0.001
"""Less than this is not waited for: a clock may not show that it has passed."""
ENDED_MAX: Final = 10_000
"""Leases that are over and remembered, so that a repeated request is answered as the first one."""
OVERTIME_US: Final = 2_000_000
"""A lease with something that no deadline takes back (transient events) ends so much later."""


class LeaseLimits(Struct, frozen=True):
    """How much may be in the hands of clients that fetch under leases."""

    leases_max: int = 1_000
    leases_per_user_max: int = 100
    events_max: int = 1_000_000
    events_per_user_max: int = 100_000


class Terms(Protocol):
    """What a client asked for."""

    @property
    def owner(self) -> str: ...

    @property
    def count(self) -> int: ...


class FetchLease(Protocol):
    """A batch of events that a client has for a time."""

    name: str
    is_answered: bool

    @property
    def terms(self) -> Terms: ...

    @property
    def parts(self) -> Sequence[EventLease]: ...

    def fail(self, reason: PenstockError) -> None: ...


class LeaseBook:
    """Which leases there are."""

    def __init__(
        self, shard: Shard, subscriptions: Subscriptions, clock: Clock, limits: LeaseLimits
    ) -> None:
        self.shard = shard
        self.clock = clock
        self.subscriptions = subscriptions
        self._limits = limits
        self._open: dict[str, FetchLease] = {}
        self._over: OrderedDict[str, FetchLease] = OrderedDict()
        self._checks: dict[str, Callable[[], None]] = {}
        self.freed = asyncio.Event()
        """Set, and replaced, whenever a lease has ended: its seat is free."""
        self.waiting: dict[asyncio.Event, None] = {}
        """Set whenever a lease has ended, too, in the order in which they came."""
        self._stopping: PenstockError | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def events(self) -> int:
        """How many events are under leases."""
        return sum(map(self.count, self._open.values()))

    # --- which there are -----------------------------------------------------------------

    def refuse(self, terms: Terms) -> None:
        """Raises ``LimitReached`` for a lease too many, or one of too many events, and
        ``RealmStopping``. Users are told apart only where the realm knows them."""
        if self._stopping is not None:
            raise self._stopping
        limits, owner = self._limits, terms.owner
        leases: Counter[bool] = Counter()
        events: Counter[bool] = Counter()
        for each in self._open.values():
            is_own = each.terms.owner == owner
            leases[is_own] += 1
            events[is_own] += self.count(each) if each.is_answered else each.terms.count
        for held, most, what, setting in (
            (leases.total() + 1, limits.leases_max, "leases", "http.leases_max"),
            (events.total() + terms.count, limits.events_max, *_EVENTS),
        ):
            if held > most:
                raise LimitReached(_too_much("this realm", held, most, what=what, setting=setting))
        for held, most, what, setting in (
            (leases[True] + 1, limits.leases_per_user_max, "leases", "http.leases_per_user_max"),
            (events[True] + terms.count, limits.events_per_user_max, *_EVENTS_OF_ONE),
        ):
            if owner and held > most:
                raise LimitReached(_too_much(owner, held, most, what=what, setting=setting))

    def enter(self, lease: FetchLease, check: Callable[[], None]) -> None:
        """``check`` is asked when rights change: it raises when the client may not have the lease
        any more."""
        self._open[lease.name] = lease
        self._checks[lease.name] = check

    def named(self, name: str, owner: str) -> FetchLease | None:
        """The lease of this name that the client was told of, if it is its own; also one that is
        over."""
        lease = self._open.get(name) or self._over.get(name)
        if lease is None or lease.terms.owner != owner or not lease.is_answered:
            return None
        return lease

    def count(self, lease: FetchLease) -> int:
        """How many events it holds."""
        return sum([len(held_by(self.shard.state, each)) for each in lease.parts])

    # --- seats ---------------------------------------------------------------------------

    async def take_seat(self, part: EventLease) -> None:
        """Raises ``DurableInUse`` while somebody else has it, and ``NameDoesNotExist``."""
        terms = part.terms
        opened: Opened = await self.subscriptions.attach(
            terms.channel,
            terms.durable,
            part,
            window=None,
            pull=True,
            ack_timeout_ms=terms.lease_ms,
            leased=True,
        )
        part.subscription = opened.number
        part.lease_ms = opened.ack_timeout_ms

    def leave_seat(self, part: EventLease) -> None:
        """The seat is free; what it held goes back (SEM D13)."""
        if part.subscription:
            self.subscriptions.detach(part.subscription)

    def held(self, group: Group, part: EventLease, wanted: IdSet) -> IdSet:
        """What the seat of a lease holds. Raises ``LeaseEnded`` where some of what is ``wanted``
        has gone back; what was purged or has expired is no error (SEM D15)."""
        channel = part.terms.channel
        group.sweep(channel)
        seat = group.channel(channel).state.seats.get(part.subscription)
        missing = wanted if seat is None else without(wanted, seat[1].in_flight)
        if seat is None:
            part.refuse_late(missing)
            raise LeaseEnded(f"lease {part.name} has ended, and holds nothing")
        late = part.late(missing, group.now_us)
        late.add_all(missing.overlap(part.lost))
        part.refuse_late(late)
        held: IdSet = seat[1].in_flight
        return held

    async def act(
        self, lease: FetchLease, action: Callable[[Group], Settled], *, room: int = 0
    ) -> Settled:
        """Settle something. A lease that holds nothing then has ended."""
        sweeps = [each.terms.channel for each in lease.parts]
        try:
            told: Settled = await self.shard.act(action, sweeps=sweeps, room=room)
        finally:
            self.end_if_empty(lease)
        return told

    # --- ends ----------------------------------------------------------------------------

    def give_back(self, name: str) -> None:
        """End a lease whose client was never told of it: what it holds goes back untried."""
        lease = self._open.get(name)
        if lease is None:
            return
        lease.is_answered = False
        for part in lease.parts:
            self._release(part)
        self.end(lease)

    def give_back_part(self, part: EventLease) -> None:
        """Leave a seat; what it holds goes back untried."""
        self._release(part)
        self.leave_seat(part)

    def _release(self, part: EventLease) -> None:
        if not part.subscription:
            return
        channel, subscription = part.terms.channel, part.subscription

        def release(group: Group) -> None:
            seat = group.channel(channel).state.seats.get(subscription)
            if seat is not None and (held := seat[1].in_flight):
                group.do(channel, Release(subscription, held.spans))

        self.shard.submit(RunAction(release, sweeps=(channel,)))

    def expire(self) -> None:
        """End leases that hold nothing any more, or what no deadline takes back; called
        regularly."""
        now_us = self.clock.now_us()
        for lease in list(self._open.values()):
            if not lease.is_answered:
                continue
            over_us = max(
                [
                    each.until_us(each.ids) + each.lease_ms * 10 + OVERTIME_US
                    for each in lease.parts
                ],
                default=0,
            )
            if now_us > over_us or not self.count(lease):
                self.end(lease)

    def check_rights(self) -> None:
        """End the leases whose clients may not have them any more."""
        for name, check in list(self._checks.items()):
            try:
                check()
            except PenstockError as reason:
                if (lease := self._open.get(name)) is not None:
                    lease.fail(reason)
                    if lease.is_answered:
                        self.end(lease)

    def stop(self, reason: RealmStopping) -> None:
        """Answer all that still wait: the realm is shutting down."""
        self._stopping = reason
        for lease in self._open.values():
            if not lease.is_answered:
                lease.fail(reason)
        self._wake()

    def end_if_empty(self, lease: FetchLease) -> None:
        """End a lease whose client has nothing of it any more."""
        if lease.is_answered and lease.name in self._open and not self.count(lease):
            self.end(lease)

    def end(self, lease: FetchLease) -> None:
        """Its seats are free; what it held has gone back, or goes back now (SEM D13)."""
        if self._open.pop(lease.name, None) is None:
            return
        self._checks.pop(lease.name, None)
        for part in lease.parts:
            self.leave_seat(part)
        if lease.is_answered:
            self._over[lease.name] = lease
            if len(self._over) > ENDED_MAX:
                self._over.popitem(last=False)
        self._wake()

    def _wake(self) -> None:
        freed, self.freed = self.freed, asyncio.Event()
        freed.set()
        for each in self.waiting:
            each.set()


def held_by(state: RealmState, part: EventLease) -> IdSet:
    """What a seat holds now."""
    channel = state.channels.get(part.terms.channel)
    seat = None if channel is None else channel.state.seats.get(part.subscription)
    return IdSet() if seat is None else seat[1].in_flight


def seal(group: Group, part: EventLease, most: int) -> None:
    """A lease gets nothing more from this seat; what is too much for an answer goes back, and so
    does what is more than ``most`` events, from the last on."""
    channel, subscription = part.terms.channel, part.subscription
    state = group.channel(channel).state
    if subscription not in state.seats:
        return
    _, seat = state.seats[subscription]
    group.do(channel, SetDemand(subscription, 0, at_once=True))
    surplus = part.surplus(seat.in_flight)
    surplus.add_all(_behind(without(seat.in_flight, surplus), most))
    if surplus:
        group.do(channel, Release(subscription, surplus.spans))
    part.seal(seat.in_flight.copy())


def _behind(ids: IdSet, most: int) -> IdSet:
    """What is left of ``ids`` without the first ``most`` of them."""
    while most > 0 and (span := ids.take(most)) is not None:
        most -= span.size
    return ids


def free_for(group: Group, part: EventLease) -> int:
    """How many events may come to a lease now: what is not in hands, and waits for no time."""
    state = group.channel(part.terms.channel).state
    held = state.seats.get(part.subscription)
    return 0 if held is None else free_of(held[0], state.stored)


def free_of(durable: Durable, stored: IdSet) -> int:
    """How many events of a durable are in nobody's hands, and wait for no time."""
    waiting = len(durable.waiting.ids) if durable.waiting else 0
    free: int = durable.outstanding_count(stored) - durable.in_flight_count - waiting
    return max(0, free)


def blocked(group: Group, part: EventLease) -> str:
    """Why a client gets nothing at a type that serves one at a time; empty: it may get something,
    or has no seat."""
    state = group.channel(part.terms.channel).state
    held = state.seats.get(part.subscription)
    if held is None:
        return ""
    durable = held[0]
    first = min(durable.seats, key=lambda each: each.rank)
    if not durable.kind.cumulative:
        holders = [each for each in durable.seats if each.in_flight]
        serves_one = durable.kind.orders_strictly and durable.lanes is None
        if not (holders and serves_one):
            return ""
        first = holders[0]
    if first.subscription == part.subscription:
        return ""
    where = f" of {part.of_channel}" if part.of_channel else ""
    return (
        f"durable {durable.name}{where} is {durable.kind.name} and serves one client at a time, "
        f"which is {first.session} now: wait longer (wait_ms), or try again"
    )


def unknown(name: str) -> LeaseEnded:
    """The error for a lease whose name the realm does not know."""
    return LeaseEnded(
        f"there is no lease {name[:40]} here: it has ended, or the realm was restarted; what was "
        "not settled comes again"
    )


_EVENTS: Final = ("events under leases", "http.leased_events_max")
_EVENTS_OF_ONE: Final = ("events under leases", "http.leased_events_per_user_max")


def _too_much(who: str, held: int, most: int, what: str, setting: str) -> str:
    return (
        f"{who} would have {held} {what}, and {most} may be ({setting}); settle what is fetched, "
        "fetch less at once, or wait until leases end"
    )
