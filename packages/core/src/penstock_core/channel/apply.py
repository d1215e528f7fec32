"""Applies facts to a channel. It writes state and never decides.

Both live operation and recovery use it; no other code changes hard state.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from penstock_core.channel import capacity_overflow
from penstock_core.channel.dead import count_copies
from penstock_core.channel.recall import events_behind, recall
from penstock_core.channel.removal_causes import NEVER, Departures
from penstock_core.channel.seeking import sought
from penstock_core.channel.state import ChannelState
from penstock_core.durable.durable import Durable
from penstock_core.durable.durable_state import durable_of, recover_passed
from penstock_core.durable.queue import KIND, READERS, readers_attributes
from penstock_core.ids.id_lists import ids_in
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.messages.definitions import Edited
from penstock_core.messages.durables import DurableCreated, DurableDeleted
from penstock_core.messages.packing import unpacked
from penstock_core.messages.publishing import Appended, IdsReserved
from penstock_core.messages.retention import PersistedLate, Removed, Replaced
from penstock_core.messages.seats import Left, Seated
from penstock_core.messages.seeking import Sought
from penstock_core.messages.settlements import Acked, Buried, Postponed, RolledBack, TimedOut
from penstock_core.messages.snapshots import Restored
from penstock_core.messages.subscribers import Interested, InterestEnded
from penstock_core.messages.unions import AnyPlaceFact, PackedIds, StoredFact
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.durable_attributes import durable_attributes
from penstock_core.vocabulary.stored_ids import id_set

COUNTED_AS = dict.fromkeys((Cause.UNDELIVERABLE, Cause.REJECTED, Cause.BURIED), "dead")
"""Counters of causes that have no counter with their own name."""


def apply(  # noqa: C901, PLR0912  one case a fact
    state: ChannelState, fact: StoredFact
) -> None:
    """Change the state as ``fact`` states. This function never refuses a fact, because the fact has
    already happened."""
    if isinstance(fact, Restored):  # each channel of a snapshot has one
        state.touch_all()
        _apply_restored(state, fact)
        return
    _touch(state, fact)
    match fact:
        case Appended():
            _apply_appended(state, fact)
        case PersistedLate():
            _apply_persisted_late(state, fact)
        case Acked(name, spans):
            _apply_settled(state, name, spans, counts=True)
        case Removed():
            _apply_removed(state, fact)
        case Replaced(ids):
            state.counters.replaced += _remove_ids(state, ids_in(ids), Cause.REPLACED)
        case Buried(name, spans, cause):
            count_copies(state, state.stored_part(spans), cause, durable=name)
            _apply_settled(state, name, spans)
        case RolledBack(name, spans):
            _apply_rolled_back(state, name, spans)
        case TimedOut(name, spans):
            _apply_rolled_back(state, name, spans, late=True)
        case Postponed(name, spans, until_us):
            _apply_postponed(state, name, spans, until_us=until_us)
        case PackedIds():
            apply(state, unpacked(fact))
        case IdsReserved(through):
            state.reserved = through
        case Edited(definition):
            state.edit(definition)
            # The edit may have turned off `retain_consumed`, which kept these events.
            state.removal_candidates = state.acked.copy()
            if READERS in state.durables:
                state.durables[READERS].attributes = readers_attributes(definition)
        case DurableCreated():
            _apply_created(state, fact)
        case DurableDeleted(name):
            _apply_deleted(state, name)
        case Seated() | Left() | Interested() | InterestEnded() | Sought():
            _place_changed(state, fact)


def _touch(state: ChannelState, fact: StoredFact) -> None:
    """Record the durables that may have a delivery because of a fact: usually one or a few."""
    match fact:
        case Appended(matched=matched):
            state.may_deliver = True
            names: Iterable[str] = matched
        case Acked(name) | RolledBack(name) | TimedOut(name) | Postponed(name) | Buried(name):
            state.may_deliver = True
            names = (name,)
        case Sought(name):
            names = (name,)
        case _:
            state.touch_all()
            return
    for name in names:
        if (durable := state.durables.get(name)) is not None:
            state.touch(durable)


def _skip_ids(state: ChannelState, first: int) -> None:
    """Record why the ids from the channel's next id to before ``first`` have no event."""
    if not state.type.survives_restart or state.reserved:
        # Events in memory had these ids; a restart does not keep them.
        state.departures.record_unstored((state.next_id, first))
        return
    lost = first - state.next_id  # a quarantined block lies between (SEM S1)
    state.counters.published += lost
    state.counters.quarantined += lost
    state.lost += lost
    state.departures.record(IdSet([Span(state.next_id, first)]), Cause.QUARANTINED)


