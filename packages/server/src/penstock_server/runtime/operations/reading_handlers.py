"""Handlers of requests that are answered with events, or with counts of events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from penstock_core.access.rights import ANONYMOUS
from penstock_core.api import consuming, reading
from penstock_core.api.durables import DeliveryPage, DescribeDelivery
from penstock_core.api.operations import READING, TAKE
from penstock_core.api.requests import Kind
from penstock_core.channel.delivery_state import Selected, selected_durables
from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.events.dead_runs import dead_runs
from penstock_core.columns.events.event import Event
from penstock_core.columns.protobuf import Messages
from penstock_core.columns.schema.ipc import schema_from
from penstock_core.columns.selectors import MalformedSelector, Selector
from penstock_core.durable.queue import READERS
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.delivery_runs import DEAD, DeliveryPlace
from penstock_core.vocabulary.errors import IllegalState, NameDoesNotExist, Unavailable
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.names import destination_name
from penstock_core.vocabulary.start_positions import AnyStart, FromId
from penstock_server.runtime.delivery.delivery import Outlet
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.reading.collecting import Collected, collect, count_that_fits
from penstock_server.runtime.reading.dead import DeadEvents, DeadOrigins
from penstock_server.runtime.reading.newest import newest
from penstock_server.runtime.store.merge_store import MergeStore
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.store.sealed_file import Damage
from penstock_server.runtime.subscriptions.locations import columns, missing
from penstock_server.runtime.subscriptions.subscriptions import OpenedSubscription
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard

DEAD_EVENTS_MAX: Final = 10_000
"""Maximum number of events of the dead event store that are read for a page of delivery states."""
GRACE_S: Final = 0.25
"""Seconds to wait for events that are stored already."""
MATCHES_MAX: Final = 100_000
"""Largest number of matching events that are counted."""
SAMPLE: Final = 5
"""Number of matching events whose ids are in the answer."""


# --- pages of events ----------------------------------------------------------------------


async def browse_events(caller: Caller, request: reading.BrowseEvents) -> reading.BrowsedEvents:
    if request.newest:
        return await _browse_newest(caller, request)
    selector = await _selector_of(caller, request)
    outlet = Collected(
        caller.session, selector, _page_count(caller, request.channel, request.limit)
    )
    last_id = None if request.end_id is None else request.end_id - 1
    opened: list[OpenedSubscription] = []

    async def subscribe() -> OpenedSubscription:
        opened.append(
            await _subscribe_to_browse(
                caller, request.channel, request.start, outlet=outlet, last_id=last_id
            )
        )
        return opened[0]

    next_id = await collect(caller.realm, request.channel, outlet, subscribe=subscribe)
    end = (opened[0].stop_id or 0) if next_id is None else next_id
    return reading.BrowsedEvents(
        events=outlet.events(), first_id=opened[0].first_id, end_id=end, next_id=next_id
    )


async def _browse_newest(caller: Caller, request: reading.BrowseEvents) -> reading.BrowsedEvents:
    page = await newest(
        caller.realm,
        caller.session,
        request.channel,
        selector=request.selector,
        limit=request.limit,
        start=request.start,
        end=request.end_id,
    )
    first, end = page.examined
    return reading.BrowsedEvents(
        events=page.events, first_id=first, end_id=end, next_id=None if page.is_all else first
    )


async def _selector_of(
    caller: Caller, request: reading.BrowseEvents | reading.BrowseOutstanding | reading.PopEvents
) -> Selector | None:
    """Return the parsed selector of a request; None without one. Raises ``InvalidSelector``."""
    return (
        await caller.realm.dispatch.choosing.parse(request.selector) if request.selector else None
    )


def _page_count(caller: Caller, channel: ChannelId, limit: int) -> int:
    return count_that_fits(caller.realm.view.store(channel), limit)


async def _subscribe_to_browse(
    caller: Caller,
    channel: ChannelId,
    start: AnyStart,
    outlet: Collected,
    last_id: int | None = None,
) -> OpenedSubscription:
    return await caller.realm.subscriptions.subscribe(
        channel, start, outlet, credit=outlet.count_max, browse=True, last_id=last_id
    )


async def browse_outstanding(
    caller: Caller, request: reading.BrowseOutstanding
) -> reading.BrowsedEvents:
    selector = await _selector_of(caller, request)
    fits = _page_count(caller, request.channel, request.limit)
    outlet = Collected(caller.session, selector, fits, first_id=request.first_id)
    opened: list[OpenedSubscription] = []

    async def subscribe() -> OpenedSubscription:
        opened.append(
            await caller.realm.subscriptions.browse_durable(
                request.channel, request.durable, outlet, credit=fits, first_id=request.first_id
            )
        )
        return opened[0]

    next_id = await collect(caller.realm, request.channel, outlet, subscribe=subscribe)
    end = (opened[0].stop_id or 0) if next_id is None else next_id
    return reading.BrowsedEvents(
        events=outlet.events(), first_id=request.first_id, end_id=end, next_id=next_id
    )


async def read_event(caller: Caller, request: reading.ReadEvent) -> Event:
    channel, event_id = request.channel, request.event_id
    store = caller.realm.view.store(channel)
    outlet = Collected(caller.session, None, 1)
    await collect(
        caller.realm,
        channel,
        outlet,
        subscribe=lambda: _subscribe_to_browse(
            caller, channel, FromId(event_id), outlet=outlet, last_id=event_id
        ),
    )
    if events := outlet.events():
        return events[0]
    # The cause tells the client whether the event existed, and why it left the channel.
    missing_spans = await missing(caller.realm.shard, channel, Span(event_id, event_id + 1))
    causes = ", ".join(span.cause for span in missing_spans) or "never"
    assert store is not None, "a browse of the store has succeeded"
    raise NameDoesNotExist(f"{store.kind} {store.name} has no event {event_id} ({causes})")


async def pop_events(caller: Caller, request: reading.PopEvents) -> list[Event]:
    """Remove events from a queue: they are acknowledged before the answer is sent.

    If the connection is lost before the client has the answer, the events are also lost. A
    transactional reader avoids this.
    """
    subscriptions = caller.realm.subscriptions
    outlet = Collected(caller.session, await _selector_of(caller, request), request.count)
    opened = await subscriptions.attach(
        request.channel, READERS, outlet, window=request.count, pull=True
    )
    try:
        subscriptions.demand(opened.number, request.count)
        await outlet.wait(max(request.timeout_s, GRACE_S))
        caller.check(request)  # the right may have been revoked during the wait
        events = outlet.events()
        await _acknowledge(caller, opened.number, events)
    finally:
        subscriptions.detach(opened.number)
    return events


async def _acknowledge(caller: Caller, subscription: int, events: list[Event]) -> None:
    ids = IdSet.from_ids(event.event_id for event in events if event.event_id is not None)
    if not ids:
        return
    settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def reply(_: object, error: BaseException | None) -> None:
        if settled.done():  # the caller was cancelled
            return
        if error is None:
            settled.set_result(None)
        else:
            settled.set_exception(error)

    caller.realm.subscriptions.settle(
        subscription, tuple(ids.spans), reply, roll_back=False, previous=False
    )
    try:
        await settled
    except Exception:
        del settled  # its exception refers to this frame, which would be a reference cycle
        raise


# --- leases -------------------------------------------------------------------------------


def _lease_owner(caller: Caller) -> str:
    """Return the owner of the caller's leases: the user, on any machine. For a caller that has not
    signed in, the owner is the anonymous user of the caller's machine."""
    return caller.principal.name if caller.owner == ANONYMOUS else caller.owner


