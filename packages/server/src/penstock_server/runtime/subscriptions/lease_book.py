"""The leases of all clients: their limits, their seats and their ends (SEM H).

A lease has a seat at each durable of its events, with the lease time as the seat's acknowledgement
timeout. So the core decides which client gets an event, when it goes back, and which client may
settle it. A lease belongs to a user and not to a connection. It is in memory only: a restart ends
it, and its events are delivered again.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

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
from penstock_server.runtime.subscriptions.lease import EventLease, LeasePart, LeaseTerms, without
from penstock_server.runtime.subscriptions.subscriptions import OpenedSubscription, Subscriptions
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.requests import RunAction
from penstock_server.runtime.writer.shard import Shard

SEAT_S: Final = 1.0
"""Seconds between two attempts to take a seat that belongs to a plain subscription. The end of such
a subscription does not wake the waiting fetches, so they poll."""
GRACE_S: Final = 0.25
"""Longest time in seconds to wait for the delivery of events that are stored already."""
SOON_S: Final = 0.001
"""A fetch waits only if at least this many seconds remain, because a clock may be too coarse to
show that a shorter time has passed."""
ENDED_MAX: Final = 10_000
"""Number of ended leases that are remembered, so that a repeated request gets the first answer
again."""
ENDED_SIZE_MAX: Final = 200_000
"""Limit on the memory of the ended leases: the number of their channels, plus the ranges or bitmaps
of ids of their events."""
WATCHED_MAX: Final = 1_000
"""Largest number of channels at which a fetch waits with a seat. It polls further channels every
``SEAT_S`` seconds."""
OVERTIME_US: Final = 2_000_000
"""Microseconds, in addition to 1% of the lease's time, after which an overdue lease ends. Its
events are transient ones, which have no deadline."""


class LeaseLimits(Struct, frozen=True):
    """Limits on the events and leases of clients that fetch under leases."""

    leases_max: int = 1_000
    leases_per_user_max: int = 100
    events_max: int = 1_000_000
    events_per_user_max: int = 100_000
    ended_size_max: int = ENDED_SIZE_MAX
    watched_max: int = WATCHED_MAX


class LeaseBook:
    """The open leases, and the recently ended ones."""

    def __init__(
        self, shard: Shard, subscriptions: Subscriptions, clock: Clock, limits: LeaseLimits
    ) -> None:
        self.shard = shard
        self.clock = clock
        self.subscriptions = subscriptions
        self.limits = limits
        self._open: dict[str, EventLease] = {}
        self._ended: OrderedDict[str, tuple[EventLease, int]] = OrderedDict()
        """Ended leases by name, each with its size when it ended."""
        self._ended_size = 0
        """Sum of the sizes of the ended leases."""
        self._checks: dict[str, Callable[[], None]] = {}
        """Checks of rights, by the name of the lease; see :meth:`enter`."""
        self.freed = asyncio.Event()
        """Set and replaced whenever a lease has ended, because its seat is free after that."""
        self.waiting: dict[asyncio.Event, None] = {}
        """Further asyncio events that are set whenever a lease has ended, in the order of
        registration."""
        self._stopping: PenstockError | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def events(self) -> int:
        """Number of events under leases."""
        return sum(map(self.count, self._open.values()))

    # --- limits and names ----------------------------------------------------------------

    def refuse(self, terms: LeaseTerms) -> None:
        """Raise ``LimitReached`` if a lease on these terms would exceed a limit of leases or
        events, and ``RealmStopping`` while the realm stops. Limits per user apply only if the realm
        authenticates users."""
        if self._stopping is not None:
            raise self._stopping
        limits, owner = self.limits, terms.owner
        leases: Counter[bool] = Counter()
        events: Counter[bool] = Counter()
        for lease in self._open.values():
            is_own = lease.terms.owner == owner
            leases[is_own] += 1
            # A waiting fetch counts with all events that it may get, so that its answer cannot
            # exceed the limits.
            events[is_own] += self.count(lease) if lease.is_answered else lease.terms.count
        for count, limit, unit, setting in (
            (leases.total() + 1, limits.leases_max, "leases", "http.leases_max"),
            (events.total() + terms.count, limits.events_max, *_EVENTS),
        ):
            if count > limit:
                raise LimitReached(
                    _too_many("this realm", count, limit, unit=unit, setting=setting)
                )
        for count, limit, unit, setting in (
            (leases[True] + 1, limits.leases_per_user_max, "leases", "http.leases_per_user_max"),
            (events[True] + terms.count, limits.events_per_user_max, *_EVENTS_OF_ONE),
        ):
            if owner and count > limit:
                raise LimitReached(_too_many(owner, count, limit, unit=unit, setting=setting))

    def enter(self, lease: EventLease, check: Callable[[], None]) -> None:
        """Open a lease. ``check`` is called when rights change, and raises an error if the client
        has lost the right to the lease."""
        self._open[lease.name] = lease
        self._checks[lease.name] = check

    def named(self, name: str, owner: str) -> EventLease | None:
        """Return the open or recently ended lease of this name, if its fetch was answered and it
        belongs to ``owner``; otherwise None."""
        lease = self._open.get(name) or self._ended.get(name, (None, 0))[0]
        if lease is None or lease.terms.owner != owner or not lease.is_answered:
            return None
        return lease

    def count(self, lease: EventLease) -> int:
        """Return the number of events in flight under a lease."""
        return sum([len(held_by(self.shard.state, part)) for part in lease.parts])

    # --- seats ---------------------------------------------------------------------------

    async def take_seat(self, part: LeasePart) -> None:
        """Take a seat at the durable for a part. Raises ``DurableInUse`` while another client has
        the only seat, and ``NameDoesNotExist``."""
        opened: OpenedSubscription = await self.subscriptions.attach(
            part.channel,
            part.durable,
            part,
            window=None,
            pull=True,
            ack_timeout_ms=part.lease_ms,
            leased=True,
        )
        part.subscription = opened.number
        part.lease_ms = opened.ack_timeout_ms

    def leave_seat(self, part: LeasePart) -> None:
        """Free the seat of a part; its events go back (SEM D13)."""
        if part.subscription:
            self.subscriptions.detach(part.subscription)

    def held(self, group: Group, part: LeasePart, required_ids: IdSet) -> IdSet:
        """Return the ids of the events in flight at the seat of a part. Raises ``LeaseEnded`` if
        some of ``required_ids`` have gone back; purged or expired events raise no error (SEM
        D15)."""
        channel = part.channel
        group.sweep(channel)
        seat = group.channel(channel).state.seats.get(part.subscription)
        missing = required_ids if seat is None else without(required_ids, seat[1].in_flight)
        if seat is None:
            part.refuse_late(missing)
            raise LeaseEnded(f"lease {part.lease_name} has ended; fetch again for another lease")
        late = part.late(missing, group.now_us)
        late.add_all(missing.overlap(part.lost))
        part.refuse_late(late)
        seat_ids: IdSet = seat[1].in_flight
        return seat_ids

    async def act(
        self, lease: EventLease, action: Callable[[Group], Settled], *, room: int = 0
    ) -> Settled:
        """Run an action that settles events, and end the lease if it has no events after that."""
        sweeps = [part.channel for part in lease.parts]
        try:
            settled: Settled = await self.shard.act(action, sweeps=sweeps, room=room)
        finally:
            self.end_if_empty(lease)
        return settled

    # --- ends ----------------------------------------------------------------------------

    def give_back(self, name: str) -> None:
        """End a lease whose client has no answer yet; its events go back without counting as
        delivered."""
        lease = self._open.get(name)
        if lease is None:
            return
        # So that `end` does not remember the lease, whose name the client never got.
        lease.is_answered = False
        for part in lease.parts:
            self._release(part)
        self.end(lease)

    def give_back_part(self, part: LeasePart) -> None:
        """Free the seat of a part; its events go back without counting as delivered."""
        self._release(part)
        self.leave_seat(part)

    def _release(self, part: LeasePart) -> None:
        """Return the events of a part to the durable, without counting them as delivered."""
        if not part.subscription:
            return
        channel, subscription = part.channel, part.subscription

        def release(group: Group) -> None:
            seat = group.channel(channel).state.seats.get(subscription)
            if seat is not None and (in_flight := seat[1].in_flight):
                group.do(channel, Release(subscription, in_flight.spans))

        self.shard.submit(RunAction(release, sweeps=(channel,)))

    def expire(self) -> None:
        """End leases that are empty, and overdue leases whose events have no deadline. Called
        regularly."""
        now_us = self.clock.now_us()
        for lease in list(self._open.values()):
            if not lease.is_answered:
                continue  # the fetch ends its own lease
            ends_us = max(
                [
                    part.until_us(part.ids) + part.lease_ms * 10 + OVERTIME_US
                    for part in lease.parts
                ],
                default=0,
            )
            if now_us > ends_us or not self.count(lease):
                self.end(lease)

    def check_rights(self) -> None:
        """End the leases of clients that have lost the right to them."""
        # This is a copy, because ending a lease removes its check.
        for name, check in list(self._checks.items()):
            try:
                check()
            except PenstockError as reason:
                if (lease := self._open.get(name)) is not None:
                    lease.fail(reason)
                    if lease.is_answered:
                        self.end(lease)

    def stop(self, reason: RealmStopping) -> None:
        """Answer the waiting fetches with ``reason``, and refuse later ones."""
        self._stopping = reason
        for lease in self._open.values():
            if not lease.is_answered:
                lease.fail(reason)
        self._wake()

    def end_if_empty(self, lease: EventLease) -> None:
        """End an answered lease without events in flight."""
        if lease.is_answered and lease.name in self._open and not self.count(lease):
            self.end(lease)

    def end(self, lease: EventLease) -> None:
        """End a lease and free its seats; events still in flight go back (SEM D13)."""
        if self._open.pop(lease.name, None) is None:
            return
        self._checks.pop(lease.name, None)
        for part in lease.parts:
            self.leave_seat(part)
        if lease.is_answered:
            size = lease.size
            self._ended[lease.name] = lease, size
            self._ended_size += size
            while len(self._ended) > ENDED_MAX or self._ended_size > self.limits.ended_size_max:
                _, (_, forgotten_size) = self._ended.popitem(last=False)
                self._ended_size -= forgotten_size
        self._wake()

    def _wake(self) -> None:
        """Wake all fetches that wait for a lease to end."""
        freed, self.freed = self.freed, asyncio.Event()
        freed.set()
        for changed in self.waiting:
            changed.set()


def held_by(state: RealmState, part: LeasePart) -> IdSet:
    """Return the ids of the events in flight at the seat of a part now."""
    channel = state.channels.get(part.channel)
    seat = None if channel is None else channel.state.seats.get(part.subscription)
    return IdSet() if seat is None else seat[1].in_flight


def seal(group: Group, part: LeasePart, count_max: int) -> None:
    """Stop the deliveries to a part, and fix its events. Events that exceed the answer's size, and
    events after the first ``count_max``, go back."""
    channel, subscription = part.channel, part.subscription
    state = group.channel(channel).state
    if subscription not in state.seats:
        return
    _, seat = state.seats[subscription]
    # The demand ends first, or the released events would be delivered to this seat again.
    group.do(channel, SetDemand(subscription, 0, at_once=True))
    surplus = part.surplus(seat.in_flight)
    surplus.add_all(_after_first(without(seat.in_flight, surplus), count_max))
    if surplus:
        group.do(channel, Release(subscription, surplus.spans))
    part.seal(seat.in_flight.copy())


def _after_first(ids: IdSet, count: int) -> IdSet:
    """Remove the first ``count`` ids and return the remaining ones."""
    while count > 0 and (span := ids.take(count)) is not None:
        count -= span.size
    return ids


def free_for(group: Group, part: LeasePart) -> int:
    """Return the number of events that could be delivered to a part now, because they are neither
    in flight nor delayed."""
    state = group.channel(part.channel).state
    seat = state.seats.get(part.subscription)
    return 0 if seat is None else free_of(seat[0], state.stored)


def free_of(durable: Durable, stored: IdSet) -> int:
    """Return the number of a durable's events that are neither in flight nor delayed."""
    waiting = len(durable.waiting.ids) if durable.waiting else 0
    free: int = durable.outstanding_count(stored) - durable.in_flight_count - waiting
    return max(0, free)


