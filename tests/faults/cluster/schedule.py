"""The faults of a cluster, their order and their durations, drawn from a seed alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple


class Fault(NamedTuple):
    what: str
    after_s: float
    """Seconds without faults before it."""
    for_s: float
    choice: float
    """A number in 0..1 for all further choices."""


class Kind(NamedTuple):
    times: int
    """Minimum number in ten minutes."""
    least_s: float
    most_s: float
    """Longest duration; ``least_s`` is the shortest."""


KINDS: Final[Mapping[str, Kind]] = {
    "owner-killed": Kind(20, 0.0, 2.0),
    "owner-frozen": Kind(10, 1.0, 12.0),
    "owner-halted": Kind(5, 0.0, 2.0),
    "owner-cut": Kind(5, 1.0, 12.0),
    "owner-unheard": Kind(3, 1.0, 12.0),
    "owner-deaf": Kind(3, 1.0, 12.0),
    "clients-cut": Kind(3, 8.0, 16.0),
    "owner-stopped": Kind(5, 0.0, 2.0),
    "clock-jumped": Kind(3, 2.0, 8.0),
    "server-killed": Kind(10, 0.5, 4.0),
    "server-frozen": Kind(10, 0.5, 5.0),
    "server-cut": Kind(3, 0.5, 8.0),
    "postmaster-killed": Kind(3, 1.5, 2.5),
    "leader-moved": Kind(3, 0.0, 0.0),
    "two-servers-gone": Kind(5, 3.0, 10.0),
    "disk-slow": Kind(3, 3.0, 8.0),
    "copy-damaged": Kind(3, 0.0, 0.0),
    "engine-full": Kind(2, 2.0, 5.0),
    "blobs-unmounted": Kind(2, 0.0, 2.0),
    "settings-differ": Kind(2, 0.0, 2.0),
    "lease-differs": Kind(2, 0.0, 2.0),
    "format-differs": Kind(2, 0.0, 2.0),
    "name-taken": Kind(2, 0.0, 0.0),
    "started-early": Kind(2, 1.0, 5.0),
}
"""A server is one of the engine's. Freezes and cuts may be shorter or longer than the owner's
lease."""
CUTS: Final = frozenset({"owner-cut", "owner-unheard", "owner-deaf", "clients-cut", "server-cut"})
"""Faults that need a network between nodes, servers and clients that can be cut."""
UNMOUNTS: Final = frozenset({"blobs-unmounted"})
"""Faults that need a folder of files that all nodes share."""
USUAL_MINUTES: Final = 10.0
MEASURED: Final = ("owner-killed", "owner-frozen", "owner-drained")
"""Kinds of takeovers whose pauses are measured separately."""
BACK_S: Final = 5.0
QUIET_S: Final = 2.0


def least_times(minutes: float, kinds: Sequence[str], times: int = 0) -> dict[str, int]:
    """Return the minimum number of each kind of fault: ``times`` if it is not 0, otherwise its
    share of the minutes."""
    part = minutes / USUAL_MINUTES
    return {kind: times or max(1, round(KINDS[kind].times * part)) for kind in kinds}


def faults(
    random: Random, minutes: float, kinds: Sequence[str], times_each: int = 0
) -> Iterator[Fault]:
    """Yield first the faults of :func:`least_times` in random order, then further ones without end
    in the same proportions."""
    times = least_times(minutes, kinds, times_each)
    order = [kind for kind in kinds for _ in range(times[kind])]
    random.shuffle(order)
    for what in order:
        yield _fault(random, what)
    while True:
        (what,) = random.choices(kinds, [KINDS[kind].times for kind in kinds])
        yield _fault(random, what)


def measured(times: int, lease_s: float) -> Iterator[Fault]:
    """Yield takeovers of each kind in turn, whose pauses contain nothing else: a killed owner
    returns late, and a frozen one sleeps longer than its lease."""
    for what, for_s in zip(MEASURED, (BACK_S, lease_s + BACK_S, 0.0), strict=True):
        for _ in range(times):
            yield Fault(what, QUIET_S, for_s, choice=1.0)


def _fault(random: Random, what: str) -> Fault:
    kind = KINDS[what]
    lasts_s = random.uniform(kind.least_s, kind.most_s)
    return Fault(what, random.uniform(0.2, 1.2), lasts_s, choice=random.random())