async def fetch_events(caller: Caller, request: consuming.FetchEvents) -> consuming.Fetched:
    selector = (
        await caller.realm.dispatch.choosing.parse(request.selector) if request.selector else None
    )
    return await caller.realm.leases.fetch(
        request,
        _lease_owner(caller),
        caller.principal.name,
        selector=selector,
        check=lambda: caller.check(request),
    )


def _consume_check(caller: Caller) -> Callable[[str], None]:
    """Return a check that raises ``AccessDenied`` for a channel that the caller may not
    consume."""
    return lambda name: caller.realm.access.require(caller.principal, TAKE[0], name)


async def fetch_from_pattern(
    caller: Caller, request: consuming.FetchFromPattern
) -> consuming.Fetched:
    selector = (
        await caller.realm.dispatch.choosing.parse(request.selector) if request.selector else None
    )
    return await caller.realm.leases.fetch_from_pattern(
        request,
        _lease_owner(caller),
        caller.principal.name,
        selector=selector,
        check=_consume_check(caller),
    )


async def settle_lease(
    caller: Caller, request: consuming.SettleLease | consuming.SettlePatternLease
) -> consuming.Settled:
    return await caller.realm.leases.settle(request, _lease_owner(caller), _consume_check(caller))


async def extend_lease(
    caller: Caller, request: consuming.ExtendLease | consuming.ExtendPatternLease
) -> consuming.Settled:
    return await caller.realm.leases.extend(request, _lease_owner(caller))


# --- counts of events ---------------------------------------------------------------------


async def summarize_dead(caller: Caller, request: reading.SummarizeDead) -> reading.DeadSummary:
    outlet = DeadEvents(caller.session, request.limit)
    next_id = await collect(
        caller.realm,
        request.channel,
        outlet,
        subscribe=lambda: _subscribe_to_browse(caller, request.channel, FromId(0), outlet=outlet),
    )
    return outlet.summary(is_complete=next_id is None)


