"""What a fact does to a channel. Writes state, never decides.

Used live and at recovery alike: there is no other way state comes about.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.core.durable import Durable
from penstock.core.ids import IdSet, Span
from penstock.core.messages import (
    Acked,
    Appended,
    Cause,
    DurableCreated,
    DurableDeleted,
    Edited,
    IdsReserved,
    Removed,
    Restored,
    RolledBack,
    Spans,
    StoredFact,
)
from penstock.core.state import ChannelState


def apply(state: ChannelState, fact: StoredFact) -> None:  # noqa: C901  one case a fact
    """Make ``fact`` true. Never fails, never decides: it has already happened."""
    state.dirty = True
    match fact:
        case Appended():
            _appended(state, fact)
        case Acked(name, spans):
            _acked(state, name, spans)
        case Removed(spans, cause):
            _removed(state, spans, cause)
        case RolledBack(name, spans):
            durable = state.durables.get(name)
            for span in spans if durable else ():
                assert durable is not None, "checked in the line above"
                durable.reach(span[1], state.stored)
                durable.roll_back(Span(*span))
                state.counters.redelivered += span[1] - span[0]
        case IdsReserved(through):
            state.reserved = through
        case Edited(definition):
            state.definition = definition
            state.fresh = state.acked.copy()
        case DurableCreated():
            _created(state, fact)
        case DurableDeleted(name):
            state.durables.pop(name, None)
            state.seats = {s: held for s, held in state.seats.items() if held[0].name != name}
            state.fresh = state.acked.copy()
        case Restored():
            _restored(state, fact)


def _appended(state: ChannelState, fact: Appended) -> None:
    span = Span(*fact.span)
    if span.first > state.next_id and state.type.survives_restart and not state.reserved:
        lost = span.first - state.next_id  # a quarantined block lies between (SEM S1)
        state.counters.published += lost
        state.counters.quarantined += lost
    state.next_id = max(state.next_id, span.end)
    state.event_bytes = max(fact.size / span.size, state.event_bytes * 0.98)
    state.stored.add(span)
    state.counters.published += span.size
    for part in fact.volatile:
        state.volatile.add(part)
    for gone in fact.absent:
        state.counters.published -= len(state.stored.remove(Span(*gone)))
    state.ages.appended(span, fact.at_us, state.definition.ttl)
    if fact.ttls:
        state.ages.own_ttl(
            fact.at_us, tuple((ttl, tuple(Span(*s) for s in parts)) for ttl, parts in fact.ttls)
        )
    if fact.producer:
        state.producers.stored(fact.producer, fact.sequence, span, fact.at_us)
    if fact.matched:
        _offer_matched(state, fact, span)


def _offer_matched(state: ChannelState, fact: Appended, span: Span) -> None:
    for name, matched in fact.matched.items():
        durable = state.durables.get(name)
        if durable is None:
            continue
        durable.offered(span, tuple(Span(*part) for part in matched))
        for gone in fact.absent:
            durable.settle(Span(*gone))


def _acked(state: ChannelState, name: str, spans: Spans) -> None:
    durable = state.durables.get(name)
    if durable is None:
        return
    for first, end in spans:
        span = Span(first, end)
        durable.reach(end, state.stored)
        durable.settle(span)
        done = state.stored.within(span)
        state.acked.add_all(done)
        state.fresh.add_all(done)


def _removed(state: ChannelState, spans: Spans, cause: Cause) -> None:
    gone = 0
    for first, end in spans:
        span = Span(first, end)
        gone += len(state.stored.remove(span))
        state.volatile.remove(span)
        state.acked.remove(span)
        state.fresh.remove(span)
        for durable in state.durables.values():
            durable.settle(span)
    counters = state.counters
    setattr(counters, cause.value, getattr(counters, cause.value) + gone)


def _created(state: ChannelState, fact: DurableCreated) -> None:
    head = max(state.next_id, fact.start_id) if fact.selector else fact.start_id
    durable = Durable(
        fact.name,
        state.rules.kinds[fact.kind],
        head,
        selector=fact.selector,
        persistent=fact.persistent,
    )
    for first, end in fact.matched:
        for part in state.stored.within(Span(first, end)).spans:
            durable.outstanding.add(part)
            durable.pending.add(part)
    state.durables[fact.name] = durable


def _restored(state: ChannelState, fact: Restored) -> None:
    state.definition = fact.definition
    state.next_id = fact.next_id
    state.reserved = fact.reserved
    state.stored = IdSet(Span(*span) for span in fact.stored)
    state.ages.restore(fact.ages, fact.own_expiry)
    state.durables = {
        kept.name: Durable.restored(kept, state.rules.kinds) for kept in fact.durables
    }
    state.producers.restore(fact.producers)
    state.acked = IdSet(Span(*span) for span in fact.consumed)
    state.fresh = state.acked.copy()
    state.counters = replace(fact.counters)
