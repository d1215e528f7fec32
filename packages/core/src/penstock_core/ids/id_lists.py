"""Lists of single ids, for what newer events of a publish key replace: these ids are so scattered
that neither ranges nor bitmaps are shorter or faster.

There are three forms. The ids, with eight bytes each; or a byte that tells the size of a gap, the
first id, and the gaps between ids with two or four bytes each; or, if that is shorter, a byte for
most gaps and three for gaps of 255 and more, after the number of gaps, with possibly a zero at the
end. The length tells the form: only that of the first is even.

Who writes a list usually reads it a moment later, so the newest list is remembered with its set.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, pairwise

from penstock_core.ids.ids import IdSet

ID_BYTES = 8
COUNT_BYTES = 4
GAP_TYPES = {2: "H", 4: "I"}
WIDE = 255
"""Says, in place of a gap of one byte, that the gap is in the two bytes after it."""
_SWAPS = sys.byteorder == "big"


class _ListMemory:
    """The newest list and its set, in one: realms in other threads remember theirs here, too."""

    newest: tuple[bytes, IdSet] = (b"", IdSet())


def listed(ids: IdSet) -> bytes:
    """The ids of a set, ascending, little-endian."""
    if not ids:
        return b""
    written, known = _ListMemory.newest
    if known is ids and count_in(written) == len(ids):
        return written
    written = _written(array("q", ids))
    remember(written, ids)
    return written


def _written(ids: array[int]) -> bytes:
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
    """Bytes for each gap if ``wide`` of the gaps are :data:`WIDE` or more and the widest is
    ``widest``; 0: the ids themselves are listed."""
    if widest < 1 << 16 and COUNT_BYTES + gaps + 2 * wide + 1 < 2 * gaps:
        return 1
    return next((size for size in GAP_TYPES if widest < 1 << 8 * size), 0)


def head(size: int, first: int) -> bytes:
    """The bytes of a list before its gaps: the bytes of one gap, and the first id."""
    return bytes([size]) + first.to_bytes(ID_BYTES, "little")


def short(first: int, gaps: int, narrow: bytes) -> bytes:
    """A list with gaps of one byte, and three: ``narrow`` are their bytes."""
    padding = bytes(len(narrow) % 2)  # the bytes before have an odd length
    return head(1, first) + gaps.to_bytes(COUNT_BYTES, "little") + narrow + padding


def _bytes(numbers: array[int]) -> bytes:
    if _SWAPS:
        numbers.byteswap()
    return numbers.tobytes()


def remember(written: bytes, ids: IdSet) -> None:
    """Remember that ``written`` lists ``ids``, to save the reader from parsing it."""
    _ListMemory.newest = (written, ids)


def ids_in(written: bytes) -> IdSet:
    """The set a list was made of. It may be the very set: not to be changed."""
    newest, ids = _ListMemory.newest
    if newest is written and count_in(written) == len(ids):
        return ids
    if len(written) % 2 == 0:
        return IdSet.from_ids(_numbers("q", written))
    first = int.from_bytes(written[1 : 1 + ID_BYTES], "little")
    gaps = _narrow(written) if written[0] == 1 else _of_size(written)
    return IdSet.from_ids(accumulate(chain((first,), gaps)))


def _of_size(written: bytes) -> Iterable[int]:
    return _numbers(GAP_TYPES[written[0]], written[1 + ID_BYTES :])


def _narrow(written: bytes) -> Iterator[int]:
    left = iter(written[1 + ID_BYTES + COUNT_BYTES :])
    for _ in range(count_in(written) - 1):
        gap = next(left)
        yield gap if gap < WIDE else next(left) | next(left) << 8


def _numbers(kind: str, written: bytes) -> array[int]:
    numbers = array(kind)
    numbers.frombytes(written)
    if _SWAPS:
        numbers.byteswap()
    return numbers


def count_in(written: bytes) -> int:
    """The number of listed ids."""
    if len(written) % 2 == 0:
        return len(written) // ID_BYTES
    if written[0] == 1:
        return 1 + int.from_bytes(written[1 + ID_BYTES : 1 + ID_BYTES + COUNT_BYTES], "little")
    return 1 + (len(written) - 1 - ID_BYTES) // written[0]