def blocked(group: Group, part: LeasePart) -> str:
    """Return the reason why a client gets no events from a durable that serves one client at a
    time. Empty if the client may get events, or has no seat."""
    state = group.channel(part.channel).state
    durable_and_seat = state.seats.get(part.subscription)
    if durable_and_seat is None:
        return ""
    durable = durable_and_seat[0]
    first = min(durable.seats, key=lambda seat: seat.rank)
    if not durable.kind.cumulative:
        holders = [seat for seat in durable.seats if seat.in_flight]
        serves_one = durable.kind.orders_strictly and durable.lanes is None
        if not (holders and serves_one):
            return ""
        first = holders[0]
    if first.subscription == part.subscription:
        return ""
    origin = f" of {part.channel_name}" if part.channel_name else ""
    return (
        f"durable {durable.name}{origin} is {durable.kind.name} and serves one client at a time, "
        f"which is {first.session} now: wait longer (wait_ms), or try again"
    )


def unknown(name: str) -> LeaseEnded:
    """Return the error for a lease whose name the realm does not know."""
    return LeaseEnded(
        f"lease {name[:40]} does not exist: it has ended, or the realm was restarted; events that "
        "were not settled are delivered again"
    )


_EVENTS: Final = ("events under leases", "http.leased_events_max")
_EVENTS_OF_ONE: Final = ("events under leases", "http.leased_events_per_user_max")


def _too_many(holder: str, count: int, limit: int, unit: str, setting: str) -> str:
    """Return the text of the error for a lease that would exceed a limit."""
    return (
        f"{holder} would have {count} {unit}; the limit is {limit} ({setting}): settle fetched "
        "events, fetch fewer at once, or wait until leases end"
    )
