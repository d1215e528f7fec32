"""Events that are evicted in the same turn in which they were published (SEM T3).

The publishes of many clients are stored in one step, and a channel may hold fewer events than that.
Connected clients with credit get all of them, as if each publish had been a step of its own: what
the capacity evicts in between is offered once before its bytes are dropped. It is not stored any
longer, and counts as evicted or dead like other events.
"""

from __future__ import annotations

from msgspec import Struct

from penstock_core.channel.state import ChannelState
from penstock_core.durable.seat import Seat
from penstock_core.ids.ids import IdSet, Span

_BEYOND = 1 << 62


class UnofferedIds(Struct):
    """What connected clients have not been offered yet, of events that are about to be evicted."""

    for_subscribers: IdSet
    by_durable: dict[str, IdSet]
    by_reader: list[tuple[Seat, IdSet]]
    """For each reader with a selector of its own, the events that match."""


def note_offered(state: ChannelState) -> None:
    """Everybody has been offered what there is, or could not take it."""
    state.granted_through = state.sent_through = state.next_id
    if state.definition.capacity:
        behind = [each.cursor for each in state.followers.each_place if each.hungry]
        state.sent_through = min([state.next_id, *behind])


def unoffered_ids(state: ChannelState, ids: IdSet) -> UnofferedIds | None:
    """The part of ``ids``, stored and about to be evicted, that connected clients still have to be
    offered. Call it before they are evicted."""
    highest = ids.highest
    if highest is None or highest < state.sent_through or state.engine.merges:
        return None
    if not (state.subscribers or state.seats):
        return None
    found = UnofferedIds(IdSet(), {}, [])
    new = ids.within(Span(state.sent_through, _BEYOND)).overlap(state.stored)
    for subscriber in state.followers.each_place:
        if subscriber.hungry and subscriber.stop_id is None:
            found.for_subscribers.add_all(new.within(Span(subscriber.cursor, subscriber.until)))
    new = new.within(Span(state.granted_through, _BEYOND))
    for durable, seat in state.seats.values():
        if durable.name not in found.by_durable:
            found.by_durable[durable.name] = durable.ungranted(new)
        if seat.wanted:
            found.by_reader.append((seat, seat.wanted.overlap(new)))
    return found


def offer_once_more(state: ChannelState, found: UnofferedIds) -> None:
    """Offer evicted events to the clients that have credit for them."""
    going = found.for_subscribers
    for seat, matched in found.by_reader:
        assert seat.wanted is not None, "it has a selector"
        seat.wanted.add_all(matched)
    for name, ids in found.by_durable.items():
        durable = state.durables[name]
        if ids and any(seat.credit > 0 for seat in durable.seats):
            durable.passing(ids, state.next_id, state.stored)
            going.add_all(ids)
    state.leaving.add_all(going)
    state.may_pass = True


def end_offer(state: ChannelState, ids: IdSet) -> None:
    """Note that evicted events have been offered to everybody."""
    gone = state.leaving.remove_all(ids)
    if gone and state.engine.needs_interest:
        for subscriber in state.subscribers.values():
            subscriber.forget(gone)
