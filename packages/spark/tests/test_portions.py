"""A micro-batch is shared fairly, and no room in it is wasted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.ids.ids import Span
from penstock_spark.reading.reading import batch_ends, fair_shares, partitions_min_of

sizes = st.dictionaries(st.sampled_from("abcdefg"), st.integers(0, 100))


@given(sizes, st.integers(0, 300))
def test_a_portion_is_used_up_and_shared_alike(wanted: dict[str, int], most: int) -> None:
    shares = fair_shares(wanted, most)

    assert sum(shares.values()) == min(most, sum(wanted.values()))
    assert all(0 <= shares[name] <= size for name, size in wanted.items())
    cut = [shares[name] for name, size in wanted.items() if shares[name] < size]
    assert max(cut, default=0) - min(cut, default=0) <= 1
    assert all(share <= min(cut) + 1 for share in shares.values() if cut)


def test_a_portion_ends_somewhere_in_each_channel() -> None:
    waiting = {"a": Span(10, 20), "b": Span(0, 1_000), "c": Span(7, 7), "d": Span(9, 4)}

    assert batch_ends(waiting, 100) == {"a": 20, "b": 90, "c": 7, "d": 9}
    assert batch_ends(waiting, None) == {"a": 20, "b": 1_000, "c": 7, "d": 9}


@pytest.mark.slow
@given(sizes, st.integers(1, 50))
def test_channels_get_partitions_by_their_rows(rows: dict[str, int], parts_min: int) -> None:
    shares = partitions_min_of(parts_min, rows)

    if any(rows.values()):
        assert sum(share or 0 for share in shares.values()) >= parts_min
    assert set(partitions_min_of(None, rows).values()) <= {None}
