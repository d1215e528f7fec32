"""State that survives a restart: the recorded form of facts, snapshots, and the end of recovery."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from msgspec.structs import replace

from penstock_core.channel import awaited_seats, kept_interest
from penstock_core.channel.removal_causes import as_kept
from penstock_core.channel.state import ChannelState
from penstock_core.durable.durable_state import state_of
from penstock_core.ids.id_lists import ids_in
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.definitions import Edited
from penstock_core.messages.durables import DurableCreated, DurableDeleted
from penstock_core.messages.packing import packed
from penstock_core.messages.publishing import Appended, IdsReserved
from penstock_core.messages.retention import PersistedLate, Removed, Replaced
from penstock_core.messages.seats import Left, Seated
from penstock_core.messages.seeking import Sought
from penstock_core.messages.settlements import Acked, Buried, Postponed, RolledBack, TimedOut
from penstock_core.messages.snapshots import Restored
from penstock_core.messages.unions import StoredFact
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.counters import Counters
from penstock_core.vocabulary.stored_ids import stored_form

T = TypeVar("T")

PIECES_AT_ONCE = 500
"""Number of ranges or bitmaps of ids that one step of a snapshot encodes, in a millisecond or
two."""
SHORT_MAX = 16
"""A channel with at most this many ranges or bitmaps of ids is encoded immediately when a snapshot
begins."""


def recorded(state: ChannelState, fact: StoredFact) -> StoredFact | None:
    """Return ``fact`` in its stored form; None if it does not survive a restart. Call it before
    ``apply``."""
    if not state.type.ids_survive:
        return _without_ids(fact)
    lasting = _lasting_part(state, fact)
    return None if lasting is None else packed(lasting)


def _lasting_part(state: ChannelState, fact: StoredFact) -> StoredFact | None:
    """Return the part of a fact that a restart can use; None if it has none."""
    match fact:
        case Appended():
            return _stored_form_of_publish(fact)
        case PersistedLate(spans):
            # The type of the channel keeps all other events in memory, also from now on.
            stored_late = state.unwritten.overlap(IdSet(spans))
            return replace(fact, spans=stored_late.spans) if stored_late else None
        case Removed(cause=Cause.RELAYED):
            return None
        case Removed(spans):
            # A restart loses events in memory anyway, so their removal need not be stored.
            if not state.volatile or any(
                len(state.stored.within(span)) != len(state.volatile.within(span)) for span in spans
            ):
                return fact
            return None
        case Replaced(ids):
            return fact if _any_lasts(state, ids_in(ids)) else None
        case DurableCreated():
            return fact if fact.persistent else None
        case Acked(name) | RolledBack(name) | TimedOut(name) | Postponed(name):
            # Without stored events a restart has nothing to settle.
            return fact if state.type.survives_restart and _is_kept(state, name) else None
        case Buried(name) | DurableDeleted(name) | Sought(name) | Seated(name) | Left(name):
            return fact if _is_kept(state, name) else None
        case _:
            return fact


def _is_kept(state: ChannelState, name: str) -> bool:
    """Whether the durable survives a restart."""
    durable = state.durables.get(name)
    return durable is not None and durable.persistent


def _any_lasts(state: ChannelState, ids: IdSet) -> bool:
    """Whether some of the ids survive a restart."""
    if not state.volatile:
        return True
    stored = state.stored.overlap(ids)
    return len(state.volatile.overlap(stored)) != len(stored)


def _stored_form_of_publish(fact: Appended) -> Appended | None:
    """Return the fact of a publish without the events that are in memory only; None if all events
    are."""
    absent = (*fact.volatile, *fact.relayed, *fact.dropped)
    if fact.passing:  # some of these may be volatile as well
        absent = IdSet((*absent, *fact.passing)).spans
    if not absent:
        return fact
    if sum(part.size for part in absent) == fact.span.size:
        return None
    return replace(fact, volatile=(), relayed=(), passing=(), dropped=(), absent=absent)


def _without_ids(fact: StoredFact) -> StoredFact | None:
    """Return the form of a fact that is stored for a channel type whose ids restart at every start
    of the realm (SEM C1d): creations of persistent durables, deletions of durables, and edits,
    without event ids. None for all other facts."""
    match fact:
        case DurableCreated():
            return replace(fact, matched=()) if fact.persistent else None
        case DurableDeleted() | Edited():
            return fact
        case _:
            return None


def recovered(state: ChannelState) -> None:
    """Finish recovery after all stored facts are applied.

    Ids that may have been assigned to events in memory are skipped (SEM E4). After a clean shutdown
    :func:`closing` has made this unnecessary.
    """
    state.delivered = state.acknowledged = 0
    awaited_seats.recovered(state)
    for durable in state.durables.values():
        # The figure counts from the start of the realm, but the replay of facts has raised it.
        durable.acknowledged = 0
    if not state.type.ids_survive:
        for durable in state.durables.values():
            durable.head = state.next_id
        return
    # Clients may know events with these ids, so the ids must not be assigned to other events.
    state.departures.record_unstored((state.next_id, state.reserved))
    state.next_id = max(state.next_id, state.reserved)
    kept_interest.recovered(state)
    state.recheck_from(0)  # for durables that did not survive
    for durable in state.durables.values():
        durable.forget_all_but(state.stored)
        if durable.selector or not state.type.survives_restart:
            durable.head = max(durable.head, state.next_id)


def clock_set_back(state: ChannelState, last_us: int, now_us: int) -> None:
    """Correct times after the clock was set back.

    In an earlier run the clock was ahead and last showed ``last_us``. Publishes of that run count
    as made now, and delays after a rollback keep their remaining time. Times that publishers set
    with ``deliver_at`` stay (SEM X4).
    """
    state.ages.lower(now_us)
    state.lower_producers(now_us)
    for durable in state.durables.values():
        if durable.waiting:
            durable.waiting.come_earlier(last_us - now_us)
    state.set_alarm()


def mark_ids_used(state: ChannelState, end: int) -> None:
    """Record that ids below ``end`` are in use and must not be assigned again (SEM E4).

    Some file holds events with these ids, although the block that assigned them may be damaged
    (SEM S1).
    """
    lost = end - state.next_id
    if lost > 0:
        passed_over = Span(state.next_id, end)
        state.next_id = end
        if state.reserved:
            state.departures.record_unstored(passed_over)  # ids of events that were in memory
        else:
            state.departures.record(IdSet([passed_over]), Cause.QUARANTINED)
            state.counters.published += lost
            state.counters.quarantined += lost
            state.lost += lost


def closing(state: ChannelState) -> tuple[StoredFact, ...]:
    """Return the facts to store at a clean shutdown, after which no id needs to be skipped."""
    if not state.type.ids_survive or state.reserved <= state.next_id:
        return ()
    return (IdsReserved(state.next_id),)


def snapshot(state: ChannelState) -> Restored:
    """Return the snapshot of this channel as a restart would read it now."""
    pending = frozen(state)
    return pending if isinstance(pending, Restored) else at_once(pending)


def at_once(steps: Generator[None, None, T]) -> T:
    """Run all steps of a generator without a pause, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def frozen(state: ChannelState) -> Restored | Generator[None, None, Restored]:
    """Freeze the channel for a snapshot that is built later, on any thread.

    Sets are copied now and encoded later in steps, because encoding a million scattered ids takes a
    second. If all sets are short, as on most channels of a large realm, they are encoded now, which
    is cheaper than a copy.
    """
    if not state.type.ids_survive:
        return _reset(state)
    if _has_short_sets(state):
        return _snapshot_of_short_sets(state)
    entries, own_ttls = state.ages.state()
    stored, acked, departures = state.stored.copy(), state.acked.copy(), state.departures.copy()
    lost, in_memory = state.volatile.copy(), state.volatile.copy()
    if lost:
        stored.discard_all(state.volatile)
        acked.discard_all(state.volatile)
        lost.discard_all(state.unwritten)  # a later fact may keep them (SEM J7)
    counters = replace(state.counters)
    # A restart loses the events in memory, so they must not count as published after it.
    counters.published -= len(state.volatile)
    counters.relayed += len(state.relayed)  # they leave in this turn
    durables = tuple(
        state_of(d, state.next_id, lost) for d in state.durables.values() if d.persistent
    )
    definition, next_id, reserved = state.definition, state.next_id, state.reserved
    producers = state.kept_producers
    died, topics_since = died_of(state), state.topics_since

    def encoded() -> Generator[None, None, Restored]:
        readable = stored
        if in_memory:
            readable = stored.copy()
            readable.add_all(in_memory)
        yield
        own_expiry, pieces = [], 0
        for ends_us, ids in own_ttls:
            own_expiry.append((ends_us, stored_form(ids)))
            pieces += ids.pieces
            if pieces >= PIECES_AT_ONCE:
                pieces = 0
                yield
        return Restored(
            definition,
            next_id,
            reserved,
            stored=stored_form(stored),
            ages=entries,
            own_expiry=tuple(own_expiry),
            durables=durables,
            producers=producers,
            consumed=stored_form(acked),
            counters=counters,
            departed=as_kept(departures.kept(next_id, readable)),
            departed_from=departures.known_from,
            died=died,
            topics_since=topics_since,
        )

    return encoded()


