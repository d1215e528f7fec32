"""Time without acknowledgements: how long publishers waited because of a fault."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from msgspec import Struct


class Played(NamedTuple):
    """A fault that was played, by the machine's steady clock."""

    what: str
    began_ns: int
    ended_ns: int
    """When everybody was at work again."""
    detail: str = ""


class Pauses(Struct):
    """The row of one kind of fault. Times are in seconds."""

    what: str
    least: int
    """How often it had to be played."""
    times: int
    median_s: float
    """Nobody was acknowledged anything for so long ..."""
    worst_s: float
    client_median_s: float
    """... and the publisher who waited longest for so long."""
    client_worst_s: float


def longest_ns(acknowledged: Sequence[int], began_ns: int, ended_ns: int) -> int:
    """The longest time without an acknowledgement that a fault is behind. ``acknowledged`` are the
    times of all of them, in order."""
    first, last = (bisect_left(acknowledged, each) for each in (began_ns, ended_ns))
    times = [began_ns, *acknowledged[first:last]]
    times += acknowledged[last : last + 1] or [ended_ns]
    return max(after - before for before, after in pairwise(times))


def pauses(
    acknowledged: Mapping[str, Sequence[int]], played: Sequence[Played], least: Mapping[str, int]
) -> list[Pauses]:
    """By kind of fault. ``acknowledged``: when, in order, by publisher."""
    anybody = sorted(time for times in acknowledged.values() for time in times)
    rows = []
    for what, wanted in least.items():
        those = [each for each in played if each.what == what]
        nobody = [longest_ns(anybody, each.began_ns, each.ended_ns) / 1e9 for each in those]
        client = [
            max(longest_ns(times, each.began_ns, each.ended_ns) for times in acknowledged.values())
            / 1e9
            for each in those
        ]
        rows.append(
            Pauses(
                what,
                wanted,
                len(those),
                median_s=median(nobody or [0.0]),
                worst_s=max(nobody, default=0.0),
                client_median_s=median(client or [0.0]),
                client_worst_s=max(client, default=0.0),
            )
        )
    return rows
