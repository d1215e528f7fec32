"""The events of a merge channel: merged states in memory, deltas in the journal.

Published batches are merged when events are read, or when enough have accumulated. Nothing is
sealed into files: a snapshot has the states, and the journal has the publishes after it (ADR 11).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from penstock_core.channel.channel_type import Home
from penstock_core.columns.events.batch import Int64s, ids_of, stamp
from penstock_core.columns.keys.keys import KeyIndex
from penstock_core.columns.merge.states import StateChunk, States, deltas_of
from penstock_core.columns.schema.ipc import batch_bytes
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.outgoing_batch import MERGE_ROWS_MAX, OutgoingBatch, spans_in
from penstock_server.runtime.store.recent_deltas import Raw, RealmsRecent, Recent
from penstock_server.runtime.store.sealed_file import Damage, Publishers, SealedFile
from penstock_server.runtime.store.tail_batch import Meter, TailBatch

PENDING_ROWS_MAX: Final = 16_384
PENDING_PIECES_MAX: Final = 2_048
"""Limit on the number of batches that wait to be merged while no event is read."""
PENDING_BYTES_MAX: Final = 64 << 20
"""Limit on the bytes of the batches that wait to be merged."""
USELESS_ROWS_MIN: Final = 4_096
"""The states are compacted once they have this many rows of removed events."""


class MergeStore(ChannelStore):
    """States and deltas of one merge channel. It has the bytes; the rules are in the core."""

    def __init__(
        self, meter: Meter, keys: Mapping[str, int], home: Home, recent: RealmsRecent
    ) -> None:
        super().__init__(meter, keys)
        (key,) = keys
        self.states = States(key)
        self.keys: KeyIndex = KeyIndex(keys, self.states.values)
        self.recent = Recent(recent)
        self._home = home
        self._pending: list[Raw] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._counted_bytes = 0
        """Bytes of the states that the meters have counted."""
        self._publishers: list[str] = [""]
        """Publishers of rows. A code in the states is an index in this list."""
        self._remaining_ids: IdSet | None = None
        """The ids that are still stored, if events were removed without being replaced by newer
        ones since the states were compacted; rows of other ids are then useless. Otherwise None."""
        self._useless_rows = 0
        """Number of rows that became useless because their events were removed without being
        replaced."""
        self.covered: set[str] = set()
        """Names of files whose rows a snapshot has, so that the files are not needed any more."""
        self.lacks_files = False
        """Whether rows in files have not been loaded yet. No batch can be merged before they are
        loaded."""

    # --- changes -------------------------------------------------------------------------

    def add(self, tail_batch: TailBatch) -> None:
        rows = tail_batch.batch
        raw = Raw(tail_batch, self.states.slots_of(rows), deltas_of(rows))
        self.states.extend_columns(rows.schema)
        self.columns = self.states.columns
        self.names.add(tail_batch.schema, tail_batch.schema_id)
        self._pending.append(raw)
        self._pending_rows += len(raw.slots)
        self._pending_bytes += tail_batch.weight
        self._count(tail_batch, 1)
        self.recent.add(raw)
        if (
            len(self._pending) > PENDING_PIECES_MAX
            or self._pending_rows > PENDING_ROWS_MAX
            or self._pending_bytes > PENDING_BYTES_MAX
        ):
            self.settle()

    def settle(self) -> None:
        """Merge the batches published since the last call."""
        if not self._pending or self.lacks_files:
            return
        pending, self._pending = self._pending, []
        self._pending_rows = self._pending_bytes = 0
        rows = self._together([_stamped(raw.tail_batch) for raw in pending])
        slots = np.concatenate([raw.slots for raw in pending])
        deltas = np.concatenate([raw.deltas for raw in pending])
        codes = np.concatenate(
            [np.full(len(raw.slots), self._code(raw.tail_batch.publisher)) for raw in pending]
        )
        merged, merged_rows = self.states.merged(rows, slots, ~deltas)
        for raw in pending:
            self._count(raw.tail_batch, -1)
        self.states.append(merged, slots[merged_rows], codes[merged_rows])
        self.states.tidy(self._remaining_ids)
        self._count_bytes()

    def add_merged_rows(self, batch: pa.RecordBatch, publishers: Publishers) -> None:
        """Add merged rows at recovery or import. Their ids must be above all existing ids."""
        # Copy the rows, because the file that they map may be closed.
        rows = batch.take(pa.array(np.arange(batch.num_rows)))
        codes = np.zeros(rows.num_rows, dtype=np.int32)
        ids = ids_of(rows)
        for publisher, spans in publishers:
            # Empty spans stand for all events of the file.
            for first, end in spans or (Span(0, 1 << 62),):
                low, high = np.searchsorted(ids, (first, end))
                codes[low:high] = self._code(publisher)
        self.states.append(rows, self.states.slots_of(rows), codes)
        self.columns = self.states.columns
        self._count_bytes()

    def index(self) -> None:
        """Build the index of publish keys after an import."""
        self.settle()
        for chunk in self.states.chunks:
            self.keys.append([chunk.batch], chunk.ids)

    def drop_empty_batches(self, spans: Spans, stored: IdSet) -> None:
        super().drop_empty_batches(spans, stored)
        self._remaining_ids = stored
        self._useless_rows += sum(end - first for first, end in spans)
        if not stored:
            self._forget_all()
        elif self._useless_rows > max(USELESS_ROWS_MIN, self.states.rows // 2):
            self.compact(stored)

    def record_scattered_removal(self, ids: IdSet, stored: IdSet) -> None:
        """Do nothing, because newer events of the same keys have already replaced these rows."""

    def compact(self, stored: IdSet) -> None:
        """Drop all rows without a stored event."""
        self.settle()
        # Batches are still pending because rows of files are not loaded yet.
        if self._pending:
            return
        alive = self.states.compact(stored)
        if alive is not None:
            self.keys.renumber(alive)
            self.recent.clear(self._end)
        self._remaining_ids, self._useless_rows = None, 0
        self._count_bytes()

    @property
    def _end(self) -> int:
        return int(self.states.chunks[-1].ids[-1]) + 1 if self.states.chunks else 0

    def _forget_all(self) -> None:
        for raw in self._pending:
            self._count(raw.tail_batch, -1)
        self._pending = []
        self._pending_rows = self._pending_bytes = 0
        self.states.clear()
        self._remaining_ids, self._useless_rows = None, 0
        self._count_bytes()

    def discard(self) -> None:
        self._forget_all()
        super().discard()

    def _count_bytes(self) -> None:
        size = self.states.nbytes
        self.meter.add_bytes(self._home, size - self._counted_bytes)
        # Under "journal" the realm's meter counts events that wait to be sealed, and states are
        # never sealed.
        if self._home != "journal":
            self._realm.add_bytes(self._home, size - self._counted_bytes)
        self._counted_bytes = size
        self.count_index()

    def measure_index(self) -> int:
        values = super().measure_index()
        # The limit of every other home already counts the states.
        if self._home != "journal":
            return values
        return values + self.states.nbytes + self._pending_bytes

    def index_growth(self, size: int) -> int:
        return super().index_growth(size) + (size if self._home == "journal" else 0)

    def reclaim_index(self, stored: IdSet) -> None:
        """Drop replaced states, and values without stored events, if they are many."""
        self.settle()
        # A pass over all rows pays only if more than a fifth of them are useless.
        if 4 * self.states.rows > 5 * len(stored) or 4 * self.states.slots > 5 * len(stored):
            self.compact(stored)

    def tidy_index(self, stored: IdSet) -> None:
        if self.states.slots and not stored:
            self.compact(stored)

    def _code(self, publisher: str) -> int:
        """Return the code of a publisher; a new one gets the next code."""
        if publisher not in self._publishers:
            self._publishers.append(publisher)
        return self._publishers.index(publisher)

    def _together(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Return one batch with the rows of all batches."""
        if len(batches) == 1:
            return batches[0]
        return pa.concat_batches([self.states.conformed(batch) for batch in batches])

    # --- files of an import, until a snapshot has their rows ------------------------------

    def record_sealing(self, end: int, file: SealedFile | None, volatile: IdSet) -> None:
        if file is not None:
            self.files.append(file)
            self.lacks_files = True

    def empty_files(self) -> list[SealedFile]:
        """Return the files that a snapshot has made unnecessary."""
        return [file for file in self.files if file.name in self.covered and not file.is_damaged]

    # --- questions -----------------------------------------------------------------------

    @property
    def event_bytes(self) -> float:
        return max(super().event_bytes, self.states.nbytes / max(1, self.states.rows))

    def merged_ahead(
        self, batches: Sequence[pa.RecordBatch], first_id: int, at_us: int
    ) -> pa.RecordBatch:
        """Return the states that result if ``batches`` are published at ``at_us`` with ids from
        ``first_id`` on, one row for each event. The store does not change."""
        self.settle()
        for batch in batches:
            self.states.extend_columns(batch.schema)
        slots = np.concatenate([self.states.slots_of(batch) for batch in batches])
        flags = np.concatenate([deltas_of(batch) for batch in batches])
        stamped = []
        for batch in batches:
            stamped.append(stamp(batch, Span(first_id, first_id + batch.num_rows), at_us))
            first_id += batch.num_rows
        merged, _ = self.states.merged(self._together(stamped), slots, ~flags, every=True)
        return merged

    def read(self, spans: Spans, damage: Damage) -> list[OutgoingBatch]:
        return [self._rows(chunk) for chunk in self._join_small(self._chunks(spans))]

    def merged_rows(self, spans: Spans) -> StateChunk | None:
        """Return the merged rows of ``spans`` as one chunk; None if no event is stored."""
        chunks = self._chunks(spans)
        return self.states.together(chunks) if chunks else None

    def rows_of(self, chunk: StateChunk) -> OutgoingBatch:
        """Return the rows of a chunk, ready to be sent."""
        return self._rows(chunk)

    def slots_of(self, spans: Spans) -> Int64s:
        """Return the slots of stored events."""
        slots = [chunk.slots for chunk in self._chunks(spans)]
        return np.concatenate(slots) if slots else np.empty(0, dtype=np.int64)

    def missing(self, stored: IdSet) -> IdSet:
        """Return the stored events without a row, which were in damaged parts at recovery."""
        self.settle()
        missing_ids = stored.copy()
        for chunk in self.states.chunks:
            missing_ids.discard_all(IdSet.from_ids(chunk.ids.tolist()))
        return missing_ids

    def kept(self, stored: IdSet) -> list[tuple[pa.RecordBatch, Publishers]]:
        """Return the rows of stored events for a snapshot, with their publishers."""
        self.compact(stored)
        assert not self._pending, "compact has merged all batches, because all files are loaded"
        return [(chunk.batch, self._published_by(chunk)) for chunk in self.states.chunks]

    def held(self) -> Sequence[TailBatch]:
        self.settle()
        return [
            _StatePiece(part, self._publishers[code], self._home)
            for chunk in self.states.chunks
            for code, part in _by_publisher(self.states.alive(chunk))
        ]

    def _chunks(self, spans: Spans) -> list[StateChunk]:
        self.settle()
        return self.states.read(spans)

    def _join_small(self, chunks: list[StateChunk]) -> list[StateChunk]:
        """Join small chunks into few, because each chunk is sent as a separate frame."""
        few: list[StateChunk] = []
        run: list[StateChunk] = []
        for chunk in chunks:
            if run and sum(len(part.ids) for part in run) + len(chunk.ids) > MERGE_ROWS_MAX:
                few.append(self.states.together(run))
                run = []
            run.append(chunk)
        return [*few, self.states.together(run)] if run else few

    def _rows(self, chunk: StateChunk) -> OutgoingBatch:
        """Return the rows of a chunk in the form in which events are delivered."""
        return OutgoingBatch(
            spans_in(chunk.batch), batch=chunk.batch, publishers=self._published_by(chunk)
        )

    def _published_by(self, chunk: StateChunk) -> Publishers:
        """Return the publishers of a chunk, each with the ids of its rows. A single publisher has
        no ids, which means all rows."""
        codes = np.unique(chunk.codes)
        if len(codes) == 1:
            return ((self._publishers[codes[0]], ()),) if codes[0] else ()
        publishers = []
        for code in codes[codes > 0].tolist():
            ids = IdSet.from_ids(chunk.ids[chunk.codes == code].tolist())
            publishers.append((self._publishers[code], ids.spans))
        return tuple(publishers)


