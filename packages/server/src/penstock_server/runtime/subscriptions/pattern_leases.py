"""Events of a durable over a pattern that are fetched under a lease, of all its channels together,
and settled by requests of their own (SEM H4)."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from penstock_core.api.consuming import (
    ExtendPatternLease,
    Fetched,
    FetchFromPattern,
    Settled,
    SettlePatternLease,
)
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import IdSet
from penstock_core.messages.pattern_durables import PatternKey
from penstock_core.vocabulary.choice import choice_of
from penstock_core.vocabulary.errors import LeaseEnded, PenstockError
from penstock_core.vocabulary.names import durable_name
from penstock_server.runtime.subscriptions.lease import EventLease, without
from penstock_server.runtime.subscriptions.lease_book import LeaseBook, unknown
from penstock_server.runtime.subscriptions.leases import (
    answer,
    are_acknowledged,
    command_of,
    extend_events,
    room_of,
    settle_events,
)
from penstock_server.runtime.subscriptions.pattern_fetch import PatternFetch
from penstock_server.runtime.subscriptions.pattern_lease import PatternLease, PatternTerms
from penstock_server.runtime.subscriptions.watches import ChannelWatches
from penstock_server.runtime.writer import looking_ahead
from penstock_server.runtime.writer.group import Group

Check = Callable[[str], None]
"""Raises ``AccessDenied`` where the client may not consume a channel of this name."""


class PatternLeases:
    """What is asked of leases over patterns."""

    def __init__(self, book: LeaseBook, watches: ChannelWatches) -> None:
        self._book = book
        self._shard = book.shard
        self._watches = watches
        self._turns: dict[PatternKey, int] = {}
        """The channel that had its turn last, by its number."""

    # --- fetching ------------------------------------------------------------------------

    async def fetch(
        self,
        asked: FetchFromPattern,
        owner: str,
        client: str,
        selector: Selector | None,
        check: Check,
    ) -> Fetched:
        """Take events for a while, of each channel that has some its share; gives none where
        nothing comes in time. What was taken goes back untried if this is cancelled.

        Raises ``NameDoesNotExist`` where no durable of the name is over the pattern,
        ``DurableInUse`` where others are served on all channels, ``LimitReached``,
        ``RealmStopping``.
        """
        patterns = self._shard.state.directory.patterns
        made = patterns.get(asked.pattern, asked.durable)
        terms = PatternTerms(
            owner, made.pattern, made.name, count=asked.count, lease_ms=asked.lease_ms
        )
        self._book.refuse(terms)
        there = {each.key for each in patterns}
        self._turns = {key: at for key, at in self._turns.items() if key in there}
        lease = PatternLease(secrets.token_hex(16), terms)
        after = self._turns.get(made.key, 0)
        fetch = PatternFetch(
            self._book, lease, made, client=client, selector=selector, check=check, after=after
        )
        self._book.enter(lease, lambda: self._drop_denied(lease, check))
        try:
            await fetch.run(self._watches, asked.wait_ms / 1_000)
            return self._fetched(lease, fetch)
        except BaseException:
            self._book.give_back(lease.name)
            raise

    def _fetched(self, lease: PatternLease, fetch: PatternFetch) -> Fetched:
        parts = fetch.parts_in_turn()
        if not parts:
            self._book.end(lease)
            return Fetched()
        lease.is_answered = True
        self._turns[lease.terms.pattern, lease.terms.durable] = parts[-1].terms.channel
        taken = [(part, batch) for part in parts for batch in part.take_batches()]
        return Fetched(
            lease=lease.name,
            batches=[batch for _, batch in taken],
            channels=[fetch.opened(part) for part, _ in taken],
            count=sum([len(part.ids) for part in parts]),
            lease_ms=min([part.lease_ms for part in parts]),
            ends_us=min([part.ends_us for part in parts]),
        )

    def _drop_denied(self, lease: PatternLease, check: Check) -> None:
        """Rights have changed: end the parts that the client may not have any more."""
        for part in lease.parts:
            try:
                check(part.of_channel)
            except PenstockError as reason:
                part.fail(reason)
                if lease.is_answered:
                    self._book.leave_seat(part)
                else:
                    self._book.give_back_part(part)
                    lease.drop(part)

    # --- settling ------------------------------------------------------------------------

    async def settle(self, asked: SettlePatternLease, owner: str, check: Check) -> Settled:
        """Settle events of all channels that are named, together or not at all; answered once that
        is on disk, and repeated requests as the first one. Raises as ``Leases.settle`` does."""
        lease = self._find(asked, owner)
        if lease is None:
            return await self._settled_before(asked, check)

        def settle(group: Group) -> Settled:
            meant = self._meant(group, lease, asked)
            fresh = [(part, without(ids, part.done[asked.how])) for part, ids in meant]
            held = [(part, ids, self._book.held(group, part, ids)) for part, ids in fresh if ids]
            for part, ids, _ in held:
                _rehearse(group, part, asked, ids=ids)
            for part, ids, own in held:
                settle_events(group, part, asked, fresh=ids, held=own)
            return answer(group, lease.parts, sum([len(ids) for _, ids in meant]))

        room = 0
        if asked.how == "reject":
            room = sum([room_of(self._shard, part, asked.reason) for part in lease.parts])
        return await self._book.act(lease, settle, room=room)

    async def extend(self, asked: ExtendPatternLease, owner: str) -> Settled:
        """Have more time. Raises as :meth:`settle` does."""
        lease = self._find(asked, owner)
        if lease is None:
            raise unknown(asked.lease)

        def extend(group: Group) -> Settled:
            meant = [each for each in self._meant(group, lease, asked) if each[1]]
            if not meant:
                raise LeaseEnded(f"lease {lease.name} holds nothing of what is meant")
            for part, ids in meant:
                self._book.held(group, part, ids)
            for part, ids in meant:
                extend_events(group, part, ids, time_ms=asked.time_ms)
            return answer(group, lease.parts, sum([len(ids) for _, ids in meant]))

        return await self._book.act(lease, extend)

    def _meant(
        self, group: Group, lease: PatternLease, asked: SettlePatternLease | ExtendPatternLease
    ) -> list[tuple[EventLease, IdSet]]:
        """The events of each channel that a request means. Whoever means all of them does not mean
        those of a channel that is gone: nothing of it comes again."""
        how = asked.how if isinstance(asked, SettlePatternLease) else None
        meant = lease.meant(asked.channels, how)
        if asked.channels is None:
            there = group.state.channels
            meant = [each for each in meant if each[0].terms.channel in there]
        return meant

    async def _settled_before(self, asked: SettlePatternLease, check: Check) -> Settled:
        """What is said of a lease that nobody remembers, as ``Leases`` says it of one channel."""
        named = asked.channels
        if asked.how != "ack" or named is None:
            raise unknown(asked.lease)
        spans = {name: own.spans for name, own in named.items() if own.spans is not None}
        if len(spans) < len(named):
            raise unknown(asked.lease)
        for name in spans:
            check(name)

        def look(group: Group) -> Settled:
            count = 0
            for name, own in spans.items():
                ids, number = IdSet(own), group.state.directory.number_of(name, "channel")
                if not are_acknowledged(group, number, asked.durable, ids=ids):
                    raise unknown(asked.lease)
                count += len(ids)
            return Settled(count=count, left=0, ends_us=None)

        settled: Settled = await self._shard.act(look)
        return settled

    def _find(
        self, asked: SettlePatternLease | ExtendPatternLease, owner: str
    ) -> PatternLease | None:
        """The lease of this name, if it is the client's, and of this durable."""
        lease = self._book.named(asked.lease, owner)
        key = choice_of(asked.pattern).text, durable_name(asked.durable)
        if not isinstance(lease, PatternLease):
            return None
        return lease if (lease.terms.pattern, lease.terms.durable) == key else None


def _rehearse(group: Group, part: EventLease, asked: SettlePatternLease, ids: IdSet) -> None:
    """Raises what this would be refused with, before anything of it is done on another channel."""
    channel = group.channel(part.terms.channel)
    command = command_of(asked, part.subscription, ids.spans)
    decided = channel.decide(command, group.now_us)
    if channel.state.moves_dead:
        looking_ahead.refuse_to_move(group, part.terms.channel, channel, facts=decided.facts)
