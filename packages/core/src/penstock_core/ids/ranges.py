"""Sorted lists of ranges, the plain form of a set of ids.

``firsts`` and ``ends`` are parallel: range ``i`` holds ``firsts[i]`` and stops before ``ends[i]``.
Ranges are sorted, disjoint and never touch. Good for few ranges: each edit moves what is behind it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import islice
from operator import lt

Runs = tuple[list[int], list[int]]
"""``firsts`` and ``ends`` of sorted, disjoint ranges that do not touch."""

_SEVERAL = 16
"""With more ranges than this it pays to look first whether they are runs already."""


def merged(ranges: Iterable[tuple[int, int]]) -> Runs:
    """The runs that cover ``ranges``, which may come in any order, overlap or be empty."""
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
    """The runs as they came, when they are sorted, disjoint and none is empty."""
    firsts = [first for first, _ in ranges]
    ends = [end for _, end in ranges]
    if all(map(lt, firsts, ends)) and all(map(lt, ends, islice(firsts, 1, None))):
        return firsts, ends
    return None


def put(firsts: list[int], ends: list[int], first: int, end: int) -> int:
    """Add a range that is not empty; return how many ids are new."""
    left = bisect_left(ends, first)
    right = bisect_right(firsts, end)
    known = 0
    if left < right:
        first = min(first, firsts[left])
        end = max(end, ends[right - 1])
        known = sum(ends[left:right]) - sum(firsts[left:right])
    firsts[left:right] = (first,)
    ends[left:right] = (end,)
    return end - first - known


def cut(firsts: list[int], ends: list[int], first: int, end: int) -> Runs:
    """Remove a range; gives the part of it that was in."""
    left = bisect_right(ends, first)
    right = bisect_left(firsts, end)
    if left >= right:
        return [], []
    gone_firsts, gone_ends = firsts[left:right], ends[left:right]
    keep_firsts, keep_ends = [], []
    if gone_firsts[0] < first:
        keep_firsts.append(gone_firsts[0])
        keep_ends.append(first)
        gone_firsts[0] = first
    if gone_ends[-1] > end:
        keep_firsts.append(end)
        keep_ends.append(gone_ends[-1])
        gone_ends[-1] = end
    firsts[left:right] = keep_firsts
    ends[left:right] = keep_ends
    return gone_firsts, gone_ends


def cut_all(firsts: list[int], ends: list[int], gone: Runs) -> int:
    """Remove the ranges of ``gone``, which ascend; return how many ids were in."""
    count = 0
    for first, end in zip(*gone, strict=True):
        at = bisect_right(ends, first)
        if at == len(ends):
            break
        if firsts[at] >= end:
            continue
        if first <= firsts[at] and ends[at] <= end:  # mostly it is that range
            count += ends[at] - firsts[at]
            del firsts[at], ends[at]
            if at == len(ends) or firsts[at] >= end:
                continue
        count += size(cut(firsts, ends, first, end))
    return count


def part(firsts: list[int], ends: list[int], first: int, end: int) -> Runs:
    """The runs inside a range."""
    left = bisect_right(ends, first)
    right = bisect_left(firsts, end)
    if left >= right:
        return [], []
    in_firsts, in_ends = firsts[left:right], ends[left:right]
    if in_firsts[0] < first:
        in_firsts[0] = first
    if in_ends[-1] > end:
        in_ends[-1] = end
    return in_firsts, in_ends


def size(runs: Runs) -> int:
    """The number of ids in the runs."""
    return sum(runs[1]) - sum(runs[0])
