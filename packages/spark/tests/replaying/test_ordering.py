"""Tests for penstock_spark.replaying.ordering."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_spark.replaying.ordering import (
    SortedRows,
    SortedRun,
    count_of,
    cut_at,
    first_key,
    last_key,
    merged,
    order_of,
)
from tests.thorough import examples


def batches(source: int, keys: list[int], rows: int) -> list[SortedRows]:
    batches_found = []
    for first in range(0, len(keys), rows):
        part = keys[first : first + rows]
        numbers = [source * 1_000 + first + row for row in range(len(part))]
        batch = pa.record_batch({"n": pa.array(numbers, pa.int64())})
        batches_found.append(SortedRows(np.array(part, dtype=np.int64), batch))
    return batches_found


def source_of(runs: list[SortedRows], opened: list[int], index: int = 0) -> SortedRun:
    def run() -> Iterator[SortedRows]:
        opened.append(index)
        yield from runs

    return SortedRun(int(runs[0].keys[0]) if runs else 0, run)


RUNS = st.lists(
    st.tuples(st.lists(st.integers(0, 12), max_size=12).map(sorted), st.integers(1, 5)),
    max_size=4,
)


@pytest.mark.slow
@given(RUNS)
@settings(max_examples=examples(150), deadline=None)
def test_the_order_is_by_key_then_source_then_row(runs: list[tuple[list[int], int]]) -> None:
    parts = [batches(index, keys, rows) for index, (keys, rows) in enumerate(runs)]
    numbers_in_order: list[int] = []
    for portion in merged([source_of(part, []) for part in parts]):
        numbers = pa.concat_tables([pa.table(source_rows.rows.batch) for source_rows in portion])[
            "n"
        ]
        numbers_in_order += numbers.take(pa.array(order_of(portion))).to_pylist()

    wanted = sorted(
        (key, index, row) for index, (keys, _) in enumerate(runs) for row, key in enumerate(keys)
    )
    assert numbers_in_order == [index * 1_000 + row for _, index, row in wanted]


def test_sources_that_lie_behind_each_other_are_open_one_at_a_time() -> None:
    opened: list[int] = []
    parts = [batches(0, [1, 2, 3], 2), batches(1, [4, 5], 2), batches(2, [6], 2)]
    sources = [source_of(part, opened, index) for index, part in enumerate(parts)]
    seen = [(last_key(portion), len(opened)) for portion in merged(sources)]

    assert seen == [(2, 1), (3, 1), (5, 2), (6, 3)]


def test_a_portion_is_cut_at_a_key() -> None:
    parts = [batches(0, [1, 3, 5, 9], 9), batches(1, [2, 3, 12], 9)]
    portion = next(merged([source_of(part, []) for part in parts]))
    before, after = cut_at(portion, 3)

    assert (count_of(before), first_key(before), last_key(before)) == (4, 1, 3)
    assert (count_of(after), first_key(after)) == (2, 5)
