"""Events that are fetched under a lease, and settled by requests of their own (SEM H).

Each lease has a seat at the durable, with an acknowledgement timeout of its own, so the core says
who gets what, what goes back when, and who may settle. A lease belongs to a user and not to a
connection. It is kept in memory only: a restart takes everything out of all hands.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from penstock.api.consuming import ExtendLease, Fetched, FetchEvents, Settled, SettleLease
from penstock.columns.schema.layout import REASON_CHARACTERS_MAX
from penstock.columns.selectors import Selector
from penstock.core.channel.holding import BuryEvents
from penstock.core.channel.release import Release
from penstock.core.channel.timeouts import ExtendTime
from penstock.core.durable.durable import Durable
from penstock.core.ids.ids import IdSet
from penstock.core.vocabulary.errors import (
    DurableInUse,
    LeaseEnded,
    LimitReached,
    PenstockError,
    RealmStopping,
)
from penstock.core.vocabulary.messages import Ack, Command, RollBack, SetDemand, Spans
from penstock.core.vocabulary.names import durable_name
from penstock.core.vocabulary.ports import Clock
from penstock.runtime.subscriptions.lease import EventLease, LeaseTerms
from penstock.runtime.subscriptions.subscriptions import Subscriptions
from penstock.runtime.writer.group import Group
from penstock.runtime.writer.requests import RunAction
from penstock.runtime.writer.shard import Shard

GRACE_S: Final = 0.25
"""Seconds to wait for events that are stored already."""
SEAT_S: Final = 1.0
"""Seconds between two looks whether a seat is free that somebody else has without a lease."""
_SOON_S: Final = 0.001
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


class Leases:
    """All leases of a realm."""

    def __init__(
        self, shard: Shard, subscriptions: Subscriptions, clock: Clock, limits: LeaseLimits
    ) -> None:
        self._shard = shard
        self._subscriptions = subscriptions
        self._clock = clock
        self._limits = limits
        self._open: dict[str, EventLease] = {}
        self._over: OrderedDict[str, EventLease] = OrderedDict()
        self._checks: dict[str, Callable[[], None]] = {}
        self._freed = asyncio.Event()
        """Set, and replaced, whenever a lease has ended: its seat is free."""
        self._stopping: PenstockError | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def events(self) -> int:
        """How many events are under leases."""
        return sum(map(self._count, self._open.values()))

    # --- fetching ------------------------------------------------------------------------

    async def fetch(
        self,
        asked: FetchEvents,
        owner: str,
        client: str,
        selector: Selector | None,
        check: Callable[[], None],
    ) -> Fetched:
        """Take events for a while; gives none where nothing comes in time. What was taken goes
        back untried if this is cancelled.

        ``check`` raises when the client may not have them any more. Raises ``DurableInUse``,
        ``LimitReached``, ``RealmStopping``.
        """
        if self._stopping is not None:
            raise self._stopping
        durable = durable_name(asked.durable) if asked.durable else ""
        terms = LeaseTerms(owner, asked.channel, durable, asked.count, asked.lease_ms)
        self._check_limits(terms)
        lease = EventLease(
            secrets.token_hex(16),
            terms,
            f"http lease of {client}",
            selector,
            self._clock,
            self._recalled,
            self._end,
        )
        self._open[lease.name] = lease
        self._checks[lease.name] = check
        try:
            return await self._fetched(lease, asked.wait_ms / 1_000, check)
        except BaseException:
            self.give_back(lease.name)
            raise

    async def _fetched(
        self, lease: EventLease, wait_s: float, check: Callable[[], None]
    ) -> Fetched:
        ends_s = asyncio.get_running_loop().time() + wait_s
        await self._seated(lease, ends_s)
        self._subscriptions.demand(lease.subscription, lease.terms.count)
        await self._waited(lease, ends_s, is_patient=wait_s > 0)
        if lease.error is not None:
            raise lease.error
        check()  # the right may have been lost meanwhile
        blocked: str = await self._shard.act(
            lambda group: self._seal(group, lease), sweeps=(lease.terms.channel,)
        )
        if lease.error is not None:
            raise lease.error
        if not lease.ids:
            self._end(lease)
            if blocked:
                raise DurableInUse(blocked)
            return Fetched()
        lease.is_answered = True
        return Fetched(
            lease=lease.name,
            batches=lease.take_batches(),
            count=len(lease.ids),
            lease_ms=lease.lease_ms,
            ends_us=lease.ends_us,
        )

    async def _seated(self, lease: EventLease, ends_s: float) -> None:
        """Take a seat, and wait for it while somebody else has it."""
        terms, loop = lease.terms, asyncio.get_running_loop()
        while True:
            freed = self._freed
            try:
                opened = await self._subscriptions.attach(
                    terms.channel,
                    terms.durable,
                    lease,
                    window=None,
                    pull=True,
                    ack_timeout_ms=terms.lease_ms,
                    leased=True,
                )
            except DurableInUse:
                left_s = ends_s - loop.time()
                if lease.error is not None:
                    raise lease.error from None
                if left_s < _SOON_S:
                    raise
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, SEAT_S)):
                        await freed.wait()
                continue
            lease.subscription = opened.number
            lease.lease_ms = opened.ack_timeout_ms
            return

    async def _waited(self, lease: EventLease, ends_s: float, *, is_patient: bool) -> None:
        """Wait until events are there, and until those are that come with them."""
        loop = asyncio.get_running_loop()
        if not is_patient:
            if await self._shard.act(lambda group: _has_nothing(group, lease), sweeps=()):
                return
            ends_s += GRACE_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(ends_s, loop.time())):
                await lease.came.wait()
        before = -1
        while before < lease.count < lease.terms.count and not lease.is_full:
            before = lease.count
            await self._shard.act(lambda _: None, sweeps=())

    def _seal(self, group: Group, lease: EventLease) -> str:
        """The lease gets nothing more; what is too much for an answer goes back. Gives why it has
        nothing, if others have what there is."""
        channel, subscription = lease.terms.channel, lease.subscription
        state = group.channel(channel).state
        if subscription not in state.seats:
            return ""
        durable, seat = state.seats[subscription]
        group.do(channel, SetDemand(subscription, 0, at_once=True))
        if surplus := lease.surplus(seat.in_flight):
            group.do(channel, Release(subscription, surplus.spans))
        lease.seal(seat.in_flight.copy())
        return "" if lease.ids else _blocked(durable, subscription)

    def _check_limits(self, terms: LeaseTerms) -> None:
        """Raises ``LimitReached``. Users are told apart only where the realm knows them."""
        limits, owner = self._limits, terms.owner
        leases: Counter[bool] = Counter()
        events: Counter[bool] = Counter()
        for each in self._open.values():
            is_own = each.terms.owner == owner
            leases[is_own] += 1
            events[is_own] += self._count(each) if each.is_answered else each.terms.count
        for held, most, what, setting in (
            (leases.total() + 1, limits.leases_max, "leases", "http.leases_max"),
            (events.total() + terms.count, limits.events_max, *_EVENTS),
        ):
            if held > most:
                raise LimitReached(_too_much("this realm", held, most, what, setting))
        for held, most, what, setting in (
            (leases[True] + 1, limits.leases_per_user_max, "leases", "http.leases_per_user_max"),
            (events[True] + terms.count, limits.events_per_user_max, *_EVENTS_OF_ONE),
        ):
            if owner and held > most:
                raise LimitReached(_too_much(owner, held, most, what, setting))

    # --- settling ------------------------------------------------------------------------

    async def settle(self, asked: SettleLease, owner: str) -> Settled:
        """Settle events; answered once that is on disk, and repeated requests as the first one.

        Raises ``LeaseEnded`` for what has gone back, ``IllegalState`` for what the lease never had,
        or was settled in another way.
        """
        lease = self._find(asked, owner)
        if lease is None:
            return await self._settled_before(asked)

        def command_of(subscription: int, spans: Spans) -> Command:
            match asked.how:
                case "ack":
                    return Ack(subscription, spans)
                case "roll_back":
                    return RollBack(subscription, spans, delay_ms=asked.delay_ms)
                case "reject":
                    return BuryEvents(subscription, spans)

        def settle(group: Group) -> Settled:
            meant = lease.meant(asked.chosen, asked.how)
            done = lease.done[asked.how]
            fresh = _left(meant, done)
            if fresh:
                held = self._held(group, lease, fresh)
                before = held.copy()
                reason = asked.reason if asked.how == "reject" else None
                spans = fresh.spans
                group.do(lease.terms.channel, command_of(lease.subscription, spans), reason=reason)
                done.add_all(fresh)
                if asked.how == "ack":  # it may cover earlier ones
                    done.add_all(_left(before, held))
            return self._answer(group, lease, meant)

        room = self._room(lease, asked) if asked.how == "reject" else 0
        return await self._acted(lease, settle, room)

    async def extend(self, asked: ExtendLease, owner: str) -> Settled:
        """Have more time. Raises as :meth:`settle` does."""
        lease = self._find(asked, owner)
        if lease is None:
            raise _unknown(asked.lease)

        def extend(group: Group) -> Settled:
            meant = lease.meant(asked.chosen, None)
            self._held(group, lease, meant)
            command = ExtendTime(lease.subscription, meant.spans, asked.time_ms)
            group.do(lease.terms.channel, command)
            lease.extend(meant, group.now_us + asked.time_ms * 1_000)
            return self._answer(group, lease, meant)

        return await self._acted(lease, extend)

    def _held(self, group: Group, lease: EventLease, wanted: IdSet) -> IdSet:
        """What the seat of a lease holds. Raises ``LeaseEnded`` where some of what is ``wanted``
        has gone back; what was purged or has expired is no error (SEM D15)."""
        channel = lease.terms.channel
        group.sweep(channel)
        seat = group.channel(channel).state.seats.get(lease.subscription)
        missing = wanted if seat is None else _left(wanted, seat[1].in_flight)
        if seat is None:
            lease.refuse_late(missing)
            raise LeaseEnded(f"lease {lease.name} has ended, and holds nothing")
        late = lease.late(missing, group.now_us)
        late.add_all(missing.overlap(lease.lost))
        lease.refuse_late(late)
        held: IdSet = seat[1].in_flight
        return held

    async def _acted(
        self, lease: EventLease, action: Callable[[Group], Settled], room: int = 0
    ) -> Settled:
        try:
            told: Settled = await self._shard.act(action, sweeps=(lease.terms.channel,), room=room)
        finally:
            if lease.name in self._open and self._is_empty(lease):
                self._end(lease)
        return told

    def _answer(self, group: Group, lease: EventLease, meant: IdSet) -> Settled:
        seat = group.channel(lease.terms.channel).state.seats.get(lease.subscription)
        held = IdSet() if seat is None else seat[1].in_flight
        return Settled(
            count=len(meant), left=len(held), ends_us=lease.until_us(held) if held else None
        )

    async def _settled_before(self, asked: SettleLease) -> Settled:
        """What is said of a lease that nobody remembers: ids that are acknowledged are (SEM D15).

        Raises ``LeaseEnded``, for what is outstanding is in other hands, or nobody's.
        """
        spans = asked.chosen.spans
        if asked.how != "ack" or spans is None:
            raise _unknown(asked.lease)

        def look(group: Group) -> Settled:
            state = group.channel(asked.channel).state
            named = IdSet(spans)
            durable = state.durable(asked.durable)
            never = named.highest is not None and named.highest >= state.next_id
            if never or durable.wanting(named.overlap(state.stored)):
                raise _unknown(asked.lease)
            return Settled(count=len(named), left=0, ends_us=None)

        settled: Settled = await self._shard.act(look, sweeps=(asked.channel,))
        return settled

    def _find(self, asked: SettleLease | ExtendLease, owner: str) -> EventLease | None:
        """The lease of this name, if it is the client's, and of this durable."""
        lease = self._open.get(asked.lease) or self._over.get(asked.lease)
        if lease is None or lease.terms.owner != owner or not lease.is_answered:
            return None
        durable = durable_name(asked.durable) if asked.durable else ""
        if (lease.terms.channel, lease.terms.durable) != (asked.channel, durable):
            return None
        return lease

    def _room(self, lease: EventLease, asked: SettleLease) -> int:
        """About how many bytes copies of rejected events take."""
        channel = self._shard.state.channels.get(lease.terms.channel)
        if channel is None:
            return 0
        size = channel.state.event_bytes + min(len(asked.reason), REASON_CHARACTERS_MAX)
        return int(2 * size) * len(lease.ids)

    # --- ends ----------------------------------------------------------------------------

    def give_back(self, name: str) -> None:
        """End a lease whose client was never told of it: what it holds goes back untried."""
        lease = self._open.get(name)
        if lease is None:
            return
        lease.is_answered = False
        if lease.subscription:

            def release(group: Group) -> None:
                channel, subscription = lease.terms.channel, lease.subscription
                seat = group.channel(channel).state.seats.get(subscription)
                if seat is not None and (held := seat[1].in_flight):
                    group.do(channel, Release(subscription, held.spans))

            self._shard.submit(RunAction(release, sweeps=(lease.terms.channel,)))
        self._end(lease)

    def expire(self) -> None:
        """End leases that hold nothing any more, or what no deadline takes back; called
        regularly."""
        now_us = self._clock.now_us()
        for lease in list(self._open.values()):
            if not lease.is_answered:
                continue
            grain_us = lease.lease_ms * 10
            if self._is_empty(lease) or now_us > (
                lease.until_us(lease.ids) + grain_us + OVERTIME_US
            ):
                self._end(lease)

    def check_rights(self) -> None:
        """End the leases whose clients may not have them any more."""
        for name, check in list(self._checks.items()):
            try:
                check()
            except PenstockError as reason:
                if (lease := self._open.get(name)) is not None:
                    lease.fail(reason)
                    if lease.is_answered:
                        self._end(lease)

    def stop(self, reason: RealmStopping) -> None:
        """Nobody waits any more: the realm is shutting down."""
        self._stopping = reason
        for lease in self._open.values():
            if not lease.is_answered:
                lease.fail(reason)
        self._wake()

    def _recalled(self, lease: EventLease) -> None:
        if lease.is_answered and self._is_empty(lease):
            self._end(lease)

    def _is_empty(self, lease: EventLease) -> bool:
        return not self._count(lease)

    def _count(self, lease: EventLease) -> int:
        """How many events it holds."""
        channel = self._shard.state.channels.get(lease.terms.channel)
        seat = None if channel is None else channel.state.seats.get(lease.subscription)
        return 0 if seat is None else len(seat[1].in_flight)

    def _end(self, lease: EventLease) -> None:
        """The seat is free; what it held has gone back, or goes back now (SEM D13)."""
        if self._open.pop(lease.name, None) is None:
            return
        self._checks.pop(lease.name, None)
        if lease.subscription:
            self._subscriptions.detach(lease.subscription)
        if lease.is_answered:
            self._over[lease.name] = lease
            if len(self._over) > ENDED_MAX:
                self._over.popitem(last=False)
        self._wake()

    def _wake(self) -> None:
        freed, self._freed = self._freed, asyncio.Event()
        freed.set()


