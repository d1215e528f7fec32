"""The stored events of a channel in one turn of the writer, by reference.

The captured events stay readable while traffic continues: batches in memory never change, and a
mapped file stays mapped when it is rewritten or dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import pyarrow as pa

from penstock_core.channel.state import ChannelState
from penstock_core.columns.files.segments import SegmentReader, rows_of
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.errors import Damaged
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.sealed_file import Publishers
from penstock_server.runtime.store.tail_batch import TailBatch

T = TypeVar("T")


class EventsOfBatch(NamedTuple):
    """A batch in memory, with the ids of its stored events."""

    tail_batch: TailBatch
    ids: IdSet


class CapturedEvents(NamedTuple):
    """All stored events of a channel, by the place of their bytes. Each event is in one field."""

    unsealed: Sequence[EventsOfBatch]
    """Persistent events in memory: those not sealed yet, and late ones, which the file for their
    ids does not have."""
    transient: Sequence[EventsOfBatch]
    """Events that live in memory only."""
    in_files: IdSet
    """All other events. An event with an id in this set is damaged if no file has it."""


def captured_events(state: ChannelState, store: ChannelStore) -> CapturedEvents:
    """Return the stored events of a channel. Call it within a turn of the writer."""
    remaining = state.stored.copy()
    remaining.discard_all(state.volatile)
    unsealed = []
    tail_batches = store.held()
    for tail_batch in tail_batches:
        span = Span(tail_batch.first, tail_batch.end)
        if tail_batch.home != "pages":  # events below `sealed_end` are read from their files
            span = span.clipped(Span(store.sealed_end, max(span.end, store.sealed_end)))
        ids = tail_batch.overlap(remaining.within(span))
        ids.add_all(tail_batch.overlap(store.late))
        if ids:
            remaining.discard_all(ids)
            unsealed.append(EventsOfBatch(tail_batch, ids))
    transient = [
        EventsOfBatch(tail_batch, ids)
        for tail_batch in tail_batches
        if (ids := tail_batch.overlap(state.volatile))
    ]
    return CapturedEvents(unsealed, transient, remaining)


def in_parts(
    items: Iterable[tuple[T, int, int]], bytes_max: int, rows_max: int | None = None
) -> Iterator[list[T]]:
    """Yield items in their order, in parts of at most ``bytes_max`` bytes and ``rows_max`` rows. An
    item that exceeds a limit is a part by itself. ``items`` are tuples of an item, its number of
    rows, and its bytes."""
    part: list[T] = []
    rows = size = 0
    for item, item_rows, item_bytes in items:
        is_full = size + item_bytes > bytes_max
        is_full |= rows_max is not None and rows + item_rows > rows_max
        if part and is_full:
            yield part
            part, rows, size = [], 0, 0
        part.append(item)
        rows += item_rows
        size += item_bytes
    if part:
        yield part


def publishers_in_memory(batches: Iterable[EventsOfBatch]) -> Publishers:
    """Return the publishers of events in memory."""
    ids_of_publisher: dict[str, IdSet] = {}
    for tail_batch, ids in batches:
        if tail_batch.publisher:
            ids_of_publisher.setdefault(tail_batch.publisher, IdSet()).add_all(ids)
    return tuple((name, ids.spans) for name, ids in ids_of_publisher.items())


class UnreadableEvents(Exception):
    """Raised in a thread that reads a file, so that the event loop can quarantine the unreadable
    events (SEM S1)."""

    def __init__(self, reason: Damaged, ids: IdSet) -> None:
        super().__init__(str(reason))
        self.ids = ids


def rows_in_file(
    reader: SegmentReader, event_ids: IdSet, batch_indexes: Iterable[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the events ``event_ids`` of a sealed file, from the batches at ``batch_indexes``; None
    means all batches of the file.

    Raises ``UnreadableEvents`` with all unreadable events, after the other events were read.
    """
    unreadable, reason = IdSet(), None
    for index in range(len(reader.index.batches)) if batch_indexes is None else batch_indexes:
        ids = event_ids.within(reader.index.batches[index].span)
        if not ids:
            continue
        try:
            batch = reader.batch(index)
        except Damaged as error:
            unreadable.add_all(ids)
            reason = reason or error
            continue
        # The usual case: no event of the batch has left the channel, so nothing is copied.
        yield batch if len(ids) == batch.num_rows else rows_of(batch, ids.spans)
    if reason is not None:
        raise UnreadableEvents(reason, unreadable)
