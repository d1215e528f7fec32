"""Sorted lists of ranges, the plain form of a set of ids.

``firsts`` and ``ends`` are parallel: range ``i`` contains ``firsts[i]`` and stops before
``ends[i]``. Ranges are sorted, disjoint and never touch. This form suits few ranges, because each
edit moves all entries behind it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import islice
from operator import lt

Runs = tuple[list[int], list[int]]
"""``firsts`` and ``ends`` of sorted, disjoint ranges that do not touch."""

_SEVERAL = 16
"""With more ranges than this it is faster to check first whether they are sorted runs already."""


def merged(ranges: Iterable[tuple[int, int]]) -> Runs:
    """Return the runs that cover ``ranges``, which may be unsorted, overlap or be empty."""
    if isinstance(ranges, tuple) and len(ranges) > _SEVERAL:
        runs = _unchanged(ranges)
        if runs is None:
            ranges = tuple(sorted(ranges))
            runs = _unchanged(ranges)
        if runs is not None:
            return runs
    firsts: list[int] = []
    ends: list[int] = []
    last = None
    rest = iter(ranges)
    for first, end in rest:
        if first >= end:
            continue
        if last is None or first > last:
            firsts.append(first)
            ends.append(end)
            last = end
        elif first >= firsts[-1]:
            if end > last:
                ends[-1] = last = end
        else:  # out of order
            return merged(sorted([*zip(firsts, ends, strict=True), (first, end), *rest]))
    return firsts, ends


def _unchanged(ranges: tuple[tuple[int, int], ...]) -> Runs | None:
    """Return the ranges as runs if they are sorted, disjoint and not empty; otherwise None."""
    firsts = [first for first, _ in ranges]
    ends = [end for _, end in ranges]
    if all(map(lt, firsts, ends)) and all(map(lt, ends, islice(firsts, 1, None))):
        return firsts, ends
    return None


def put(firsts: list[int], ends: list[int], first: int, end: int) -> int:
    """Add a range that is not empty; return how many ids are new."""
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
    gone_firsts, gone_ends = firsts[start:stop], ends[start:stop]
    keep_firsts, keep_ends = [], []
    if gone_firsts[0] < first:
        keep_firsts.append(gone_firsts[0])
        keep_ends.append(first)
        gone_firsts[0] = first
    if gone_ends[-1] > end:
        keep_firsts.append(end)
        keep_ends.append(gone_ends[-1])
        gone_ends[-1] = end
    firsts[start:stop] = keep_firsts
    ends[start:stop] = keep_ends
    return gone_firsts, gone_ends


def cut_all(firsts: list[int], ends: list[int], removed: Runs) -> int:
    """Remove the ranges of ``removed``, which are sorted; return how many ids were in the runs."""
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
    """Return the runs inside a range."""
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
