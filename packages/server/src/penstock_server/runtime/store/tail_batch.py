"""Published batches in memory: the tail of a channel, before it is sealed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, Self
from weakref import ref

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock_core.channel.channel_type import Home
from penstock_core.columns.events.batch import stamp
from penstock_core.columns.files.segments import numbers_in
from penstock_core.columns.schema.ipc import batch_bytes, batch_from
from penstock_core.columns.schema.layout import EVENT_BYTES_MIN
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.ports import Buffer, PageSlot
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.store.sealed_file import Publishers

IntArray = npt.NDArray[np.int64]

MERGE_BELOW = 1_024
"""Batches with at least this many events are sent as they are."""
FEW = 16
"""Up to this many ranges of a batch are sliced and concatenated. Slicing costs less than selecting
rows by index, and does not need the Arrow functions that are slow to import."""

PARSED_BYTES_MAX: Final = 64 << 20
"""Limit on the bytes of parsed batches in memory. Above it the oldest parsed forms are dropped, and
their bodies are parsed again when needed."""
_BODY_FACTOR: Final = 12
"""Upper estimate of the memory of a parsed batch, as a multiple of its body: Arrow needs some 600
bytes for each column, the body 56."""
_SCHEMA_FACTOR: Final = 5
"""Memory of a schema that only one batch uses, as a multiple of its bytes."""


class _ParsedBatches:
    """The batches that have their parsed form in memory, the oldest first."""

    def __init__(self) -> None:
        self.bytes = 0
        self._kept: deque[tuple[ref[TailBatch], int]] = deque()
        self._lock = threading.Lock()  # files are written by other threads

    def add(self, tail_batch: TailBatch, batch: pa.RecordBatch, own_schema: int = 0) -> None:
        """Record that ``tail_batch`` was parsed, and drop the oldest parsed forms above the limit.
        ``own_schema`` is the size in bytes of a schema that only this batch uses."""
        size = max(_BODY_FACTOR * len(tail_batch.body), batch.get_total_buffer_size())
        size += _SCHEMA_FACTOR * own_schema
        with self._lock:
            self.bytes += size
            self._kept.append((ref(tail_batch), size))
            while self.bytes > PARSED_BYTES_MAX:
                # The bytes are subtracted even if the batch no longer exists, or was parsed again
                # since, because each parsing has a separate entry.
                oldest, freed = self._kept.popleft()
                self.bytes -= freed
                if (oldest_batch := oldest()) is not None:
                    oldest_batch.forget_parsed()


_parsed: Final = _ParsedBatches()


def _ids(spans: Sequence[Span]) -> IntArray:
    """Return the ids in spans as an array."""
    edges = np.fromiter(chain.from_iterable(spans), np.int64, 2 * len(spans))
    return numbers_in(edges[0::2], edges[1::2])


def _int64s(values: IntArray) -> pa.Array:
    """Wrap values in an Arrow array without a copy. ``pa.array`` is not used, because its first
    call imports pandas if installed, which would block the event loop for a third of a second."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


