"""Lists of single ids, for events replaced by newer events of a publish key. These ids are so
scattered that ranges and bitmaps are neither shorter nor faster.

A list has one of three forms. (1) The ids, eight bytes each. (2) A byte with the size of a gap, the
first id, and the gaps between ids with two or four bytes each. (3) If that is shorter: the number
of gaps, then one byte for most gaps and three for gaps of 255 and more, with a zero at the end if
needed. The length identifies the form: only that of the first is even.

The writer of a list usually reads it a moment later, so the newest list is remembered with its set.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, pairwise

from penstock_core.ids.ids import IdSet

ID_BYTES = 8
"""Number of bytes of an id."""
COUNT_BYTES = 4
"""Number of bytes of the number of gaps."""
GAP_TYPES = {2: "H", 4: "I"}
"""Type codes of Python arrays, by the number of bytes of a gap."""
WIDE = 255
"""Marks, in place of a gap of one byte, that the gap is in the next two bytes."""
_SWAPS = sys.byteorder == "big"
"""Whether this machine must swap the bytes of numbers, because lists are little-endian."""


class _ListMemory:
    """The newest list and its set, in one attribute, because realms in other threads use it,
    too."""

    newest: tuple[bytes, IdSet] = (b"", IdSet())


def listed(ids: IdSet) -> bytes:
    """Return the bytes that list the ids of a set, ascending, little-endian."""
    if not ids:
        return b""
    written, remembered = _ListMemory.newest
    # The count differs if the set was changed after its list was written.
    if remembered is ids and count_in(written) == len(ids):
        return written
    written = _list_of_sorted(array("q", ids))
    remember(written, ids)
    return written


def _list_of_sorted(ids: array[int]) -> bytes:
    """Return the list of sorted ids in its shortest form."""
    if len(ids) <= 1:
        return _bytes(ids)
    gaps = [after - before for before, after in pairwise(ids)]
    size = gap_bytes(max(gaps), len(gaps), sum(gap >= WIDE for gap in gaps))
    if not size:
        return _bytes(ids)
    if size > 1:
        return head(size, ids[0]) + _bytes(array(GAP_TYPES[size], gaps))
    narrow = bytearray()
    for gap in gaps:
        if gap < WIDE:
            narrow.append(gap)
        else:
            narrow.append(WIDE)
            narrow += gap.to_bytes(2, "little")
    return short(ids[0], len(gaps), bytes(narrow))


def gap_bytes(widest: int, gaps: int, wide: int) -> int:
    """Return the size of a gap, in bytes, of the shortest form; 0 means that the ids themselves are
    listed. ``widest`` is the widest of the ``gaps`` gaps, and ``wide`` of them are at least
    :data:`WIDE`."""
    # A gap of one byte that is wide takes two bytes more; the last byte may be needed as padding.
    if widest < 1 << 16 and COUNT_BYTES + gaps + 2 * wide + 1 < 2 * gaps:
        return 1
    return next((size for size in GAP_TYPES if widest < 1 << 8 * size), 0)


def head(size: int, first: int) -> bytes:
    """Return the bytes of a list before its gaps: the size of a gap, and the first id."""
    return bytes([size]) + first.to_bytes(ID_BYTES, "little")


def short(first: int, gaps: int, narrow: bytes) -> bytes:
    """Return a list of ids that begins with ``first`` and has this number of gaps. ``narrow`` has
    the gaps in order: one byte each, or three bytes, of which the first is :data:`WIDE`."""
    # The bytes before the gaps have an odd length, and only lists of plain ids have an even one.
    padding = bytes(len(narrow) % 2)
    return head(1, first) + gaps.to_bytes(COUNT_BYTES, "little") + narrow + padding


def _bytes(numbers: array[int]) -> bytes:
    """Return numbers as little-endian bytes; may swap the bytes of ``numbers`` in place."""
    if _SWAPS:
        numbers.byteswap()
    return numbers.tobytes()


def remember(written: bytes, ids: IdSet) -> None:
    """Remember that ``written`` lists ``ids``, so that the reader need not parse it."""
    _ListMemory.newest = (written, ids)


def ids_in(written: bytes) -> IdSet:
    """Return the set of the listed ids. The result may be the object that the list was made of, so
    do not change it."""
    newest, ids = _ListMemory.newest
    # The count differs if the remembered set was changed after its list was written.
    if newest is written and count_in(written) == len(ids):
        return ids
    if len(written) % 2 == 0:
        return IdSet.from_ids(_numbers("q", written))
    first = int.from_bytes(written[1 : 1 + ID_BYTES], "little")
    gaps = _gaps_of_one_byte(written) if written[0] == 1 else _gaps_of_fixed_size(written)
    return IdSet.from_ids(accumulate(chain((first,), gaps)))


def _gaps_of_fixed_size(written: bytes) -> Iterable[int]:
    return _numbers(GAP_TYPES[written[0]], written[1 + ID_BYTES :])


def _gaps_of_one_byte(written: bytes) -> Iterator[int]:
    """Yield the gaps of a list whose gaps have one byte each; wider ones follow a mark in two
    bytes."""
    gap_bytes_left = iter(written[1 + ID_BYTES + COUNT_BYTES :])
    for _ in range(count_in(written) - 1):
        gap = next(gap_bytes_left)
        yield gap if gap < WIDE else next(gap_bytes_left) | next(gap_bytes_left) << 8


def _numbers(kind: str, written: bytes) -> array[int]:
    """Return the numbers of the array type ``kind`` in little-endian bytes."""
    numbers = array(kind)
    numbers.frombytes(written)
    if _SWAPS:
        numbers.byteswap()
    return numbers


def count_in(written: bytes) -> int:
    """Return the number of listed ids."""
    if len(written) % 2 == 0:
        return len(written) // ID_BYTES
    if written[0] == 1:
        return 1 + int.from_bytes(written[1 + ID_BYTES : 1 + ID_BYTES + COUNT_BYTES], "little")
    return 1 + (len(written) - 1 - ID_BYTES) // written[0]
