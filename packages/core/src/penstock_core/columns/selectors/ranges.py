"""Ranges of numbers, searchable by a number that they include.

Each range is stored at one node of a binary tree over all floats: the lowest node whose interval
contains the range. The ranges of a node all include the middle of its interval, so the ranges that
also include a number are the first ones in the order of their lower ends, or the last ones in the
order of their upper ends. A lookup visits one node for each height in use; adding and removing a
range touches one node.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

from penstock_core.columns.selectors.accesses import Number, NumberRange

_BITS: Final = 64
"""Number of bits of a position."""
_TOP: Final = (1 << _BITS) - 1
"""The highest position."""
_SIGN: Final = 1 << (_BITS - 1)
"""The sign bit of a float."""
_FLOAT: Final = struct.Struct(">d")
_WORD: Final = struct.Struct(">Q")

Owner = TypeVar("Owner", bound=Hashable)


def position_of(number: Number) -> int:
    """Return the position of a number in the order of all floats.

    A whole number too large for a float has the position of the nearest float, so the order is
    kept.
    """
    bits: int = _WORD.unpack(_FLOAT.pack(number + 0.0))[0]  # + 0.0 turns -0.0 into 0.0
    # The bits of positive floats ascend with their values, those of negative ones descend.
    return bits ^ _TOP if bits & _SIGN else bits | _SIGN


class _PositionedRange(Generic[Owner]):
    """A range with its owner."""

    __slots__ = ("added", "high", "low", "owner", "range")

    def __init__(self, range: NumberRange, owner: Owner, added: int) -> None:
        self.range = range
        self.owner = owner
        self.added = added
        """Number of the addition, so that ranges with equal ends have an order."""
        self.low = 0 if range.low is None else position_of(range.low)
        self.high = _TOP if range.high is None else position_of(range.high)

    @property
    def node(self) -> tuple[int, int]:
        """The node of the tree that the range is stored at: its height above the leaves, and its
        position among the nodes of that height."""
        # The ends differ in this bit and lower ones, so the node above it covers both.
        height = (self.low ^ self.high).bit_length()
        return height, self.low >> height


class _Node(Generic[Owner]):
    """The ranges of one node, in two orders."""

    __slots__ = ("by_high", "by_low")

    def __init__(self) -> None:
        self.by_low: list[tuple[int, int, _PositionedRange[Owner]]] = []
        self.by_high: list[tuple[int, int, _PositionedRange[Owner]]] = []


class RangeTable(Generic[Owner]):
    """Ranges with their owners."""

    __slots__ = ("_added", "_entries", "_heights", "_nodes")

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], _Node[Owner]] = {}
        self._heights: Counter[int] = Counter()
        """Number of nodes of each height."""
        self._entries: dict[tuple[NumberRange, Owner], _PositionedRange[Owner]] = {}
        self._added = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, range: NumberRange, owner: Owner) -> None:
        """Add a range. An empty range counts in the length but is never returned."""
        self._added += 1
        entry = _PositionedRange(range, owner, self._added)
        self._entries[range, owner] = entry
        if entry.low > entry.high:
            return
        node = self._nodes.get(entry.node)
        if node is None:
            node = self._nodes[entry.node] = _Node()
            self._heights[entry.node[0]] += 1
        insort(node.by_low, (entry.low, entry.added, entry))
        insort(node.by_high, (entry.high, entry.added, entry))

    def remove(self, range: NumberRange, owner: Owner) -> None:
        """Remove a range that was added with this owner."""
        entry = self._entries.pop((range, owner))
        if entry.low > entry.high:
            return
        node = self._nodes[entry.node]
        del node.by_low[bisect_left(node.by_low, (entry.low, entry.added))]
        del node.by_high[bisect_left(node.by_high, (entry.high, entry.added))]
        if not node.by_low:
            del self._nodes[entry.node]
            height = entry.node[0]
            self._heights[height] -= 1
            if not self._heights[height]:
                del self._heights[height]

    def including(self, number: Number) -> Iterator[Owner]:
        """Yield the owners of ranges that include ``number``. An owner may occur several times."""
        if number != number:  # NaN is in no range
            return
        position = position_of(number)
        for height in self._heights:
            node = self._nodes.get((height, position >> height))
            if node is None:
                continue
            # The ranges of a node include its middle. If the number is in the upper half of the
            # node, a range includes the number if the range ends above it; in the lower half, if
            # the range begins below it.
            if height and position >> (height - 1) & 1:
                index = bisect_left(node.by_high, (position,))
                candidates = node.by_high[index:]
            else:
                index = bisect_left(node.by_low, (position + 1,))
                candidates = node.by_low[:index]
            for _, _, entry in candidates:
                # Positions are rounded, so the ends have to be compared exactly.
                if entry.range.holds(number):
                    yield entry.owner
