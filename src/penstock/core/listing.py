"""Ids written down one by one, eight bytes each: for what newer events of a publish key replace,
which is scattered so widely that neither ranges nor bitmaps are shorter, let alone faster.

Who lists a set and who reads the list are mostly the same, a moment apart; so the newest list is
remembered with its set.
"""

from __future__ import annotations

import sys
from array import array

from penstock.core.ids import IdSet

ID_BYTES = 8
_SWAPS = sys.byteorder == "big"


class _Memory:
    """The newest list and its set, in one: realms in other threads remember theirs here, too."""

    newest: tuple[bytes, IdSet] = (b"", IdSet())


def listed(ids: IdSet) -> bytes:
    """The ids of a set, ascending, little-endian."""
    written, known = _Memory.newest
    if known is ids and len(written) == len(ids) * ID_BYTES:
        return written
    numbers = array("q", ids)
    if _SWAPS:
        numbers.byteswap()
    written = numbers.tobytes()
    remember(written, ids)
    return written


def remember(written: bytes, ids: IdSet) -> None:
    """``written`` lists ``ids``: who has both already says so."""
    _Memory.newest = (written, ids)


def ids_in(written: bytes) -> IdSet:
    """The set a list was made of. It may be the very set: not to be changed."""
    newest, ids = _Memory.newest
    if newest is written and len(written) == len(ids) * ID_BYTES:
        return ids
    numbers = array("q")
    numbers.frombytes(written)
    if _SWAPS:
        numbers.byteswap()
    return IdSet.of(numbers)


def count_in(written: bytes) -> int:
    """How many ids are listed."""
    return len(written) // ID_BYTES
