"""Pauses: how long publishers waited for acknowledgements because of a fault."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from msgspec import Struct


class Played(NamedTuple):
    """A played fault, with times of the machine's steady clock."""

    what: str
    began_ns: int
    ended_ns: int
    """Time at which all nodes and clients worked again."""
    detail: str = ""


class Pauses(Struct):
    """The figures of one kind of fault. Times are in seconds."""

    what: str
    least: int
    """The number of times it had to be played."""
    times: int
    median_s: float
    """Time without an acknowledgement to any publisher ..."""
    worst_s: float
    client_median_s: float
    """... and of the publisher that waited longest."""
    client_worst_s: float


def longest_ns(acknowledged: Sequence[int], began_ns: int, ended_ns: int) -> int:
    """Return the longest time without an acknowledgement that a fault may have caused.
    ``acknowledged`` has the times of all acknowledgements, in order."""
    first, last = (bisect_left(acknowledged, time_ns) for time_ns in (began_ns, ended_ns))
    times = [began_ns, *acknowledged[first:last]]
    times += acknowledged[last : last + 1] or [ended_ns]
    return max(after - before for before, after in pairwise(times))


def pauses(
    acknowledged: Mapping[str, Sequence[int]], played: Sequence[Played], least: Mapping[str, int]
) -> list[Pauses]:
    """Return the pauses by kind of fault. ``acknowledged``: times in order, by publisher."""
    all_times = sorted(time for times in acknowledged.values() for time in times)
    rows = []
    for what, wanted in least.items():
        of_kind = [fault for fault in played if fault.what == what]
        all_s = [longest_ns(all_times, fault.began_ns, fault.ended_ns) / 1e9 for fault in of_kind]
        client_s = [
            max(
                longest_ns(times, fault.began_ns, fault.ended_ns) for times in acknowledged.values()
            )
            / 1e9
            for fault in of_kind
        ]
        rows.append(
            Pauses(
                what,
                wanted,
                len(of_kind),
                median_s=median(all_s or [0.0]),
                worst_s=max(all_s, default=0.0),
                client_median_s=median(client_s or [0.0]),
                client_worst_s=max(client_s, default=0.0),
            )
        )
    return rows
