"""Decides which events are dead when they leave (SEM T5, T6, T10, T11).

An event is dead if it leaves unconsumed by age, capacity or too many redeliveries, or if a client
rejected it. Without durables every event is unconsumed. With durables an event is unconsumed if at
least one of them wanted it and has not acknowledged it, whatever the types of the durables. On the
JMS engine an event is also unconsumed if a subscriber waits for it and does not get it; events
without interest are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from penstock_core.channel.state import ChannelState
from penstock_core.durable.durable import Durable
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.messages.retention import Removed
from penstock_core.messages.settlements import Buried
from penstock_core.messages.unions import StoredFact
from penstock_core.vocabulary.causes import Cause

MOVED_EVENTS_MAX = 10_000
"""Maximum number of events that a step moves."""
FOR_ONE = (Cause.UNDELIVERABLE, Cause.REJECTED, Cause.BURIED)
"""Causes of death that concern one durable, or the readers of a queue."""
MOVED_BYTES_MAX = 8 << 20
"""Approximate limit of the bytes that a step moves. The limit keeps millions of expiring events
from delaying publishers."""
READ_BYTES_MAX = MOVED_BYTES_MAX * 3 // 2
"""Maximum number of bytes that a step reads, including columns that the realm has added. A step
holds its events three times in memory: as read, as published, and in the block."""


MOVED_WORK = 32
"""Maximum number of selector evaluations per event while a step moves its full number of events. If
an event causes more of them, fewer events move in a step."""


class Missed(Struct, frozen=True):
    """Dead events, grouped by the durables that had not acknowledged them, and by their redelivery
    counts."""

    durables: tuple[tuple[tuple[str, ...], Spans], ...]
    redeliveries: tuple[tuple[int, Spans], ...]


def moved_at_once(
    state: ChannelState, ids: IdSet, *, events_max: int = MOVED_EVENTS_MAX, work: float = 1.0
) -> IdSet:
    """Return the lowest of ``ids``, all stored, that one step may move; at least one.

    A step moves fewer events if many selectors examine them or joins copy them to many stores. The
    factor by which a step costs more than usual is the largest of ``work`` and two factors of the
    state. The result may be ``ids`` itself.
    """
    cost_factor = max(work, state.dead_work / MOVED_WORK, state.dead_copies)
    events_max = min(events_max, int(MOVED_EVENTS_MAX / cost_factor))
    return state.sizes.lowest_within(ids, events_max, MOVED_BYTES_MAX / cost_factor)


def unconsumed(state: ChannelState, ids: IdSet, cause: Cause) -> IdSet:
    """Return the part of ``ids`` (all stored) that was still wanted, or that no client could want
    because the channel has no durables."""
    if not (state.durables or state.engine.needs_interest):
        return ids.copy()
    missed = not_acknowledged(state, ids)
    if state.engine.needs_interest:
        missed.add_all(not_received(state, ids, cause))
    return missed


def not_acknowledged(state: ChannelState, ids: IdSet) -> IdSet:
    """Return the part of ``ids`` (all stored) that some durable wants and has not acknowledged."""
    missed = IdSet()
    for durable in state.durables.values():
        missed.add_all(durable.wanting(ids))
    return missed


def not_received(
    state: ChannelState,
    ids: IdSet,
    cause: Cause,
    fresh: IdSet | None = None,
    chosen: Mapping[str, Spans] = MappingProxyType({}),
) -> IdSet:
    """Return the part of ``ids`` that some subscriber waits for and will not receive.

    If ``cause`` is ``EVICTED``, a subscriber still receives as many of the events as it has credit
    for, because evicted events are offered once more (SEM T3). ``fresh`` are events that the
    present publish adds; ``chosen`` contains those that each selector matches.
    """
    readable = state.stored.copy()
    readable.add_all(state.leaving)
    missing = IdSet()
    for subscriber in state.subscribers.values():
        if not subscriber.has_interest:
            continue
        awaited_ids = subscriber.waits_for(readable)
        # The client has been sent these events.
        awaited_ids.discard_all(subscriber.unconfirmed)
        if fresh:
            new = IdSet(chosen.get(subscriber.selector, ())) if subscriber.selector else fresh
            awaited_ids.add_all(new.within(Span(subscriber.cursor, subscriber.until)))
        if cause is Cause.EVICTED and subscriber.hungry:
            # `lowest_part` may return the set itself, from which its result is removed here.
            awaited_ids.discard_all(awaited_ids.lowest_part(subscriber.credit).copy())
        missing.add_all(awaited_ids.overlap(ids))
    return missing


def buried(state: ChannelState, durable: Durable, dead: IdSet, cause: Cause) -> list[StoredFact]:
    """Return the facts that bury ``dead`` for one durable (SEM T10). Events that no other durable
    wants leave the channel."""
    wanted = IdSet()
    for candidate in state.durables.values():
        if candidate is not durable:
            wanted.add_all(candidate.wanting(dead))
    # A channel that retains consumed events keeps an event that is dead for all its durables.
    unwanted_by_others = IdSet() if state.retains_consumed else dead.copy()
    unwanted_by_others.remove_all(wanted)
    wanted_by_others = dead.copy()
    wanted_by_others.remove_all(unwanted_by_others)
    facts: list[StoredFact] = (
        [Buried(durable.name, wanted_by_others.spans, cause)] if wanted_by_others else []
    )
    if unwanted_by_others:
        facts.append(Removed(unwanted_by_others.spans, cause, unwanted_by_others.spans))
    return facts


def count_copies(state: ChannelState, ids: IdSet, cause: Cause, durable: str = "") -> None:
    """Count copies of ``ids``, which are still stored, in the dead event store.

    An event that was rolled back too often, rejected or buried is copied for one durable. An event
    that left by age or capacity is copied once, for all durables that missed it.
    """
    if not ids or state.definition.kind == "schedule":
        return  # events leave a schedule to be published, so they are not dead
    if not durable and cause in FOR_ONE:
        for owner in state.durables.values():
            if owner.name:
                count_copies(state, owner.wanting(ids), cause, durable=owner.name)
        if not any(state.durables):  # only the readers of a queue, whose name is empty
            state.died["", cause.value] = state.died.get(("", cause.value), 0) + len(ids)
        return
    state.died[durable, cause.value] = state.died.get((durable, cause.value), 0) + len(ids)


def missed(state: ChannelState, spans: Spans) -> Missed:
    """Return which durables missed dead events, and their redelivery counts, for the origin that
    copies carry (SEM T6). Call this function before the events are removed."""
    if not state.durables:
        return Missed((), ())
    ids = IdSet(spans)
    groups: list[tuple[tuple[str, ...], IdSet]] = [((), ids)]
    counted = IdSet()
    redeliveries: list[tuple[int, Spans]] = []
    for durable in state.durables.values():
        if not durable.name:  # the built-in durable of a queue
            continue
        wanting = durable.wanting(ids)
        # Each durable splits the groups, so that in the end a group has the same durables.
        split_groups = []
        for names, group in groups:
            missed_here = group.overlap(wanting)
            not_missed_here = group.copy()
            not_missed_here.remove_all(missed_here)
            split_groups += [((*names, durable.name), missed_here), (names, not_missed_here)]
        groups = [(names, group) for names, group in split_groups if group]
    counts = {count for durable in state.durables.values() for count in durable.levels}
    # The loop runs from the highest count down: an event has the highest count that a durable has
    # for it.
    for count in sorted(counts, reverse=True):
        level_ids = IdSet()
        for durable in state.durables.values():
            if count in durable.levels:
                level_ids.add_all(durable.levels[count].overlap(ids))
        level_ids.remove_all(counted)
        if level_ids:
            redeliveries.append((count, level_ids.spans))
            counted.add_all(level_ids)
    return Missed(
        tuple((names, group.spans) for names, group in groups if names), tuple(redeliveries)
    )
