"""Event ids, and sets of them: ranges while they are few, bitmaps when they are scattered."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Annotated, Final, NamedTuple, cast

from msgspec import Meta

from penstock_core.bounds import SPANS_MAX, EndId, EventId
from penstock_core.ids.bitmaps import LAST, SHIFT, Blocks, runs_of
from penstock_core.ids.packing import pack, unpack
from penstock_core.ids.ranges import Runs, cut, cut_all, merged, part, put, size

_MANY = 64
"""A set with more runs than this changes to bitmaps."""

_FEW = 16
"""A set of bitmaps with at most this number of runs changes back to ranges. The number is far below
``_MANY``, so that sets do not change back and forth."""


class Span(NamedTuple):
    """A half-open range of event ids: ``first`` is in, ``end`` is not."""

    first: EventId
    end: EndId

    @property
    def size(self) -> int:
        return self.end - self.first

    def shifted(self, distance: int) -> Span:
        """Return the span with both ends moved up by ``distance``."""
        return Span(self.first + distance, self.end + distance)

    def clipped(self, other: Span) -> Span:
        """Return the part of this span inside ``other``; empty (first == end) if they do not
        overlap."""
        first = max(self.first, other.first)
        return Span(first, max(first, min(self.end, other.end)))


Spans = tuple[Span, ...]
"""Ranges of event ids."""

BoundedSpans = Annotated[tuple[Span, ...], Meta(max_length=SPANS_MAX)]
"""Ranges of ids in a request."""

_span: Callable[[tuple[int, int]], Span] = partial(tuple.__new__, Span)
"""Returns a span made of a pair; faster than the constructor of a named tuple."""


class _LatestRanges:
    """The newest conversion of a scattered set to ranges: the ranges, and the blocks of the set. A
    fact with these ranges is usually applied a moment later, and then the blocks need not be
    computed again. Realms in other threads share this entry."""

    # Ranges and blocks are in one attribute, so that another thread never reads a mixed pair.
    newest: tuple[tuple[Span, ...], Blocks] = ((), Blocks())


_REMEMBERED_MAX = 1 << 17
"""``_LatestRanges`` does not remember a set with more ranges than this."""


_NO_RUNS: Final = cast("Runs", ((), ()))
"""Shared by all empty sets to save memory, because most sets of a channel are empty. The tuples are
immutable, so that an accidental change fails."""


class IdSet:
    """A set of event ids, seen as sorted, disjoint, non-touching spans.

    A durable that is a million events behind takes one span instead of a million entries. If every
    second of these events is acknowledged, it takes one bit per event. Adding and removing cost a
    search and a local edit, never a walk over the whole set, and operations on two scattered sets
    work block by block.
    """

    __slots__ = ("_blocks", "_ends", "_firsts", "_size")

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._blocks: Blocks | None = None
        self._firsts: list[int]
        self._ends: list[int]
        self._firsts, self._ends = _NO_RUNS
        self._size = 0
        if not spans:
            return
        if type(spans) is tuple and len(spans) == 1:  # the most frequent case in stored facts
            ((first, end),) = spans
            if first < end:
                self._firsts, self._ends, self._size = [first], [end], end - first
            return
        remembered, blocks = _LatestRanges.newest
        if spans is remembered:
            self._blocks, self._size = blocks.copy(), blocks.size
            return
        self._firsts, self._ends = firsts, ends = merged(spans)
        self._size = ends[0] - firsts[0] if len(ends) == 1 else sum(ends) - sum(firsts)
        if len(firsts) > _MANY:
            self._scatter()

    @classmethod
    def from_ids(cls, ids: Iterable[int]) -> IdSet:
        """Return the set of ``ids``, which may be in any order."""
        ordered = sorted(ids)
        few_runs = _few_runs(ordered)
        return _of_blocks(Blocks.of_ids(ordered)) if few_runs is None else _of_runs(few_runs)

    @classmethod
    def of_runs(cls, firsts: list[int], ends: list[int]) -> IdSet:
        """Return the set of sorted ranges that do not touch; it takes over the lists.

        The set stays in ranges until it is changed, which suits sets that are read once.
        """
        id_set = cls()
        id_set._firsts, id_set._ends, id_set._size = firsts, ends, sum(ends) - sum(firsts)
        return id_set

    @classmethod
    def of_bitmaps(cls, blocks: list[int], bitmaps: list[int]) -> IdSet:
        """Return the set whose ids of block ``blocks[i]`` (1,024 ids each, ascending) are the bits
        of ``bitmaps[i]``; no bitmap may be empty or full."""
        blocks_made = Blocks()
        blocks_made.keys, blocks_made.bits = blocks, dict(zip(blocks, bitmaps, strict=True))
        return _of_blocks(blocks_made)

    @classmethod
    def unpacked(cls, packed: bytes) -> IdSet:
        """Return the set whose packed form, as :meth:`packed` returns it, is ``packed``. Raises
        ``ValueError`` for other bytes."""
        return _of_blocks(unpack(packed))

    @classmethod
    def union(cls, sets: Iterable[IdSet]) -> IdSet:
        """Return the ids that are in any of the sets."""
        sets = list(sets)
        scattered = [ids._blocks for ids in sets if ids._blocks is not None]
        if len(scattered) > 1:
            union = _of_blocks(Blocks.union(scattered))
            sets = [ids for ids in sets if ids._blocks is None]
        else:
            union = cls()
        for ids in sets:
            union.add_all(ids)
        return union

    def packed(self) -> bytes:
        """Return a compact form to store. Equal sets have equal bytes, whatever their history.

        The form takes two to three bytes per span, and at most one bit per id if the ids are
        scattered.
        """
        return pack(self._scattered())

    def copy(self) -> IdSet:
        twin = IdSet.__new__(IdSet)
        if not self._size:
            (twin._firsts, twin._ends), twin._size, twin._blocks = _NO_RUNS, 0, None
            return twin
        twin._firsts, twin._ends, twin._size = self._firsts[:], self._ends[:], self._size
        twin._blocks = None if self._blocks is None else self._blocks.copy()
        return twin

    # --- one span --------------------------------------------------------------------------

    def add(self, span: Span) -> None:
        """Add the ids of a span."""
        first, end = span
        if first >= end:
            return
        if (blocks := self._blocks) is not None:
            partial = len(blocks.keys)
            self._size += blocks.add(first, end)
            # Only a set with fewer partly filled blocks may have so few runs that ranges suit it.
            if len(blocks.keys) < partial:
                self._settle()
            return
        ends = self._ends
        if not ends:
            self._firsts, self._ends, self._size = [first], [end], end - first
            return
        if first > ends[-1]:  # the usual case: ids grow
            self._firsts.append(first)
            ends.append(end)
            self._size += end - first
        elif first == ends[-1]:
            ends[-1] = end
            self._size += end - first
            return
        else:
            self._size += put(self._firsts, ends, first, end)
        if len(ends) > _MANY:
            self._scatter()

    def remove(self, span: Span) -> IdSet:
        """Remove ``span``; return the part of it that was in the set."""
        first, end = span
        if first >= end:
            return IdSet()
        if (blocks := self._blocks) is None:
            removed = _of_runs(cut(self._firsts, self._ends, first, end))
            self._size -= removed._size
            if len(self._firsts) > _MANY:
                self._scatter()
            return removed
        partial = len(blocks.keys)
        if first >> SHIFT == end >> SHIFT:
            mask = ((1 << (end - first)) - 1) << (first & LAST)
            hit = blocks.clear(first >> SHIFT, mask)
            if hit == mask:
                removed = _of_runs(([first], [end]))
            else:
                removed = _of_runs(runs_of(hit, first >> SHIFT << SHIFT))
        else:
            removed = _of_blocks(blocks.within(first, end))
            blocks.discard(first, end)
        self._size -= removed._size
        if len(blocks.keys) < partial:
            self._settle()
        return removed

    def within(self, span: Span) -> IdSet:
        """Return the ids of this set inside ``span``."""
        first, end = span
        if first >= end:
            return IdSet()
        if (blocks := self._blocks) is None:
            return _of_runs(part(self._firsts, self._ends, first, end))
        if first >> SHIFT == end >> SHIFT:
            mask = ((1 << (end - first)) - 1) << (first & LAST)
            hit = blocks.bits_at(first >> SHIFT) & mask
            if hit == mask:
                return _of_runs(([first], [end]))
            return _of_runs(runs_of(hit, first >> SHIFT << SHIFT))
        return _of_blocks(blocks.within(first, end))

    def count(self, span: Span) -> int:
        """Return the number of ids of this set in ``span``."""
        first, end = span
        if first >= end:
            return 0
        if (blocks := self._blocks) is not None:
            # The span covers the whole set, whose size is known.
            if end - first >= self._size and first <= blocks.lowest and end > blocks.highest:
                return self._size
            return blocks.count(first, end)
        return size(part(self._firsts, self._ends, first, end))

    def lowest_part(self, limit: int) -> IdSet:
        """Return the lowest ``limit`` ids; the set itself, not a copy, if it has no more ids."""
        if self._size <= limit:
            return self
        if limit <= 0:
            return IdSet()
        if (blocks := self._blocks) is not None:
            lowest = blocks.lowest
            return _of_blocks(blocks.within(lowest, blocks.end_of(limit)))
        remaining = limit
        for first, end in zip(self._firsts, self._ends, strict=True):
            if end - first >= remaining:
                return self.within(Span(self._firsts[0], first + remaining))
            remaining -= end - first
        raise AssertionError("the set has more ids than the limit")

    def take(self, limit: int) -> Span | None:
        """Remove and return the lowest contiguous span of at most ``limit`` ids; None if the set is
        empty."""
        if limit <= 0 or not self._size:
            return None
        if (blocks := self._blocks) is not None:
            run = blocks.next_run(blocks.lowest, limit)
            assert run is not None, "a set that is not empty has a lowest id"
            partial = len(blocks.keys)
            self._size -= blocks.discard(*run)
            if len(blocks.keys) < partial:
                self._settle()
            return Span(*run)
        first, end = self._firsts[0], self._ends[0]
        if end - first > limit:
            end = first + limit
            self._firsts[0] = end
        else:
            del self._firsts[0], self._ends[0]
        self._size -= end - first
        return Span(first, end)

    def next_span(self, at_or_after: int, limit: int) -> Span | None:
        """Return the lowest contiguous span at or after an id, of at most ``limit`` ids, without
        removing it; None if the set has no such id."""
        if limit <= 0:
            return None
        if self._blocks is not None:
            run = self._blocks.next_run(at_or_after, limit)
            return None if run is None else Span(*run)
        i = bisect_right(self._ends, at_or_after)
        if i == len(self._firsts):
            return None
        first = max(self._firsts[i], at_or_after)
        return Span(first, min(self._ends[i], first + limit))

    # --- another set -----------------------------------------------------------------------

    def add_all(self, other: IdSet) -> None:
        """Add every id of ``other``."""
        if other._blocks is None:
            # An empty set copies the lists at once, instead of adding the ranges one by one.
            if not self._size and 0 < len(other._firsts) <= _MANY:
                self._firsts, self._ends = other._firsts[:], other._ends[:]
                self._size, self._blocks = other._size, None
                return
            for first, end in zip(other._firsts, other._ends, strict=True):
                self.add(Span(first, end))
        elif not self._size:
            self._blocks, self._size = other._blocks.copy(), other._size
            self._firsts, self._ends = _NO_RUNS
        elif other is not self:
            blocks = self._scattered()
            self._size += blocks.add_all(other._blocks)
            self._replace_by_blocks(blocks)

    def remove_all(self, other: IdSet) -> IdSet:
        """Remove every id of ``other``; return the part that was in the set."""
        if other._blocks is None and len(other._firsts) == 1:
            return self.remove(Span(other._firsts[0], other._ends[0]))
        removed = self.overlap(other)
        # Clearing the whole set is one step; anything else walks the removed ids.
        self.discard_all(self if removed._size == self._size else removed)
        return removed

    def discard_all(self, other: IdSet) -> None:
        """Remove every id of ``other``. Cheaper than :meth:`remove_all`, because it does not
        compute the removed part."""
        if not self._size or not other._size:
            return
        if other is self:
            (self._firsts, self._ends), self._size, self._blocks = _NO_RUNS, 0, None
        elif other._blocks is None and self._blocks is None:
            self._size -= cut_all(self._firsts, self._ends, (other._firsts, other._ends))
            if len(self._firsts) > _MANY:
                self._scatter()
        elif other._blocks is None and len(other._firsts) == 1:
            self.remove(Span(other._firsts[0], other._ends[0]))
        else:
            blocks = self._scattered()
            self._size -= blocks.discard_all(other._scattered())
            self._replace_by_blocks(blocks)

    def overlap(self, other: IdSet) -> IdSet:
        """Return the ids that are in both sets."""
        if not self._size or not other._size:
            return IdSet()
        if self._blocks is not None or other._blocks is not None:
            return _of_blocks(self._scattered().overlap(other._scattered()))
        firsts: list[int] = []
        ends: list[int] = []
        for first, end in zip(other._firsts, other._ends, strict=True):
            more_firsts, more_ends = part(self._firsts, self._ends, first, end)
            firsts += more_firsts
            ends += more_ends
        return _of_runs((firsts, ends))

    # --- questions -------------------------------------------------------------------------

    @property
    def spans(self) -> tuple[Span, ...]:
        firsts, ends = self._runs()
        spans = tuple(map(_span, zip(firsts, ends, strict=True)))
        # A copy of the blocks, because the set may change before the fact is applied.
        if self._blocks is not None and _MANY < len(spans) <= _REMEMBERED_MAX:
            _LatestRanges.newest = (spans, self._blocks.copy())
        return spans

    @property
    def lowest(self) -> int | None:
        if self._blocks is not None:
            return self._blocks.lowest
        return self._firsts[0] if self._firsts else None

    @property
    def highest(self) -> int | None:
        if self._blocks is not None:
            return self._blocks.highest
        return self._ends[-1] - 1 if self._ends else None

    @property
    def pieces(self) -> int:
        """Number of ranges of the set, or of its bitmaps if it is scattered; a measure of the
        memory that the set takes."""
        return len(self._firsts) if self._blocks is None else len(self._blocks.keys)

    @property
    def is_scattered(self) -> bool:
        """Whether the set has many ranges."""
        return self._blocks is not None or len(self._firsts) > _MANY

    def __len__(self) -> int:
        return self._size

    def __bool__(self) -> bool:
        return self._size > 0

    def __contains__(self, event_id: object) -> bool:
        if not isinstance(event_id, int):
            return False
        if self._blocks is not None:
            return bool(self._blocks.bits_at(event_id >> SHIFT) >> (event_id & LAST) & 1)
        i = bisect_right(self._firsts, event_id) - 1
        return i >= 0 and event_id < self._ends[i]

    def __iter__(self) -> Iterator[int]:
        for first, end in zip(*self._runs(), strict=True):
            yield from range(first, end)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdSet) or self._size != other._size:
            return False
        if not self._size:
            return True
        if self._blocks is not None and other._blocks is not None:
            return self._blocks == other._blocks
        # Two equal sets may have different forms, because sets change their form with a delay.
        return self._runs() == other._runs()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"IdSet({', '.join(f'{s.first}..{s.end - 1}' for s in self.spans)})"

    # --- two forms -------------------------------------------------------------------------

    def _runs(self) -> Runs:
        """Return the first ids and the ends of the ranges, in either form of the set."""
        return (self._firsts, self._ends) if self._blocks is None else self._blocks.runs()

    def _scatter(self) -> None:
        """Change the form of the set from ranges to blocks."""
        self._blocks = self._scattered()
        self._firsts, self._ends = _NO_RUNS

    def _scattered(self) -> Blocks:
        """Return the set as blocks; not a copy if the set consists of blocks already."""
        if self._blocks is not None:
            return self._blocks
        return Blocks.of_runs((self._firsts, self._ends))

    def _replace_by_blocks(self, blocks: Blocks) -> None:
        """Replace the content of the set, in either form, by blocks."""
        self._blocks = blocks
        self._firsts, self._ends = _NO_RUNS
        self._settle()

    def _settle(self) -> None:
        """Change a set of bitmaps back to ranges if it has only few ranges left."""
        if self._blocks is not None and self._blocks.is_down_to(_FEW):
            self._firsts, self._ends = self._blocks.runs()
            self._blocks = None


def _of_runs(runs: Runs) -> IdSet:
    """Return a set with these ranges, as blocks if they are many."""
    id_set = IdSet.__new__(IdSet)
    id_set._blocks = None
    id_set._firsts, id_set._ends = firsts, ends = runs
    id_set._size = ends[0] - firsts[0] if len(ends) == 1 else sum(ends) - sum(firsts)
    if len(firsts) > _MANY:
        id_set._scatter()
    return id_set


def _of_blocks(blocks: Blocks) -> IdSet:
    """Return a set with these blocks, as ranges if they are few."""
    id_set = IdSet.__new__(IdSet)
    (id_set._firsts, id_set._ends), id_set._size = _NO_RUNS, blocks.size
    id_set._blocks = blocks
    id_set._settle()
    return id_set


def _few_runs(ordered: list[int]) -> Runs | None:
    """Return the runs of sorted ids; None as soon as they exceed ``_MANY``."""
    firsts: list[int] = []
    ends: list[int] = []
    first = end = -1
    for event_id in ordered:
        if event_id == end:
            end += 1
        elif event_id > end:
            if end > first:
                firsts.append(first)
                ends.append(end)
                if len(ends) > _MANY:
                    return None
            first, end = event_id, event_id + 1
    if end > first:
        firsts.append(first)
        ends.append(end)
    return firsts, ends
