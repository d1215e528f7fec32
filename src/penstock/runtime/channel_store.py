"""Where the events of one channel are: the tail in memory, the rest in sealed segments.

The core says *which* ids are stored; this says what they contain. Events in the tail are in the
journal too (unless they live in memory only) until they are sealed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columns.batch import stamp
from penstock.columns.ipc import batch_bytes, batch_from
from penstock.columns.schema import ChannelSchema
from penstock.columns.segments import SegmentIndex, SegmentReader
from penstock.core.errors import Damaged
from penstock.core.ids import IdSet, Span
from penstock.core.messages import Spans
from penstock.core.ports import Buffer

MERGE_ROWS_MAX = 16_384
"""Small batches are sent as one up to this many events."""
MERGE_BYTES_MAX = 4 << 20
MERGE_BELOW = 1_024
"""A batch of at least this many events is sent as it is."""


Publishers = tuple[tuple[str, Spans], ...]
"""By publisher (``user@host``): ids it published; no ids: all there are."""

IntArray = npt.NDArray[np.int64]


def _ids(spans: Iterable[Span]) -> IntArray:
    return np.concatenate([np.arange(*span, dtype=np.int64) for span in spans])


class Piece:
    """One published batch, as it came."""

    __slots__ = (
        "_batch",
        "at_us",
        "body",
        "end",
        "first",
        "ids",
        "in_memory",
        "live",
        "number",
        "publisher",
        "schema",
    )

    def __init__(
        self,
        span: Span,
        at_us: int,
        number: int,
        schema: pa.Schema,
        body: Buffer,
        batch: pa.RecordBatch | None = None,
        ids: IdSet | None = None,
        *,
        in_memory: bool = False,
        publisher: str = "",
    ) -> None:
        self.publisher = publisher
        """``user@host`` of the connection it came by (SEM E3)."""
        self.first, self.end = span
        self.at_us = at_us
        self.number = number
        """The schema's number."""
        self.schema = schema
        self.body = body
        self._batch = batch
        self.ids = ids
        """The ids its rows have; None: every id of the span."""
        self.in_memory = in_memory
        """Some of its events are nowhere else (SEM C6)."""
        self.live = span.size if ids is None else len(ids)

    @property
    def batch(self) -> pa.RecordBatch:
        if self._batch is None:
            self._batch = batch_from(self.body, self.schema)
        return self._batch

    @property
    def is_whole(self) -> bool:
        return self.ids is None

    def stored(self, spans: Sequence[Span]) -> pa.RecordBatch:
        """The rows of ``spans`` (all inside this piece), with ids and times."""
        if self.ids is None and len(spans) == 1:
            first, end = spans[0]
            rows = self.batch.slice(first - self.first, end - first)
            return stamp(rows, spans[0], self.at_us)
        wanted = _ids(spans)
        return stamp(self._rows(wanted), wanted, self.at_us)

    def publishers(self, spans: Sequence[Span]) -> Publishers:
        """Who published ``spans`` of it."""
        return ((self.publisher, tuple(spans)),) if self.publisher else ()

    def body_of(self, ids: IdSet) -> Buffer:
        """The body with only the rows of ``ids``."""
        return memoryview(batch_bytes(self._rows(_ids(ids.spans))))

    def _rows(self, wanted: IntArray) -> pa.RecordBatch:
        if self.ids is None:
            offsets = wanted - self.first
        else:
            offsets = np.searchsorted(_ids(self.ids.spans), wanted)
        return self.batch.take(pa.array(offsets))


