"""Events of one durable, or of a queue, that are fetched under a lease, and settled by requests of
their own (SEM H). Those of a durable over a pattern are in :mod:`.pattern_leases`."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from penstock_core.api.consuming import ExtendLease, Fetched, FetchEvents, How, Settled, SettleLease
from penstock_core.columns.schema.layout import REASON_CHARACTERS_MAX
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import IdSet, Spans
from penstock_core.messages.kinds import Command
from penstock_core.messages.settlements import Ack, BuryEvents, ExtendTime, RollBack
from penstock_core.vocabulary.errors import DurableInUse
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.names import durable_name
from penstock_server.runtime.subscriptions.lease import EventLease, LeaseTerms, without
from penstock_server.runtime.subscriptions.lease_book import (
    GRACE_S,
    SEAT_S,
    SOON_S,
    LeaseBook,
    blocked,
    free_for,
    held_by,
    seal,
    unknown,
)
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard

_ALL: Final = 1 << 62


class Leases(LeaseBook):
    """All leases of a realm, and what is asked of those of one durable or queue."""

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
        durable = durable_name(asked.durable) if asked.durable else ""
        terms = LeaseTerms(
            owner, asked.channel, durable, count=asked.count, lease_ms=asked.lease_ms
        )
        self.refuse(terms)
        lease = EventLease(
            secrets.token_hex(16),
            terms,
            f"http lease of {client}",
            selector=selector,
            clock=self.clock,
            recalled=self.end_if_empty,
            ended=self.end,
        )
        self.enter(lease, check)
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
        self.subscriptions.demand(lease.subscription, lease.terms.count)
        await self._waited(lease, ends_s, is_patient=wait_s > 0)
        if lease.error is not None:
            raise lease.error
        check()  # the right may have been lost meanwhile
        in_other_hands: str = await self.shard.act(
            lambda group: _sealed(group, lease), sweeps=(lease.terms.channel,)
        )
        if lease.error is not None:
            raise lease.error
        if not lease.ids:
            self.end(lease)
            if in_other_hands:
                raise DurableInUse(in_other_hands)
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
        loop = asyncio.get_running_loop()
        while True:
            freed = self.freed
            try:
                await self.take_seat(lease)
            except DurableInUse:
                left_s = ends_s - loop.time()
                if lease.error is not None:
                    raise lease.error from None
                if left_s < SOON_S:
                    raise
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, SEAT_S)):
                        await freed.wait()
                continue
            return

    async def _waited(self, lease: EventLease, ends_s: float, *, is_patient: bool) -> None:
        """Wait until events are there, and until those are that come with them."""
        loop = asyncio.get_running_loop()
        if not is_patient:
            if await self.shard.act(lambda group: not free_for(group, lease), sweeps=()):
                return
            ends_s += GRACE_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(ends_s, loop.time())):
                await lease.came.wait()
        before = -1
        while before < lease.count < lease.terms.count and not lease.is_full:
            before = lease.count
            await self.shard.act(lambda _: None, sweeps=())

    # --- settling ------------------------------------------------------------------------

    async def settle(self, asked: SettleLease, owner: str) -> Settled:
        """Settle events; answered once that is on disk, and repeated requests as the first one.

        Raises ``LeaseEnded`` for what has gone back, ``IllegalState`` for what the lease never had,
        or was settled in another way.
        """
        lease = self._find(asked, owner)
        if lease is None:
            return await self._settled_before(asked)

        def settle(group: Group) -> Settled:
            meant = lease.meant(asked.chosen, asked.how)
            fresh = without(meant, lease.done[asked.how])
            if fresh:
                held = self.held(group, lease, fresh)
                settle_events(group, lease, asked, fresh=fresh, held=held)
            return answer(group, [lease], len(meant))

        room = room_of(self.shard, lease, asked.reason) if asked.how == "reject" else 0
        return await self.act(lease, settle, room=room)

    async def extend(self, asked: ExtendLease, owner: str) -> Settled:
        """Have more time. Raises as :meth:`settle` does."""
        lease = self._find(asked, owner)
        if lease is None:
            raise unknown(asked.lease)

        def extend(group: Group) -> Settled:
            meant = lease.meant(asked.chosen, None)
            self.held(group, lease, meant)
            extend_events(group, lease, meant, time_ms=asked.time_ms)
            return answer(group, [lease], len(meant))

        return await self.act(lease, extend)

    async def _settled_before(self, asked: SettleLease) -> Settled:
        """What is said of a lease that nobody remembers: ids that are acknowledged are (SEM D15).

        Raises ``LeaseEnded``, for what is outstanding is in other hands, or nobody's.
        """
        spans = asked.chosen.spans
        if asked.how != "ack" or spans is None:
            raise unknown(asked.lease)

        def look(group: Group) -> Settled:
            named = IdSet(spans)
            if not are_acknowledged(group, asked.channel, asked.durable, ids=named):
                raise unknown(asked.lease)
            return Settled(count=len(named), left=0, ends_us=None)

        settled: Settled = await self.shard.act(look, sweeps=(asked.channel,))
        return settled

    def _find(self, asked: SettleLease | ExtendLease, owner: str) -> EventLease | None:
        """The lease of this name, if it is the client's, and of this durable."""
        lease = self.named(asked.lease, owner)
        if not isinstance(lease, EventLease):
            return None
        durable = durable_name(asked.durable) if asked.durable else ""
        if (lease.terms.channel, lease.terms.durable) != (asked.channel, durable):
            return None
        return lease


