"""Writes events to the journal that were only passing through memory, because their client left and
its durable is owed them (SEM J7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_core.channel.channel import ChannelMachine
from penstock_core.ids.ids import IdSet
from penstock_core.messages.retention import PersistedLate
from penstock_server.runtime.store.records import BodyRef
from penstock_server.runtime.store.state import RealmState

if TYPE_CHECKING:
    from penstock_server.runtime.writer.open_group import OpenGroup


def secure(group: OpenGroup, number: int, channel: ChannelMachine, fact: PersistedLate) -> None:
    """Write the events that belong on disk, one fact a published batch, and make ``fact`` true."""
    left = IdSet(fact.spans)
    owed = channel.state.unwritten.overlap(left)
    for piece in list(group.state.stores[number].tail):
        own = piece.of(owed)
        if not own:
            continue
        left.discard_all(own)
        body = piece.body_of(own)
        exact = PersistedLate(own.spans, piece.at_us, channel.state.ages.own_of(own))
        group.record(
            number, exact, (BodyRef(piece.number, len(body), len(own), publisher=piece.publisher),)
        )
        group.bodies.append(body)
        group.state.apply(number, exact)
    if left:  # the channel's type keeps these in memory only
        group.state.apply(number, PersistedLate(left.spans, fact.at_us))


def bytes_to_secure(state: RealmState, number: int) -> int:
    """At most so many bytes have to be written when clients of a channel leave."""
    channel = state.channels.get(number)
    if channel is None or not channel.state.unwritten:
        return 0
    unwritten = channel.state.unwritten
    return sum(len(piece.body) for piece in state.stores[number].tail if piece.of(unwritten))
