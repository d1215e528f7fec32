"""The packed form of sets of ids, whose bytes must not change between versions."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock_core.ids.bitmaps import BLOCK, Blocks
from penstock_core.ids.ids import IdSet, Span
from penstock_core.ids.packing import pack, unpack

VERSION = b"\x01"
COMB = bytes([0x55] * (BLOCK // 8))
"""Every second id of one block."""

EIGHT_THOUSAND = IdSet.from_ids(Random(5).sample(range(20_000), 8_000))


def test_no_ids_are_one_byte() -> None:
    assert IdSet().packed() == VERSION
    assert IdSet.unpacked(VERSION) == IdSet()


def test_golden_runs() -> None:
    ids = IdSet([Span(0, 2), Span(5, 1005), Span(1 << 40, (1 << 40) + 1)])

    assert ids.packed().hex() == "01 0002 06e807 a6f0ffffff3f01".replace(" ", "")
    assert IdSet.unpacked(ids.packed()) == ids


def test_golden_bitmaps_between_runs() -> None:
    comb = IdSet.from_ids(range(2 * BLOCK, 4 * BLOCK, 2))
    comb.add(Span(BLOCK, BLOCK + 3))
    comb.add(Span(4 * BLOCK, 6 * BLOCK))
    expected = VERSION + bytes.fromhex("801003 0102") + COMB + COMB + bytes.fromhex("008010")

    assert comb.packed() == expected
    assert IdSet.unpacked(expected) == comb


def test_a_block_goes_over_to_a_bitmap_above_48_runs() -> None:
    runs, bitmap = IdSet.from_ids(range(0, 96, 2)), IdSet.from_ids(range(0, 98, 2))

    assert len(runs.packed()) == 1 + 2 * 48
    assert len(bitmap.packed()) == 1 + 2 + BLOCK // 8
    assert IdSet.unpacked(runs.packed()) == runs
    assert IdSet.unpacked(bitmap.packed()) == bitmap


@pytest.mark.slow
def test_a_random_half_of_a_million_takes_a_bit_an_id() -> None:
    ids = IdSet.from_ids(Random(1).sample(range(1_000_000), 500_000))

    assert len(ids.packed()) < 126_000
    assert IdSet.unpacked(ids.packed()) == ids


def test_a_range_of_any_length_takes_a_few_bytes() -> None:
    assert len(IdSet([Span(10, 1 << 62)]).packed()) < 13


def test_negative_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="negative ids"):
        pack(Blocks.of_runs(([-3], [2])))


@pytest.mark.parametrize(
    ("packed", "wrong"),
    [
        ("", "not a packed set"),
        ("02", "not a packed set of ids of version 1"),
        ("0100", "cut short"),
        ("0180", "cut short"),
        ("01" + "80" * 12, "cut short"),
        ("010000", "is empty"),
        ("01028100", "too long"),
        ("0100020002", "should be one"),
        ("0101010000", "cut short"),
        ("010101" + "00" * 128, "where runs are shorter"),
        ("010101" + "ff" * 128, "where runs are shorter"),
        ("010101" + "55" * 128 + "0101" + "55" * 128, "should be one"),
        ("01" + "0001" + "0201" * 48, "where a bitmap is shorter"),
        ("0100ffffffffffffffffff01", "beyond 64 bits"),
        ("01ffffffffffffffff7f01" + "55" * 128, "beyond 64 bits"),
    ],
)
def test_other_bytes_are_refused(packed: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        IdSet.unpacked(bytes.fromhex(packed))


def read(packed: bytes) -> Blocks | None:
    """Return the ids in packed bytes; None if the bytes are refused with the right error."""
    try:
        return unpack(packed)
    except ValueError as refused:
        return None if "packed" in str(refused) else pytest.fail(f"unclear: {refused}")


@given(st.binary(max_size=40).map(lambda tail: VERSION + tail) | st.binary(max_size=40))
@example(VERSION + b"\x00\x01\x01\x01" + COMB)
def test_what_can_be_read_is_what_would_be_written(packed: bytes) -> None:
    blocks = read(packed)

    assert blocks is None or pack(blocks) == packed


@given(st.integers(0, 3000), st.integers(1, 255))
def test_one_byte_off_is_another_set_or_refused(at: int, change: int) -> None:
    packed = bytearray(EIGHT_THOUSAND.packed())
    packed[at % len(packed)] ^= change
    second_read = read(bytes(packed))

    assert second_read is None or pack(second_read) == packed
