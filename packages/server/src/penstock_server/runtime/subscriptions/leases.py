"""Fetching events of a durable, a queue or a durable over a pattern under a lease, and settling
them with separate requests (SEM H).

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
"""Called with the name of a channel. Raises ``AccessDenied`` if the client may not consume it."""


class LeaseFetch(Protocol):
    """Fills a lease with events."""

    async def run(self, wait_s: float) -> Sequence[LeasePart]: ...


class Settling(Protocol):
    """The fields of a request that define how events are settled."""

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
        """The channel that had its turn last, by durable over a pattern."""

    # --- fetching ------------------------------------------------------------------------

    async def fetch(
        self,
        request: FetchEvents,
        owner: str,
        client: str,
        selector: Selector | None,
        check: Callable[[], None],
    ) -> Fetched:
        """Lease events to a client. Wait up to ``request.wait_ms`` for events; without any, the
        answer is empty. If the call is cancelled, its events go back without counting as delivered.

        ``check`` raises an error if the client has lost the right to the events. Raises
        ``DurableInUse``, ``LimitReached``, ``RealmStopping``.
        """
        terms = LeaseTerms(
            owner,
            request.channel,
            _durable_of(request.durable),
            count=request.count,
            lease_ms=request.lease_ms,
        )
        lease = self._create(terms, client, selector)
        self.enter(lease, check)
        fetch = ChannelFetch(self, lease, request.channel, check=check)
        return await self._run(lease, fetch, request.wait_ms)

    async def fetch_from_pattern(
        self,
        request: FetchFromPattern,
        owner: str,
        client: str,
        selector: Selector | None,
        check: Check,
    ) -> Fetched:
        """Lease events of several channels to a client, about equally many of each channel;
        otherwise like :meth:`fetch`.

        Raises ``NameDoesNotExist`` if the pattern has no durable of this name, and
        ``DurableInUse`` if other clients are served on all channels.
        """
        patterns = self.shard.state.directory.patterns
        durable = patterns.get(request.pattern, request.durable)
        terms = LeaseTerms(
            owner, durable.pattern, durable.name, count=request.count, lease_ms=request.lease_ms
        )
        lease = self._create(terms, client, selector)
        # Turns of deleted durables are dropped here, so that the mapping stays small.
        keys = {pattern_durable.key for pattern_durable in patterns}
        self._turns = {key: channel for key, channel in self._turns.items() if key in keys}
        self.enter(lease, lambda: self._drop_denied(lease, check))
        fetch = PatternFetch(
            self,
            lease,
            durable,
            watches=self._watches,
            check=check,
            after=self._turns.get(durable.key, 0),
        )
        fetched = await self._run(lease, fetch, request.wait_ms)
        if fetched.channels:
            self._turns[durable.key] = fetched.channels[-1].channel
        return fetched

    def _create(self, terms: LeaseTerms, client: str, selector: Selector | None) -> EventLease:
        """Create a lease on these terms. Raises the errors of :meth:`refuse`."""
        self.refuse(terms)
        return EventLease(
            secrets.token_hex(16),
            terms,
            f"http lease of {client}",
            selector=selector,
            clock=self.clock,
            recalled=self.end_if_empty,
        )

    async def _run(self, lease: EventLease, fetch: LeaseFetch, wait_ms: int) -> Fetched:
        """Fetch the events of a lease, and return the answer. A failure ends the lease."""
        try:
            parts = await fetch.run(wait_ms / 1_000)
        except BaseException:
            self.give_back(lease.name)
            raise
        if not parts:
            return Fetched()
        lease.is_answered = True
        batches = [(part, batch) for part in parts for batch in part.take_batches()]
        return Fetched(
            lease=lease.name,
            batches=[batch for _, batch in batches],
            channels=[part.opened for part, _ in batches if part.opened is not None],
            count=sum([len(part.ids) for part in parts]),
            lease_ms=min([part.lease_ms for part in parts]),
            ends_us=min([part.ends_us for part in parts]),
        )

    def _drop_denied(self, lease: EventLease, check: Check) -> None:
        """End the parts that the client has lost the right to."""
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
        self, request: SettleLease | SettlePatternLease, owner: str, check: Check
    ) -> Settled:
        """Settle events of all named channels, or of none. The answer is sent once the settlements
        are on disk; a repeated request gets the same answer.

        Raises ``LeaseEnded`` for events that have gone back, ``IllegalState`` for events that the
        lease never had, or that were settled in another way.
        """
        lease = self.find(request, owner)
        if lease is None:
            return await self.answer_without_lease(request, check)

        def settle(group: Group) -> Settled:
            selected = _selected_events(group, lease, request, how=request.how)
            # A repeated request settles only the events that it has not settled yet.
            fresh = [(part, without(ids, part.done[request.how])) for part, ids in selected]
            to_settle = [(part, ids, self.held(group, part, ids)) for part, ids in fresh if ids]
            # Several channels are all checked before the first one changes, so that a refusal
            # settles nothing.
            if len(to_settle) > 1:
                for part, ids, _ in to_settle:
                    _rehearse(group, part, request, ids=ids)
            for part, ids, in_flight in to_settle:
                settle_events(group, part, request, fresh=ids, seat_ids=in_flight)
            return _answer(group, lease, selected)

        copy_bytes = 0
        if request.how == "reject":
            copy_bytes = sum(
                [_reject_bytes(self.shard, part, request.reason) for part in lease.parts]
            )
        return await self.act(lease, settle, room=copy_bytes)

    async def extend(self, request: ExtendLease | ExtendPatternLease, owner: str) -> Settled:
        """Extend the time of events. Raises the errors of :meth:`settle`."""
        lease = self.find(request, owner)
        if lease is None:
            raise unknown(request.lease)

        def extend(group: Group) -> Settled:
            selected = _selected_events(group, lease, request, how=None)
            if isinstance(request, ExtendPatternLease):
                selected = [(part, ids) for part, ids in selected if ids]
            if not selected:
                raise LeaseEnded(
                    f"lease {lease.name} holds none of the events to be extended; fetch again"
                )
            for part, ids in selected:
                self.held(group, part, ids)
            until_us = group.now_us + request.time_ms * 1_000
            for part, ids in selected:
                command = ExtendTime(part.subscription, ids.spans, request.time_ms)
                group.do(part.channel, command)
                part.extend(ids, until_us)
            return _answer(group, lease, selected)

        return await self.act(lease, extend)

    async def answer_without_lease(
        self, request: SettleLease | SettlePatternLease, check: Check
    ) -> Settled:
        """Return the answer for a lease that the realm does not know: an acknowledgement succeeds
        if all its events are acknowledged already (SEM D15).

        Raises ``LeaseEnded`` otherwise: outstanding events no longer belong to this client.
        """
        selection = _chosen(request) if request.how == "ack" else None
        if selection is None:
            raise unknown(request.lease)
        spans_by_name = {
            name: events.spans for name, events in selection.items() if events.spans is not None
        }
        if len(spans_by_name) < len(selection):
            # Without the lease, the realm does not know which events "all" and "up to" select.
            raise unknown(request.lease)
        only_channel = request.channel if isinstance(request, SettleLease) else None
        if only_channel is None:
            for name in spans_by_name:
                check(name)

        def inspect(group: Group) -> Settled:
            count = 0
            for name, spans in spans_by_name.items():
                ids = IdSet(spans)
                channel = only_channel or group.state.directory.channel_id_of(name, "channel")
                if not _are_acknowledged(group, channel, request.durable, ids=ids):
                    raise unknown(request.lease)
                count += len(ids)
            return Settled(count=count, left=0, ends_us=None)

        sweeps = None if only_channel is None else (only_channel,)
        settled: Settled = await self.shard.act(inspect, sweeps=sweeps)
        return settled

    def find(
        self,
        request: SettleLease | SettlePatternLease | ExtendLease | ExtendPatternLease,
        owner: str,
    ) -> EventLease | None:
        """Return the lease that a request names, if it belongs to ``owner`` and to the source and
        durable of the request."""
        if isinstance(request, SettleLease | ExtendLease):
            source: ChannelId | str = request.channel
        else:
            source = choice_of(request.pattern).text
        lease = self.named(request.lease, owner)
        if lease is None:
            return None
        terms = lease.terms
        matches = (terms.source, terms.durable) == (source, _durable_of(request.durable))
        return lease if matches else None


def _durable_of(name: str) -> str:
    return durable_name(name) if name else ""


def _chosen(
    request: SettleLease | SettlePatternLease | ExtendLease | ExtendPatternLease,
) -> Mapping[str, LeasedEvents] | None:
    """Return the events that a request selects, by the name of the part; None if it selects all."""
    if isinstance(request, SettleLease | ExtendLease):
        return {"": request.chosen}
    return request.channels


def _selected_events(
    group: Group,
    lease: EventLease,
    request: SettleLease | SettlePatternLease | ExtendLease | ExtendPatternLease,
    how: How | None,
) -> list[tuple[LeasePart, IdSet]]:
    """Return the events that a request selects, by part. "All" leaves out events of deleted
    channels, which cannot be delivered again."""
    selection = _chosen(request)
    selected = lease.selected_events(selection, how)
    if selection is None:
        selected = [(part, ids) for part, ids in selected if part.channel in group.state.channels]
    return selected


# --- the events of one part ---------------------------------------------------------------


def _command_of(request: Settling, subscription: int, spans: Spans) -> Command:
    """Return the command that settles events of a seat."""
    match request.how:
        case "ack":
            return Ack(subscription, spans)
        case "roll_back":
            return RollBack(subscription, spans, delay_ms=request.delay_ms)
        case "reject":
            return BuryEvents(subscription, spans)


def _rehearse(group: Group, part: LeasePart, request: Settling, ids: IdSet) -> None:
    """Raise an error if the part's channel would refuse the request. Called before other channels
    change."""
    channel = group.channel(part.channel)
    decided = channel.decide(_command_of(request, part.subscription, ids.spans), group.now_us)
    if channel.state.moves_dead:
        evaluation_ahead.require_evaluation(group, part.channel, channel, facts=decided.facts)


def settle_events(
    group: Group, part: LeasePart, request: Settling, fresh: IdSet, seat_ids: IdSet
) -> None:
    """Settle the ``fresh`` events of a part, and record that they are settled. ``seat_ids`` are the
    events in flight at its seat: the command removes the settled ones from this set."""
    before, settled_ids = seat_ids.copy(), part.done[request.how]
    reason = request.reason if request.how == "reject" else None
    command = _command_of(request, part.subscription, fresh.spans)
    group.do(part.channel, command, reason=reason)
    settled_ids.add_all(fresh)
    if request.how == "ack":  # a cumulative durable also acknowledges earlier events
        settled_ids.add_all(without(before, seat_ids))


def _answer(
    group: Group, lease: EventLease, selected: Iterable[tuple[LeasePart, IdSet]]
) -> Settled:
    """Return the answer to a request that selected these events."""
    remaining, ends_us = 0, None
    for part in lease.parts:
        if in_flight := held_by(group.state, part):
            remaining += len(in_flight)
            ends_us = max(ends_us or 0, part.until_us(in_flight))
    return Settled(count=sum([len(ids) for _, ids in selected]), left=remaining, ends_us=ends_us)


def _are_acknowledged(group: Group, channel: ChannelId, durable: str, ids: IdSet) -> bool:
    """Whether these events were published and are no longer outstanding at the durable."""
    state = group.channel(channel).state
    has_future_ids = ids.highest is not None and ids.highest >= state.next_id
    return not (has_future_ids or state.durable(durable).wanting(ids.overlap(state.stored)))


def _reject_bytes(shard: Shard, part: LeasePart, reason: str) -> int:
    """Return an estimate of the bytes that are written if all events of a part are rejected."""
    channel = shard.state.channels.get(part.channel)
    if channel is None:
        return 0
    size = channel.state.event_bytes + min(len(reason), REASON_CHARACTERS_MAX)
    return int(2 * size) * len(part.ids)
