"""The steps of a publish, and the rules that decide it.

Every publish calls the functions named in these steps, in this order; a test traces one publish
and compares. Steps that only some publishes need follow after "Only some".

1. Arrive. The connection reads a frame
   (``penstock_server.frontends.native.connection.Connection.buffer_updated``) and decodes a request
   (``penstock_server.frontends.native.requests.Requests.take``) with its batches of events
   (``penstock_server.frontends.native.schemas.SchemaTable.bodies``). The right is checked, and the
   request is begun (``penstock_server.runtime.operations.door.begin``).
2. Digest. What the rules need is derived from the columns
   (``penstock_server.runtime.store.bodies.digest_of``). Only some: a batch of many events is
   examined column by column (``penstock_core.columns.events.digest.digest``).
3. Wait for the single writer (``penstock_server.runtime.writer.shard.Shard.submit``). Only some: a
   thread applies many selectors to the events meanwhile
   (``penstock_server.runtime.writer.selector_queue.SelectorQueue.holds``).
4. Reserve. The realm determines whether the publish writes more than its own events
   (``penstock_server.runtime.writer.room_forecast.has_no_side_effects``), and reserves space on
   disk (``penstock_server.storage.embedded.journal.FileJournal.reserve``). Only some: the bytes
   that follow are estimated (``penstock_server.runtime.writer.room_forecast.side_effect_bytes``).
5. Begin (``penstock_server.runtime.writer.group.Group.publish``). Due events leave the channel
   first (``penstock_server.runtime.writer.group.Group.sweep_if_due``). Only some: selectors are
   applied, deltas are merged (``penstock_server.runtime.store.merging.admitted``), and the replaced
   events of the same publish keys are found
   (``penstock_core.columns.keys.keys.KeyIndex.superseded``).
6. Decide (``penstock_core.channel.decide.decide``). A retry is answered with the ids of the first
   time (``penstock_core.channel.producers.Remembered.stored_as``). The batch gets the next dense
   ids; an id is never given twice. This is all for most publishes: they only add events. Only some:
   they are refused when an event is too large, when memory is short, or when the channel is full
   and honours its capacity (``penstock_core.channel.retention.refuse_when_full``). On the JMS
   engine, ids may be all that is kept (``penstock_core.channel.engine.Engine.interest``). Over
   capacity the oldest events are evicted (``penstock_core.channel.retention.make_room``);
   unconsumed ones go to the dead event store (``penstock_core.channel.dead.unconsumed``).
7. Check that the channel accepts the columns
   (``penstock_core.columns.schema.property_names.PropertyNames.check``).
8. Apply. The ids join the channel and the ledger of each durable
   (``penstock_core.channel.channel.ChannelMachine.apply``), the columns its tail
   (``penstock_server.runtime.store.channel_store.ChannelStore.add``). Only some: joins publish the
   events that match on other channels (``penstock_server.runtime.writer.join_copies.copies``).
9. Store. The facts and columns of everything in the group become one block
   (``penstock_server.runtime.store.records.encode_block``), which is written at once
   (``penstock_server.storage.embedded.journal.FileJournal.append``).
10. Answer. Only now is the answer sent to the publisher
   (``penstock_server.frontends.native.connection.Connection.send``).
11. Offer. Events are granted to subscribers, if there are any
   (``penstock_server.runtime.writer.shard.Shard.offer``). Only some: durables grant to seats with
   credit, plain subscribers follow (``penstock_core.channel.channel.ChannelMachine.offer``), and
   the columns are sent as they came, with their ids
   (``penstock_server.runtime.delivery.delivery.Dispatch.perform``). A transient event is offered
   and then dropped.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock_core.channel.dead import moved_at_once, not_acknowledged, not_received
from penstock_core.channel.decided import Decided
from penstock_core.channel.interest import awaited, wanted_of
from penstock_core.channel.retention import make_room, refuse_when_full
from penstock_core.channel.state import ChannelState
from penstock_core.ids.id_lists import ids_in
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.messages.publishing import Appended, IdsReserved, Publish
from penstock_core.messages.retention import Removed, Replaced
from penstock_core.messages.unions import StoredFact
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import EventTooLarge, MemoryLimit
from penstock_core.vocabulary.temporary import (
    STORE_BYTES_MAX,
    USER_PERCENT_MAX,
    is_temporary_store,
)

RESERVE = 100_000
"""Ids reserved at once for events in memory, so that not every publish stores a fact for them."""


def decide_publish(command: Publish, state: ChannelState, now_us: int) -> Decided:
    """Return the facts of a publish, with its span as answer. Raises ``Refused``."""
    if command.producer:
        stored_span = state.producers.stored_as(command.producer, command.sequence)
        if stored_span is not None:
            return Decided(answer=stored_span, is_retry=True)
    digest = command.digest
    span = Span(state.next_id, state.next_id + digest.count)
    has_options = digest.volatile or digest.transient or digest.ttls or digest.superseded
    is_oversize = digest.largest > state.rules.event_bytes_max
    is_awaited = state.absent or digest.matched
    if state.adds_only and not (has_options or is_oversize or is_awaited):
        # This is the usual case: the publish only adds events, so no rule below applies to it.
        producer, sequence = command.producer, command.sequence
        added = Appended(span, now_us, digest.size, producer, sequence)
        return Decided((added,), span, follows=False)
    appended = _apply_interest(state, digest, _appended(command, state, span, now_us))
    if not command.forced:
        _refuse(command, state, appended)
    facts: list[StoredFact] = []
    in_memory = appended.volatile or appended.passing
    # After a restart no fact mentions these ids, and they must not be assigned again.
    leaves_no_fact = in_memory or appended.relayed or appended.dropped
    if leaves_no_fact and state.type.ids_survive and span.end > state.reserved:
        facts.append(IdsReserved(span.end + RESERVE))
    facts.append(appended)
    if digest.superseded:
        facts.append(Replaced(digest.superseded))
    if not (state.definition.storage.honour_capacity or command.evicts_later):
        evicted = _evicted(state, appended, digest)
        if evicted is not None:
            facts.append(evicted)
    return Decided(tuple(facts), span)


def _refuse(command: Publish, state: ChannelState, appended: Appended) -> None:
    """Raise ``MemoryLimit``, ``EventTooLarge`` or ``CapacityReached`` if the publish exceeds a
    limit of the realm or of the channel."""
    digest = command.digest
    if command.index_growth > max(command.index_left, 0):
        raise MemoryLimit(
            f"{state.name} has no room in memory for new keys: these events would add "
            f"{command.index_growth} bytes of publish keys and states, "
            f"{max(command.index_left, 0)} bytes are free (limits.index_bytes, of which a channel "
            f"has half of what the others leave); remove events of other keys, or raise the limit"
        )
    _refuse_oversize(digest.largest, state.rules.event_bytes_max)
    unstored_count = 0
    if appended.relayed or appended.dropped:
        unstored_count = sum([part.size for part in (*appended.relayed, *appended.dropped)])
    # Events in the journal are limited by the disk, all others by memory or page files.
    is_outside_journal = state.type.home in ("off_heap", "pages") and unstored_count < digest.count
    is_limited = is_outside_journal or appended.volatile or appended.passing
    if is_limited and digest.size > command.memory_left:
        free_bytes = max(command.memory_left, 0)
        if is_temporary_store(state.name, state.definition):
            raise MemoryLimit(
                f"{state.name} has no room: {digest.size} bytes offered, {free_bytes} bytes are "
                f"free; a temporary destination keeps {STORE_BYTES_MAX} bytes, and those of a user "
                f"together {USER_PERCENT_MAX} % of limits.memory_bytes; wait until its session has "
                f"read some events"
            )
        raise MemoryLimit(
            f"{state.name} has no room: {digest.size} bytes offered, {free_bytes} bytes of the "
            f"realm's limit for {state.type.name} channels are free; consume, purge or raise the "
            f"limit"
        )
    if not state.definition.capacity:
        return
    replaced = ids_in(digest.superseded).copy()
    # Dropped events are counted as unstored already.
    replaced.discard_all(IdSet(appended.dropped))
    stored = len(state.stored) - state.overdue
    added_count = digest.count - unstored_count - len(replaced)
    refuse_when_full(
        state.name,
        state.definition,
        stored,
        added_count,
        overshoot=command.overshoot,
        evicts=command.evicts,
    )


def _apply_interest(state: ChannelState, digest: Digest, appended: Appended) -> Appended:
    """Return the fact with the events marked that the engine does not keep: events without interest
    are dropped, and some only pass through memory (SEM J2, J4)."""
    if state.type.relays or not state.engine.needs_interest:  # the type alone decides
        return appended
    span = appended.span
    chosen = {text: _shifted(digest.matched.get(text, ()), span.first) for text in state.chosen_by}
    subscribers = state.subscribers.values()
    pushed = awaited([reader for reader in subscribers if not reader.pulls], span, chosen)
    pulled = awaited([reader for reader in subscribers if reader.pulls], span, chosen)
    durables = state.durables.values()
    interest = state.engine.interest(durables, pushed, pulled, span, appended.matched)
    if not (interest.passing or interest.dropped):
        return appended
    # Transient events are never stored, so the engine does not decide about them.
    for relayed in appended.relayed:
        interest.passing.remove(relayed)
        interest.dropped.remove(relayed)
    return replace(
        appended,
        passing=interest.passing.spans,
        dropped=interest.dropped.spans,
        volatile=_without(appended.volatile, interest.dropped),
        ttls=tuple(
            (ttl_ms, remaining)
            for ttl_ms, spans in appended.ttls
            if (remaining := _without(spans, interest.dropped))
        ),
    )


def _without(spans: Spans, removed: IdSet) -> Spans:
    """Return ``spans`` without the ids ``removed``."""
    if not (spans and removed):
        return spans
    remaining = IdSet(spans)
    remaining.discard_all(removed)
    return remaining.spans


def _relayed(digest: Digest, state: ChannelState) -> Spans:
    """Return the offsets of the events that are never stored (SEM C1e, E8)."""
    if state.type.relays:
        return (Span(0, digest.count),)
    return digest.transient if state.definition.kind == "channel" else ()


def _appended(command: Publish, state: ChannelState, span: Span, now_us: int) -> Appended:
    """Return the fact of a publish, as the type of the channel stores it."""
    digest = command.digest
    first = span.first
    relayed = _relayed(digest, state)
    volatile = state.type.volatile(digest)
    if relayed and volatile:
        volatile_ids = IdSet(volatile)
        volatile_ids.remove_all(IdSet(relayed))
        volatile = volatile_ids.spans
    by_event = state.type.event_ttl_counts or state.definition.event_ttl
    return Appended(
        span,
        now_us,
        digest.size,
        command.producer,
        command.sequence,
        volatile=_shifted(volatile, first),
        ttls=_shifted_ttls(digest.ttls, first) if by_event else (),
        matched={
            durable.name: _shifted(digest.matched[selector], first)
            for selector, durable in state.selectors_in_use.durables(digest.matched)
        },
        relayed=_shifted(relayed, first),
    )


def _evicted(state: ChannelState, appended: Appended, digest: Digest) -> Removed | None:
    """Return the fact of the eviction after which the capacity is met again (SEM T3); None if no
    event has to leave. A batch larger than the capacity also evicts its own first events."""
    capacity = state.definition.capacity
    if not capacity:
        return None
    fresh = IdSet((appended.span,))
    for span in (*appended.relayed, *appended.dropped):
        fresh.remove(span)
    stored = state.stored
    if digest.superseded:
        # Replaced events leave in any case, so they do not count and must not be evicted as well.
        replaced = ids_in(digest.superseded)
        fresh.discard_all(replaced)
        stored = stored.copy()
        stored.discard_all(replaced)
    evicted = make_room(capacity, stored, fresh)
    if not evicted:
        return None
    if not state.moves_dead:
        return Removed(evicted, Cause.EVICTED)
    excess = IdSet(evicted)
    moving = moved_at_once(state, excess)
    if len(moving) < len(fresh):  # otherwise the excess would grow with each publish
        moving = excess.lowest_part(len(fresh))
    return Removed(moving.spans, Cause.EVICTED, _dead(state, moving, appended, fresh, digest))


def _dead(
    state: ChannelState, evicted: IdSet, appended: Appended, fresh: IdSet, digest: Digest
) -> Spans:
    """Return the part of ``evicted`` that some client still wanted."""
    if not (state.durables or state.engine.needs_interest):
        return evicted.spans
    first = appended.span.first
    dead = not_acknowledged(state, evicted.within(Span(0, first)))
    dead.add_all(_wanted(state, evicted.within(appended.span), appended))
    if state.engine.needs_interest:
        chosen = {text: _shifted(digest.matched.get(text, ()), first) for text in state.chosen_by}
        dead.add_all(not_received(state, evicted, Cause.EVICTED, fresh, chosen))
    return dead.spans


def _wanted(state: ChannelState, ids: IdSet, appended: Appended) -> IdSet:
    """Return the part of ``ids``, about to be published, that some durable will want."""
    wanted = IdSet()
    for durable in state.durables.values():
        matched = appended.matched.get(durable.name, ())
        wanted.add_all(ids.overlap(wanted_of(durable, appended.span, matched)))
    return wanted


def _shifted(offsets: Spans, first: int) -> Spans:
    """Return offsets in a batch as ids, if the batch begins at the id ``first``."""
    return tuple([Span(start + first, end + first) for start, end in offsets])


def _shifted_ttls(ttls: tuple[tuple[int, Spans], ...], first: int) -> tuple[tuple[int, Spans], ...]:
    """Return event TTLs in ms with ids instead of offsets; the batch begins at the id ``first``."""
    return tuple((ttl_ms, _shifted(offsets, first)) for ttl_ms, offsets in ttls)


def _refuse_oversize(largest: int, event_bytes_max: int) -> None:
    if largest > event_bytes_max:
        raise EventTooLarge(
            f"the largest event has {largest} bytes; this realm takes {event_bytes_max} at most "
            "(setting max_event_bytes)"
        )