def _apply_appended(state: ChannelState, fact: Appended) -> None:
    """Add published events to the channel and to its durables."""
    span = Span(*fact.span)
    count = span.end - span.first
    if span.first > state.next_id:
        _skip_ids(state, span.first)
    state.next_id = max(state.next_id, span.end)
    event_bytes = fact.size / count
    # The estimate rises immediately and falls slowly, because it is for the larger recent events.
    state.event_bytes = max(event_bytes, state.event_bytes * 0.98)
    # The comparison is here to save a call for each publish: most batches belong to the last run.
    if not state.sizes.least <= event_bytes <= state.sizes.most:
        state.sizes.begin_run(span.first, event_bytes, state.stored.lowest or span.first)
    state.stored.add(span)
    state.counters.published += count
    for part in fact.volatile:
        state.volatile.add(part)
    if fact.absent or fact.relayed or fact.dropped or fact.passing:
        _remove_unstored(state, fact)
    if state.ages.add_published(span, fact.at_us, state.definition.ttl):
        state.ages.forget_below(state.stored.lowest)
    if fact.ttls:
        exact = state.definition.kind == "schedule"  # never before its time (SEM X4)
        state.ages.own_ttl(fact.at_us, fact.ttls, exact=exact)
    if fact.producer:
        state.producers.stored(fact.producer, fact.sequence, span, fact.at_us)
    if fact.relayed:
        _relay(state, fact)
    # A durable without a selector needs no call: events beyond its head are outstanding already.
    if fact.matched:
        _offer_matched(state, fact, span)


def _remove_unstored(state: ChannelState, fact: Appended) -> None:
    """Remove the ids that are not stored, and mark those that only pass through memory."""
    for absent in fact.absent:
        state.counters.published -= len(state.stored.remove(Span(*absent)))
    for relayed in fact.relayed:
        state.relayed.add_all(state.stored.remove(Span(*relayed)))
    for unwanted in fact.dropped:
        state.counters.dropped += len(state.stored.remove(Span(*unwanted)))
    state.departures.record_unstored(*fact.absent, *fact.relayed, *fact.dropped)
    state.may_pass = state.may_pass or bool(fact.relayed or fact.passing)
    passing = IdSet(fact.passing)
    state.passing.add_all(passing)
    state.unwritten.add_all(passing)
    state.unwritten.discard_all(IdSet(fact.volatile))  # never written to disk
    state.volatile.add_all(passing)


def _apply_persisted_late(state: ChannelState, fact: PersistedLate) -> None:
    """Keep events that so far only passed through memory.

    At recovery their ids are new, because events that only passed were never recorded.
    """
    ids = IdSet(fact.spans)
    state.volatile.discard_all(state.unwritten.overlap(ids))
    state.passing.discard_all(ids)
    state.unwritten.discard_all(ids)
    new_ids = ids.copy()
    new_ids.discard_all(state.stored)
    state.departures.forget_unstored(new_ids)
    for span in new_ids.spans:
        state.departures.record_unstored((state.next_id, span.first))
        state.next_id = max(state.next_id, span.end)
        state.stored.add(span)
        state.counters.published += span.size
        state.ages.add_inserted(span.first, fact.at_us)
    state.ages.restore_own(fact.ttls)
    for durable in state.durables.values() if new_ids else ():
        recover_passed(durable, new_ids)


def _offer_matched(state: ChannelState, fact: Appended, span: Span) -> None:
    """Offer the stored events to the durables whose selectors match them."""
    unstored = IdSet(Span(*part) for part in (*fact.absent, *fact.relayed, *fact.dropped))
    for name, matched in fact.matched.items():
        durable = state.durables.get(name)
        if durable is None:
            continue
        lasting = IdSet(matched)
        lasting.discard_all(unstored)
        durable.add_published(span, lasting)