def stored_together(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """All rows of whole pieces of one schema: far less work than stamping each."""
    counts = np.array([piece.end - piece.first for piece in pieces])
    firsts = np.array([piece.first for piece in pieces])
    total = int(counts.sum())
    ids = np.arange(total) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    at_us = np.repeat(np.array([piece.at_us for piece in pieces]), counts)
    return stamp(pa.concat_batches([piece.batch for piece in pieces]), ids, at_us)


class Rows:
    """Some events, ready to be sent: a batch as it came, or one made for the occasion."""

    __slots__ = ("_batch", "_body", "at_us", "count", "first_id", "piece", "publishers", "spans")

    def __init__(
        self,
        spans: Sequence[Span],
        *,
        piece: Piece | None = None,
        batch: pa.RecordBatch | None = None,
        publishers: Publishers = (),
    ) -> None:
        self.publishers: Publishers = publishers
        """Who published which of them; may name more ids than these."""
        if piece is not None and piece.publisher:
            self.publishers = ((piece.publisher, ()),)
        self.spans = spans
        self.count = sum(span.size for span in spans)
        self.piece = piece
        """Set when these are all rows of a published batch: its body can be sent as it is."""
        self._batch = batch
        self._body: Buffer | None = None
        self.first_id = -1 if piece is None else piece.first
        self.at_us = 0 if piece is None else piece.at_us

    @property
    def batch(self) -> pa.RecordBatch:
        """With ``event_id`` and ``published``."""
        if self._batch is None:
            assert self.piece is not None, "rows without a piece have a batch"
            self._batch = self.piece.stored(self.spans)
        return self._batch

    def within(self, bytes_max: int) -> list[Rows]:
        """These rows, in parts of about ``bytes_max`` where they are more."""
        size = self.batch.nbytes if self.piece is None else len(self.piece.body)
        if size <= bytes_max or self.count == 1:
            return [self]
        half = self.count // 2
        first, second = self.batch.slice(0, half), self.batch.slice(half)
        return [
            part
            for batch in (first, second)
            for part in Rows(_spans_of(batch), batch=batch, publishers=self.publishers).within(
                bytes_max
            )
        ]

    @property
    def body(self) -> Buffer:
        """The bytes to send; made once however many receive them."""
        if self._body is None:
            self._body = (
                memoryview(batch_bytes(self.batch)) if self.piece is None else self.piece.body
            )
        return self._body


class SealedFile:
    __slots__ = ("index", "is_damaged", "live", "name", "publishers", "reader")

    def __init__(self, name: str, index: SegmentIndex, publishers: Publishers = ()) -> None:
        self.publishers = publishers
        self.name = name
        self.index = index
        self.live = index.rows
        self.reader: SegmentReader | None = None
        self.is_damaged = False
        """Known to fail its checksum: kept, though none of its events is left (SEM S1)."""

    @property
    def span(self) -> Span:
        return Span(self.index.first_id, self.index.end_id)


class Damage:
    """Stored events that turned out to be unreadable: their ids, and why."""

    __slots__ = ("ids", "reasons")

    def __init__(self) -> None:
        self.ids = IdSet()
        self.reasons: list[str] = []

    def found(self, error: Damaged, span: Span) -> None:
        self.ids.add(span)
        self.reasons.append(str(error))


class Meter:
    """Bytes in memory, over all channels of a realm."""

    __slots__ = ("memory_bytes", "tail_bytes")

    def __init__(self) -> None:
        self.tail_bytes = 0
        """Events not sealed yet."""
        self.memory_bytes = 0
        """Of these, batches with events that are nowhere else."""

    def add(self, piece: Piece, sign: int) -> None:
        self.tail_bytes += sign * len(piece.body)
        if piece.in_memory:
            self.memory_bytes += sign * len(piece.body)


class ChannelStore:
    """Tail and segments of one channel. Knows bytes, no rules."""

    def __init__(self, meter: Meter) -> None:
        self._realm = meter
        self.meter = Meter()
        self.tail: list[Piece] = []
        self._ends: list[int] = []
        self.files: list[SealedFile] = []
        self.sealed_through = 0
        """Events below this that survive a restart are in files."""
        self.columns = ChannelSchema.empty()
        self.quarantined: list[str] = []

    # --- changes -------------------------------------------------------------------------

    def add(self, piece: Piece) -> None:
        self.tail.append(piece)
        self._ends.append(piece.end)
        self._count(piece, 1)
        self.columns = self.columns.grown(piece.schema)

    def removed(self, spans: Iterable[tuple[int, int]], stored: IdSet) -> None:
        """Ids have left the channel (they are out of ``stored`` already): drop empty pieces."""
        for first, end in spans:
            i = bisect_right(self._ends, first)
            while i < len(self.tail) and self.tail[i].first < end:
                piece = self.tail[i]
                piece.live = len(stored.within(Span(piece.first, piece.end)))
                if piece.live == 0:
                    self._drop(i, i + 1)
                else:
                    i += 1
            for file in self.files_for((Span(first, end),)):
                file.live = len(stored.within(file.span))

    def _drop(self, start: int, stop: int) -> None:
        for piece in self.tail[start:stop]:
            self._count(piece, -1)
        del self.tail[start:stop], self._ends[start:stop]

    def _count(self, piece: Piece, sign: int) -> None:
        self.meter.add(piece, sign)
        self._realm.add(piece, sign)

    def discard(self) -> None:
        """The channel is deleted: nothing of it counts any more."""
        self._drop(0, len(self.tail))

    def sealed(self, through: int, file: SealedFile | None, volatile: IdSet) -> None:
        """Events below ``through`` are in files now; the tail keeps what lives in memory only."""
        self.sealed_through = max(self.sealed_through, through)
        if file is not None:
            self.files.append(file)
        done = bisect_right(self._ends, through)
        if not volatile:
            self._drop(0, done)
            return
        for i in range(done - 1, -1, -1):
            piece = self.tail[i]
            kept = volatile.within(Span(piece.first, piece.end))
            if not kept:
                self._drop(i, i + 1)

    def empty_files(self) -> list[SealedFile]:
        """Files none of whose events is left, but the newest (SEM S, spindles) and damaged ones."""
        return [file for file in self.files[:-1] if file.live == 0 and not file.is_damaged]

    def keep_damaged(self, file: SealedFile, reason: str) -> None:
        """Somebody should look at this file: it is not deleted (SEM S1)."""
        file.is_damaged = True
        self.quarantined.append(reason)

    def dropped(self, name: str) -> None:
        self.files = [file for file in self.files if file.name != name]

    # --- questions -----------------------------------------------------------------------

    @property
    def sealed_bytes(self) -> int:
        return sum(file.index.size for file in self.files)

    def unsealed(self, rows_max: int, bytes_max: int) -> tuple[int, list[Piece]] | None:
        """The oldest pieces not sealed yet, once they make a full file: its end id and they."""
        start = bisect_right(self._ends, self.sealed_through)
        if start == len(self.tail):
            return None
        rows = self.tail[-1].end - max(self.tail[start].first, self.sealed_through)
        if rows < rows_max and self.meter.tail_bytes < bytes_max:
            return None  # asked several times a second: without a look at each piece
        rows = size = 0
        for i in range(start, len(self.tail)):
            piece = self.tail[i]
            first = max(piece.first, self.sealed_through)
            rows += piece.end - first
            size += len(piece.body)
            if rows >= rows_max or size >= bytes_max:
                return piece.end - max(0, rows - rows_max), self.tail[start : i + 1]
        return None

    def all_unsealed(self) -> list[Piece]:
        return self.tail[bisect_right(self._ends, self.sealed_through) :]

    # --- reading -------------------------------------------------------------------------

    def read(self, spans: Spans, damage: Damage) -> list[Rows]:
        """The events of ``spans``, in id order, in as few batches as is cheap.

        ``spans`` are stored ids, ascending. What is damaged is left out and told to ``damage``.
        The files they are in must have been opened (:meth:`files_for`).
        """
        sealed, live = self._split(spans)
        if not sealed:
            return _merged(self._from_tail(live), self.columns)
        rows = list(self._from_files(sealed, damage))
        tail = self._from_tail(live)
        if tail and rows and tail[0].spans[0].first < rows[-1].spans[-1].end:
            return [self._interleaved([*rows, *tail])]
        return rows + _merged(tail, self.columns)

    def _split(self, spans: Spans) -> tuple[list[Span], list[Span]]:
        """What is in files, and what is in the tail. Below ``sealed_through`` the tail holds
        only events that live in memory; an id is in one of the two."""
        if not self.files or spans[0].first >= self.sealed_through:
            return [], list(spans)
        below = Span(0, self.sealed_through)
        in_files = IdSet(span.clipped(below) for span in spans)
        in_memory = IdSet()
        for piece in self.tail:
            if piece.first >= self.sealed_through:
                break
            in_memory.add_all(in_files.remove(Span(piece.first, piece.end)))
        for span in spans:
            in_memory.add(span.clipped(Span(self.sealed_through, max(span.end, below.end))))
        return list(in_files.spans), list(in_memory.spans)

    def files_for(self, spans: Spans) -> Iterator[SealedFile]:
        """The files that hold some of ``spans``."""
        first, end = spans[0].first, spans[-1].end
        at = bisect_right(self.files, first, key=lambda file: file.index.end_id)
        for file in self.files[at:]:
            if file.index.first_id >= end:
                return
            yield file

    def _from_files(self, spans: Sequence[Span], damage: Damage) -> Iterator[Rows]:
        for file in self.files_for(tuple(spans)):
            for span in spans:
                part = span.clipped(file.span)
                if not part.size:
                    continue
                if file.reader is None:  # it could not even be opened
                    damage.found(Damaged(f"{file.name} cannot be opened"), part)
                    continue
                for batch in file.reader.read(part, damage.found):
                    yield Rows(_spans_of(batch), batch=batch, publishers=file.publishers)

    def _from_tail(self, spans: Sequence[Span]) -> list[Rows]:
        found: list[Rows] = []
        at = 0
        for i in range(bisect_right(self._ends, spans[0].first) if spans else 0, len(self.tail)):
            piece = self.tail[i]
            own = Span(piece.first, piece.end)
            parts = []
            while at < len(spans) and spans[at].first < own.end:
                part = spans[at].clipped(own)
                if part.size:
                    parts.append(part)
                if spans[at].end > own.end:
                    break
                at += 1
            if parts:
                whole = piece.is_whole and parts[0] == own
                found.append(
                    Rows(parts, piece=piece, batch=None)
                    if whole
                    else Rows(parts, batch=piece.stored(parts), publishers=piece.publishers(parts))
                )
            if at == len(spans):
                break
        return found

    def _interleaved(self, rows: list[Rows]) -> Rows:
        """Events on disk and in memory of one id range, in id order (mixed channels)."""
        table = pa.Table.from_batches([self.columns.conform(part.batch) for part in rows])
        table = table.sort_by("event_id").combine_chunks()
        (batch,) = table.to_batches()
        return Rows(_spans_of(batch), batch=batch, publishers=_joined(rows))


def _merged(rows: list[Rows], columns: ChannelSchema) -> list[Rows]:
    """Neighbouring small batches as one; a lone or large one stays as it came."""
    if len(rows) < 2:
        return rows
    merged: list[Rows] = []
    run: list[Rows] = []
    size = weight = 0
    for part in rows:
        large = part.count >= MERGE_BELOW or (
            part.piece is not None and len(part.piece.body) > MERGE_BYTES_MAX // 16
        )
        if large or size + part.count > MERGE_ROWS_MAX or weight > MERGE_BYTES_MAX:
            _flush(run, merged, columns)
            run, size, weight = [], 0, 0
        if large:
            merged.append(part)
            continue
        run.append(part)
        size += part.count
        weight += len(part.piece.body) if part.piece is not None else part.batch.nbytes
    _flush(run, merged, columns)
    return merged


def _flush(run: list[Rows], merged: list[Rows], columns: ChannelSchema) -> None:
    if len(run) < 2:
        merged += run
        return
    spans = [span for part in run for span in part.spans]
    pieces = [part.piece for part in run if part.piece is not None]
    if len(pieces) == len(run) and len({piece.number for piece in pieces}) == 1:
        batch = stored_together(pieces)
    else:
        batches = [part.batch for part in run]
        if any(each.schema != batches[0].schema for each in batches):
            batches = [columns.conform(each) for each in batches]
        batch = pa.concat_batches(batches)
    merged.append(Rows(IdSet(spans).spans, batch=batch, publishers=_joined(run)))


def _joined(rows: list[Rows]) -> Publishers:
    """Who published which, over several parts."""
    found: dict[str, IdSet] = {}
    for part in rows:
        for publisher, spans in part.publishers:
            ids = found.setdefault(publisher, IdSet())
            for span in spans or part.spans:
                ids.add(Span(*span))
    return tuple((publisher, ids.spans) for publisher, ids in found.items())


def _spans_of(batch: pa.RecordBatch) -> Sequence[Span]:
    ids = batch.column(0).to_numpy()
    if len(ids) == 0:
        return ()
    if ids[-1] - ids[0] + 1 == len(ids):
        return (Span(int(ids[0]), int(ids[-1]) + 1),)
    breaks = np.flatnonzero(np.diff(ids) != 1)
    firsts = ids[np.concatenate(([0], breaks + 1))]
    lasts = ids[np.concatenate((breaks, [len(ids) - 1]))]
    return tuple(
        Span(first, last + 1) for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
    )
