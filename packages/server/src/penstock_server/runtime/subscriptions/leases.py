"""Fetching events of a durable, a queue or a durable over a pattern under a lease, and settling
them by requests of their own (SEM H).

A lease of one channel is a lease over a pattern with a single part. Its requests do not name the
channel of an event, so the name of this part is "".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from penstock_core.api.consuming import (
    ExtendLease,
    ExtendPatternLease,
    Fetched,
    FetchEvents,
    FetchFromPattern,
    How,
    LeasedEvents,
    Settled,
    SettleLease,
    SettlePatternLease,
)
from penstock_core.columns.schema.layout import REASON_CHARACTERS_MAX
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import IdSet, Spans
from penstock_core.messages.kinds import Command
from penstock_core.messages.pattern_durables import PatternKey
from penstock_core.messages.settlements import Ack, BuryEvents, ExtendTime, RollBack
from penstock_core.vocabulary.choice import choice_of
from penstock_core.vocabulary.errors import LeaseEnded, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.names import durable_name
from penstock_core.vocabulary.ports import Clock
from penstock_server.runtime.subscriptions.lease import (
    EventLease,
    LeasePart,
    LeaseTerms,
    without,
)
from penstock_server.runtime.subscriptions.lease_book import (
    LeaseBook,
    LeaseLimits,
    held_by,
    unknown,
)
from penstock_server.runtime.subscriptions.lease_fetch import ChannelFetch, PatternFetch
from penstock_server.runtime.subscriptions.subscriptions import Subscriptions
from penstock_server.runtime.subscriptions.watches import ChannelWatches
from penstock_server.runtime.writer import evaluation_ahead
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard

Check = Callable[[str], None]
"""Raises ``AccessDenied`` where the client may not consume a channel of this name."""


class LeaseFetch(Protocol):
    """Fills a lease."""

    async def run(self, wait_s: float) -> Sequence[LeasePart]: ...


class Settling(Protocol):
    """The part of a request that says how events are settled."""

    @property
    def how(self) -> How: ...

    @property
    def delay_ms(self) -> int | None: ...

    @property
    def reason(self) -> str: ...


class Leases(LeaseBook):
    """The leases of a realm, and the requests about them."""

    def __init__(
        self,
        shard: Shard,
        subscriptions: Subscriptions,
        clock: Clock,
        limits: LeaseLimits,
        watches: ChannelWatches,
    ) -> None:
        super().__init__(shard, subscriptions, clock, limits)
        self._watches = watches
        self._turns: dict[PatternKey, int] = {}
        """The number of the channel that had its turn last, by durable over a pattern."""

    # --- fetching ------------------------------------------------------------------------

    async def fetch(
        self,
        asked: FetchEvents,
        owner: str,
        client: str,
        selector: Selector | None,
        check: Callable[[], None],
    ) -> Fetched:
        """Take events for a while; gives none if nothing comes in time. Events go back untried if
        this is cancelled.

        ``check`` raises when the client may not have them any more. Raises ``DurableInUse``,
        ``LimitReached``, ``RealmStopping``.
        """
        terms = LeaseTerms(
            owner,
            asked.channel,
            _durable_of(asked.durable),
            count=asked.count,
            lease_ms=asked.lease_ms,
        )
        lease = self._made(terms, client, selector)
        self.enter(lease, check)
        fetch = ChannelFetch(self, lease, asked.channel, check=check)
        return await self._fetched(lease, fetch, asked.wait_ms)

    async def fetch_from_pattern(
        self,
        asked: FetchFromPattern,
        owner: str,
        client: str,
        selector: Selector | None,
        check: Check,
    ) -> Fetched:
        """Take events for a while, of each channel that has some its share; as :meth:`fetch` does.

        Raises ``NameDoesNotExist`` if no durable of the name is over the pattern, and
        ``DurableInUse`` if other clients are served on all channels.
        """
        patterns = self.shard.state.directory.patterns
        made = patterns.get(asked.pattern, asked.durable)
        terms = LeaseTerms(
            owner, made.pattern, made.name, count=asked.count, lease_ms=asked.lease_ms
        )
        lease = self._made(terms, client, selector)
        keys = {durable.key for durable in patterns}
        self._turns = {key: channel for key, channel in self._turns.items() if key in keys}
        self.enter(lease, lambda: self._drop_denied(lease, check))
        fetch = PatternFetch(
            self,
            lease,
            made,
            watches=self._watches,
            check=check,
            after=self._turns.get(made.key, 0),
        )
        told = await self._fetched(lease, fetch, asked.wait_ms)
        if told.channels:
            self._turns[made.key] = told.channels[-1].channel
        return told

    def _made(self, terms: LeaseTerms, client: str, selector: Selector | None) -> EventLease:
        """A lease on these terms. Raises what :meth:`refuse` raises."""
        self.refuse(terms)
        return EventLease(
            secrets.token_hex(16),
            terms,
            f"http lease of {client}",
            selector=selector,
            clock=self.clock,
            recalled=self.end_if_empty,
        )

    async def _fetched(self, lease: EventLease, fetch: LeaseFetch, wait_ms: int) -> Fetched:
        try:
            parts = await fetch.run(wait_ms / 1_000)
        except BaseException:
            self.give_back(lease.name)
            raise
        if not parts:
            return Fetched()
        lease.is_answered = True
        taken = [(part, batch) for part in parts for batch in part.take_batches()]
        return Fetched(
            lease=lease.name,
            batches=[batch for _, batch in taken],
            channels=[part.opened for part, _ in taken if part.opened is not None],
            count=sum([len(part.ids) for part in parts]),
            lease_ms=min([part.lease_ms for part in parts]),
            ends_us=min([part.ends_us for part in parts]),
        )

    def _drop_denied(self, lease: EventLease, check: Check) -> None:
        """End the parts that the client may not have any more, after rights have changed."""
        for part in lease.parts:
            try:
                check(part.channel_name)
            except PenstockError as reason:
                part.fail(reason)
                if lease.is_answered:
                    self.leave_seat(part)
                else:
                    self.give_back_part(part)
                    lease.drop(part)

    # --- settling ------------------------------------------------------------------------

    async def settle(
        self, asked: SettleLease | SettlePatternLease, owner: str, check: Check
    ) -> Settled:
        """Settle events of all channels that are named, or of none. The answer comes once that is
        on disk, and is the first one again if the request is repeated.

        Raises ``LeaseEnded`` for events that have gone back, ``IllegalState`` for events that the
        lease never had, or that were settled in another way.
        """
        lease = self._find(asked, owner)
        if lease is None:
            return await self._settled_before(asked, check)

        def settle(group: Group) -> Settled:
            meant = _meant(group, lease, asked, how=asked.how)
            fresh = [(part, without(ids, part.done[asked.how])) for part, ids in meant]
            held = [(part, ids, self.held(group, part, ids)) for part, ids in fresh if ids]
            if len(held) > 1:
                for part, ids, _ in held:
                    _rehearse(group, part, asked, ids=ids)
            for part, ids, own in held:
                settle_events(group, part, asked, fresh=ids, held=own)
            return _answer(group, lease, meant)

        room = 0
        if asked.how == "reject":
            room = sum([_room_of(self.shard, part, asked.reason) for part in lease.parts])
        return await self.act(lease, settle, room=room)

    async def extend(self, asked: ExtendLease | ExtendPatternLease, owner: str) -> Settled:
        """Have more time. Raises as :meth:`settle` does."""
        lease = self._find(asked, owner)
        if lease is None:
            raise unknown(asked.lease)

        def extend(group: Group) -> Settled:
            meant = _meant(group, lease, asked, how=None)
            if isinstance(asked, ExtendPatternLease):
                meant = [(part, ids) for part, ids in meant if ids]
            if not meant:
                raise LeaseEnded(f"lease {lease.name} holds nothing of what is meant")
            for part, ids in meant:
                self.held(group, part, ids)
            until_us = group.now_us + asked.time_ms * 1_000
            for part, ids in meant:
                command = ExtendTime(part.subscription, ids.spans, asked.time_ms)
                group.do(part.channel, command)
                part.extend(ids, until_us)
            return _answer(group, lease, meant)

        return await self.act(lease, extend)

    async def _settled_before(
        self, asked: SettleLease | SettlePatternLease, check: Check
    ) -> Settled:
        """The answer for a lease that the realm does not know: ids that are acknowledged are (SEM
        D15).

        Raises ``LeaseEnded``, for outstanding events are with other clients, or with none.
        """
        chosen = _chosen(asked) if asked.how == "ack" else None
        if chosen is None:
            raise unknown(asked.lease)
        spans = {name: own.spans for name, own in chosen.items() if own.spans is not None}
        if len(spans) < len(chosen):
            raise unknown(asked.lease)
        sole = asked.channel if isinstance(asked, SettleLease) else None
        if sole is None:
            for name in spans:
                check(name)

        def inspect(group: Group) -> Settled:
            count = 0
            for name, own in spans.items():
                ids = IdSet(own)
                channel = sole or group.state.directory.channel_id_of(name, "channel")
                if not _are_acknowledged(group, channel, asked.durable, ids=ids):
                    raise unknown(asked.lease)
                count += len(ids)
            return Settled(count=count, left=0, ends_us=None)

        settled: Settled = await self.shard.act(inspect, sweeps=None if sole is None else (sole,))
        return settled

    def _find(
        self,
        asked: SettleLease | SettlePatternLease | ExtendLease | ExtendPatternLease,
        owner: str,
    ) -> EventLease | None:
        """The lease of this name if it is the client's, and of this durable."""
        if isinstance(asked, SettleLease | ExtendLease):
            source: ChannelId | str = asked.channel
        else:
            source = choice_of(asked.pattern).text
        lease = self.named(asked.lease, owner)
        if lease is None:
            return None
        terms = lease.terms
        is_it = (terms.source, terms.durable) == (source, _durable_of(asked.durable))
        return lease if is_it else None


