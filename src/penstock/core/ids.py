"""Event ids, and sets of them kept as ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """A half-open range of event ids: ``first`` is in, ``end`` is not."""

    first: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.first

    def shifted(self, by: int) -> Span:
        return Span(self.first + by, self.end + by)

    def clipped(self, other: Span) -> Span:
        """The part of this span inside ``other``; empty (first == end) when they do not meet."""
        first = max(self.first, other.first)
        return Span(first, max(first, min(self.end, other.end)))


class IdSet:
    """A set of event ids, stored as sorted, disjoint, non-touching spans.

    A durable that is a million events behind costs one span, not a million entries.
    Adding and removing cost a search and a local edit, never a walk over the whole set.
    """

    __slots__ = ("_ends", "_firsts", "_size")

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self._size = 0
        for span in spans:
            self.add(span)

    @classmethod
    def of(cls, ids: Iterable[int]) -> IdSet:
        """The set of ``ids``, in any order, runs collapsed."""
        found = cls()
        first = end = -1
        for event_id in sorted(ids):
            if event_id == end:
                end += 1
            elif event_id > end:
                if end > first:
                    found.add(Span(first, end))
                first, end = event_id, event_id + 1
        if end > first:
            found.add(Span(first, end))
        return found

    def copy(self) -> IdSet:
        twin = IdSet()
        twin._firsts, twin._ends, twin._size = self._firsts[:], self._ends[:], self._size
        return twin

    def add(self, span: Span) -> None:
        first, end = span
        if first >= end:
            return
        firsts, ends = self._firsts, self._ends
        if not firsts or first > ends[-1]:  # the usual case: ids grow
            firsts.append(first)
            ends.append(end)
            self._size += end - first
            return
        left = bisect_left(ends, first)
        right = bisect_right(firsts, end)
        if left < right:
            first = min(first, firsts[left])
            end = max(end, ends[right - 1])
            self._size -= sum(ends[i] - firsts[i] for i in range(left, right))
        firsts[left:right] = [first]
        ends[left:right] = [end]
        self._size += end - first

    def add_all(self, other: IdSet) -> None:
        for span in other.spans:
            self.add(span)

    def remove(self, span: Span) -> IdSet:
        """Take ``span`` out; return the part of it that was in."""
        removed = self.within(span)
        if not removed:
            return removed
        firsts, ends = self._firsts, self._ends
        left = bisect_right(ends, span.first)
        right = bisect_left(firsts, span.end)
        keep_firsts: list[int] = []
        keep_ends: list[int] = []
        if firsts[left] < span.first:
            keep_firsts.append(firsts[left])
            keep_ends.append(span.first)
        if ends[right - 1] > span.end:
            keep_firsts.append(span.end)
            keep_ends.append(ends[right - 1])
        firsts[left:right] = keep_firsts
        ends[left:right] = keep_ends
        self._size -= removed._size
        return removed

    def remove_all(self, other: IdSet) -> IdSet:
        """Take every id of ``other`` out; return the part that was in."""
        removed = IdSet()
        for span in other.spans:
            removed.add_all(self.remove(span))
        return removed

    def within(self, span: Span) -> IdSet:
        """The ids of this set inside ``span``."""
        first, end = span
        found = IdSet()
        if first >= end:
            return found
        left = bisect_right(self._ends, first)
        right = bisect_left(self._firsts, end)
        for i in range(left, right):
            low, high = max(self._firsts[i], first), min(self._ends[i], end)
            found._firsts.append(low)
            found._ends.append(high)
            found._size += high - low
        return found

    def overlap(self, other: IdSet) -> IdSet:
        """The ids in both sets."""
        found = IdSet()
        for span in other.spans:
            found.add_all(self.within(span))
        return found

    def take(self, limit: int) -> Span | None:
        """Remove and return the lowest contiguous span of at most ``limit`` ids."""
        if limit <= 0 or not self._firsts:
            return None
        first, end = self._firsts[0], self._ends[0]
        if end - first > limit:
            end = first + limit
            self._firsts[0] = end
        else:
            del self._firsts[0], self._ends[0]
        self._size -= end - first
        return Span(first, end)

    def next_span(self, at_or_after: int, limit: int) -> Span | None:
        """The lowest contiguous span at or after an id, at most ``limit`` long; not removed."""
        i = bisect_right(self._ends, at_or_after)
        if i == len(self._firsts) or limit <= 0:
            return None
        first = max(self._firsts[i], at_or_after)
        return Span(first, min(self._ends[i], first + limit))

    @property
    def spans(self) -> tuple[Span, ...]:
        return tuple(map(Span, self._firsts, self._ends))

    @property
    def lowest(self) -> int | None:
        return self._firsts[0] if self._firsts else None

    @property
    def highest(self) -> int | None:
        return self._ends[-1] - 1 if self._ends else None

    def __len__(self) -> int:
        return self._size

    def __bool__(self) -> bool:
        return self._size > 0

    def __contains__(self, event_id: object) -> bool:
        if not isinstance(event_id, int):
            return False
        i = bisect_right(self._firsts, event_id) - 1
        return i >= 0 and event_id < self._ends[i]

    def __iter__(self) -> Iterator[int]:
        for first, end in zip(self._firsts, self._ends, strict=True):
            yield from range(first, end)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, IdSet) and self._firsts == other._firsts and self._ends == other._ends
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"IdSet({', '.join(f'{s.first}..{s.end - 1}' for s in self.spans)})"