def _has_short_sets(state: ChannelState) -> bool:
    """Whether the channel's sets of ids are so short that encoding them costs no more than copying
    them.

    False if the channel has events in memory, which would first have to be removed from the sets.
    """
    if state.volatile:
        return False
    piece_count = state.stored.pieces + state.acked.pieces + state.departures.pieces
    return piece_count + state.ages.own_pieces <= SHORT_MAX


def _snapshot_of_short_sets(state: ChannelState) -> Restored:
    """Return the snapshot of a channel whose sets are short. Empty sets are skipped, because a
    realm may have a hundred thousand such channels."""
    entries, own_ttls = state.ages.state()
    counters, next_id, durables = replace(state.counters), state.next_id, state.durables
    counters.relayed += len(state.relayed)  # they leave in this turn
    departures = state.departures.kept(next_id, state.stored)
    return Restored(
        state.definition,
        next_id,
        state.reserved,
        stored=stored_form(state.stored),
        ages=entries,
        own_expiry=tuple([(ends_us, stored_form(ids)) for ends_us, ids in own_ttls])
        if own_ttls
        else (),
        durables=tuple([state_of(d, next_id) for d in durables.values() if d.persistent])
        if durables
        else (),
        producers=state.kept_producers,
        consumed=stored_form(state.acked) if state.acked else (),
        counters=counters,
        departed=as_kept(departures) if departures else (),
        departed_from=state.departures.known_from,
        died=died_of(state) if state.died else (),
        topics_since=state.topics_since,
    )


def died_of(state: ChannelState) -> tuple[tuple[str, str, int], ...]:
    """Return the counts of copies in dead event stores, as a snapshot keeps them."""
    return tuple((durable, cause, count) for (durable, cause), count in sorted(state.died.items()))


def _reset(state: ChannelState) -> Restored:
    """Return the snapshot of a channel whose ids start again: empty, with its durables at the first
    id (SEM C1d)."""
    first = state.definition.start_event_id
    durables = tuple(
        replace(
            state_of(durable, first),
            head=first,
            outstanding=(),
            redelivered=(),
            rolled_back=(),
            waiting=(),
            last_seek=None,
        )
        for durable in state.durables.values()
        if durable.persistent
    )
    return Restored(
        definition=state.definition,
        next_id=first,
        reserved=0,
        stored=(),
        ages=(),
        own_expiry=(),
        durables=durables,
        producers=(),
        consumed=(),
        counters=Counters(),
        departed=(),
        departed_from=first,
    )