class MatchCount(Collected):
    """An outlet that counts events and keeps only the first ids."""

    def __init__(self, session: str, selector: Selector) -> None:
        super().__init__(session, selector, MATCHES_MAX)
        self.ids: list[int] = []

    def deliver(self, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        """Count the events of a batch."""
        ids = rows.batch.column("event_id")
        self.ids += ids[: max(0, SAMPLE - len(self.ids))].to_pylist()
        self.advance(rows.batch)


async def explain_selector(
    caller: Caller, request: reading.ExplainSelector
) -> reading.SelectorAnswer:
    # Imported here because few realms explain selectors, and every start would pay for it.
    from penstock_core.columns.selectors.checking import checked
    from penstock_core.columns.selectors.explaining import explained

    name = destination_name(request.channel) if request.channel else ""
    kind: Kind = "queue" if caller.sees_queue(name) else "channel"
    opened = await caller.realm.open_channel(name, kind) if name else None
    try:
        selector = await caller.realm.dispatch.choosing.parse(request.selector)
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
        stored = schema_from(await columns(caller.realm.shard, opened.channel))
        messages = _messages_of(opened.name, opened.definition.descriptors)
        stored = stored if messages is None else messages.seen_in(stored)
    chooses, remarks = await caller.realm.dispatch.choosing.for_text(
        request.selector,
        lambda: (explained(selector.expression), checked(selector.expression, stored)),
    )
    return reading.SelectorAnswer(
        valid=True,
        chooses=tuple(chooses),
        names=tuple(
            # The kind is one of the two values that the answer allows.
            reading.SelectorName(name=name.name, kind=name.kind, types=name.types)  # type: ignore[arg-type]
            for name in remarks.names
        ),
        remarks=tuple(remarks.remarks),
        chosen=None
        if opened is None
        else await _count_matches(caller, selector, opened.channel, name=opened.name, kind=kind),
    )


def _messages_of(name: str, descriptors: Any) -> Messages | None:
    """Return the decoder of a store's messages; None if it has no descriptors, or if the library
    to decode them is not installed."""
    try:
        messages = Messages(name, descriptors)
    except Unavailable:
        return None
    return messages if messages.types else None


async def _count_matches(
    caller: Caller, selector: Selector, channel: ChannelId, name: str, kind: Kind
) -> reading.Chosen:
    """Return the number of stored events that a selector matches, and the lowest of their ids."""
    outlet = MatchCount(caller.session, selector)
    next_id = await collect(
        caller.realm,
        channel,
        outlet,
        subscribe=lambda: _open_counting_browse(caller, channel, kind, outlet=outlet),
    )
    store = caller.realm.view.store(channel)
    return reading.Chosen(
        channel=name,
        events=0 if store is None else len(store.stored),
        matches=outlet.count,
        first_ids=outlet.ids,
        is_complete=next_id is None,
    )


async def _open_counting_browse(
    caller: Caller, channel: ChannelId, kind: Kind, outlet: MatchCount
) -> OpenedSubscription:
    """Open a browse of all stored events, whose matches ``outlet`` counts."""
    if kind == "queue":
        counting: Outlet = outlet
        return await caller.realm.subscriptions.browse_durable(
            channel, READERS, counting, credit=MATCHES_MAX
        )
    return await _subscribe_to_browse(caller, channel, FromId(0), outlet=outlet)


async def read_key_state(caller: Caller, request: reading.ReadKeyState) -> Event:
    event = await _state_of(caller.realm.shard, request.channel, request.key)
    if event is None:
        store = caller.realm.view.store(request.channel)
        name = "" if store is None else store.name
        raise NameDoesNotExist(f"channel {name} has no state of the key {request.key!r}")
    return event


# --- the schedule -------------------------------------------------------------------------


async def list_scheduled(caller: Caller, request: reading.ListScheduled) -> reading.ScheduledPage:
    store_name = None if request.channel is None else destination_name(request.channel)
    if store_name is not None:
        caller.realm.view.required(store_name)
    kinds: tuple[Kind, ...] = ("channel", "queue")
    names = [(name, kind) for kind in kinds for name in await caller.realm.list_channels(kind)]
    remaining = request.limit
    stores: list[reading.WaitingEvents] = []
    for name, kind in sorted(names):
        is_in_page = store_name in (None, name) and name >= request.first_name
        if not is_in_page or not caller.allows(READING[kind], name):
            continue
        if not remaining:  # the page is full before this store: the next page begins with it
            return reading.ScheduledPage(tuple(stores), (0, name))
        first = request.first_number if name == request.first_name else 0
        waiting, next_number = await _waiting(caller, name, kind, first=first, limit=remaining)
        remaining -= len(waiting.events)
        stores.append(waiting)
        if next_number is not None:
            return reading.ScheduledPage(tuple(stores), (next_number, name))
    return reading.ScheduledPage(tuple(stores), None)


async def _waiting(
    caller: Caller, name: str, kind: Kind, first: int, limit: int
) -> tuple[reading.WaitingEvents, int | None]:
    """Return the events that wait for one store, from number ``first`` on, and the first number of
    the next page."""
    store = await caller.realm.open_channel(name, kind)
    hidden = await caller.realm.schedule_of(store.channel)
    if hidden is None:
        return reading.WaitingEvents(store, kind, ()), None
    outlet = Collected(caller.session, None, limit)
    next_number = await collect(
        caller.realm,
        hidden.channel,
        outlet,
        subscribe=lambda: _subscribe_to_browse(
            caller, hidden.channel, FromId(first), outlet=outlet
        ),
    )
    return reading.WaitingEvents(store, kind, outlet.events()), next_number


async def cancel_scheduled(caller: Caller, request: reading.CancelScheduled) -> None:
    hidden = await caller.realm.schedule_of(request.channel)
    purged = 0
    if hidden is not None:
        purged = await caller.realm.subscriptions.purge(
            hidden.channel, request.number, request.number, selector=""
        )
    if not purged:
        store = caller.realm.view.store(request.channel)
        name = "its store" if store is None else store.name
        raise IllegalState(
            f"event number {request.number} does not wait for {name}: it was published or "
            f"cancelled before"
        )


async def _state_of(shard: Shard, channel_id: ChannelId, value: Any) -> Event | None:
    """Return the merged event of a value of the publish key (SEM K5); None if the value has no
    stored event.

    Raises ``IllegalState`` for a channel that does not merge, ``NameDoesNotExist``.
    """

    def read_state(group: Group) -> Event | None:
        state = group.channel(channel_id).state
        group.sweep(channel_id)
        store = group.state.stores[channel_id]
        if not isinstance(store, MergeStore):
            raise IllegalState(
                f"{state.name} has engine {state.definition.engine}; only channels with engine "
                f"merge keep a state for each key"
            )
        # Publishes are merged into the states later, so the states may lack the newest ones.
        store.settle()
        newest = store.states.newest_of(value)
        if newest is None or newest not in state.stored:
            return None
        [rows] = store.read((Span(newest, newest + 1),), Damage())
        return EventBatch(rows.batch, publishers=rows.publishers)[0]

    event: Event | None = await shard.act(read_state, sweeps=(channel_id,))
    return event


# --- delivery states (SEM D23) ------------------------------------------------------------


async def describe_delivery(caller: Caller, request: DescribeDelivery) -> DeliveryPage:
    """Return a page of delivery states. Raises ``NameDoesNotExist``, ``InvalidArgument``."""
    states = frozenset(request.states) - {DEAD}
    selected = Selected(request.durable, states, request.limit)
    if request.among_dead or (request.reads_dead and not states):
        return await _dead_states(caller, request, selected)
    page = await caller.realm.subscriptions.delivery(request.channel, selected, request.place)
    if page.next is not None or DEAD not in request.states:
        return page
    return DeliveryPage(page.runs, DeliveryPlace("", 0, is_dead=True))


async def _dead_states(
    caller: Caller, request: DescribeDelivery, selected: Selected
) -> DeliveryPage:
    """Return a page of the dead events of a channel or queue. Raises as
    :func:`describe_delivery`."""
    directory, place = caller.realm.directory, request.place
    channel = directory.channels.get(request.channel)
    if channel is None:
        raise NameDoesNotExist(f"channel number {request.channel} was deleted during the request")
    selected_durables(channel.state, selected)  # checks the name
    # The dead event store may have changed since the right to read it was checked.
    caller.check(request)
    dead = directory.dead_event_store_of(request.channel)
    if dead is None:
        return DeliveryPage((), None)
    count_max = count_that_fits(caller.realm.view.store(dead), DEAD_EVENTS_MAX)
    outlet = DeadOrigins(caller.session, count_max)
    next_id = await collect(
        caller.realm,
        dead,
        outlet,
        subscribe=lambda: caller.realm.subscriptions.subscribe(
            dead, FromId(place.first_id), outlet, credit=count_max, browse=True
        ),
    )
    runs, next_place = dead_runs(outlet.columns, channel.state.name, selected, place=place)
    if next_place is None and next_id is not None:
        next_place = DeliveryPlace("", next_id, is_dead=True)
    return DeliveryPage(tuple(runs), next_place)
