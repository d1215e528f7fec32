"""What a command would make happen to a channel. Reads state, never writes it."""

from __future__ import annotations

from penstock.core.durable import Durable
from penstock.core.errors import DurableInUse, InvalidArgument, NameAlreadyBound
from penstock.core.ids import IdSet, Span
from penstock.core.messages import (
    Ack,
    Acked,
    AckPrevious,
    Attach,
    Cause,
    Command,
    CreateDurable,
    Credit,
    Decided,
    Definition,
    DeleteDurable,
    Demand,
    Detach,
    DurableCreated,
    DurableDeleted,
    Edit,
    Edited,
    Publish,
    Purge,
    Quarantine,
    Removed,
    RollBack,
    RolledBack,
    Skip,
    Spans,
    Subscribe,
    Sweep,
)
from penstock.core.publish import Shelf, decide_publish
from penstock.core.retention import check_limits, make_room
from penstock.core.state import ChannelState

WINDOW_MAX = 1_000_000


def decide(state: ChannelState, command: Command, now_us: int) -> Decided:
    """What ``command`` would make happen. Raises ``Refused``; changes nothing."""
    match command:
        case Publish():
            return decide_publish(command, _shelf(state), now_us, state.rules.event_bytes_max)
        case Ack(subscription, spans):
            durable, seat = state.seat(subscription)
            mine = durable.settled_by(seat, spans, state.stored)
            if durable.kind.cumulative:  # also when the named event itself is gone (SEM T9)
                mine = durable.below(seat, max((span[1] for span in spans), default=0) - 1)
            return Decided((Acked(durable.name, mine),) if mine else ())
        case AckPrevious(subscription, event_id):
            durable, seat = state.seat(subscription)
            mine = durable.below(seat, event_id)
            return Decided((Acked(durable.name, mine),) if mine else ())
        case RollBack(subscription, spans):
            durable, seat = state.seat(subscription)
            return _given_back(state, durable, durable.settled_by(seat, spans, state.stored))
        case Detach(subscription):
            if subscription not in state.seats:
                return Decided()
            durable, seat = state.seats[subscription]
            return _given_back(state, durable, seat.in_flight.spans)  # SEM D13
        case Sweep():
            return _sweep(state, now_us)
        case _:
            return _rare(state, command)


def _rare(state: ChannelState, command: Command) -> Decided:
    match command:
        case Attach():
            _check_attach(state, command)
        case Subscribe(credit=count) | Credit(_, count) | Demand(_, count):
            if count < 0:
                raise InvalidArgument(f"a credit of {count}: give 0 or more")
        case CreateDurable():
            return _create(state, command)
        case DeleteDurable(name):
            state.durable(name)
            return Decided((DurableDeleted(name),))
        case Purge(spans):
            gone = state.stored_part(spans)
            return _removed(gone, Cause.PURGED, answer=len(gone))
        case Quarantine(spans):
            return _removed(state.stored_part(spans), Cause.QUARANTINED)
        case Edit(definition):
            _check_edit(state, definition)
            return Decided((Edited(definition), *_evicted(state, definition)))
        case Skip():
            pass
        case _:
            raise AssertionError(f"a channel does not know {type(command).__name__}")
    return Decided()


def _shelf(state: ChannelState) -> Shelf:
    selectors = {d.name: d.selector for d in state.durables.values() if d.selector}
    return Shelf(
        state.definition,
        state.type,
        state.stored,
        state.next_id,
        state.reserved,
        state.producers,
        selectors,
    )


def _given_back(state: ChannelState, durable: Durable, spans: Spans) -> Decided:
    if not spans or not durable.kind.redelivers_at_once:
        return Decided()
    return Decided((RolledBack(durable.name, spans),))


def _sweep(state: ChannelState, now_us: int) -> Decided:
    expired = state.ages.expired(state.definition.ttl, state.next_id, state.stored, now_us)
    consumed = _consumed(state)
    consumed.remove_all(expired)
    facts = [
        Removed(gone.spans, cause)
        for gone, cause in ((expired, Cause.EXPIRED), (consumed, Cause.CONSUMED))
        if gone
    ]
    return Decided(tuple(facts))


def _consumed(state: ChannelState) -> IdSet:
    """SEM D6: acknowledged by all durables, and sent to every subscriber there is."""
    if state.definition.retain_consumed or not state.durables or not state.fresh:
        return IdSet()
    gone = state.fresh.overlap(state.stored)
    for durable in state.durables.values():
        gone.remove(Span(durable.head, 1 << 62))
        gone.remove_all(durable.outstanding.overlap(gone))
    for subscriber in state.subscribers.values():
        if subscriber.stop_id is None:
            gone.remove(Span(subscriber.cursor, 1 << 62))
    return gone


def _check_attach(state: ChannelState, command: Attach) -> None:
    durable = state.durable(command.durable)
    kind = durable.kind
    if command.window is not None:
        if not kind.takes_window:
            raise InvalidArgument(
                f"durable {durable.name} is {kind.name}: it takes no window argument"
            )
        if not 1 <= command.window <= WINDOW_MAX:
            raise InvalidArgument(f"window is {command.window}; it may be 1 to {WINDOW_MAX}")
    if not kind.may_attach(durable.seats):
        raise DurableInUse(
            f"durable {durable.name} of {state.name} is {kind.name} and held by session "
            f"{durable.seats[0].session}; end that subscription first"
        )


def _create(state: ChannelState, command: CreateDurable) -> Decided:
    name = command.name
    if name in state.durables:
        raise NameAlreadyBound(f"durable {name} exists already on {state.name}")
    kind = state.rules.kinds.get(command.kind)
    if kind is None:
        known = ", ".join(sorted(state.rules.kinds))
        raise InvalidArgument(f"{command.kind!r} is no durable type; there are {known}")
    if command.selector and not kind.stores_selector:
        raise InvalidArgument(
            f"a durable of type {kind.name} keeps no selector; "
            "give one with each subscription instead"
        )
    persistent = command.persistent
    if persistent is None:
        persistent = state.type.survives_restart
    return Decided(
        (
            DurableCreated(
                name, kind.name, command.start_id, command.selector, command.matched, persistent
            ),
        )
    )


def _check_edit(state: ChannelState, wanted: Definition) -> None:
    mine = state.definition
    for fixed in ("type", "engine", "start_event_id"):
        if getattr(wanted, fixed) != getattr(mine, fixed):
            raise InvalidArgument(
                f"{fixed} is fixed at creation ({getattr(mine, fixed)!r}); "
                "create another channel to change it"
            )
    check_limits(wanted)


def _evicted(state: ChannelState, wanted: Definition) -> tuple[Removed, ...]:
    """SEM C3: a new capacity applies at once. One that is honoured evicts nothing (SEM T4)."""
    if wanted.storage.honour_capacity:
        return ()
    gone = make_room(wanted.capacity, state.stored, Span(state.next_id, state.next_id))
    return (Removed(gone, Cause.EVICTED),) if gone else ()


def _removed(gone: IdSet, cause: Cause, answer: int | None = None) -> Decided:
    return Decided((Removed(gone.spans, cause),) if gone else (), answer)