_EVENTS: Final = ("events under leases", "http.leased_events_max")
_EVENTS_OF_ONE: Final = ("events under leases", "http.leased_events_per_user_max")


def _too_much(who: str, held: int, most: int, what: str, setting: str) -> str:
    return (
        f"{who} would have {held} {what}, and {most} may be ({setting}); settle what is fetched, "
        "fetch less at once, or wait until leases end"
    )


def _left(ids: IdSet, others: IdSet) -> IdSet:
    left = ids.copy()
    left.discard_all(others)
    return left


def _has_nothing(group: Group, lease: EventLease) -> bool:
    """Whether nothing can come to a lease now: all there is is in hands, or waits for a time."""
    state = group.channel(lease.terms.channel).state
    held = state.seats.get(lease.subscription)
    if held is None:
        return True
    durable = held[0]
    waiting = len(durable.waiting.ids) if durable.waiting else 0
    free = durable.outstanding_count(state.stored) - durable.in_flight_count - waiting
    return free <= 0


def _blocked(durable: Durable, subscription: int) -> str:
    """Why a client gets nothing at a type that serves one at a time."""
    first = min(durable.seats, key=lambda each: each.rank)
    if not durable.kind.cumulative:
        holders = [each for each in durable.seats if each.in_flight]
        serves_one = durable.kind.orders_strictly and durable.lanes is None
        if not (holders and serves_one):
            return ""
        first = holders[0]
    if first.subscription == subscription:
        return ""
    return (
        f"durable {durable.name} is {durable.kind.name} and serves one client at a time, which is "
        f"{first.session} now: wait longer (wait_ms), or try again"
    )


def _unknown(name: str) -> LeaseEnded:
    return LeaseEnded(
        f"there is no lease {name[:40]} here: it has ended, or the realm was restarted; what was "
        "not settled comes again"
    )
