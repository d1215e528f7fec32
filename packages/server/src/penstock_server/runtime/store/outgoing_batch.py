"""Outgoing batches: events on their way to clients, as they were published or newly composed."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock_core.columns.events.batch import ids_of, runs_of, within
from penstock_core.columns.files.lean_columns import lean
from penstock_core.columns.merge.states import is_worth_packing
from penstock_core.columns.schema.ipc import batch_bytes, packed_bytes
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.columns.selectors import EventFrame, Selector
from penstock_core.columns.selectors.frames import MessageAccess
from penstock_core.ids.ids import IdSet, Span
from penstock_core.ids.ranges import merged as runs_of_ranges
from penstock_core.vocabulary.ports import Buffer
from penstock_server.runtime.store.sealed_file import Publishers
from penstock_server.runtime.store.tail_batch import MERGE_BELOW, TailBatch, stored_together

FRAME_MAX = 16 << 20
"""Bytes of a frame above which a batch is sent in parts."""
MERGE_ROWS_MAX = 16_384
"""Small batches are merged up to this many events."""
MERGE_BYTES_MAX = 4 << 20
"""Small batches are merged up to about this many bytes."""


class PartialMatches:
    """The matches of a selector among the first rows of a batch, as far as it was evaluated."""

    __slots__ = ("_masks", "rows")

    def __init__(self) -> None:
        self._masks: list[pa.BooleanArray] = []
        self.rows = 0
        """Number of evaluated rows."""

    def add(self, mask: pa.BooleanArray) -> None:
        """Add the matches of the next rows."""
        self._masks.append(mask)
        self.rows += len(mask)

    @property
    def mask(self) -> pa.BooleanArray:
        return pa.concat_arrays(self._masks)


class OutgoingBatch:
    """Events ready to be sent: a published batch as it is, or a newly composed one."""

    __slots__ = (
        "_batch",
        "_body",
        "_chosen",
        "_frame",
        "_frames",
        "_matching_all",
        "_partial_matches",
        "at_us",
        "count",
        "first_id",
        "publishers",
        "spans",
        "tail_batch",
    )

    def __init__(
        self,
        spans: Sequence[Span],
        *,
        tail_batch: TailBatch | None = None,
        batch: pa.RecordBatch | None = None,
        publishers: Publishers = (),
        at_us: int = 0,
    ) -> None:
        self.publishers: Publishers = publishers
        """The publishers of these events; their spans may also contain other ids."""
        if tail_batch is not None and tail_batch.publisher:
            self.publishers = ((tail_batch.publisher, ()),)
        self.spans = spans
        self.count = sum(span.size for span in spans) if batch is None else batch.num_rows
        self.tail_batch = tail_batch
        """The published batch if these are all its rows: its body can be sent as it is."""
        self._batch = batch
        self._body: Buffer | None = None
        self._frames: Sequence[OutgoingBatch] | None = None
        self._chosen: dict[str, OutgoingBatch | None] = {}
        self._matching_all: set[str] = set()
        """Texts of the selectors that match all rows."""
        self._frame: EventFrame | None = None
        self._partial_matches: dict[str, PartialMatches] = {}
        self.first_id = -1 if tail_batch is None else tail_batch.first
        self.at_us = at_us if tail_batch is None else tail_batch.at_us
        """Time of publishing in microseconds, if it is known and the same for all events; otherwise
        0."""

    @property
    def batch(self) -> pa.RecordBatch:
        """The batch with ``event_id`` and ``published``."""
        if self._batch is None:
            assert self.tail_batch is not None, "rows without a tail batch have a batch"
            self._batch = self.tail_batch.stored(self.spans)
        return self._batch

    @property
    def frames(self) -> Sequence[OutgoingBatch]:
        """Split the rows into parts of about ``FRAME_MAX`` bytes."""
        if self._frames is None:
            self._frames = self._parts()
        return self._frames or (self,)

    def _parts(self) -> Sequence[OutgoingBatch]:
        """Halve the rows until each part is small enough. Empty if one part is enough."""
        if self._body is None and self.tail_batch is None and self._is_small:
            return ()
        # A single event is sent even if it exceeds the limit, because it cannot be divided.
        if len(self.body) <= FRAME_MAX or self.count == 1:
            return ()
        half = self.count // 2
        return [
            part
            for batch in (self.batch.slice(0, half), self.batch.slice(half))
            for part in OutgoingBatch(
                spans_in(batch), batch=batch, publishers=self.publishers
            ).frames
        ]

    @property
    def _is_small(self) -> bool:
        """Whether the body certainly fits into ``FRAME_MAX``, judged without building it, because
        some receivers do not need it."""
        safe_size = FRAME_MAX // 2
        # The size of whole buffers first: computing it takes a thirtieth of the time of `nbytes`.
        is_small = self.batch.get_total_buffer_size() < safe_size or self.batch.nbytes < safe_size
        return is_small and not is_worth_packing(self.batch)

    @property
    def weight(self) -> int:
        """Estimated size of the rows in bytes."""
        return len(self.tail_batch.body) if self.tail_batch is not None else int(self.batch.nbytes)

    def chosen(
        self,
        selector: Selector,
        now_us: int,
        messages: MessageAccess | None = None,
    ) -> OutgoingBatch | None:
        """Return the rows that ``selector`` matches: this batch if all match, None if none does.

        The result is cached for all receivers with this selector.
        """
        if not self.was_chosen(selector.text):
            # Selectors may compare with the present time, so a frame is valid for one time only.
            if self._frame is None or self._frame.now_us != now_us:
                self._frame = EventFrame(self.batch, now_us, messages)
            self._choose(selector.text, selector.mask_in(self._frame))
        return self._chosen_before(selector.text)

    def chosen_as(self, text: str, matched: IdSet) -> OutgoingBatch | None:
        """Return the rows with ids in ``matched``, which are the matches of the selector ``text``:
        this batch if all rows match, None if no row does. The result is cached by the text."""
        if not self.was_chosen(text):
            mask = within(ids_of(self.batch), matched.overlap(IdSet(self.spans)).spans)
            self._choose(text, pa.array(mask))
        return self._chosen_before(text)

    def was_chosen(self, text: str) -> bool:
        """Whether the matches of a selector are cached."""
        return text in self._chosen

    def partial_matches(self, text: str) -> PartialMatches:
        """Return the results of a selector that is evaluated slice by slice. Subscriptions with the
        same selector share them."""
        return self._partial_matches.setdefault(text, PartialMatches())

    def _chosen_before(self, text: str) -> OutgoingBatch | None:
        """Return the result that the selector ``text`` had earlier: the matching rows; None if none
        matched."""
        return self if text in self._matching_all else self._chosen[text]

    def _choose(self, text: str, mask: pa.BooleanArray) -> None:
        """Remember the rows that the selector ``text`` selects."""
        matching = self._matching(mask)
        if matching is self:
            # A batch that refers to itself would stay in memory until the garbage collector runs.
            self._matching_all.add(text)
        self._chosen[text] = None if matching is self else matching

    def _matching(self, mask: pa.BooleanArray) -> OutgoingBatch | None:
        """Return the rows that the mask selects; None if it selects none."""
        if mask.true_count == 0:
            return None
        if mask.true_count == self.count:
            return self
        batch = self.batch.filter(mask)
        return OutgoingBatch(spans_in(batch), batch=batch, publishers=self.publishers)

    @property
    def body(self) -> Buffer:
        """The bytes to send, built once for all receivers."""
        if self._body is None:
            if self.tail_batch is not None:
                self._body = self.tail_batch.body
            elif is_worth_packing(self.batch):
                self._body = memoryview(packed_bytes(self.batch))
            else:
                self._body = memoryview(batch_bytes(self.batch))
        return self._body

    @property
    def made_bytes(self) -> int:
        """Size of the body in bytes if it was built; otherwise 0."""
        return 0 if self._body is None else len(self._body)


def merged(rows: list[OutgoingBatch], columns: ChannelSchema) -> list[OutgoingBatch]:
    """Merge neighbouring small batches. Large batches, and small ones between them, stay as they
    are, because their bodies can be sent without a copy."""
    if len(rows) < 2:
        return rows
    merged: list[OutgoingBatch] = []
    run: list[OutgoingBatch] = []
    row_count = weight = 0
    for part in rows:
        is_large = part.count >= MERGE_BELOW or (
            part.tail_batch is not None and len(part.tail_batch.body) > MERGE_BYTES_MAX // 16
        )
        if is_large or row_count + part.count > MERGE_ROWS_MAX or weight > MERGE_BYTES_MAX:
            _flush(run, merged, columns)
            run, row_count, weight = [], 0, 0
        if is_large:
            merged.append(part)
            continue
        run.append(part)
        row_count += part.count
        weight += len(part.tail_batch.body) if part.tail_batch is not None else part.batch.nbytes
    _flush(run, merged, columns)
    return merged


def _flush(run: list[OutgoingBatch], merged: list[OutgoingBatch], columns: ChannelSchema) -> None:
    """Append the batches of ``run`` to ``merged`` as one batch."""
    if len(run) < 2:
        merged += run
        return
    runs = runs_of_ranges(tuple(span for part in run for span in part.spans))
    tail_batches = [part.tail_batch for part in run if part.tail_batch is not None]
    if (
        len(tail_batches) == len(run)
        and len({tail_batch.schema_id for tail_batch in tail_batches}) == 1
    ):
        # The usual case: all rows get their ids and times at once.
        batch = stored_together(tail_batches)
    else:
        batches = [part.batch for part in run]
        if any(batch.schema != batches[0].schema for batch in batches):
            batches = lean(batches, columns, MERGE_BYTES_MAX)
        batch = pa.concat_batches(batches)
    spans = tuple(map(Span, *runs))
    merged.append(OutgoingBatch(spans, batch=batch, publishers=publishers_of(run)))


def publishers_of(rows: list[OutgoingBatch]) -> Publishers:
    """Return the publishers of the events of several parts."""
    ids_by_publisher: dict[str, IdSet] = {}
    for part in rows:
        for publisher, spans in part.publishers:
            ids = ids_by_publisher.setdefault(publisher, IdSet())
            ids.add_all(IdSet(tuple(spans or part.spans)))
    return tuple((publisher, ids.spans) for publisher, ids in ids_by_publisher.items())


def spans_in(batch: pa.RecordBatch) -> Sequence[Span]:
    """Return the spans of the ids of a stored batch."""
    ids = ids_of(batch)
    if len(ids) == 0:
        return ()
    if ids[-1] - ids[0] + 1 == len(ids):  # ids ascend, so they are consecutive: the usual case
        return (Span(int(ids[0]), int(ids[-1]) + 1),)
    firsts, ends = runs_of(ids)
    return tuple(map(Span, firsts.tolist(), ends.tolist()))


def others(spans: Sequence[Span], subset: Sequence[Span]) -> Sequence[Span]:
    """Return the ids of ``spans`` that are not in ``subset``, which has only ids of ``spans``."""
    if not subset:
        return spans
    if len(spans) > 1:
        remaining = IdSet(spans)
        remaining.discard_all(IdSet(subset))
        return remaining.spans
    # The usual case: the gaps in one span follow from the edges of `subset`, without sets.
    firsts = [spans[0].first, *(span.end for span in subset)]
    ends = [*(span.first for span in subset), spans[0].end]
    return [Span(first, end) for first, end in zip(firsts, ends, strict=True) if first < end]
