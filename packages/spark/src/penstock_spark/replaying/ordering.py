"""Merges sorted sources in portions of columns: never row by row, never all in memory.

A source is a sequence of batches with ascending keys. Each portion of the result has everything
that comes before the next one; among equal keys the first source comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.events.batch import Int64s


class SortedRows(NamedTuple):
    """Rows with the keys they are ordered by; the keys never fall."""

    keys: Int64s
    batch: pa.RecordBatch

    def up_to(self, key: int, *, including: bool = True) -> tuple[SortedRows, SortedRows]:
        """The rows before ``key`` or at it, and the rest."""
        row = int(np.searchsorted(self.keys, key, "right" if including else "left"))
        first = SortedRows(self.keys[:row], self.batch.slice(0, row))
        return first, SortedRows(self.keys[row:], self.batch.slice(row))


class SortedRun(Struct, frozen=True):
    """A sorted source that is opened when its turn comes."""

    lowest: int
    """No key is below this."""
    open: Callable[[], Iterator[SortedRows]]


class SourceRows(NamedTuple):
    """Rows of one source."""

    source: int
    """Index of the run among the sources."""
    rows: SortedRows


Portion = list[SourceRows]
"""Rows that lie before all that come later, at most one piece of a source, by source."""


def merged(sources: Sequence[SortedRun]) -> Iterator[Portion]:
    """All rows of all sources, by key and, where keys are equal, by source.

    A source is not opened before something at or above its ``lowest`` key is due, so at any
    time one batch is held of each source that overlaps others.
    """
    waiting = sorted(range(len(sources)), key=lambda index: -sources[index].lowest)
    heads: dict[int, SortedRows] = {}
    runs: dict[int, Iterator[SortedRows]] = {}

    def advance(index: int) -> None:
        for rows in runs[index]:
            if len(rows.keys):
                heads[index] = rows
                return
        del runs[index]

    while heads or waiting:
        while waiting and (not heads or sources[waiting[-1]].lowest <= _limit(heads)[0]):
            index = waiting.pop()
            runs[index] = sources[index].open()
            advance(index)
        if not heads:
            continue
        limit, last = _limit(heads)
        portion: Portion = []
        for index in sorted(heads):
            rows = heads.pop(index)
            done, rest = rows.up_to(limit, including=index <= last)
            if len(done.keys):
                portion.append(SourceRows(index, done))
            if len(rest.keys):
                heads[index] = rest
            else:
                advance(index)
        yield portion


def _limit(heads: dict[int, SortedRows]) -> tuple[int, int]:
    """The key, and the source, up to which everything is at hand."""
    return min((int(rows.keys[-1]), index) for index, rows in heads.items())


def cut_at(portion: Portion, key: int) -> tuple[Portion, Portion]:
    """Split the rows at ``key``: those at or before it, and the rest."""
    before: Portion = []
    after: Portion = []
    for source, rows in portion:
        done, rest = rows.up_to(key)
        if len(done.keys):
            before.append(SourceRows(source, done))
        if len(rest.keys):
            after.append(SourceRows(source, rest))
    return before, after


def count_of(portion: Portion) -> int:
    """Number of rows."""
    return sum(len(piece.rows.keys) for piece in portion)


def first_key(portion: Portion) -> int:
    """The lowest key in it."""
    return min(int(piece.rows.keys[0]) for piece in portion)


def last_key(portion: Portion) -> int:
    """The highest key in it."""
    return max(int(piece.rows.keys[-1]) for piece in portion)


def order_of(pieces: Portion) -> Int64s:
    """The order in which to take the rows of the pieces, laid end to end."""
    keys = np.concatenate([piece.rows.keys for piece in pieces])
    order: Int64s = np.argsort(keys, kind="stable").astype(np.int64)
    return order
