"""Ids written down one by one: for what newer events of a publish key replace, which is scattered
so widely that neither ranges nor bitmaps are shorter, let alone faster.

A list is the ids, eight bytes each; or a byte that says how long a gap is, the first id, and the
gaps between the ids, two or four bytes each. Its length tells which: the second is odd.

Who lists a set and who reads the list are mostly the same, a moment apart; so the newest list is
remembered with its set.
"""

from __future__ import annotations

import sys
from array import array
from itertools import accumulate, chain, pairwise

from penstock.core.ids import IdSet

ID_BYTES = 8
GAP_TYPES = {2: "H", 4: "I"}
_SWAPS = sys.byteorder == "big"


class _Memory:
    """The newest list and its set, in one: realms in other threads remember theirs here, too."""

    newest: tuple[bytes, IdSet] = (b"", IdSet())


def listed(ids: IdSet) -> bytes:
    """The ids of a set, ascending, little-endian."""
    written, known = _Memory.newest
    if known is ids and count_in(written) == len(ids):
        return written
    written = _written(array("q", ids))
    remember(written, ids)
    return written


def _written(ids: array[int]) -> bytes:
    gaps = [after - before for before, after in pairwise(ids)]
    size = gap_bytes(max(gaps, default=0))
    if not gaps or not size:
        return _bytes(ids)
    return head(size, ids[0]) + _bytes(array(GAP_TYPES[size], gaps))


def gap_bytes(widest: int) -> int:
    """How many bytes each gap takes; 0: the ids are listed themselves."""
    return next((size for size in GAP_TYPES if widest < 1 << 8 * size), 0)


def head(size: int, first: int) -> bytes:
    """What comes before the gaps."""
    return bytes([size]) + first.to_bytes(ID_BYTES, "little")


def _bytes(numbers: array[int]) -> bytes:
    if _SWAPS:
        numbers.byteswap()
    return numbers.tobytes()


def remember(written: bytes, ids: IdSet) -> None:
    """``written`` lists ``ids``: who has both already says so."""
    _Memory.newest = (written, ids)


def ids_in(written: bytes) -> IdSet:
    """The set a list was made of. It may be the very set: not to be changed."""
    newest, ids = _Memory.newest
    if newest is written and count_in(written) == len(ids):
        return ids
    if len(written) % 2 == 0:
        return IdSet.of(_numbers("q", written))
    gaps = _numbers(GAP_TYPES[written[0]], written[1 + ID_BYTES :])
    first = int.from_bytes(written[1 : 1 + ID_BYTES], "little")
    return IdSet.of(accumulate(chain((first,), gaps)))


def _numbers(kind: str, written: bytes) -> array[int]:
    numbers = array(kind)
    numbers.frombytes(written)
    if _SWAPS:
        numbers.byteswap()
    return numbers


def count_in(written: bytes) -> int:
    """How many ids are listed."""
    if len(written) % 2 == 0:
        return len(written) // ID_BYTES
    return 1 + (len(written) - 1 - ID_BYTES) // written[0]
