"""Writes events to the journal that were only passing through memory, because their client left and
its durable is owed them (SEM J7)."""

from __future__ import annotations

from collections.abc import Iterator

from penstock_core.ids.ids import IdSet
from penstock_core.messages.retention import PersistedLate
from penstock_core.vocabulary.ports import Buffer
from penstock_server.runtime.store.records import BodyRef
from penstock_server.runtime.store.state import RealmState

LateWrite = tuple[PersistedLate, BodyRef | None, Buffer]
"""A fact to apply, and to record with the body of its events; None: nothing is recorded."""


def late_writes(realm: RealmState, channel_id: int, fact: PersistedLate) -> Iterator[LateWrite]:
    """Yield the writes of the events that belong on disk, one for each published batch, and then
    the fact of those that the channel's type keeps in memory only."""
    state = realm.channels[channel_id].state
    remaining = IdSet(fact.spans)
    owed = state.unwritten.overlap(remaining)
    for tail_batch in list(realm.stores[channel_id].tail):
        ids = tail_batch.overlap(owed)
        if not ids:
            continue
        remaining.discard_all(ids)
        body = tail_batch.body_of(ids)
        ref = BodyRef(tail_batch.number, len(body), len(ids), publisher=tail_batch.publisher)
        yield PersistedLate(ids.spans, tail_batch.at_us, state.ages.own_of(ids)), ref, body
    if remaining:
        yield PersistedLate(remaining.spans, fact.at_us), None, b""


def bytes_to_secure(state: RealmState, number: int) -> int:
    """At most so many bytes have to be written when clients of a channel leave."""
    channel = state.channels.get(number)
    if channel is None or not channel.state.unwritten:
        return 0
    unwritten = channel.state.unwritten
    return sum(
        len(tail_batch.body)
        for tail_batch in state.stores[number].tail
        if tail_batch.overlap(unwritten)
    )
