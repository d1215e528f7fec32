"""Ranges of numbers, found by a number that they include.

Each range lies at one node of a binary tree over all floats: the lowest one whose part of the line
holds it. The ranges of a node all include its middle, so those that also include a number are the
first of them in the order of their lower ends, or the last in that of their upper ends. A number is
looked up at the nodes above it, one for each depth in use; a range is added and removed in one.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

from penstock_core.columns.selectors.accesses import Number, NumberRange

_BITS: Final = 64
_TOP: Final = (1 << _BITS) - 1
_SIGN: Final = 1 << (_BITS - 1)
_FLOAT: Final = struct.Struct(">d")
_WORD: Final = struct.Struct(">Q")

Owner = TypeVar("Owner", bound=Hashable)


def place_of(number: Number) -> int:
    """The place of a number among all floats. A whole number too large for one has the place of
    the nearest, so the order is kept."""
    bits: int = _WORD.unpack(_FLOAT.pack(number + 0.0))[0]  # +0.0: there is one zero
    return bits ^ _TOP if bits & _SIGN else bits | _SIGN


class _PlacedRange(Generic[Owner]):
    """A range with whose it is."""

    __slots__ = ("added", "high", "low", "owner", "range")

    def __init__(self, range: NumberRange, owner: Owner, added: int) -> None:
        self.range = range
        self.owner = owner
        self.added = added
        self.low = 0 if range.low is None else place_of(range.low)
        self.high = _TOP if range.high is None else place_of(range.high)

    @property
    def node(self) -> tuple[int, int]:
        """The depth from the leaves on, and the place there."""
        depth = (self.low ^ self.high).bit_length()
        return depth, self.low >> depth


class _Node(Generic[Owner]):
    """The ranges of one node, in two orders."""

    __slots__ = ("by_high", "by_low")

    def __init__(self) -> None:
        self.by_low: list[tuple[int, int, _PlacedRange[Owner]]] = []
        self.by_high: list[tuple[int, int, _PlacedRange[Owner]]] = []


class RangeTable(Generic[Owner]):
    """Ranges with whose they are."""

    __slots__ = ("_added", "_depths", "_entries", "_nodes")

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], _Node[Owner]] = {}
        self._depths: Counter[int] = Counter()
        """How many nodes there are at each depth."""
        self._entries: dict[tuple[NumberRange, Owner], _PlacedRange[Owner]] = {}
        self._added = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, range: NumberRange, owner: Owner) -> None:
        """One that holds no number is found by none, and still counts."""
        self._added += 1
        entry = _PlacedRange(range, owner, self._added)
        self._entries[range, owner] = entry
        if entry.low > entry.high:
            return
        node = self._nodes.get(entry.node)
        if node is None:
            node = self._nodes[entry.node] = _Node()
            self._depths[entry.node[0]] += 1
        insort(node.by_low, (entry.low, entry.added, entry))
        insort(node.by_high, (entry.high, entry.added, entry))

    def remove(self, range: NumberRange, owner: Owner) -> None:
        entry = self._entries.pop((range, owner))
        if entry.low > entry.high:
            return
        node = self._nodes[entry.node]
        del node.by_low[bisect_left(node.by_low, (entry.low, entry.added))]
        del node.by_high[bisect_left(node.by_high, (entry.high, entry.added))]
        if not node.by_low:
            del self._nodes[entry.node]
            depth = entry.node[0]
            self._depths[depth] -= 1
            if not self._depths[depth]:
                del self._depths[depth]

    def including(self, number: Number) -> Iterator[Owner]:
        """Whose ranges include ``number``; one may come several times."""
        if number != number:  # not a number, which is in no range
            return
        place = place_of(number)
        for depth in self._depths:
            node = self._nodes.get((depth, place >> depth))
            if node is None:
                continue
            if depth and place >> (depth - 1) & 1:
                at = bisect_left(node.by_high, (place,))
                near = node.by_high[at:]
            else:
                at = bisect_left(node.by_low, (place + 1,))
                near = node.by_low[:at]
            for _, _, entry in near:
                if entry.range.holds(number):  # the ends are about there
                    yield entry.owner
