"""Seeks: a durable continues at an earlier or later event without being deleted (SEM D20).

After a seek the durable is in the state of a durable just created at that position, except that its
clients keep their seats. Events in flight are taken back, and redelivery counts and delays are
dropped. Without a selector the cost does not depend on the number of events in between; with one it
depends on the number of ranges of their ids.
"""

from __future__ import annotations

from msgspec import Struct

from penstock_core.channel.awaited_seats import taken_or_reserved
from penstock_core.channel.decided import Decided
from penstock_core.channel.holding import what_to_do
from penstock_core.channel.recall import take_all_back
from penstock_core.channel.removal_causes import FORGOTTEN, NEVER
from penstock_core.channel.state import ChannelState
from penstock_core.durable.durable import Durable
from penstock_core.durable.lanes import Lanes
from penstock_core.durable.redelivery_counts import RedeliveryCounts
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.retention import PersistedLate
from penstock_core.messages.seeking import Seek, Sought
from penstock_core.vocabulary.errors import DurableInUse, IllegalState, InvalidArgument
from penstock_core.vocabulary.seeks import LastSeek
from penstock_core.vocabulary.stored_ids import id_set, stored_form

_BEYOND = 1 << 62
"""A number above all event ids."""


class SeekPreview(Struct, frozen=True):
    """Numbers of events that a seek would affect."""

    again: int
    """Number of events that the seek would make outstanding."""
    skipped: int
    """Number of outstanding events that would not be outstanding any more."""
    taken_back: int
    """Number of events in flight now, which would be taken back."""
    outstanding: int
    """Number of events that would be outstanding after the seek."""


def check_seek(state: ChannelState, command: Seek) -> Durable:
    """Return the durable that may seek.

    Raises ``NameDoesNotExist``; ``IllegalState`` for a queue and for an event that has left;
    ``InvalidArgument`` for an id that has not been assigned yet; ``DurableInUse`` while the durable
    is held as a whole.
    """
    if state.definition.kind != "channel":
        raise IllegalState(
            f"{state.name} is a {state.definition.kind}, whose consumed events are removed: only "
            "durables of channels can seek"
        )
    durable = state.durable(command.durable)
    others = taken_or_reserved(durable, "")
    if others and others[0].sole:
        raise DurableInUse(
            f"durable {durable.name} of {state.name} is held as a whole by session "
            f"{others[0].session}, which keeps the position of the durable; "
            f"{what_to_do(state, others[0])}"
        )
    if command.is_exact:
        _check_id(state, command.start_id)
    return durable


def preview(state: ChannelState, command: Seek) -> SeekPreview:
    """Return the effect that ``command`` would have, without changing the state. Raises the errors
    of :func:`check_seek`."""
    durable = check_seek(state, command)
    before = durable.wanting(state.stored)
    after = _outstanding_after(state, durable, command.start_id, matched=IdSet(command.matched))
    newly_outstanding = after.copy()
    newly_outstanding.discard_all(before)
    no_longer_outstanding = before.copy()
    no_longer_outstanding.discard_all(after)
    return SeekPreview(
        again=len(newly_outstanding),
        skipped=len(no_longer_outstanding),
        taken_back=durable.in_flight_count,
        outstanding=len(after),
    )


def gone_since(state: ChannelState, event_id: int) -> dict[str, int]:
    """Return the number of events with this id or a higher one that have left, by cause."""
    missing = state.departures.missing(
        Span(event_id, state.next_id), _assigned_ids(state), state.stored
    )
    return {cause: len(ids) for cause, ids in sorted(missing.items()) if cause != NEVER}


def decide_seek(state: ChannelState, command: Seek, now_us: int) -> Decided:
    """Decide a seek. A repetition with the same ``key`` is not performed again."""
    if state.durable(command.durable).last_seek.find(command.key) is not None:
        return Decided()
    effect = preview(state, command)
    durable = state.durable(command.durable)
    fact = Sought(
        durable.name,
        command.start_id,
        stored_form(IdSet(command.matched)) if durable.selector else (),
        key=command.key,
        again=effect.again,
        skipped=effect.skipped,
        taken_back=effect.taken_back,
    )
    return Decided((*_facts_to_store_passing_events(state, durable, command, now_us=now_us), fact))


