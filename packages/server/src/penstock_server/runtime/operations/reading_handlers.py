"""What is done for requests that are answered with events, or with what they say together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from penstock_core.access.rights import ANONYMOUS
from penstock_core.api import consuming, reading
from penstock_core.api.operations import READING, TAKE
from penstock_core.api.requests import Kind
from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.events.event import Event
from penstock_core.columns.protobuf import Messages
from penstock_core.columns.schema.ipc import schema_from
from penstock_core.columns.selectors import MalformedSelector, Selector
from penstock_core.durable.queue import READERS
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.errors import IllegalState, NameDoesNotExist, Unavailable
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.names import destination_name
from penstock_core.vocabulary.start_positions import AnyStart, FromId
from penstock_server.runtime.delivery.delivery import Outlet
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.reading.collecting import Collected, collect, count_that_fits
from penstock_server.runtime.reading.dead import DeadEvents
from penstock_server.runtime.reading.newest import newest
from penstock_server.runtime.store.merge_store import MergeStore
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.store.sealed_file import Damage
from penstock_server.runtime.subscriptions.locations import columns, missing
from penstock_server.runtime.subscriptions.subscriptions import Opened
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard

GRACE_S: Final = 0.25
"""Seconds to wait for events that are stored already."""
MATCHES_MAX: Final = 100_000
"""Most matching events that are counted."""
SAMPLE: Final = 5
"""How many ids of matching events are shown."""


# --- pages of events ----------------------------------------------------------------------


async def browse_events(by: Caller, asked: reading.BrowseEvents) -> reading.BrowsedEvents:
    if asked.newest:
        return await _browse_newest(by, asked)
    selector = await _selector_of(by, asked)
    outlet = Collected(by.session, selector, _fits(by, asked.channel, asked.limit))
    last_id = None if asked.end_id is None else asked.end_id - 1
    opened: list[Opened] = []

    async def open_() -> Opened:
        opened.append(await _opened(by, asked.channel, asked.start, outlet=outlet, last_id=last_id))
        return opened[0]

    next_id = await collect(by.realm, asked.channel, outlet, open_=open_)
    end = (opened[0].stop_id or 0) if next_id is None else next_id
    return reading.BrowsedEvents(
        events=outlet.events(), first_id=opened[0].first_id, end_id=end, next_id=next_id
    )


async def _browse_newest(by: Caller, asked: reading.BrowseEvents) -> reading.BrowsedEvents:
    told = await newest(
        by.realm,
        by.session,
        asked.channel,
        selector=asked.selector,
        limit=asked.limit,
        start=asked.start,
        end=asked.end_id,
    )
    first, end = told.looked_at
    return reading.BrowsedEvents(
        events=told.events, first_id=first, end_id=end, next_id=None if told.is_all else first
    )


async def _selector_of(
    by: Caller, asked: reading.BrowseEvents | reading.BrowseOutstanding | reading.PopEvents
) -> Selector | None:
    return await by.realm.dispatch.choosing.parse(asked.selector) if asked.selector else None


def _fits(by: Caller, channel: ChannelId, limit: int) -> int:
    return count_that_fits(by.realm.view.store(channel), limit)


async def _opened(
    by: Caller,
    channel: ChannelId,
    start: AnyStart,
    outlet: Collected,
    last_id: int | None = None,
) -> Opened:
    return await by.realm.subscriptions.subscribe(
        channel, start, outlet, credit=outlet.count_max, browse=True, last_id=last_id
    )


async def browse_outstanding(by: Caller, asked: reading.BrowseOutstanding) -> reading.BrowsedEvents:
    selector = await _selector_of(by, asked)
    fits = _fits(by, asked.channel, asked.limit)
    outlet = Collected(by.session, selector, fits, first_id=asked.first_id)
    opened: list[Opened] = []

    async def open_() -> Opened:
        opened.append(
            await by.realm.subscriptions.browse_durable(
                asked.channel, asked.durable, outlet, credit=fits, first_id=asked.first_id
            )
        )
        return opened[0]

    next_id = await collect(by.realm, asked.channel, outlet, open_=open_)
    end = (opened[0].stop_id or 0) if next_id is None else next_id
    return reading.BrowsedEvents(
        events=outlet.events(), first_id=asked.first_id, end_id=end, next_id=next_id
    )


async def read_event(by: Caller, asked: reading.ReadEvent) -> Event:
    channel, event_id = asked.channel, asked.event_id
    store = by.realm.view.store(channel)
    outlet = Collected(by.session, None, 1)
    await collect(
        by.realm,
        channel,
        outlet,
        open_=lambda: _opened(by, channel, FromId(event_id), outlet=outlet, last_id=event_id),
    )
    if events := outlet.events():
        return events[0]
    gone = await missing(by.realm.shard, channel, Span(event_id, event_id + 1))
    why = ", ".join(each.cause for each in gone) or "never"
    assert store is not None, "it was browsed"
    raise NameDoesNotExist(f"{store.kind} {store.name} has no event {event_id} ({why})")


async def pop_events(by: Caller, asked: reading.PopEvents) -> list[Event]:
    """What is lost with the connection is lost: who has to be sure reads with a transactional
    reader."""
    subscriptions = by.realm.subscriptions
    outlet = Collected(by.session, await _selector_of(by, asked), asked.count)
    opened = await subscriptions.attach(
        asked.channel, READERS, outlet, window=asked.count, pull=True
    )
    try:
        subscriptions.demand(opened.number, asked.count)
        await outlet.wait(max(asked.timeout_s, GRACE_S))
        by.check(asked)  # the right may have been revoked while waiting
        events = outlet.events()
        await _settled(by, opened.number, events)
    finally:
        subscriptions.detach(opened.number)
    return events


async def _settled(by: Caller, subscription: int, events: list[Event]) -> None:
    ids = IdSet.from_ids(event.event_id for event in events if event.event_id is not None)
    if not ids:
        return
    settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def reply(_: object, error: BaseException | None) -> None:
        if settled.done():
            return
        if error is None:
            settled.set_result(None)
        else:
            settled.set_exception(error)

    by.realm.subscriptions.settle(
        subscription, tuple(ids.spans), reply, roll_back=False, previous=False
    )
    try:
        await settled
    except Exception:
        del settled  # the error refers to this frame: a cycle
        raise


# --- leases -------------------------------------------------------------------------------


def _lease_owner(by: Caller) -> str:
    """Whose a lease is: a user's, from wherever; where nobody signs in, a machine's."""
    return by.principal.name if by.owner == ANONYMOUS else by.owner


async def fetch_events(by: Caller, asked: consuming.FetchEvents) -> consuming.Fetched:
    selector = await by.realm.dispatch.choosing.parse(asked.selector) if asked.selector else None
    return await by.realm.leases.fetch(
        asked, _lease_owner(by), by.principal.name, selector=selector, check=lambda: by.check(asked)
    )


def _may_consume(by: Caller) -> Callable[[str], None]:
    """Raises ``AccessDenied`` for a channel of a pattern that the caller may not consume."""
    return lambda name: by.realm.access.require(by.principal, TAKE[0], name)


async def fetch_from_pattern(by: Caller, asked: consuming.FetchFromPattern) -> consuming.Fetched:
    selector = await by.realm.dispatch.choosing.parse(asked.selector) if asked.selector else None
    return await by.realm.leases.fetch_from_pattern(
        asked, _lease_owner(by), by.principal.name, selector=selector, check=_may_consume(by)
    )


async def settle_lease(
    by: Caller, asked: consuming.SettleLease | consuming.SettlePatternLease
) -> consuming.Settled:
    return await by.realm.leases.settle(asked, _lease_owner(by), _may_consume(by))


async def extend_lease(
    by: Caller, asked: consuming.ExtendLease | consuming.ExtendPatternLease
) -> consuming.Settled:
    return await by.realm.leases.extend(asked, _lease_owner(by))


# --- sums over events ---------------------------------------------------------------------


async def summarize_dead(by: Caller, asked: reading.SummarizeDead) -> reading.DeadSummary:
    outlet = DeadEvents(by.session, asked.limit)
    next_id = await collect(
        by.realm,
        asked.channel,
        outlet,
        open_=lambda: _opened(by, asked.channel, FromId(0), outlet=outlet),
    )
    return outlet.summary(is_complete=next_id is None)


class MatchCount(Collected):
    """An outlet that counts events, and keeps the first ids."""

    def __init__(self, session: str, selector: Selector) -> None:
        super().__init__(session, selector, MATCHES_MAX)
        self.ids: list[int] = []

    def deliver(self, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        """Count the events of a batch."""
        ids = rows.batch.column("event_id")
        self.ids += ids[: max(0, SAMPLE - len(self.ids))].to_pylist()
        self.count += len(ids)
        self.last_id = ids[-1].as_py()
        if self.count >= self.count_max:
            self.is_full = True
            self.done.set()


async def explain_selector(by: Caller, asked: reading.ExplainSelector) -> reading.SelectorAnswer:
    from penstock_core.columns.selectors.checking import checked  # only who asks needs these
    from penstock_core.columns.selectors.explaining import explained

    name = destination_name(asked.channel) if asked.channel else ""
    kind: Kind = "queue" if by.sees_queue(name) else "channel"
    opened = await by.realm.open_channel(name, kind) if name else None
    try:
        selector = await by.realm.dispatch.choosing.parse(asked.selector)
    except MalformedSelector as error:
        return reading.SelectorAnswer(
            valid=False,
            message=str(error),
            line=error.line,
            column=error.column,
            expected=error.expected,
        )
    stored = None
    if opened is not None:
        stored = schema_from(await columns(by.realm.shard, opened.channel))
        messages = _messages_of(opened.name, opened.definition.descriptors)
        stored = stored if messages is None else messages.seen_in(stored)
    chooses, said = await by.realm.dispatch.choosing.for_text(
        asked.selector,
        lambda: (explained(selector.expression), checked(selector.expression, stored)),
    )
    return reading.SelectorAnswer(
        valid=True,
        chooses=tuple(chooses),
        names=tuple(
            reading.SelectorName(name=each.name, kind=each.kind, types=each.types)  # type: ignore[arg-type]  # it is one of the two
            for each in said.names
        ),
        remarks=tuple(said.remarks),
        chosen=None
        if opened is None
        else await _chosen(by, selector, opened.channel, name=opened.name, kind=kind),
    )


def _messages_of(name: str, descriptors: Any) -> Messages | None:
    """What reads the messages of a store; None without descriptors, or what it takes to read."""
    try:
        messages = Messages(name, descriptors)
    except Unavailable:
        return None
    return messages if messages.types else None


async def _chosen(
    by: Caller, selector: Selector, channel: ChannelId, name: str, kind: Kind
) -> reading.Chosen:
    outlet = MatchCount(by.session, selector)
    next_id = await collect(
        by.realm, channel, outlet, open_=lambda: _matched(by, channel, kind, outlet=outlet)
    )
    now = by.realm.view.store(channel)
    return reading.Chosen(
        channel=name,
        events=0 if now is None else len(now.stored),
        matches=outlet.count,
        first_ids=outlet.ids,
        is_complete=next_id is None,
    )


async def _matched(by: Caller, channel: ChannelId, kind: Kind, outlet: MatchCount) -> Opened:
    if kind == "queue":
        whole: Outlet = outlet
        return await by.realm.subscriptions.browse_durable(
            channel, READERS, whole, credit=MATCHES_MAX
        )
    return await _opened(by, channel, FromId(0), outlet=outlet)


async def read_key_state(by: Caller, asked: reading.ReadKeyState) -> Event:
    event = await _state_of(by.realm.shard, asked.channel, asked.key)
    if event is None:
        store = by.realm.view.store(asked.channel)
        name = "" if store is None else store.name
        raise NameDoesNotExist(f"channel {name} has no state of the key {asked.key!r}")
    return event


# --- the schedule -------------------------------------------------------------------------


async def list_scheduled(by: Caller, asked: reading.ListScheduled) -> reading.ScheduledPage:
    wanted = None if asked.channel is None else destination_name(asked.channel)
    if wanted is not None:
        by.realm.view.required(wanted)
    kinds: tuple[Kind, ...] = ("channel", "queue")
    names = [(name, kind) for kind in kinds for name in await by.realm.list_channels(kind)]
    left = asked.limit
    found: list[reading.WaitingEvents] = []
    for name, kind in sorted(names):
        is_meant = wanted in (None, name) and name >= asked.first_name
        if not is_meant or not by.allows(READING[kind], name):
            continue
        if not left:
            return reading.ScheduledPage(tuple(found), (0, name))
        first = asked.first_number if name == asked.first_name else 0
        more, next_number = await _waiting(by, name, kind, first=first, limit=left)
        left -= len(more.events)
        found.append(more)
        if next_number is not None:
            return reading.ScheduledPage(tuple(found), (next_number, name))
    return reading.ScheduledPage(tuple(found), None)


async def _waiting(
    by: Caller, name: str, kind: Kind, first: int, limit: int
) -> tuple[reading.WaitingEvents, int | None]:
    """Events that wait for one store, from number ``first`` on, and the number of the next page."""
    store = await by.realm.open_channel(name, kind)
    hidden = await by.realm.schedule_of(store.channel)
    if hidden is None:
        return reading.WaitingEvents(store, kind, ()), None
    outlet = Collected(by.session, None, limit)
    next_number = await collect(
        by.realm,
        hidden.channel,
        outlet,
        open_=lambda: _opened(by, hidden.channel, FromId(first), outlet=outlet),
    )
    return reading.WaitingEvents(store, kind, outlet.events()), next_number


async def cancel_scheduled(by: Caller, asked: reading.CancelScheduled) -> None:
    hidden = await by.realm.schedule_of(asked.channel)
    gone = 0
    if hidden is not None:
        gone = await by.realm.subscriptions.purge(
            hidden.channel, asked.number, asked.number, selector=""
        )
    if not gone:
        store = by.realm.view.store(asked.channel)
        name = "its store" if store is None else store.name
        raise IllegalState(
            f"number {asked.number} does not wait on {name}: it was published or cancelled before"
        )


async def _state_of(shard: Shard, channel_id: ChannelId, value: Any) -> Event | None:
    """The merged event of a value of the publish key (SEM K5); None: nothing of it is stored.

    Raises ``IllegalState`` for a channel that does not merge, ``NameDoesNotExist``.
    """

    def look(group: Group) -> Event | None:
        state = group.channel(channel_id).state
        group.sweep(channel_id)
        store = group.state.stores[channel_id]
        if not isinstance(store, MergeStore):
            raise IllegalState(
                f"{state.name} has engine {state.definition.engine}; only channels with engine "
                f"merge keep a state for each key"
            )
        store.settle()
        newest = store.states.newest_of(value)
        if newest is None or newest not in state.stored:
            return None
        [rows] = store.read((Span(newest, newest + 1),), Damage())
        return EventBatch(rows.batch, publishers=rows.publishers)[0]

    found: Event | None = await shard.act(look, sweeps=(channel_id,))
    return found