class TailBatch:
    """One batch in the tail, as it was published."""

    __slots__ = (
        "__weakref__",
        "_batch",
        "at_us",
        "body",
        "end",
        "first",
        "home",
        "ids",
        "live",
        "place",
        "publisher",
        "schema",
        "schema_id",
        "schema_weight",
    )

    def __init__(
        self,
        span: Span,
        at_us: int,
        schema_id: int,
        schema: pa.Schema,
        body: Buffer,
        batch: pa.RecordBatch | None = None,
        ids: IdSet | None = None,
        *,
        home: Home = "journal",
        publisher: str = "",
        place: PageSlot | None = None,
        schema_weight: int = 0,
    ) -> None:
        self.schema_weight = schema_weight
        """Bytes of memory of the schema if this is the first batch that uses it; otherwise 0."""
        self.publisher = publisher
        """The publisher, ``user@host`` (SEM E3)."""
        self.first, self.end = span
        self.at_us = at_us
        self.schema_id = schema_id
        """The number of the batch's schema."""
        self.schema = schema
        self.body = body
        self._batch = batch
        if batch is not None:
            _parsed.add(self, batch)
        self.ids = ids
        """The ids of the batch's rows; None if these are all ids of the span."""
        self.home = home
        """The place of the batch's bytes. It selects the limit that they count against (SEM C6)."""
        self.place = place
        """Slot of the batch in the channel's pages; None if it is not in pages."""
        self.live = self.end - self.first if ids is None else len(ids)
        """Number of rows whose events were stored when the batch was last checked."""

    @classmethod
    def published(
        cls, body: Body, span: Span, at_us: int, schema_id: int, schema: pa.Schema, publisher: str
    ) -> Self:
        """Return the batch of a body that is being published."""
        tail_batch = cls(
            span, at_us, schema_id, schema=schema, body=body.buffer, publisher=publisher
        )
        # The parsed form is not passed to the constructor, because that would not count the bytes
        # of the schema, which only this batch may use.
        if (batch := body.parsed) is not None:
            tail_batch._batch = batch
            _parsed.add(tail_batch, batch, len(body.schema_bytes))
        return tail_batch

    @property
    def batch(self) -> pa.RecordBatch:
        batch = self._batch
        if batch is None:
            batch = self._batch = batch_from(self.body, self.schema)
            _parsed.add(self, batch)
        return batch

    def forget_parsed(self) -> None:
        """Drop the parsed form. It can be parsed again from the body."""
        self._batch = None

    @property
    def weight(self) -> int:
        """Bytes that count against limits."""
        rows = self.end - self.first if self.ids is None else len(self.ids)
        return max(len(self.body), EVENT_BYTES_MIN * rows) + self.schema_weight

    @property
    def event_bytes(self) -> float:
        """Average bytes of an event."""
        return len(self.body) / max(1, self.end - self.first)

    def moved_to(self, place: PageSlot, body: memoryview) -> None:
        """Read the bytes from the slot ``place`` of the channel's pages from now on."""
        self.place = place
        self.body = body
        # The parsed form refers to the old bytes and would keep them in memory.
        self._batch = None

    def moved_outside(self, body: memoryview) -> None:
        """Use the copy ``body`` of the bytes from now on. It is outside the Python heap, or does
        not keep a much larger buffer alive."""
        self.body = body
        # As in moved_to(): the parsed form would keep the old bytes in memory.
        self._batch = None

    @property
    def is_whole(self) -> bool:
        """Whether the batch has a row for every id of the span."""
        return self.ids is None

    def has_exactly(self, spans: Sequence[Span]) -> bool:
        """Whether ``spans`` are one span, and the batch has all its ids and no others."""
        return self.ids is None and len(spans) == 1 and spans[0] == (self.first, self.end)

    def overlap(self, ids: IdSet) -> IdSet:
        """Return the subset of ``ids`` that this batch has rows of."""
        ids_in_span = ids.within(Span(self.first, self.end))
        return ids_in_span if self.ids is None else ids_in_span.overlap(self.ids)

    def stored(self, spans: Sequence[Span]) -> pa.RecordBatch:
        """Return the rows of ``spans`` with the columns ``event_id`` and ``published``. The spans
        must be inside this batch."""
        if self.ids is None and len(spans) == 1:
            first, end = spans[0]
            rows = self.batch.slice(first - self.first, end - first)
            return stamp(rows, spans[0], self.at_us)
        if self.ids is None and len(spans) <= FEW:
            return gathered([(self, span) for span in spans])
        ids = _ids(spans)
        return stamp(self._rows(ids), ids, self.at_us)

    def publishers(self, spans: Sequence[Span]) -> Publishers:
        """Return the publisher of ``spans``."""
        return ((self.publisher, tuple(spans)),) if self.publisher else ()

    def body_of(self, ids: IdSet) -> Buffer:
        """Return a body with only the rows of ``ids``."""
        return memoryview(batch_bytes(self._rows(_ids(ids.spans))))

    def _rows(self, ids: IntArray) -> pa.RecordBatch:
        """Return the rows with these ids, all of which the batch has."""
        if self.ids is None:
            offsets = ids - self.first
        else:
            offsets = np.searchsorted(_ids(self.ids.spans), ids).astype(np.int64)
        return self.batch.take(_int64s(offsets))


def united(one: TailBatch, other: TailBatch) -> TailBatch:
    """Return one batch of two parts that were published as one batch and recovered separately."""
    assert one.schema_id == other.schema_id, "parts of one published batch have one schema"
    ids = [_ids(_all_ids(tail_batch).spans) for tail_batch in (one, other)]
    order = np.argsort(np.concatenate(ids))
    batch = pa.concat_batches([one.batch, other.batch]).take(_int64s(order))
    all_ids = _all_ids(one)
    all_ids.add_all(_all_ids(other))
    span = Span(min(one.first, other.first), max(one.end, other.end))
    return TailBatch(
        span,
        one.at_us,
        one.schema_id,
        schema=one.schema,
        body=memoryview(batch_bytes(batch)),
        batch=batch,
        ids=None if len(all_ids) == span.size else all_ids,
        home=one.home,
        publisher=one.publisher,
        schema_weight=one.schema_weight + other.schema_weight,
    )


