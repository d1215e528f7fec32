"""Sorted lists of ranges, the plain form of a set of ids.

``firsts`` and ``ends`` are parallel: range ``i`` contains ``firsts[i]`` and stops before
``ends[i]``. Ranges are sorted, disjoint and never touch. This form suits few ranges, because each
edit moves all later entries.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import islice
from operator import lt

Runs = tuple[list[int], list[int]]
"""``firsts`` and ``ends`` of sorted, disjoint ranges that do not touch."""

_SEVERAL = 16
"""If more ranges than this are merged, it is faster to check first whether they are sorted runs
already."""


def merged(ranges: Iterable[tuple[int, int]]) -> Runs:
    """Return the runs that cover ``ranges``, which may be unsorted, overlap or be empty."""
    if isinstance(ranges, tuple) and len(ranges) > _SEVERAL:
        runs = _as_sorted_runs(ranges)
        if runs is None:
            ranges = tuple(sorted(ranges))
            runs = _as_sorted_runs(ranges)
        if runs is not None:
            return runs
    firsts: list[int] = []
    ends: list[int] = []
    last_end = None
    remaining_ranges = iter(ranges)
    for first, end in remaining_ranges:
        if first >= end:
            continue
        if last_end is None or first > last_end:
            firsts.append(first)
            ends.append(end)
            last_end = end
        elif first >= firsts[-1]:  # the range touches or overlaps the previous one
            if end > last_end:
                ends[-1] = last_end = end
        else:  # out of order; after sorting this cannot happen again
            return merged(
                sorted([*zip(firsts, ends, strict=True), (first, end), *remaining_ranges])
            )
    return firsts, ends


def _as_sorted_runs(ranges: tuple[tuple[int, int], ...]) -> Runs | None:
    """Return the ranges as runs if they are sorted, disjoint and not empty; otherwise None."""
    firsts = [first for first, _ in ranges]
    ends = [end for _, end in ranges]
    if all(map(lt, firsts, ends)) and all(map(lt, ends, islice(firsts, 1, None))):
        return firsts, ends
    return None


def put(firsts: list[int], ends: list[int], first: int, end: int) -> int:
    """Add the range from ``first`` to ``end``, which is not empty, to the ranges that ``firsts``
    and ``ends`` describe; return how many ids are new."""
    # Runs from `start` to before `stop` overlap or touch the range, and become one run with it.
    start = bisect_left(ends, first)
    stop = bisect_right(firsts, end)
    covered = 0
    if start < stop:
        first = min(first, firsts[start])
        end = max(end, ends[stop - 1])
        covered = sum(ends[start:stop]) - sum(firsts[start:stop])
    firsts[start:stop] = (first,)
    ends[start:stop] = (end,)
    return end - first - covered


def cut(firsts: list[int], ends: list[int], first: int, end: int) -> Runs:
    """Remove a range; return the part of it that was in the runs."""
    start = bisect_right(ends, first)
    stop = bisect_left(firsts, end)
    if start >= stop:
        return [], []
    removed_firsts, removed_ends = firsts[start:stop], ends[start:stop]
    remaining_firsts, remaining_ends = [], []
    if removed_firsts[0] < first:
        remaining_firsts.append(removed_firsts[0])
        remaining_ends.append(first)
        removed_firsts[0] = first
    if removed_ends[-1] > end:
        remaining_firsts.append(end)
        remaining_ends.append(removed_ends[-1])
        removed_ends[-1] = end
    firsts[start:stop] = remaining_firsts
    ends[start:stop] = remaining_ends
    return removed_firsts, removed_ends


def cut_all(firsts: list[int], ends: list[int], removed: Runs) -> int:
    """Remove the sorted ranges of ``removed``; return how many of their ids were in the runs."""
    count = 0
    for first, end in zip(*removed, strict=True):
        index = bisect_right(ends, first)
        if index == len(ends):
            break
        if firsts[index] >= end:
            continue
        if first <= firsts[index] and ends[index] <= end:  # usually a whole range is removed
            count += ends[index] - firsts[index]
            del firsts[index], ends[index]
            if index == len(ends) or firsts[index] >= end:
                continue
        count += size(cut(firsts, ends, first, end))
    return count


def part(firsts: list[int], ends: list[int], first: int, end: int) -> Runs:
    """Return the part of the runs that is inside a range."""
    start = bisect_right(ends, first)
    stop = bisect_left(firsts, end)
    if start >= stop:
        return [], []
    in_firsts, in_ends = firsts[start:stop], ends[start:stop]
    if in_firsts[0] < first:
        in_firsts[0] = first
    if in_ends[-1] > end:
        in_ends[-1] = end
    return in_firsts, in_ends


def size(runs: Runs) -> int:
    """Return the number of ids in the runs."""
    return sum(runs[1]) - sum(runs[0])
