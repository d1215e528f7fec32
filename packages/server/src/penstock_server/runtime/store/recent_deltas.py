"""The newest publishes of a merge channel, from which deltas for subscribers are made (SEM K3)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple
from weakref import WeakSet

import numpy as np
import pyarrow as pa

from penstock_core.columns.events.batch import Int64s, ids_of
from penstock_core.columns.keys.key_values import NO_SLOT
from penstock_core.columns.merge.merging import Bools, merge, normal
from penstock_core.columns.merge.states import DELTA, sparse_columns_only, without_delta
from penstock_core.columns.schema.layout import FIELDS
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import Span
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch, spans_in
from penstock_server.runtime.store.sealed_file import Publishers
from penstock_server.runtime.store.tail_batch import TailBatch, stored_together

KEPT_BYTES_MAX: Final = 2 << 20
"""Bytes of publishes kept besides the newest one. Subscribers further behind get full events."""
KEPT_PIECES_MAX: Final = 8_192
"""Limit on the number of batches kept for one channel."""
REALM_BYTES_MAX: Final = 256 << 20
"""Limit on the bytes of kept publishes over all merge channels of a realm. Above it, the channels
with the most bytes drop theirs, until three quarters of the limit are used."""
PUBLISHED_ROWS_MIN: Final = 64
"""Batches with fewer events on average are merged before they are sent."""


class Raw(NamedTuple):
    """One published batch before merging, with the slot of each event's key."""

    tail_batch: TailBatch
    slots: Int64s
    deltas: Bools


class Stretch(NamedTuple):
    """All publishes of a merge channel from some id on. The arrays have one value for each row."""

    tail_batches: Sequence[Raw]
    ids: Int64s
    slots: Int64s
    deltas: Bools

    def only_deltas(self, slots: Int64s) -> Bools:
        """Return for each of ``slots`` whether only deltas were published for it."""
        with_full_event = np.unique(self.slots[~self.deltas])
        only_deltas: Bools = (slots != NO_SLOT) & ~np.isin(slots, with_full_event)
        return only_deltas