def _all_ids(tail_batch: TailBatch) -> IdSet:
    """Return the ids of all rows of a batch."""
    return (
        IdSet((Span(tail_batch.first, tail_batch.end),))
        if tail_batch.ids is None
        else tail_batch.ids.copy()
    )


def stored_together(tail_batches: Sequence[TailBatch]) -> pa.RecordBatch:
    """Return all rows of whole batches of one schema, with ids and times. Stamping all rows at once
    is far cheaper than stamping each batch."""
    counts = np.array([tail_batch.end - tail_batch.first for tail_batch in tail_batches])
    firsts = np.array([tail_batch.first for tail_batch in tail_batches])
    total = int(counts.sum())
    # Within a batch ids rise by one, as the row numbers do. The difference between both is repeated
    # for each row of its batch.
    ids = np.arange(total) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    at_us = np.repeat(np.array([tail_batch.at_us for tail_batch in tail_batches]), counts)
    return stamp(pa.concat_batches([tail_batch.batch for tail_batch in tail_batches]), ids, at_us)


def stored_rows(tail_batches: Sequence[TailBatch], ids: IdSet) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``ids``. Neighbouring small batches of one schema are joined."""
    run: list[TailBatch] = []
    for tail_batch in tail_batches:
        span = Span(tail_batch.first, tail_batch.end)
        spans = ids.within(span).spans
        joins = tail_batch.is_whole and spans == (span,) and span.size < MERGE_BELOW
        if run and not (joins and tail_batch.schema_id == run[0].schema_id):
            yield stored_together(run)
            run = []
        if joins:
            run.append(tail_batch)
        elif spans:
            yield tail_batch.stored(spans)
    if run:
        yield stored_together(run)


def gathered(parts: Sequence[tuple[TailBatch, Span]]) -> pa.RecordBatch:
    """Return some rows of whole batches of one schema, in the order of ``parts``. If each part has
    few rows, this is far cheaper than selecting and stamping the rows of each batch."""
    spans = [span for _, span in parts]
    counts = [span.size for span in spans]
    rows = [
        tail_batch.batch.slice(span.first - tail_batch.first, span.size)
        for tail_batch, span in parts
    ]
    at_us = np.repeat(np.array([tail_batch.at_us for tail_batch, _ in parts]), counts)
    return stamp(pa.concat_batches(rows), _ids(spans), at_us)


class Meter:
    """Bytes in memory, over all channels of a realm."""

    __slots__ = (
        "index_bytes",
        "memory_bytes",
        "off_heap_bytes",
        "paged_bytes",
        "tail_bytes",
        "waiting_bytes",
    )

    def __init__(self) -> None:
        self.tail_bytes = 0
        """Bytes of events that are not sealed yet."""
        self.memory_bytes = 0
        """The part of ``tail_bytes`` that is only in the Python heap."""
        self.off_heap_bytes = 0
        """The part of ``tail_bytes`` that is only in Arrow memory outside the Python heap."""
        self.paged_bytes = 0
        """Bytes in page files."""
        self.index_bytes = 0
        """Bytes of publish keys, and of states of merge channels whose events are on disk."""
        self.waiting_bytes = 0
        """Bytes of events that wait to be sealed."""

    def add_index_bytes(self, size: int) -> None:
        """Count bytes of publish keys and states; negative for bytes that were freed."""
        self.index_bytes += size

    def add_bytes(self, home: Home, size: int) -> None:
        """Count bytes in ``home``; negative for bytes that were freed."""
        self.tail_bytes += size
        match home:
            case "journal":
                self.waiting_bytes += size
            case "heap" | "nowhere":
                self.memory_bytes += size
            case "off_heap":
                self.off_heap_bytes += size
            case "pages":
                self.paged_bytes += size


class ShareMeter(Meter):
    """Bytes in memory of some channels of a realm. The realm's meter also counts them."""

    __slots__ = ("__weakref__", "_realm")

    def __init__(self, realm: Meter) -> None:
        super().__init__()
        self._realm = realm

    def add_bytes(self, home: Home, size: int) -> None:
        """Add ``size`` bytes to this count and to that of the realm."""
        super().add_bytes(home, size)
        self._realm.add_bytes(home, size)

    def add_index_bytes(self, size: int) -> None:
        """Count bytes here and in the realm."""
        super().add_index_bytes(size)
        self._realm.add_index_bytes(size)
