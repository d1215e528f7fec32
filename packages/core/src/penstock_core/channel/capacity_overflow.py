"""Events that are evicted in the turn that published them (SEM T3).

The publishes of many clients are stored in one turn, and may contain more events than the channel
may hold. Connected clients with credit still get all of them, as if each publish had been a
separate turn: an evicted event is offered once before its bytes are dropped. Such an event is not
stored any longer, and counts as evicted or dead like other events.
"""

from __future__ import annotations

from msgspec import Struct

from penstock_core.channel.state import ChannelState
from penstock_core.durable.seat import Seat
from penstock_core.ids.ids import IdSet, Span

_BEYOND = 1 << 62
"""A number above all event ids."""


class UnofferedIds(Struct):
    """The events about to be evicted that connected clients have not been offered yet."""

    for_subscribers: IdSet
    """Events that plain subscribers have not been offered."""
    by_durable: dict[str, IdSet]
    """Events that clients of each durable have not been offered, by the durable's name."""
    by_reader: list[tuple[Seat, IdSet]]
    """Readers with a selector, each with the events that match the selector."""


def note_offered(state: ChannelState) -> None:
    """Record that all clients have been offered all events, or could not take them."""
    state.granted_end = state.sent_end = state.next_id
    # Without a capacity no event is evicted, so the lowest cursor is not needed.
    if state.definition.capacity:
        subscribers = state.followers.each_place
        cursors = [subscriber.cursor for subscriber in subscribers if subscriber.hungry]
        state.sent_end = min([state.next_id, *cursors])


def unoffered_ids(state: ChannelState, ids: IdSet) -> UnofferedIds | None:
    """Return the part of ``ids``, stored and about to be evicted, that connected clients have not
    been offered. Call it before the eviction."""
    highest = ids.highest
    if highest is None or highest < state.sent_end or state.engine.merges:
        return None
    if not (state.subscribers or state.seats):
        return None
    unoffered = UnofferedIds(IdSet(), {}, [])
    new = ids.within(Span(state.sent_end, _BEYOND)).overlap(state.stored)
    for subscriber in state.followers.each_place:
        if subscriber.hungry and subscriber.stop_id is None:
            unoffered.for_subscribers.add_all(new.within(Span(subscriber.cursor, subscriber.until)))
    new = new.within(Span(state.granted_end, _BEYOND))
    for durable, seat in state.seats.values():
        if durable.name not in unoffered.by_durable:
            unoffered.by_durable[durable.name] = durable.ungranted(new)
        if seat.wanted:
            unoffered.by_reader.append((seat, seat.wanted.overlap(new)))
    return unoffered


def offer_once_more(state: ChannelState, unoffered: UnofferedIds) -> None:
    """Offer evicted events to the clients that have credit for them. Call it after the
    eviction."""
    offered = unoffered.for_subscribers
    # The eviction has removed these events from the seat's matches.
    for seat, matched in unoffered.by_reader:
        assert seat.wanted is not None, "it has a selector"
        seat.wanted.add_all(matched)
    for name, ids in unoffered.by_durable.items():
        durable = state.durables[name]
        if ids and any(seat.credit > 0 for seat in durable.seats):
            durable.add_passing(ids, state.next_id, state.stored)
            offered.add_all(ids)
    state.leaving.add_all(offered)
    state.may_pass = True


def end_offer(state: ChannelState, ids: IdSet) -> None:
    """Drop evicted events after they have been offered to all clients."""
    dropped = state.leaving.remove_all(ids)
    if dropped and state.engine.needs_interest:
        for subscriber in state.subscribers.values():
            subscriber.forget(dropped)