def _relay(state: ChannelState, fact: Appended) -> None:
    """Make events that are never stored ready for connected clients (SEM E8, C1e)."""
    passing = IdSet(fact.relayed)
    for durable in state.durables.values():
        if not durable.seats or not (durable.kind.takes_transient or state.type.relays):
            continue
        if durable.selector:
            matched = IdSet(fact.matched.get(durable.name, ()))
            wanted = passing.overlap(matched)
        else:
            wanted = passing
        wanted = wanted.within(Span(durable.head, 1 << 62))
        state.touch(durable)
        durable.add_passing(wanted, Span(*fact.span).end, state.stored)


def _apply_rolled_back(state: ChannelState, name: str, spans: Spans, *, late: bool = False) -> None:
    """Return events to the durable after a rollback or, with ``late``, after a timeout.

    After a timeout the client also gets a recall, because it did not return the events.
    """
    durable = state.durables.get(name)
    if durable is None or not spans:
        return
    ids = IdSet(spans)
    # The head moves behind these events, so that the sets of the durable contain each of them.
    durable.reach(spans[-1][1], state.stored)
    # Before the rollback, because the function reads which events are in flight.
    later = events_behind(durable, ids)
    # Recall late events before the rollback, after which no seat holds them.
    if late:
        later.add_all(ids)
        state.recalls += recall(durable, later)
    state.counters.redelivered += durable.roll_back(ids)
    if not late:
        state.recalls += recall(durable, later)


def _apply_postponed(state: ChannelState, name: str, spans: Spans, until_us: int) -> None:
    """Delay events of a durable until ``until_us``, in microseconds since 1970."""
    durable = state.durables.get(name)
    if durable is None or not spans:
        return
    durable.reach(spans[-1][1], state.stored)
    durable.postpone(IdSet(spans), until_us)
    state.wake_by(until_us)


def _apply_settled(state: ChannelState, name: str, spans: Spans, *, counts: bool = False) -> None:
    """Settle events of a durable. ``counts`` is True for acknowledged events, which are counted,
    and False for dead ones."""
    durable = state.durables.get(name)
    if durable is None:
        return
    if not spans:
        return
    ids = IdSet(spans)
    if counts:
        durable.acknowledged += len(ids)
    durable.reach(spans[-1][1], state.stored)
    durable.settle_all(ids)
    stored_ids = state.stored.overlap(ids)
    state.acked.add_all(stored_ids)
    state.removal_candidates.add_all(stored_ids)


def _apply_removed(state: ChannelState, fact: Removed) -> None:
    """Remove events, and count them by their cause."""
    ids = IdSet(fact.spans)
    if fact.cause is Cause.RELAYED:
        _drop_passed(state, ids)
        state.may_pass = bool(state.relayed or state.passing or state.leaving)
        return
    dead = state.stored.overlap(IdSet(fact.dead)) if fact.dead else IdSet()
    # Before the removal, because `count_copies` reads which durables still want the events.
    count_copies(state, dead, fact.cause)
    dead_count = len(dead)
    counters = state.counters
    counters.dead += dead_count
    unoffered = capacity_overflow.unoffered_ids(state, ids) if fact.cause is Cause.EVICTED else None
    still_offered = None if unoffered is None else unoffered.for_subscribers
    if left_count := _remove_ids(state, ids, fact.cause, still_sent=still_offered) - dead_count:
        counter = COUNTED_AS.get(fact.cause, fact.cause.value)
        setattr(counters, counter, getattr(counters, counter) + left_count)
    if unoffered is not None:
        capacity_overflow.offer_once_more(state, unoffered)


def _remove_ids(
    state: ChannelState, ids: IdSet, cause: Cause, still_sent: IdSet | None = None
) -> int:
    """Remove ids from all sets; return how many were stored. Plain subscribers are still sent the
    ids in ``still_sent``."""
    before = len(state.stored)
    departures = state.departures
    # `record_late` reads this set in the other cases only, and the overlap takes time.
    stored = IdSet() if departures.usual in (cause, NEVER) else state.stored.overlap(ids)
    sets = (
        state.stored,
        state.volatile,
        state.acked,
        state.removal_candidates,
        state.passing,
        state.unwritten,
    )
    for tracked_ids in sets:
        if tracked_ids:
            tracked_ids.discard_all(ids)
    state.ages.discard(ids)
    for ids_by_ttl in state.waits.values():
        ids_by_ttl.discard_all(ids)
    for durable in state.durables.values():
        durable.settle_all(ids)
    if state.engine.needs_interest:
        unsent = ids
        if still_sent:
            unsent = ids.copy()
            unsent.discard_all(still_sent)
        for subscriber in state.subscribers.values():
            subscriber.forget(unsent)
    removed_count = before - len(state.stored)
    # If all ids were stored, none of them has an earlier cause.
    if removed_count == len(ids):
        departures.record(ids, cause)
    else:
        departures.record_late(ids, cause, stored)
    return removed_count


