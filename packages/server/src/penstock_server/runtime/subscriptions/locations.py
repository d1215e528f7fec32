"""Locations of stored events: the files that have them, or the realm for events not in a file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from penstock_core.api.channels import Location, Missing, SealedPart
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.delivery.delivery import Dispatch
from penstock_server.runtime.store.sealed_file import Publishers
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard

PUBLISHER_SPANS_MAX = 4_096
"""Largest number of spans of publishers in an answer, for one file."""

MISSING_SPANS_MAX: Final = 100
"""Largest number of spans in an answer, for one cause of removal."""


async def locate(
    shard: Shard,
    dispatch: Dispatch,
    channel_id: ChannelId,
    span: Span,
    *,
    publishers: bool = False,
) -> Location:
    """Return the files that have stored events of ``span`` on a channel, and the ids of the events
    that are not in a file; with ``publishers`` also the publishers of the events in files."""

    def find(group: Group) -> Location:
        state = group.channel(channel_id).state
        group.sweep(channel_id)
        store = group.state.stores[channel_id]
        unlocated = state.stored.within(span)
        # Transient and late events have ids within the spans of files, but are not in the files.
        in_memory = state.volatile.copy()
        in_memory.add_all(store.late)
        unlocated.remove_all(in_memory)
        parts = []
        for file in store.files_for((span,)):
            spans = unlocated.remove(file.span).spans
            if spans:
                index = msgspec.msgpack.encode(file.index)
                path = dispatch.local_path(file.name) or ""
                outer_span = Span(spans[0].first, spans[-1].end)
                parts.append(
                    SealedPart(
                        path,
                        file.index.size,
                        spans,
                        index=index,
                        publishers=_bounded(file.publishers_of(outer_span)) if publishers else (),
                        name=file.name,
                    )
                )
        unlocated.add_all(in_memory.within(span))
        return Location(tuple(parts), unlocated.spans, dispatch.files_at)

    location: Location = await shard.act(find, sweeps=(channel_id,))
    return location


async def columns(shard: Shard, channel_id: ChannelId) -> bytes:
    """Return the schema of the channel's events so far, as an Arrow IPC message (SEM E2)."""

    def encode(group: Group) -> bytes:
        group.channel(channel_id)  # raises NameDoesNotExist
        return group.state.stores[channel_id].columns.to_bytes()

    schema: bytes = await shard.act(encode, sweeps=(channel_id,))
    return schema


def _bounded(publishers: Publishers) -> Publishers | None:
    """Return the publishers; None if they have more than ``PUBLISHER_SPANS_MAX`` spans, because
    they alternate too often."""
    count = sum(len(spans) for _, spans in publishers)
    return publishers if count <= PUBLISHER_SPANS_MAX else None


async def missing(shard: Shard, channel_id: ChannelId, span: Span) -> tuple[Missing, ...]:
    """Return the ids in ``span`` whose events were removed, by cause."""

    def find(group: Group) -> tuple[Missing, ...]:
        state = group.channel(channel_id).state
        group.sweep(channel_id)
        assigned = Span(state.definition.start_event_id, state.next_id)
        ids_by_cause = state.departures.missing(span, assigned, state.stored)
        return tuple(
            Missing(cause, len(ids), tuple(islice(_spans(ids), MISSING_SPANS_MAX)))
            for cause, ids in sorted(ids_by_cause.items())
        )

    missing_ids: tuple[Missing, ...] = await shard.act(find, sweeps=(channel_id,))
    return missing_ids


def _spans(ids: IdSet) -> Iterator[Span]:
    """Yield the spans of ``ids``. Unlike :attr:`IdSet.spans`, it computes only those that the
    caller takes, of what may be millions."""
    end = 0
    while (span := ids.next_span(end, len(ids))) is not None:
        yield span
        end = span.end
