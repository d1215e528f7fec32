"""Merges sorted sources of rows in portions: without Python loops over rows, in bounded memory.

A source is a sequence of batches with ascending keys. All keys of a portion precede those of the
next portion. Rows with equal keys are ordered by source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.events.batch import Int64s


class SortedRows(NamedTuple):
    """Rows in the order of their keys."""

    keys: Int64s
    """The key of each row; keys never decrease."""
    batch: pa.RecordBatch

    def split_at(self, key: int, *, including: bool = True) -> tuple[SortedRows, SortedRows]:
        """Split the rows; return those below ``key`` and the others. With ``including``, rows with
        ``key`` itself belong to the first part."""
        row = int(np.searchsorted(self.keys, key, "right" if including else "left"))
        first = SortedRows(self.keys[:row], self.batch.slice(0, row))
        return first, SortedRows(self.keys[row:], self.batch.slice(row))


class SortedRun(Struct, frozen=True):
    """A sorted source that is opened when its first rows are needed."""

    lowest: int
    """A lower bound of the keys."""
    open: Callable[[], Iterator[SortedRows]]
    """Opens the source and returns its rows in ascending order of keys."""


class SourceRows(NamedTuple):
    """Adjacent rows of one source."""

    source: int
    """Index of the source among those that are merged."""
    rows: SortedRows


Portion = list[SourceRows]
"""Rows that precede those of all later portions: at most one piece of each source, ordered by
source. The rows of different pieces are not merged yet; :func:`order_of` returns their order."""


def merged(sources: Sequence[SortedRun]) -> Iterator[Portion]:
    """Yield all rows of all sources in portions, ordered by key and then by source.

    A source is opened when the merge reaches its ``lowest`` key. At any time, one batch of each
    open source is in memory.
    """
    # The source with the lowest key is at the end, from where it is popped.
    unopened = sorted(range(len(sources)), key=lambda index: -sources[index].lowest)
    heads: dict[int, SortedRows] = {}
    runs: dict[int, Iterator[SortedRows]] = {}

    def advance(index: int) -> None:
        """Load the next rows of an open source; forget the source if it has no more."""
        for rows in runs[index]:
            if len(rows.keys):
                heads[index] = rows
                return
        del runs[index]

    while heads or unopened:
        while unopened and (not heads or sources[unopened[-1]].lowest <= _limit(heads)[0]):
            index = unopened.pop()
            runs[index] = sources[index].open()
            advance(index)
        if not heads:
            continue
        # The source with the lowest last key may continue at that key, so the portion ends there.
        limit, last_source = _limit(heads)
        portion: Portion = []
        for index in sorted(heads):
            rows = heads.pop(index)
            # Equal keys are ordered by source: sources after the limiting one must wait for it.
            portion_rows, later_rows = rows.split_at(limit, including=index <= last_source)
            if len(portion_rows.keys):
                portion.append(SourceRows(index, portion_rows))
            if len(later_rows.keys):
                heads[index] = later_rows
            else:
                advance(index)
        yield portion


def _limit(heads: dict[int, SortedRows]) -> tuple[int, int]:
    """Return the lowest last key of the loaded rows, and its source. Up to this key and source, all
    rows are in memory."""
    return min((int(rows.keys[-1]), index) for index, rows in heads.items())


def cut_at(portion: Portion, key: int) -> tuple[Portion, Portion]:
    """Split a portion into the rows with keys up to ``key``, and the rows with higher keys."""
    before: Portion = []
    after: Portion = []
    for source, rows in portion:
        rows_before, rows_after = rows.split_at(key)
        if len(rows_before.keys):
            before.append(SourceRows(source, rows_before))
        if len(rows_after.keys):
            after.append(SourceRows(source, rows_after))
    return before, after


def count_of(portion: Portion) -> int:
    """Return the number of rows in a portion."""
    return sum(len(source_rows.rows.keys) for source_rows in portion)


def first_key(portion: Portion) -> int:
    """Return the lowest key of a portion."""
    return min(int(source_rows.rows.keys[0]) for source_rows in portion)


def last_key(portion: Portion) -> int:
    """Return the highest key of a portion."""
    return max(int(source_rows.rows.keys[-1]) for source_rows in portion)


def order_of(pieces: Portion) -> Int64s:
    """Return the indexes that sort the concatenated rows of ``pieces`` by key, then by source."""
    keys = np.concatenate([source_rows.rows.keys for source_rows in pieces])
    # A stable sort keeps the order of the pieces for equal keys.
    order: Int64s = np.argsort(keys, kind="stable").astype(np.int64)
    return order
