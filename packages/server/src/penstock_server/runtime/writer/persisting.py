"""Late writes: stores passing events, which were in memory only, because a client has left and its
durable must keep them (SEM J7)."""

from __future__ import annotations

from collections.abc import Iterator

from penstock_core.ids.ids import IdSet
from penstock_core.messages.retention import PersistedLate
from penstock_core.vocabulary.ports import Buffer
from penstock_server.runtime.store.records import BodyRef
from penstock_server.runtime.store.state import RealmState

LateWrite = tuple[PersistedLate, BodyRef | None, Buffer]
"""A fact to apply, the reference to its body, and the body. If the reference is None, the fact is
applied but not recorded in the block."""


def late_writes(realm: RealmState, channel_id: int, fact: PersistedLate) -> Iterator[LateWrite]:
    """Yield one write for each published batch with events that belong on disk, then one fact for
    the events that the channel's type keeps in memory only."""
    state = realm.channels[channel_id].state
    remaining = IdSet(fact.spans)
    unwritten = state.unwritten.overlap(remaining)
    for tail_batch in list(realm.stores[channel_id].tail):
        ids = tail_batch.overlap(unwritten)
        if not ids:
            continue
        remaining.discard_all(ids)
        body = tail_batch.body_of(ids)
        ref = BodyRef(tail_batch.schema_id, len(body), len(ids), publisher=tail_batch.publisher)
        yield PersistedLate(ids.spans, tail_batch.at_us, state.ages.own_of(ids)), ref, body
    if remaining:
        yield PersistedLate(remaining.spans, fact.at_us), None, b""


def bytes_to_secure(state: RealmState, channel_id: int) -> int:
    """Return an upper bound of the bytes to write when clients of a channel leave."""
    channel = state.channels.get(channel_id)
    if channel is None or not channel.state.unwritten:
        return 0
    unwritten = channel.state.unwritten
    return sum(
        len(tail_batch.body)
        for tail_batch in state.stores[channel_id].tail
        if tail_batch.overlap(unwritten)
    )
