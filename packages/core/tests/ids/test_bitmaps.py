"""Blocks: their content and their memory. The tests of id sets check that they are sets."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.ids.bitmaps import BLOCK, FULL, Blocks, run_count, runs_of

FAR = 1 << 62


def blocks_of(*ranges: tuple[int, int]) -> Blocks:
    return Blocks.of_runs(([first for first, _ in ranges], [end for _, end in ranges]))


def assert_in_shape(blocks: Blocks) -> None:
    assert blocks.keys == sorted(blocks.bits)
    assert all(0 < bits < FULL for bits in blocks.bits.values()), "partly filled, all of them"
    for low, high in zip(blocks.lows, blocks.highs, strict=True):
        assert not any(low <= key < high for key in blocks.keys)


def traced_bytes(ids: list[int]) -> int:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        blocks = Blocks.of_ids(ids)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert blocks.size == len(ids)
    return after - before


@given(st.sets(st.integers(0, BLOCK - 1)) | st.sets(st.integers(0, 80)))
def test_the_runs_of_a_bitmap(places: set[int]) -> None:
    bits = sum(1 << place for place in places)
    firsts, ends = runs_of(bits, 7 * BLOCK)

    assert firsts == [7 * BLOCK + i for i in sorted(places) if i - 1 not in places]
    assert ends == [7 * BLOCK + i + 1 for i in sorted(places) if i + 1 not in places]
    assert run_count(bits) == len(firsts)


def test_the_runs_of_the_largest_bitmaps() -> None:
    every_second = FULL // 3

    assert runs_of(FULL, 0) == ([0], [BLOCK])
    assert runs_of(FULL ^ 1, 0) == ([1], [BLOCK])
    assert run_count(every_second) == BLOCK // 2
    assert runs_of(every_second << 1, 0)[1][-1] == BLOCK


def test_a_long_range_is_one_entry() -> None:
    blocks = blocks_of((0, 1 << 50))

    assert (blocks.bits, blocks.lows, blocks.highs) == ({}, [0], [(1 << 50) // BLOCK])
    assert blocks.runs() == ([0], [1 << 50])


def test_a_hole_in_a_long_range_is_one_bitmap() -> None:
    blocks = blocks_of((0, 1 << 50))

    assert blocks.discard(5 * BLOCK + 3, 5 * BLOCK + 4) == 1
    assert blocks.bits == {5: FULL ^ 8}
    assert (blocks.lows, blocks.highs) == ([0, 6], [5, (1 << 50) // BLOCK])
    assert_in_shape(blocks)


def test_a_block_filled_to_the_last_id_is_a_range_again() -> None:
    blocks = blocks_of((0, 1 << 50))
    blocks.discard(5 * BLOCK + 3, 5 * BLOCK + 4)

    assert blocks.add(5 * BLOCK, 5 * BLOCK + 4) == 1
    assert blocks == blocks_of((0, 1 << 50))


def test_a_block_emptied_is_forgotten() -> None:
    blocks = blocks_of((3, 5), (FAR, FAR + 2))

    assert blocks.discard(FAR, FAR + 9) == 2
    assert blocks.discard(FAR, FAR + 9) == 0
    assert blocks == blocks_of((3, 5))
    assert_in_shape(blocks)


def test_huge_ranges_cost_what_is_in_them() -> None:
    blocks = blocks_of((3, 5), (2 * BLOCK, 4 * BLOCK), (FAR, FAR + 2))

    assert blocks.count(4, FAR + 1) == 2 + 2 * BLOCK
    assert blocks.within(4, FAR + 1) == blocks_of((4, 5), (2 * BLOCK, 4 * BLOCK), (FAR, FAR + 1))
    assert blocks.discard(4, FAR + 1) == 2 + 2 * BLOCK
    assert blocks == blocks_of((3, 4), (FAR + 1, FAR + 2))


def test_ids_that_are_not_in_order_keep_the_blocks_in_order() -> None:
    blocks, random = Blocks(), Random(4)
    ids = random.sample(range(200 * BLOCK), 2_000)
    for event_id in ids:
        assert blocks.add(event_id, event_id + 1) == 1
    assert_in_shape(blocks)

    for event_id in ids[:1_990]:
        assert blocks.discard(event_id, event_id + 1) == 1
    assert_in_shape(blocks)
    assert blocks == Blocks.of_ids(sorted(ids[1_990:]))


@pytest.mark.parametrize("dropped", [3, 100])
def test_dropping_many_blocks_at_once_keeps_them_in_order(dropped: int) -> None:
    blocks = blocks_of(*((key * BLOCK + 1, key * BLOCK + 2) for key in range(120)))
    dropped_blocks = blocks_of(*((key * BLOCK, key * BLOCK + 9) for key in range(dropped)))

    assert blocks.discard_all(dropped_blocks) == dropped
    assert_in_shape(blocks)
    assert blocks.keys == list(range(dropped, 120))


def test_few_runs_are_noticed() -> None:
    blocks = blocks_of((0, BLOCK), (2 * BLOCK, 2 * BLOCK + 3), (3 * BLOCK + 4, 3 * BLOCK + 6))

    assert blocks.is_down_to(3)
    assert not blocks.is_down_to(2)
    blocks.add(3 * BLOCK + 8, 3 * BLOCK + 9)
    assert not blocks.is_down_to(3)


@pytest.mark.slow
def test_every_second_of_a_million_ids_costs_little_more_than_a_bit_an_id() -> None:
    assert traced_bytes(list(range(0, 1_000_000, 2))) < 350_000


def test_ids_far_apart_cost_some_hundred_bytes_each() -> None:
    ids = sorted(Random(1).sample(range(FAR), 1_000))

    assert traced_bytes(ids) < 350 * len(ids)