def _durable_of(name: str) -> str:
    return durable_name(name) if name else ""


def _chosen(
    asked: SettleLease | SettlePatternLease | ExtendLease | ExtendPatternLease,
) -> Mapping[str, LeasedEvents] | None:
    """The events that a request means, by the name of the part; None: all of them."""
    if isinstance(asked, SettleLease | ExtendLease):
        return {"": asked.chosen}
    return asked.channels


def _meant(
    group: Group,
    lease: EventLease,
    asked: SettleLease | SettlePatternLease | ExtendLease | ExtendPatternLease,
    how: How | None,
) -> list[tuple[LeasePart, IdSet]]:
    """The events that a request means, by part. "All" does not mean those of a deleted channel:
    nothing of it comes again."""
    chosen = _chosen(asked)
    meant = lease.meant(chosen, how)
    if chosen is None:
        meant = [(part, ids) for part, ids in meant if part.channel in group.state.channels]
    return meant


# --- the events of one part ---------------------------------------------------------------


def _command_of(asked: Settling, subscription: int, spans: Spans) -> Command:
    """The command that settles these events of a seat."""
    match asked.how:
        case "ack":
            return Ack(subscription, spans)
        case "roll_back":
            return RollBack(subscription, spans, delay_ms=asked.delay_ms)
        case "reject":
            return BuryEvents(subscription, spans)


