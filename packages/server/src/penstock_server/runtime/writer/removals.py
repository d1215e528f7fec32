"""Events that a transaction removes in the same step as it publishes: dead events that were edited
and published again, or discarded (SEM T9, T10, X4)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from penstock_core.channel.state import ChannelState
from penstock_core.durable.queue import READERS
from penstock_core.ids.ids import IdSet, Spans
from penstock_core.messages.retention import PurgeEvents, RemoveRedriven
from penstock_core.vocabulary.errors import IllegalState
from penstock_server.runtime.writer.group import Group


class Removal(Struct, frozen=True):
    """The events removed from one store."""

    channel_id: int
    redriven: Spans
    """Events that the transaction publishes again."""
    purged: Spans
    """Events that the transaction discards."""


def check_available(group: Group, leaving: Sequence[Removal]) -> None:
    """Raise ``IllegalState`` unless all events of ``leaving`` are stored and no reader has one in
    flight. The client publishes edited copies of these events, so an event that another redrive has
    already moved would be published twice."""
    for removal in leaving:
        group.sweep(removal.channel_id)
        state = group.channel(removal.channel_id).state
        ids = _ids(removal)
        available = ids.overlap(free_of(state, state.stored))
        if len(available) < len(ids):
            raise IllegalState(
                f"{len(ids) - len(available):,} of {len(ids):,} events are no longer on "
                f"{state.name}, or a reader holds them; nothing was changed: read the store again"
            )


def is_redrive(leaving: Sequence[Removal]) -> bool:
    """Whether some of the removed events are published again."""
    return any(removal.redriven for removal in leaving)


def leave(group: Group, leaving: Sequence[Removal]) -> None:
    """Remove the events of ``leaving`` from their stores, after :func:`check_available`."""
    for removal in leaving:
        if removal.redriven:
            group.do(removal.channel_id, RemoveRedriven(removal.redriven))
        if removal.purged:
            group.do(removal.channel_id, PurgeEvents(removal.purged))


def free_of(state: ChannelState, ids: IdSet) -> IdSet:
    """Return the subset of ``ids`` that no reader of the queue holds."""
    free = ids.copy()
    readers = state.durables.get(READERS)
    for seat in readers.seats if readers else ():
        free.remove_all(seat.in_flight)
    return free


def _ids(leaving: Removal) -> IdSet:
    """Return all ids that a removal names."""
    ids = IdSet(leaving.redriven)
    ids.add_all(IdSet(leaving.purged))
    return ids
