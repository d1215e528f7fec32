"""A cache of the slots of publish key values, indexed by the bytes of the values (SEM K1).

:class:`~penstock_core.columns.keys.key_values.Values` assigns slots by a dictionary. A thousand
lookups in it take longer than all other work on keys in a publish. Therefore this module caches the
slots of short values (whole numbers, and strings such as ``sku-000123``) in arrays and looks them
up by columns; only values that are not cached are looked up in the dictionary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock_core.columns.events.batch import Int64s
from penstock_core.columns.schema import compute as pc

Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

_WORD_BYTES: Final = 8
_BYTES_MAX: Final = 24
"""Length in bytes of the longest cached value."""
_CELLS_MIN: Final = 1 << 10
"""Number of cells of a new cache."""
_CELLS_MAX: Final = 1 << 20
"""Maximum number of cells of a cache, which take 8 MB."""
_CELLS_EACH: Final = 8
"""Number of cells for each value. A value has two possible cells, and with this number both are
rarely in use."""
_MIX: Final = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93],
    dtype=np.uint64,
)
"""Random odd multipliers of the hash, one per word."""

_HALF: Final = np.uint64(32)


def words_of(column: pa.Array) -> Words | None:
    """Return the bytes of each value of a column as one to four 64-bit words.

    Return None if the column has nulls or long values. The words of two columns can be compared if
    both have the same number of words per value: equal words are equal values.
    """
    if column.null_count or not len(column):
        return None
    if pa.types.is_int64(column.type):
        numbers: Words = column.to_numpy().view(np.uint64).reshape(-1, 1)
        return numbers
    if not pa.types.is_string(column.type):
        return None
    offsets = _offsets(column)
    lengths = offsets[1:] - offsets[:-1]
    longest = int(lengths.max())
    if not 0 < longest <= _BYTES_MAX:
        return None
    if int(lengths.min()) != longest:
        # With equal lengths the whole buffer can be reshaped at once.
        column = pc.utf8_rpad(column, longest, "\0")
        offsets = _offsets(column)
        if (offsets[1:] - offsets[:-1] != longest).any():  # rpad counts characters, not bytes
            return None
    values = np.frombuffer(column.buffers()[2], np.uint8, longest * len(column), int(offsets[0]))
    width = -(-longest // _WORD_BYTES)
    words = np.zeros((len(column), 1 + width), dtype=np.uint64)
    words[:, 0] = lengths  # distinguishes a NUL at the end of a value from padding
    words.view(np.uint8)[:, _WORD_BYTES : _WORD_BYTES + longest] = values.reshape(-1, longest)
    return words


def _offsets(column: pa.Array) -> npt.NDArray[np.int32]:
    places = column.buffers()[1]
    return np.frombuffer(places, np.int32)[column.offset : column.offset + len(column) + 1]


class WordSlots:
    """The cache for values with the same number of words."""

    __slots__ = ("_cells", "_shift", "_words")

    def __init__(self, width: int) -> None:
        self._words: Words = np.zeros((1, width), dtype=np.uint64)
        """The value of each slot, as words; the row number is the slot."""
        self._resize(_CELLS_MIN)

    def _resize(self, cells: int) -> None:
        """Replace the cells by empty ones; their number is a power of two."""
        self._cells = np.zeros(cells, dtype=np.int64)
        """Slot of the last value written to each cell, plus one; 0 for an empty cell."""
        self._shift = np.uint64(64 - (cells.bit_length() - 1))

    def slots_of(self, words: Words, look_up: Callable[[Int64s], Int64s]) -> Int64s:
        """Return the slot of each row. ``look_up`` returns the slots of rows that are not
        cached."""
        hashes = _hashes_of(words)
        slots, is_cached = self._in_cells(words, hashes >> self._shift)
        if not is_cached.all():
            rows = np.flatnonzero(~is_cached)
            second_slots, is_cached = self._in_cells(
                words[rows], _second_hashes(hashes[rows]) >> self._shift
            )
            slots[rows] = second_slots
            if not is_cached.all():
                rows = rows[~is_cached]
                slots[rows] = look_up(rows)
                self._remember(words[rows], hashes[rows], slots[rows])
        return slots

    def drop_from(self, first: int) -> None:
        """Forget the slots from ``first`` on."""
        self._cells[self._cells > first] = 0

    def _in_cells(self, words: Words, places: Words) -> tuple[Int64s, Bools]:
        """Return the cached slot of each row, and a mask of the rows whose words match it."""
        slots = self._cells.take(places.view(np.int64)) - 1
        # Empty cells have slot -1. It is clipped to 0 here and masked below.
        same = self._words.take(slots, axis=0, mode="clip") == words
        is_cached: Bools = slots >= 0
        for column in same.T:
            is_cached &= column
        return slots, is_cached

    def _remember(self, words: Words, hashes: Words, slots: Int64s) -> None:
        """Cache the slots of values; a value takes its second cell if the first one is in use."""
        slot_count = int(slots.max()) + 1
        if slot_count > len(self._words):
            grown = np.zeros(
                (max(slot_count, 2 * len(self._words)), words.shape[1]), dtype=np.uint64
            )
            grown[: len(self._words)] = self._words
            self._words = grown
        self._words[slots] = words
        cell_count = min(_CELLS_EACH * slot_count, _CELLS_MAX)
        if cell_count > len(self._cells):
            self._resize(1 << (cell_count - 1).bit_length())  # evicted values are looked up again
        places = (hashes >> self._shift).view(np.int64)
        in_use = self._cells[places] > 0
        places[in_use] = (_second_hashes(hashes[in_use]) >> self._shift).view(np.int64)
        self._cells[places] = slots + 1


def _hashes_of(words: Words) -> Words:
    """Return a 64-bit hash of the words of each value. Its high bits are the index of the first of
    the value's two possible cells."""
    hashes: Words = words[:, 0] * _MIX[0]
    for index in range(1, words.shape[1]):
        hashes ^= words[:, index]
        hashes *= _MIX[index]
    hashes ^= hashes >> _HALF
    hashes *= _MIX[1]
    return hashes


def _second_hashes(first_hashes: Words) -> Words:
    """Return a second hash of each value. Its high bits are the index of the second of the value's
    two possible cells."""
    hashes: Words = (first_hashes ^ (first_hashes >> _HALF)) * _MIX[2]
    return hashes
