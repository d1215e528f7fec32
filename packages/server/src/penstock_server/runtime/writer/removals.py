"""Events that leave a store in the step in which a transaction publishes: dead events that were
changed and go back, or that are not wanted any more (SEM T9, T10, X4)."""

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
    """The events that leave one store."""

    number: int
    redriven: Spans
    purged: Spans


def check_there(group: Group, leaving: Sequence[Removal]) -> None:
    """Raise ``IllegalState`` unless all of them are stored, and no reader holds one. The client has
    read them, and publishes what became of them, so a missing one would be published twice."""
    for each in leaving:
        group.sweep(each.number)
        state = group.channel(each.number).state
        asked = _ids(each)
        there = asked.overlap(free_of(state, state.stored))
        if len(there) < len(asked):
            raise IllegalState(
                f"{len(asked) - len(there):,} of {len(asked):,} events are no longer on "
                f"{state.name}, or a reader holds them; nothing was changed: read the store again"
            )


def is_redrive(leaving: Sequence[Removal]) -> bool:
    """Whether dead events are published again by it."""
    return any(each.redriven for each in leaving)


def leave(group: Group, leaving: Sequence[Removal]) -> None:
    """Take them out."""
    for each in leaving:
        if each.redriven:
            group.do(each.number, RemoveRedriven(each.redriven))
        if each.purged:
            group.do(each.number, PurgeEvents(each.purged))


def free_of(state: ChannelState, ids: IdSet) -> IdSet:
    """The subset of ``ids`` that no reader of the queue holds."""
    free = ids.copy()
    readers = state.durables.get(READERS)
    for seat in readers.seats if readers else ():
        free.remove_all(seat.in_flight)
    return free


def _ids(leaving: Removal) -> IdSet:
    ids = IdSet(leaving.redriven)
    ids.add_all(IdSet(leaving.purged))
    return ids
