"""Where stored events can be read: in which files, and which are in none yet."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock_core.api.channels import Location, Missing, SealedPart
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.delivery.delivery import Dispatch
from penstock_server.runtime.store.sealed_file import Publishers
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard

PUBLISHER_SPANS_MAX = 4_096
"""Most runs of events of one publisher that an answer has for one file."""

MISSING_SPANS_MAX: Final = 100
"""Most spans that an answer has for one cause of removal."""


async def locate(
    shard: Shard,
    dispatch: Dispatch,
    channel_id: ChannelId,
    span: Span,
    *,
    publishers: bool = False,
) -> Location:
    """Which files hold the stored events of ``span`` on channel ``channel_id``, and which are
    not in a file yet; with ``publishers`` also who published those in files."""

    def look(group: Group) -> Location:
        state = group.channel(channel_id).state
        group.sweep(channel_id)
        store = group.state.stores[channel_id]
        left = state.stored.within(span)
        in_memory = state.volatile.copy()
        in_memory.add_all(store.late)
        left.remove_all(in_memory)
        parts = []
        for file in store.files_for((span,)):
            spans = left.remove(file.span).spans
            if spans:
                index = msgspec.msgpack.encode(file.index)
                path = dispatch.local_path(file.name) or ""
                whole = Span(spans[0].first, spans[-1].end)
                known = _told(file.publishers_of(whole)) if publishers else ()
                parts.append(
                    SealedPart(
                        path, file.index.size, spans, index=index, publishers=known, name=file.name
                    )
                )
        left.add_all(in_memory.within(span))
        return Location(tuple(parts), left.spans, dispatch.files_at)

    location: Location = await shard.act(look, sweeps=(channel_id,))
    return location


async def columns(shard: Shard, channel_id: ChannelId) -> bytes:
    """The schema of the channel's events so far, as an Arrow IPC message (SEM E2)."""

    def look(group: Group) -> bytes:
        group.channel(channel_id)
        return group.state.stores[channel_id].columns.to_bytes()

    schema: bytes = await shard.act(look, sweeps=(channel_id,))
    return schema


def _told(publishers: Publishers) -> Publishers | None:
    """The publishers, or None where they alternate too often for one answer."""
    spans = sum(len(own) for _, own in publishers)
    return publishers if spans <= PUBLISHER_SPANS_MAX else None


async def missing(shard: Shard, channel_id: ChannelId, span: Span) -> tuple[Missing, ...]:
    """The ids in ``span`` that have no event any more, by cause."""

    def look(group: Group) -> tuple[Missing, ...]:
        state = group.channel(channel_id).state
        group.sweep(channel_id)
        given = Span(state.definition.start_event_id, state.next_id)
        found = state.departures.missing(span, given, state.stored)
        return tuple(
            Missing(cause, len(ids), ids.spans[:MISSING_SPANS_MAX])
            for cause, ids in sorted(found.items())
        )

    found: tuple[Missing, ...] = await shard.act(look, sweeps=(channel_id,))
    return found