class RealmsRecent:
    """The newest published batches of all merge channels of a realm."""

    def __init__(self, bytes_max: int = REALM_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._channels: WeakSet[Recent] = WeakSet()
        self._bytes = 0
        """Upper bound of the bytes that the channels keep; made exact when it exceeds the limit."""

    def include(self, recent: Recent) -> None:
        """Include the batches of one more channel in the limit."""
        self._channels.add(recent)

    def count_batch(self, newest: Recent, size: int) -> None:
        """Count a batch of the channel ``newest``. If the realm keeps too many bytes, other
        channels drop their batches."""
        self._bytes += size
        if self._bytes <= self._bytes_max:
            return
        # Channels drop batches and are deleted without a notice to this object.
        self._bytes = sum(recent.bytes for recent in self._channels)
        # Down to three quarters, so that the next publishes do not exceed the limit again
        # immediately.
        others = sorted(self._channels - {newest}, key=lambda recent: recent.bytes)
        while others and self._bytes > self._bytes_max * 3 // 4:
            largest = others.pop()
            self._bytes -= largest.bytes
            largest.clear(largest.end)


class Recent:
    """The newest published batches of a channel, in order."""

    def __init__(self, realms: RealmsRecent) -> None:
        self._realms = realms
        realms.include(self)
        self._kept: list[Raw] = []
        self._firsts: list[int] = []
        self.bytes = 0
        """Bytes of the kept batches."""
        self.first = 0
        """Publishes with ids from this one on are kept; earlier ones may be dropped."""

    def add(self, raw: Raw) -> None:
        self._kept.append(raw)
        self._firsts.append(raw.tail_batch.first)
        size = len(raw.tail_batch.body)
        self.bytes += size
        if self.bytes > KEPT_BYTES_MAX or len(self._kept) > KEPT_PIECES_MAX:
            self._forget()
        self._realms.count_batch(self, size)

    @property
    def end(self) -> int:
        """The id after the newest kept publish."""
        return self._kept[-1].tail_batch.end if self._kept else self.first

    def _forget(self) -> None:
        """Drop the older half in one step, because deleting single batches from the front of a list
        would cost more than keeping them for longer."""
        dropped = 0
        while dropped < len(self._kept) - 1 and (
            self.bytes > KEPT_BYTES_MAX // 2 or len(self._kept) - dropped > KEPT_PIECES_MAX // 2
        ):
            self.bytes -= len(self._kept[dropped].tail_batch.body)
            dropped += 1
        del self._kept[:dropped], self._firsts[:dropped]
        self.first = self._firsts[0]

    def clear(self, first: int) -> None:
        """Drop all publishes, for example because the slots of keys were renumbered. From now on,
        publishes from the id ``first`` on are kept."""
        self._kept, self._firsts, self.bytes, self.first = [], [], 0, first

    def since(self, first: int) -> Stretch | None:
        """Return the publishes from ``first`` on; None if some are no longer kept."""
        if first < self.first:
            return None
        index = bisect_left(self._firsts, first)
        tail_batches = self._kept[index:]
        if index and self._kept[index - 1].tail_batch.end > first:
            # `first` is inside a publish. Subscribers get whole publishes, so no subscriber has
            # this position.
            return None
        return Stretch(
            tail_batches,
            _joined([_ids(raw.tail_batch) for raw in tail_batches], np.int64),
            _joined([raw.slots for raw in tail_batches], np.int64),
            deltas=_joined([raw.deltas for raw in tail_batches], np.bool_),
        )


def batches_as_published(stretch: Stretch, event_ids: Int64s) -> list[OutgoingBatch] | None:
    """Return the batches of ``stretch`` as they were published, if they have at most twice as many
    rows as ``event_ids``; None if the deltas have to be built. Sending published batches saves
    building a batch. A subscriber may then get an outdated delta before a newer delta of the same
    key."""
    tail_batches = [raw.tail_batch for raw in stretch.tail_batches]
    if len(stretch.ids) > 2 * len(event_ids) or len(stretch.ids) < PUBLISHED_ROWS_MIN * len(
        tail_batches
    ):
        return None
    if not stretch.deltas.all() or not all(tail_batch.is_whole for tail_batch in tail_batches):
        return None
    if len(np.unique(stretch.slots)) != len(event_ids):
        return None  # some events have left the channel
    return [
        OutgoingBatch([Span(tail_batch.first, tail_batch.end)], tail_batch=tail_batch)
        for tail_batch in tail_batches
    ]


def deltas(stretch: Stretch, event_ids: Int64s) -> OutgoingBatch:
    """Return one delta for each of the events ``event_ids``: ascending ids, each the newest of its
    key. A delta has all properties that the key's deltas in ``stretch`` have changed."""
    rows = np.searchsorted(stretch.ids, event_ids)
    batch = _batch(stretch, rows)
    return OutgoingBatch(spans_in(batch), batch=batch, publishers=_publishers(stretch, event_ids))


def _batch(stretch: Stretch, rows: Int64s) -> pa.RecordBatch:
    """Return the chosen rows, each merged with the earlier rows of its key."""
    tail_batches = [raw.tail_batch for raw in stretch.tail_batches]
    if len({tail_batch.schema_id for tail_batch in tail_batches}) == 1 and all(
        tail_batch.is_whole for tail_batch in tail_batches
    ):
        batch = stored_together(tail_batches)
        if len(rows) == batch.num_rows:
            # All rows are chosen, one for each key, so there is nothing to merge.
            return batch
        columns = _columns([batch])
        batch = columns.conform(_plain(batch))
    else:
        batches = [tail_batch.stored(_spans(tail_batch)) for tail_batch in tail_batches]
        columns = _columns(batches)
        batch = pa.concat_batches([columns.conform(_plain(part)) for part in batches])
    # Earlier rows of the chosen keys are also needed: a delta has all changed properties.
    slots = stretch.slots
    has_chosen_key = np.isin(slots, slots[rows])
    selected = np.flatnonzero(has_chosen_key)
    batch, slots = batch.take(pa.array(selected)), slots[selected]
    no_full_events = np.zeros(len(selected), dtype=np.bool_)
    merged = merge(normal(batch), slots, no_full_events, wanted=np.searchsorted(selected, rows))
    return _as_deltas(merged)


def _columns(batches: Sequence[pa.RecordBatch]) -> ChannelSchema:
    """Return a schema with the columns of all batches, without the column ``delta``."""
    columns = sparse_columns_only()
    for batch in batches:
        columns = columns.grown(without_delta(batch.schema))
    return columns


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without its marks of deltas."""
    return batch.select([name for name in batch.schema.names if name != DELTA])


def _as_deltas(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch marked as deltas, without columns that only have nulls."""
    optional = {"nulls", "more", "tag", "headers"}
    for name in optional & set(batch.schema.names):
        if batch.column(name).null_count == batch.num_rows:
            batch = batch.drop_columns([name])
    return batch.append_column(FIELDS[DELTA], pa.array(np.ones(batch.num_rows, dtype=np.bool_)))


def _publishers(stretch: Stretch, event_ids: Int64s) -> Publishers:
    """Return the publishers of a stretch, each with the span around its ids in ``event_ids``. A
    single publisher has no spans, which means all ids."""
    names = {raw.tail_batch.publisher for raw in stretch.tail_batches}
    if len(names) == 1:
        (name,) = names
        return ((name, ()),) if name else ()
    spans_by_publisher: dict[str, list[Span]] = {}
    for raw in stretch.tail_batches:
        low, high = np.searchsorted(event_ids, (raw.tail_batch.first, raw.tail_batch.end)).tolist()
        if low < high and raw.tail_batch.publisher:
            span = Span(int(event_ids[low]), int(event_ids[high - 1]) + 1)
            spans_by_publisher.setdefault(raw.tail_batch.publisher, []).append(span)
    return tuple((name, tuple(spans)) for name, spans in spans_by_publisher.items())


def _ids(tail_batch: TailBatch) -> Int64s:
    """Return the ids of the events in a batch."""
    if tail_batch.is_whole:
        return np.arange(tail_batch.first, tail_batch.end, dtype=np.int64)
    return ids_of(tail_batch.stored(_spans(tail_batch)))


def _spans(tail_batch: TailBatch) -> Sequence[Span]:
    """Return the spans of the ids of the events in a batch."""
    return (
        (Span(tail_batch.first, tail_batch.end),)
        if tail_batch.ids is None
        else tail_batch.ids.spans
    )


def _joined(parts: Sequence[np.ndarray], kind: type) -> np.ndarray:
    """Return the parts as one array; an empty array of the type ``kind`` without parts."""
    return np.concatenate(parts) if parts else np.empty(0, dtype=kind)