def _rehearse(group: Group, part: LeasePart, asked: Settling, ids: IdSet) -> None:
    """Raise the refusal of this part before anything is done on another channel."""
    channel = group.channel(part.channel)
    decided = channel.decide(_command_of(asked, part.subscription, ids.spans), group.now_us)
    if channel.state.moves_dead:
        evaluation_ahead.require_evaluation(group, part.channel, channel, facts=decided.facts)


def settle_events(
    group: Group, part: LeasePart, asked: Settling, fresh: IdSet, held: IdSet
) -> None:
    """Settle events that were not settled before, of those that the seat holds, and note it."""
    before, done = held.copy(), part.done[asked.how]
    reason = asked.reason if asked.how == "reject" else None
    command = _command_of(asked, part.subscription, fresh.spans)
    group.do(part.channel, command, reason=reason)
    done.add_all(fresh)
    if asked.how == "ack":  # a cumulative durable acknowledges earlier events, too
        done.add_all(without(before, held))


def _answer(group: Group, lease: EventLease, meant: Iterable[tuple[LeasePart, IdSet]]) -> Settled:
    """The answer to a request that meant these events."""
    left, ends_us = 0, None
    for part in lease.parts:
        if held := held_by(group.state, part):
            left += len(held)
            ends_us = max(ends_us or 0, part.until_us(held))
    return Settled(count=sum([len(ids) for _, ids in meant]), left=left, ends_us=ends_us)


def _are_acknowledged(group: Group, channel: ChannelId, durable: str, ids: IdSet) -> bool:
    """Whether these events were given out once, and are not outstanding any more."""
    state = group.channel(channel).state
    own = state.durable(durable)
    never = ids.highest is not None and ids.highest >= state.next_id
    return not (never or own.wanting(ids.overlap(state.stored)))


def _room_of(shard: Shard, part: LeasePart, reason: str) -> int:
    """About how many bytes copies of rejected events take."""
    channel = shard.state.channels.get(part.channel)
    if channel is None:
        return 0
    size = channel.state.event_bytes + min(len(reason), REASON_CHARACTERS_MAX)
    return int(2 * size) * len(part.ids)
