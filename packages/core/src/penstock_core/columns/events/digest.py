"""Digests of batches, computed by columns: all that the rules read of a batch."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock_core.columns.schema.layout import EVENT_BYTES_MIN, STAMPED
from penstock_core.ids.ids import Span, Spans
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import EventTooLarge

_MEASURED_ABOVE: Final = 64 * 1024
"""If event sizes are unlimited, only the events of batches with more bytes than this are measured
one by one.

For a smaller batch, the size of the whole batch stands for the size of its largest event.
"""
_UNLIMITED: Final = 1 << 62
"""Limits of event sizes from this number of bytes on mean no limit."""

Bools = npt.NDArray[np.bool_]
Sizes = npt.NDArray[np.int64]


def digest(batch: pa.RecordBatch, max_event_bytes: int) -> Digest:
    """Return the digest of a body or stored batch.

    Raises :class:`EventTooLarge` (SEM E7) with the offset of the first event that is too large, its
    size and the limit, in bytes.
    """
    size = batch.nbytes
    largest = size
    # No event of a batch can be larger than the batch: measure only batches above the limit.
    exact_above = max_event_bytes if max_event_bytes < _UNLIMITED else _MEASURED_ABOVE
    if size > exact_above and batch.num_rows:
        sizes = event_sizes(batch)
        offset = int(np.argmax(sizes > max_event_bytes))
        if sizes[offset] > max_event_bytes:
            raise EventTooLarge(
                f"event {offset} of the batch has {int(sizes[offset])} bytes; "
                f"the realm takes at most {max_event_bytes} (max_event_bytes)"
            )
        largest = int(sizes.max())
    names = batch.schema.names
    return Digest(
        count=batch.num_rows,
        # Columns of nulls take no bytes, so each event counts with a minimum.
        size=max(size, EVENT_BYTES_MIN * batch.num_rows),
        largest=largest,
        volatile=_flagged(batch.column("persistent"), flag=False) if "persistent" in names else (),
        transient=_flagged(batch.column("transient"), flag=True) if "transient" in names else (),
        ttls=_ttls(batch.column("ttl")) if "ttl" in names else (),
    )


def _flagged(column: pa.BooleanArray, flag: bool) -> Spans:
    """Return the offsets at which a column is ``flag``; null is the opposite."""
    flags: Bools = _bools(column.fill_null(not flag) if column.null_count else column)
    return _spans(flags if flag else ~flags)


def _bools(column: pa.BooleanArray) -> Bools:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _ttls(column: pa.Int64Array) -> tuple[tuple[int, Spans], ...]:
    """Return the event TTLs in ms, each with the offsets of its events; 0 and null are no TTL."""
    filled = column.fill_null(0) if column.null_count else column
    return tuple(
        (ttl, spans) for ttl, spans in grouped(filled.to_numpy(zero_copy_only=False)) if ttl
    )


def grouped(values: Sizes) -> tuple[tuple[int, Spans], ...]:
    """Return each distinct value with the offsets of its occurrences, smallest value first."""
    if not len(values):
        return ()
    if (values == values[0]).all():
        return ((int(values[0]), (Span(0, len(values)),)),)
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    # A span starts where the value changes, or where the offsets are not consecutive.
    starts = np.flatnonzero((np.diff(ranked) != 0) | (np.diff(order) != 1)) + 1
    edges = np.concatenate((np.zeros(1, dtype=np.int64), starts, [len(values)]))
    firsts, sizes = order[edges[:-1]].tolist(), np.diff(edges).tolist()
    spans_by_value: dict[int, list[Span]] = {}
    for value, first, size in zip(ranked[edges[:-1]].tolist(), firsts, sizes, strict=True):
        spans_by_value.setdefault(value, []).append(Span(first, first + size))
    return tuple((value, tuple(spans)) for value, spans in spans_by_value.items())


def spans_of(mask: pa.BooleanArray) -> Spans:
    """Return the runs of true in a mask as half-open ranges of offsets. Null counts as false."""
    return _flagged(mask, flag=True)


def _spans(mask: Bools) -> Spans:
    """Return the runs of true in a mask."""
    if not mask.any():
        return ()
    # The mask counts as false outside, so starts and ends of runs alternate.
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return tuple(map(Span, edges[::2].tolist(), edges[1::2].tolist()))


def event_sizes(batch: pa.RecordBatch) -> Sizes:
    """Return the size of each event in bytes, without the id and time that the realm adds."""
    total = np.zeros(batch.num_rows, dtype=np.int64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name not in STAMPED:
            total += _sizes(column)
    return total


def _sizes(array: pa.Array) -> Sizes:
    """Return the bytes of each value, including nested ones."""
    kind, count = array.type, len(array)
    if pa.types.is_struct(kind):
        total = np.zeros(count, dtype=np.int64)
        for child in array.flatten():
            total += _sizes(child)
        return total
    if pa.types.is_list(kind):
        offsets = _offsets(array)
        inner = _sizes(array.values)
        running = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(inner)))
        sizes: Sizes = running[offsets[1:]] - running[offsets[:-1]]
        return sizes
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return np.diff(_offsets(array)).astype(np.int64)
    if pa.types.is_null(kind):
        return np.zeros(count, dtype=np.int64)
    return np.full(count, max(kind.bit_width // 8, 1), dtype=np.int64)


def _offsets(array: pa.Array) -> npt.NDArray[np.int32]:
    """Return the offsets of an array of variable-length values, without a copy."""
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array) + 1, dtype=np.int32)
    offsets = np.frombuffer(buffer, dtype=np.int32, count=array.offset + len(array) + 1)
    return offsets[array.offset :]