def _sealed(group: Group, lease: EventLease) -> str:
    """The lease gets nothing more. Gives why it has nothing, if others have what there is."""
    seal(group, lease, _ALL)
    return "" if lease.ids else blocked(group, lease)


# --- what is done to events of one seat ----------------------------------------------------


class Settling(Protocol):
    """How events are settled."""

    @property
    def how(self) -> How: ...

    @property
    def delay_ms(self) -> int | None: ...

    @property
    def reason(self) -> str: ...


def command_of(asked: Settling, subscription: int, spans: Spans) -> Command:
    """What settles these events of a seat."""
    match asked.how:
        case "ack":
            return Ack(subscription, spans)
        case "roll_back":
            return RollBack(subscription, spans, delay_ms=asked.delay_ms)
        case "reject":
            return BuryEvents(subscription, spans)


def settle_events(
    group: Group, part: EventLease, asked: Settling, fresh: IdSet, held: IdSet
) -> None:
    """Settle events that were not before, of those that the seat holds, and note it."""
    before, done = held.copy(), part.done[asked.how]
    reason = asked.reason if asked.how == "reject" else None
    command = command_of(asked, part.subscription, fresh.spans)
    group.do(part.terms.channel, command, reason=reason)
    done.add_all(fresh)
    if asked.how == "ack":  # it may cover earlier ones
        done.add_all(without(before, held))


def extend_events(group: Group, part: EventLease, ids: IdSet, time_ms: int) -> None:
    """Have more time for events that the seat holds, and note it."""
    group.do(part.terms.channel, ExtendTime(part.subscription, ids.spans, time_ms))
    part.extend(ids, group.now_us + time_ms * 1_000)


def answer(group: Group, parts: Iterable[EventLease], count: int) -> Settled:
    """What is told of a lease whose request meant ``count`` events."""
    left, ends_us = 0, None
    for part in parts:
        if held := held_by(group.state, part):
            left += len(held)
            ends_us = max(ends_us or 0, part.until_us(held))
    return Settled(count=count, left=left, ends_us=ends_us)


def are_acknowledged(group: Group, channel: ChannelId, durable: str, ids: IdSet) -> bool:
    """Whether these were given out once, and are outstanding no more."""
    state = group.channel(channel).state
    own = state.durable(durable)
    never = ids.highest is not None and ids.highest >= state.next_id
    return not (never or own.wanting(ids.overlap(state.stored)))


def room_of(shard: Shard, part: EventLease, reason: str) -> int:
    """About how many bytes copies of rejected events take."""
    channel = shard.state.channels.get(part.terms.channel)
    if channel is None:
        return 0
    size = channel.state.event_bytes + min(len(reason), REASON_CHARACTERS_MAX)
    return int(2 * size) * len(part.ids)
