"""The states of a merge channel: one merged event for each value of its publish key (SEM K2).

Rows are kept in a few batches, each about twice as long as the next, so the cost of a small change
hardly depends on the number of keys. Both the realm and merging clients use this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock_core.columns.events.batch import Int64s, ids_of
from penstock_core.columns.keys.key_retention import is_first
from penstock_core.columns.keys.key_values import NO_SLOT, Values
from penstock_core.columns.merge.merging import Bools, merge, normal
from penstock_core.columns.schema.layout import BODY
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import IdSet, Span

Codes = npt.NDArray[np.int32]

DELTA: Final = "delta"
"""Name of the column that marks deltas."""
SLOTS_KEPT_MIN: Final = 4_096
"""Key values without an event are dropped only if they outnumber the other values by more than this
number, unless the values take much memory."""
VALUE_BYTES_KEPT_MIN: Final = 16 << 20
"""If the key values take more bytes than this, values without an event are dropped even if they are
few."""
PACKED_MIN: Final = 32
"""A batch with deltas is sent compressed if it has at least this many events."""
_SLOTS_MIN: Final = 64
"""Number of slots that the first arrays have room for."""


class StateChunk(NamedTuple):
    """Merged rows in the order of their ids."""

    batch: pa.RecordBatch
    ids: Int64s
    slots: Int64s
    codes: Codes
    """The publisher of each row, as a code."""
    size: int = 0
    """Size in bytes; 0 for a chunk that is not stored."""

    def take(self, rows: Int64s) -> StateChunk:
        """Return a chunk of the selected rows."""
        batch = self.batch.take(pa.array(rows))
        return StateChunk(batch, self.ids[rows], self.slots[rows], codes=self.codes[rows])


class States:
    """The merged rows of a channel, indexed by key value and by id."""

    def __init__(self, key: str) -> None:
        self.values = Values(key)
        self._newest: Int64s = np.full(_SLOTS_MIN, NO_SLOT, dtype=np.int64)
        """Id of the merged event of each slot; ``NO_SLOT`` (-1) for a slot without one."""
        self.chunks: list[StateChunk] = []
        """The merged rows, in the order of their ids, including some that newer rows replaced."""
        self.columns = sparse_columns_only()
        """The schema of merged rows, without the column ``delta``."""
        self.generation = 0
        """Changes whenever slots are renumbered."""

    @property
    def slots(self) -> int:
        """Number of key values, including values without a stored event."""
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Size of all rows in memory, in bytes."""
        return sum(chunk.size for chunk in self.chunks)

    @property
    def rows(self) -> int:
        """Number of rows in memory, including rows that newer ones replaced."""
        return sum(len(chunk.ids) for chunk in self.chunks)

    def slots_of(self, batch: pa.RecordBatch) -> Int64s:
        """Return the slot of each event; ``NO_SLOT`` for events without the key."""
        slots = self.values.slots_of(batch)
        if len(self.values) > len(self._newest):
            added = np.full(len(self.values), NO_SLOT, dtype=np.int64)
            self._newest = np.concatenate((self._newest, added))
        return slots

    def newest_of(self, value: Any) -> int | None:
        """Return the id of the newest merged event with this key value, or None."""
        slot = self.values.slot_of(value)
        newest = NO_SLOT if slot == NO_SLOT else int(self._newest[slot])
        return None if newest == NO_SLOT else newest

    def extend_columns(self, schema: pa.Schema) -> None:
        """Extend the columns so that batches of ``schema`` fit."""
        self.columns = self.columns.grown(without_delta(schema))

    # --- changes -------------------------------------------------------------------------

    def merged(
        self, rows: pa.RecordBatch, slots: Int64s, full: Bools, *, every: bool = False
    ) -> tuple[pa.RecordBatch, Int64s]:
        """Return the merged rows after these stored events, and for each merged row the index in
        ``rows`` of its event. The states are not changed.

        By default the result has one merged row for each key, of its newest event; with ``every``
        it has one for each event. A delta of a key without a state counts as a full event.
        """
        self.extend_columns(rows.schema)
        rows = self.conformed(rows)
        full = full | (slots == NO_SLOT)
        wanted = np.arange(len(slots)) if every else _newest_of(slots)
        bases = [] if full.all() else self._bases(slots, full)
        base_count = sum(len(base.slots) for base in bases)
        if bases:
            batches = [self.conformed(base.batch) for base in bases]
            rows = pa.concat_batches([*batches, rows])
            slots = np.concatenate([*(base.slots for base in bases), slots])
            full = np.concatenate((np.ones(base_count, dtype=np.bool_), full))
        return merge(rows, slots, full, wanted=wanted + base_count), wanted

    def append(self, batch: pa.RecordBatch, slots: Int64s, codes: Codes) -> None:
        """Store merged rows as the newest of their keys. Their ids must be above all ids stored
        here."""
        if not batch.num_rows:
            return
        self.extend_columns(batch.schema)
        ids = ids_of(batch)
        keyed = slots != NO_SLOT
        # Ids ascend, and of several rows of one slot NumPy assigns the last.
        self._newest[slots[keyed]] = ids[keyed]
        batch = self.conformed(batch)
        self.chunks.append(StateChunk(batch, ids, slots, codes=codes, size=batch.nbytes))

    def clear(self) -> None:
        """Drop all rows, because the channel is empty."""
        self.chunks = []

    def tidy(self, stored: IdSet | None = None) -> None:
        """Join chunks of similar size and drop replaced rows.

        With ``stored``, also drop rows whose events are not stored any more.
        """
        start = len(self.chunks) - 1
        size = len(self.chunks[-1].ids) if self.chunks else 0
        # Joining only chunks of similar size copies each row a logarithmic number of times.
        while start > 0 and len(self.chunks[start - 1].ids) < 2 * size:
            start -= 1
            size += len(self.chunks[start].ids)
        if start < len(self.chunks) - 1:
            self._unite(start, stored)

    def compact(self, stored: IdSet) -> Bools | None:
        """Join all chunks, and drop key values without a stored event.

        Returns the mask of kept slots if slots were renumbered, otherwise None.
        """
        if self.chunks:
            self._unite(0, stored)
        alive = np.zeros(len(self.values), dtype=np.bool_)
        for chunk in self.chunks:
            alive[chunk.slots[chunk.slots != NO_SLOT]] = True
        # Renumbering rewrites the slots of all chunks, so it must free many slots or much memory.
        few_dropped = 2 * int(alive.sum()) + SLOTS_KEPT_MIN >= len(alive)
        if few_dropped and (alive.all() or self.values.nbytes < VALUE_BYTES_KEPT_MIN):
            return None
        self.values.keep(alive)
        # NO_SLOT is -1 and so reads the last cell, which has NO_SLOT again.
        moved = np.append(np.cumsum(alive) - 1, NO_SLOT)
        newest = self._newest[: len(alive)][alive]
        self._newest = np.concatenate((newest, np.full(_SLOTS_MIN, NO_SLOT, dtype=np.int64)))
        self.chunks = [chunk._replace(slots=moved[chunk.slots]) for chunk in self.chunks]
        self.generation += 1
        return alive

    def _unite(self, start: int, stored: IdSet | None) -> None:
        """Replace the chunks from index ``start`` on by one chunk, without replaced rows."""
        parts = [self.alive(chunk, stored) for chunk in self.chunks[start:]]
        parts = [part for part in parts if len(part.ids)]
        del self.chunks[start:]
        if parts:
            united = self._united(parts)
            self.chunks.append(united._replace(size=united.batch.nbytes))

    def alive(self, chunk: StateChunk, stored: IdSet | None = None) -> StateChunk:
        """Return ``chunk`` without replaced rows. With ``stored``, also leave out rows whose ids
        are not in it."""
        keyed = chunk.slots != NO_SLOT
        alive = ~keyed | (self._newest[chunk.slots] == chunk.ids)
        if stored is not None:
            # Restrict the set to the chunk first, because it may have many spans.
            alive &= _within(chunk.ids, stored.within(_around(chunk.ids)).spans)
        if alive.all():
            return chunk
        return chunk.take(np.flatnonzero(alive))

    def _united(self, parts: Sequence[StateChunk]) -> StateChunk:
        """Return one chunk with the rows of all parts."""
        if len(parts) == 1:
            return parts[0]
        return StateChunk(
            pa.concat_batches([self.conformed(part.batch) for part in parts]),
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.slots for part in parts]),
            codes=np.concatenate([part.codes for part in parts]),
        )

    def conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a stored batch in the schema of merged rows, without the column ``delta``."""
        names = batch.schema.names
        if DELTA in names:
            batch = batch.select([name for name in names if name != DELTA])
        return normal(self.columns.conform(batch))

    def _bases(self, slots: Int64s, full: Bools) -> list[StateChunk]:
        """Return the current rows of keys whose first event in the batch is a delta."""
        ids = self._newest[slots[is_first(slots) & ~full]]
        ids = np.sort(ids[ids >= 0])
        return list(self._with_ids(ids))

    def _with_ids(self, ids: Int64s) -> Iterator[StateChunk]:
        """Yield the rows with these ids (ascending), chunk by chunk."""
        for chunk in self.chunks:
            low, high = np.searchsorted(ids, (chunk.ids[0], chunk.ids[-1] + 1)).tolist()
            if low == high:
                continue
            wanted = ids[low:high]
            rows = np.searchsorted(chunk.ids, wanted)
            # searchsorted() also returns a position for a missing id.
            rows = rows[chunk.ids[rows] == wanted]
            if len(rows):
                yield chunk.take(rows)

    # --- reading -------------------------------------------------------------------------

    def read(self, spans: Sequence[Span]) -> list[StateChunk]:
        """Return the rows of ``spans`` (stored ids, ascending), in chunks, in the order of ids."""
        chunks_read = []
        for chunk in self.chunks:
            rows = np.flatnonzero(_within(chunk.ids, spans))
            if len(rows):
                chunks_read.append(chunk if len(rows) == len(chunk.ids) else chunk.take(rows))
        return [
            chunk._replace(batch=self.conformed(chunk.batch)) if len(chunks_read) > 1 else chunk
            for chunk in chunks_read
        ]

    def together(self, chunks: Sequence[StateChunk]) -> StateChunk:
        """Return one chunk with the rows of all ``chunks``."""
        return self._united(chunks)


def without_delta(schema: pa.Schema) -> pa.Schema:
    """Return a schema without the column ``delta``."""
    index = schema.get_field_index(DELTA)
    return schema if index < 0 else schema.remove(index)


def is_worth_packing(batch: pa.RecordBatch) -> bool:
    """Whether a batch is worth compressing, because it has many deltas, which are mostly nulls."""
    return batch.num_rows >= PACKED_MIN and DELTA in batch.schema.names


def deltas_of(batch: pa.RecordBatch) -> Bools:
    """Return a mask of the events of a batch that are deltas."""
    index = batch.schema.get_field_index(DELTA)
    if index < 0:
        return np.zeros(batch.num_rows, dtype=np.bool_)
    flags = batch.column(index)
    if flags.null_count:
        flags = flags.fill_null(fill_value=False)
    return np.asarray(flags.to_numpy(zero_copy_only=False), dtype=np.bool_)


def sparse_columns_only() -> ChannelSchema:
    """Return the initial schema of merged rows: only the columns that sparse rows need."""
    sparse = [pa.field(name, BODY[name]) for name in ("sparse", "nulls")]
    return ChannelSchema.empty().grown(pa.schema(sparse))


def _newest_of(slots: Int64s) -> Int64s:
    """Return the rows that are the last of their slot, and all rows without a slot."""
    rows = np.arange(len(slots))
    # The last cell is for rows without a slot.
    last = np.empty(int(slots.max()) + 2, dtype=np.int64)
    last[slots] = rows  # the last write to a cell wins
    return np.flatnonzero((last[slots] == rows) | (slots == NO_SLOT))


def _around(ids: Int64s) -> Span:
    """Return the span from the first to the last of ascending ids."""
    return Span(int(ids[0]), int(ids[-1]) + 1)


def _within(ids: Int64s, spans: Sequence[tuple[int, int]]) -> Bools:
    """Return a mask of the ``ids`` (ascending) that lie in ``spans`` (ascending)."""
    mask = np.zeros(len(ids), dtype=np.bool_)
    if not len(ids) or not spans:
        return mask
    edges = np.array(spans, dtype=np.int64).reshape(-1)
    low = np.searchsorted(edges[1::2], ids[0], "right")
    high = np.searchsorted(edges[::2], ids[-1], "right")
    # Only the spans that overlap the ids, because a set may have a million spans.
    edges = edges[2 * int(low) : 2 * max(int(high), int(low) + 1)]
    # An odd number of edges up to an id means that the id is inside a span.
    inside: Bools = np.searchsorted(edges, ids, "right") % 2 == 1
    return inside
