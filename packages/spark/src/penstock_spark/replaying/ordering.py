"""Merges sorted sources in portions of columns, without loops over rows and in bounded memory.

A source is a sequence of batches with ascending keys. All keys of a portion precede those of the
next portion; equal keys are ordered by source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.events.batch import Int64s


class SortedRows(NamedTuple):
    """Rows with the keys that order them; keys never decrease."""

    keys: Int64s
    batch: pa.RecordBatch

    def up_to(self, key: int, *, including: bool = True) -> tuple[SortedRows, SortedRows]:
        """Return the rows before ``key``, or up to and including it, and the rest."""
        row = int(np.searchsorted(self.keys, key, "right" if including else "left"))
        first = SortedRows(self.keys[:row], self.batch.slice(0, row))
        return first, SortedRows(self.keys[row:], self.batch.slice(row))


class SortedRun(Struct, frozen=True):
    """A sorted source that is opened when its turn comes."""

    lowest: int
    """Lower bound of the keys."""
    open: Callable[[], Iterator[SortedRows]]


class SourceRows(NamedTuple):
    """Rows of one source."""

    source: int
    """Index of the run among the sources."""
    rows: SortedRows


Portion = list[SourceRows]
"""Rows that precede all later ones: at most one piece of each source, by source."""


def merged(sources: Sequence[SortedRun]) -> Iterator[Portion]:
    """Yield all rows of all sources, by key and then by source.

    A source is not opened before keys at or above its ``lowest`` key are due, so at any time one
    batch of each overlapping source is in memory.
    """
    unopened = sorted(range(len(sources)), key=lambda index: -sources[index].lowest)
    heads: dict[int, SortedRows] = {}
    runs: dict[int, Iterator[SortedRows]] = {}

    def advance(index: int) -> None:
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
            complete, rest_rows = rows.up_to(limit, including=index <= last_source)
            if len(complete.keys):
                portion.append(SourceRows(index, complete))
            if len(rest_rows.keys):
                heads[index] = rest_rows
            else:
                advance(index)
        yield portion


def _limit(heads: dict[int, SortedRows]) -> tuple[int, int]:
    """Return the key, and the source, up to which all rows are in memory."""
    return min((int(rows.keys[-1]), index) for index, rows in heads.items())


def cut_at(portion: Portion, key: int) -> tuple[Portion, Portion]:
    """Split the rows into those at or before ``key``, and the rest."""
    before: Portion = []
    after: Portion = []
    for source, rows in portion:
        head_rows, rest_rows = rows.up_to(key)
        if len(head_rows.keys):
            before.append(SourceRows(source, head_rows))
        if len(rest_rows.keys):
            after.append(SourceRows(source, rest_rows))
    return before, after


def count_of(portion: Portion) -> int:
    """Return the number of rows."""
    return sum(len(source_rows.rows.keys) for source_rows in portion)


def first_key(portion: Portion) -> int:
    """Return the lowest key of a portion."""
    return min(int(source_rows.rows.keys[0]) for source_rows in portion)


def last_key(portion: Portion) -> int:
    """Return the highest key of a portion."""
    return max(int(source_rows.rows.keys[-1]) for source_rows in portion)


def order_of(pieces: Portion) -> Int64s:
    """Return the indexes that sort the concatenated rows of the pieces by key."""
    keys = np.concatenate([source_rows.rows.keys for source_rows in pieces])
    order: Int64s = np.argsort(keys, kind="stable").astype(np.int64)
    return order
