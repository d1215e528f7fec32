"""The newest publishes of a merge channel, from which deltas for subscribers are made (SEM K3)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

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
"""Bytes that are kept besides the newest publish. Subscribers further behind get full events."""
KEPT_PIECES_MAX: Final = 8_192
AS_THEY_CAME_MIN: Final = 64
"""Batches of fewer events are sent as one."""


class Raw(NamedTuple):
    """One published batch, unmerged."""

    tail_batch: TailBatch
    slots: Int64s
    deltas: Bools


class Stretch(NamedTuple):
    """Everything published from some id on."""

    tail_batches: Sequence[Raw]
    ids: Int64s
    slots: Int64s
    deltas: Bools

    def only_deltas(self, slots: Int64s) -> Bools:
        """For each of ``slots`` whether only deltas were published for it."""
        whole = np.unique(self.slots[~self.deltas])
        found: Bools = (slots != NO_SLOT) & ~np.isin(slots, whole)
        return found


class Recent:
    """The newest published batches of a channel, in their order."""

    def __init__(self) -> None:
        self._kept: list[Raw] = []
        self._firsts: list[int] = []
        self._bytes = 0
        self.first = 0
        """Id from which on every publish is kept."""

    def add(self, raw: Raw) -> None:
        self._kept.append(raw)
        self._firsts.append(raw.tail_batch.first)
        self._bytes += len(raw.tail_batch.body)
        if self._bytes > KEPT_BYTES_MAX or len(self._kept) > KEPT_PIECES_MAX:
            self._forget()

    def _forget(self) -> None:
        """Half of it at a time: looking at each piece costs more than the memory."""
        gone = 0
        while gone < len(self._kept) - 1 and (
            self._bytes > KEPT_BYTES_MAX // 2 or len(self._kept) - gone > KEPT_PIECES_MAX // 2
        ):
            self._bytes -= len(self._kept[gone].tail_batch.body)
            gone += 1
        del self._kept[:gone], self._firsts[:gone]
        self.first = self._firsts[0]

    def clear(self, first: int) -> None:
        """Slots have other numbers now: nothing from before ``first`` is known."""
        self._kept, self._firsts, self._bytes, self.first = [], [], 0, first

    def since(self, first: int) -> Stretch | None:
        """The publishes from ``first`` on; None if some are no longer kept."""
        if first < self.first:
            return None
        at = bisect_left(self._firsts, first)
        tail_batches = self._kept[at:]
        if at and self._kept[at - 1].tail_batch.end > first:
            return None  # in the middle of a publish, where no subscriber has been
        return Stretch(
            tail_batches,
            _joined([_ids(raw.tail_batch) for raw in tail_batches], np.int64),
            _joined([raw.slots for raw in tail_batches], np.int64),
            deltas=_joined([raw.deltas for raw in tail_batches], np.bool_),
        )


def as_they_came(stretch: Stretch, wanted: Int64s) -> list[OutgoingBatch] | None:
    """The batches of ``stretch`` as they were published, if that is little more than the deltas
    of ``wanted``, which are all there are; a delta that another follows does no harm."""
    tail_batches = [raw.tail_batch for raw in stretch.tail_batches]
    if len(stretch.ids) > 2 * len(wanted) or len(stretch.ids) < AS_THEY_CAME_MIN * len(
        tail_batches
    ):
        return None
    if not stretch.deltas.all() or not all(tail_batch.is_whole for tail_batch in tail_batches):
        return None
    if len(np.unique(stretch.slots)) != len(wanted):
        return None  # some have left meanwhile
    return [
        OutgoingBatch([Span(tail_batch.first, tail_batch.end)], tail_batch=tail_batch)
        for tail_batch in tail_batches
    ]


def deltas(stretch: Stretch, wanted: Int64s) -> OutgoingBatch:
    """One delta for each of the events ``wanted`` (ascending ids, each the newest of its key): it
    has all properties that the key's deltas in ``stretch`` have changed."""
    rows = np.searchsorted(stretch.ids, wanted)
    batch = _batch(stretch, rows)
    return OutgoingBatch(spans_in(batch), batch=batch, publishers=_publishers(stretch, wanted))


def _batch(stretch: Stretch, rows: Int64s) -> pa.RecordBatch:
    """The chosen rows, each merged with the earlier ones of its key."""
    tail_batches = [raw.tail_batch for raw in stretch.tail_batches]
    if len({tail_batch.number for tail_batch in tail_batches}) == 1 and all(
        tail_batch.is_whole for tail_batch in tail_batches
    ):
        batch = stored_together(tail_batches)
        if len(rows) == batch.num_rows:
            return batch
        columns = _columns([batch])
        batch = columns.conform(_plain(batch))
    else:
        batches = [tail_batch.stored(_spans(tail_batch)) for tail_batch in tail_batches]
        columns = _columns(batches)
        batch = pa.concat_batches([columns.conform(_plain(each)) for each in batches])
    slots = stretch.slots
    of_them = np.isin(slots, slots[rows])
    kept = np.flatnonzero(of_them)
    batch, slots = batch.take(pa.array(kept)), slots[kept]
    none_whole = np.zeros(len(kept), dtype=np.bool_)
    merged = merge(normal(batch), slots, none_whole, wanted=np.searchsorted(kept, rows))
    return _as_deltas(merged)


def _columns(batches: Sequence[pa.RecordBatch]) -> ChannelSchema:
    columns = sparse_columns_only()
    for batch in batches:
        columns = columns.grown(without_delta(batch.schema))
    return columns


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([name for name in batch.schema.names if name != DELTA])


def _as_deltas(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch marked as deltas, without columns of nulls only."""
    idle = {"nulls", "more", "tag", "headers"}
    for name in idle & set(batch.schema.names):
        if batch.column(name).null_count == batch.num_rows:
            batch = batch.drop_columns([name])
    return batch.append_column(FIELDS[DELTA], pa.array(np.ones(batch.num_rows, dtype=np.bool_)))


def _publishers(stretch: Stretch, wanted: Int64s) -> Publishers:
    names = {raw.tail_batch.publisher for raw in stretch.tail_batches}
    if len(names) == 1:
        (name,) = names
        return ((name, ()),) if name else ()
    found: dict[str, list[Span]] = {}
    for raw in stretch.tail_batches:
        low, high = np.searchsorted(wanted, (raw.tail_batch.first, raw.tail_batch.end)).tolist()
        if low < high and raw.tail_batch.publisher:
            span = Span(int(wanted[low]), int(wanted[high - 1]) + 1)
            found.setdefault(raw.tail_batch.publisher, []).append(span)
    return tuple((name, tuple(spans)) for name, spans in found.items())


def _ids(tail_batch: TailBatch) -> Int64s:
    if tail_batch.is_whole:
        return np.arange(tail_batch.first, tail_batch.end, dtype=np.int64)
    return ids_of(tail_batch.stored(_spans(tail_batch)))


def _spans(tail_batch: TailBatch) -> Sequence[Span]:
    return (
        (Span(tail_batch.first, tail_batch.end),)
        if tail_batch.ids is None
        else tail_batch.ids.spans
    )


def _joined(parts: Sequence[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=kind)
