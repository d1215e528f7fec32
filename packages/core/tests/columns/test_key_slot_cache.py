"""Slots found by the bytes of values equal those found in a dictionary."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.columns.events.batch import Int64s
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.keys.key_slot_cache import WordSlots, words_of
from penstock_core.columns.keys.key_values import Values

KEYS = st.one_of(
    st.lists(st.text(alphabet="ab\0ü", max_size=12), max_size=30),
    st.lists(st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1), max_size=30),
)


@pytest.mark.slow
@given(st.lists(KEYS, max_size=6))
def test_equal_values_have_one_slot_and_others_another(batches: list[list[str | int]]) -> None:
    values, expected = Values("k"), dict[str | int, int]()
    for batch in batches:
        if batch:
            body = body_of_columns([b""] * len(batch), properties=[{"k": v} for v in batch])
            batch_slots = [expected.setdefault(value, len(expected)) for value in batch]
            assert values.slots_of(body).tolist() == batch_slots
    assert len(values) == len(expected)


@pytest.mark.parametrize("count", [10, 5_000])
def test_cached_values_are_not_looked_up_again(count: int) -> None:
    words = words_of(pa.array([f"sku-{n}" for n in range(count)]))
    assert words is not None
    slots, looked_up = WordSlots(words.shape[1]), list[int]()

    def ask(rows: Int64s) -> Int64s:
        looked_up.append(len(rows))
        return rows

    for _ in range(3):
        assert slots.slots_of(words, ask).tolist() == list(range(count))
    # Some of a batch drive each other out; the next time they find other cells.
    assert looked_up[0] == count
    assert looked_up[1:2] <= [count // 20]
    assert looked_up[2:3] <= [count // 100]


def test_a_column_that_is_cut_out_of_another_has_its_own_words() -> None:
    column = pa.array(["a", "bb", "cc", "dd"])

    words = words_of(column[1:3])

    expected = words_of(pa.array(["bb", "cc"]))
    assert words is not None
    assert expected is not None
    assert words.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None]),
        pa.array(["x" * 25]),
        pa.array([""]),
        pa.array(["ü", "aaa"]),
        pa.array([1.5]),
        pa.array([], pa.string()),
    ],
)
def test_what_has_no_words(column: pa.Array) -> None:
    assert words_of(column) is None