class _StatePiece(TailBatch):
    """Merged rows in the form of a published batch."""

    __slots__ = ("_row_ids",)

    def __init__(self, chunk: StateChunk, publisher: str, home: Home) -> None:
        span = Span(int(chunk.ids[0]), int(chunk.ids[-1]) + 1)
        ids = IdSet.from_ids(chunk.ids.tolist())
        body = memoryview(batch_bytes(chunk.batch))
        super().__init__(
            span,
            0,
            -1,
            schema=chunk.batch.schema,
            body=body,
            batch=chunk.batch,
            ids=ids,
            home=home,
            publisher=publisher,
        )
        self._row_ids = chunk.ids

    def stored(self, spans: Sequence[Span]) -> pa.RecordBatch:
        """Return the rows with the ids in ``spans``, all of which this batch has."""
        ids = np.concatenate([np.arange(*span, dtype=np.int64) for span in spans])
        return self.batch.take(pa.array(np.searchsorted(self._row_ids, ids)))


def _by_publisher(chunk: StateChunk) -> list[tuple[int, StateChunk]]:
    """Split a chunk by publisher; each part has the code of its publisher."""
    codes = np.unique(chunk.codes).tolist()
    if len(codes) == 1:
        return [(codes[0], chunk)]
    return [(code, chunk.take(np.flatnonzero(chunk.codes == code))) for code in codes]


def _stamped(tail_batch: TailBatch) -> pa.RecordBatch:
    """Return all events of a batch with their ids and publish times."""
    spans = (
        (Span(tail_batch.first, tail_batch.end),)
        if tail_batch.ids is None
        else tail_batch.ids.spans
    )
    return tail_batch.stored(spans)