def _drop_passed(state: ChannelState, ids: IdSet) -> None:
    """Record that connected clients have been offered the relayed events."""
    state.counters.relayed += len(state.relayed.remove_all(ids))
    capacity_overflow.end_offer(state, ids)
    for durable in state.durables.values():
        durable.drop_passed(ids)


def _apply_created(state: ChannelState, fact: DurableCreated) -> None:
    """Add a durable, with the stored events that are outstanding for it from the start."""
    # With a selector, only the sets contain its outstanding events, so the head is at the end.
    head = max(state.next_id, fact.start_id) if fact.selector else fact.start_id
    durable = Durable(
        fact.name,
        state.rules.kinds[fact.kind],
        head,
        selector=fact.selector,
        persistent=fact.persistent,
        attributes=state.rules.effective_for_durable(durable_attributes(fact)),
    )
    for first, end in fact.matched:
        for part in state.stored.within(Span(first, end)).spans:
            durable.outstanding.add(part)
            durable.ready.add(part)
    state.add_durable(durable)
    # Without durables no event counts as consumed. If this is the first one, events that earlier
    # durables have acknowledged may leave now.
    state.removal_candidates = state.acked.copy()


def _place_changed(state: ChannelState, fact: AnyPlaceFact | Sought) -> None:
    """Record a change of a seat, of recorded interest, or of a durable's position."""
    match fact:
        case Sought():
            sought(state, fact)
        case Interested(place):
            state.places[place] = fact
        case InterestEnded(place):
            state.places.pop(place, None)
        case Seated(name, place, session, sole, waited_us) if name in state.durables:
            state.durables[name].record_seat(place, session, sole=sole, waited_us=waited_us)
        case Left(name, place) if name in state.durables:
            state.durables[name].places.pop(place, None)
        case _:
            pass  # the durable of a seat was deleted


def _apply_deleted(state: ChannelState, name: str) -> None:
    """Remove a durable from the channel."""
    state.died = {key: count for key, count in state.died.items() if key[0] != name}
    if (durable := state.remove_durable(name)) is not None:
        # The figures of a channel include durables that were deleted since the realm started.
        state.delivered += durable.delivered
        state.acknowledged += durable.acknowledged
    # Events that only this durable had not acknowledged may leave now.
    state.recheck_from(0)


def _apply_restored(state: ChannelState, fact: Restored) -> None:
    """Set the whole state of the channel from a snapshot."""
    if fact.definition != state.definition:  # changed in a cluster since the machine was created
        state.define(fact.definition)
    state.next_id = fact.next_id
    state.reserved, state.topics_since = fact.reserved, fact.topics_since
    state.stored = id_set(fact.stored)
    if fact.ages or fact.own_expiry:
        state.ages.restore(fact.ages, [(end, id_set(ids)) for end, ids in fact.own_expiry])
    for durable_state in fact.durables:
        kind = state.rules.kinds[durable_state.kind] if durable_state.name else KIND
        durable = durable_of(durable_state, kind)
        durable.attributes = state.rules.effective_for_durable(durable.attributes)
        state.add_durable(durable)
    if fact.producers:
        state.producers.restore(fact.producers)
    state.acked = id_set(fact.consumed)
    state.recheck_from(0)
    state.counters = replace(fact.counters)
    if fact.died:
        state.died = {(durable, cause): count for durable, cause, count in fact.died}
    # A snapshot that is older than the record of causes knows no cause so far.
    departed_from = fact.next_id if fact.departed_from < 0 else fact.departed_from
    state.departures = Departures(departed_from, keyed=bool(fact.definition.keys))
    state.departures.restore(departed_from, fact.departed, fact.next_id, stored=state.stored)
    if READERS in state.durables:
        state.durables[READERS].attributes = readers_attributes(fact.definition)
    state.set_alarm()