def _facts_to_store_passing_events(
    state: ChannelState, durable: Durable, command: Seek, now_us: int
) -> list[PersistedLate]:
    """Return the facts that store those passing events which the seek makes outstanding.

    They precede the fact of the seek: after a restart, an id that a selector matched is outstanding
    only if its event is stored.
    """
    if not durable.selector or not state.passing:
        return []
    after = _outstanding_after(state, durable, command.start_id, matched=IdSet(command.matched))
    return [
        PersistedLate((span,), state.ages.oldest_us(span.first) or now_us)
        for span in after.overlap(state.passing).spans
    ]


def sought(state: ChannelState, fact: Sought) -> None:
    """Apply a seek."""
    durable = state.durables.get(fact.durable)
    if durable is None:
        return
    after = _outstanding_after(state, durable, fact.start_id, matched=id_set(fact.matched))
    no_longer_outstanding = durable.wanting(state.stored)
    no_longer_outstanding.discard_all(after)
    # Events that are never stored, or not any more, are delivered in this turn or never.
    passing = durable.ready.overlap(state.relayed)
    passing.add_all(durable.ready.overlap(state.leaving))
    state.recalls += take_all_back(durable)
    _reset_deliveries(durable)
    if durable.selector:
        durable.head = state.next_id
        durable.outstanding, durable.ready = after, after.copy()
    else:
        durable.head = fact.start_id
        durable.outstanding, durable.ready = IdSet(), IdSet()
    if passing:
        durable.add_passing(passing, state.next_id, state.stored)
    durable.last_seek = durable.last_seek.followed_by(
        LastSeek(
            fact.key, fact.start_id, fact.again, skipped=fact.skipped, taken_back=fact.taken_back
        )
    )
    # Events that the seek skips count as acknowledged, so that they can leave the channel.
    durable.acknowledged += len(no_longer_outstanding)
    state.acked.add_all(no_longer_outstanding)
    state.removal_candidates.add_all(no_longer_outstanding)


def _reset_deliveries(durable: Durable) -> None:
    """Drop redelivery counts, delays and lanes; clients keep their seats."""
    durable.levels = RedeliveryCounts()
    durable.rolled_back, durable.parked, durable.unrecorded = IdSet(), IdSet(), IdSet()
    durable.waiting = None
    if durable.lanes is not None:
        durable.lanes = Lanes()
    for seat in durable.seats:
        seat.reach = 0
        seat.refused = IdSet()


def _outstanding_after(
    state: ChannelState, durable: Durable, start_id: int, matched: IdSet
) -> IdSet:
    """Return the outstanding events of a durable that continues from ``start_id``.

    Outstanding events that the selector matched earlier stay outstanding, because a selector may
    depend on the time.
    """
    stored = state.stored.within(Span(start_id, _BEYOND))
    if not durable.selector:
        return stored
    after = matched.overlap(stored)
    after.add_all(durable.outstanding.overlap(stored))
    return after


def _assigned_ids(state: ChannelState) -> Span:
    """Return the ids that the channel has assigned so far."""
    return Span(min(state.definition.start_event_id, state.next_id), state.next_id)


def _check_id(state: ChannelState, event_id: int) -> None:
    """Raise ``InvalidArgument`` or ``IllegalState`` if no durable can continue from this id."""
    assigned = _assigned_ids(state)
    if event_id == assigned.end or event_id in state.stored:
        return
    if event_id > assigned.end:
        raise InvalidArgument(
            f"event {event_id} of {state.name} does not exist yet: the next id is {assigned.end}; "
            'seek to that, or to "latest"'
        )
    if event_id < assigned.first:
        raise InvalidArgument(
            f"event {event_id} of {state.name} cannot exist: ids begin at {assigned.first}; seek "
            'to "earliest"'
        )
    span = Span(event_id, event_id + 1)
    (cause,) = state.departures.missing(span, assigned, state.stored)
    following = state.stored.next_span(event_id, 1)
    where = (
        'no event is stored after it: seek to "latest"'
        if following is None
        else f'the next event that is stored is {following.first}: seek to that, or to "earliest"'
    )
    raise IllegalState(
        f"event {event_id} of {state.name} is not stored ({_cause_in_words(cause)}); {where}"
    )


def _cause_in_words(cause: str) -> str:
    if cause == NEVER:
        return "no event was stored under its id, or a restart has lost it"
    if cause == FORGOTTEN:
        return "it left too long ago for the cause to be known"
    return str(cause)
