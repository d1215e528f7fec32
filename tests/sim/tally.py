"""Counts of faults in simulated lives, and of the work done in spite of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.cluster import ClusterWorld
    from tests.sim.world import World

REALM = {
    "power cut": "power cut",
    "kill": "killed",
    "close": "closed in order",
}
"""Names of the ends of a life, by the note of the world."""
DISK = ("disk full", "sync fails", "write fails")
CLOCK = "the clock jumps, by "
HOUR_S = 60.0
"""A longer jump counts as far."""
NETWORK = "network: "
ENDS = {" is killed": "killed", " loses power": "without power"}
WORK = {
    "confirmed ": "publishes confirmed",
    "committed ": "transactions committed",
    "delivered ": "deliveries",
    "acked ": "acknowledgements answered",
    "rolled back ": "rollbacks",
}
PART = "{:<9} {}"


class Tally:
    """Sums over worlds of faults, played scenes and work."""

    def __init__(self) -> None:
        self.worlds = 0
        self.lives = 0
        self.faults: Counter[str] = Counter()
        self.scenes: Counter[str] = Counter()

    def add(self, world: World) -> None:
        self.worlds += 1
        self.lives += world.lives
        self.scenes.update(world.names)
        for _, what in world.trace:
            if kind := _kind(what):
                self.faults[kind] += 1
        for part, faults in (("disk", world.disk.faults), ("network", world.network_faults)):
            for fault, count in faults.items():
                self.faults[_row(part, fault)] += count

    def add_cluster(self, world: ClusterWorld) -> None:
        """Add the faults and takeovers of a cluster."""
        self.worlds += 1
        self.lives += world.takeovers
        self.scenes[world.scene] += 1
        for fault, count in world.faults.items():
            self.faults[_row("cluster", fault)] += count
        for _, what in world.trace:
            if kind := _kind(what) if what.startswith(NETWORK) else _first(what, WORK):
                self.faults[kind] += 1

    def add_damage(self, path: str, *, is_cut: bool) -> None:
        """Add a file that was damaged between two lives."""
        self.worlds += 1
        part = path.partition("/")[0]
        self.faults[_row("rot", f"{part}: {'cut off' if is_cut else 'a bit flipped'}")] += 1

    def lines(self) -> Iterator[str]:
        """Yield a line for each kind, and one with the number of worlds of each scene."""
        for fault, count in sorted(self.faults.items()):
            yield f"{count:>10,}  {fault}"
        if self.scenes:
            played = ", ".join(f"{name} {count}" for name, count in sorted(self.scenes.items()))
            yield f"{self.lives:>10,}  lives of {self.worlds:,} realms, by scene: {played}"


def _kind(what: str) -> str:
    """Return the row of a note; "" if it is neither a fault nor work."""
    if what in REALM:
        return _row("realm", REALM[what])
    if what in DISK:
        return _row("disk", f"plan: {what}")
    if what.startswith(CLOCK):
        by_s = float(what.removeprefix(CLOCK).removesuffix(" s"))
        far = "far" if abs(by_s) > HOUR_S else "near"
        return _row("clock", f"set {'back' if by_s < 0 else 'forward'}, {far}")
    if what.startswith(NETWORK):
        return _row("network", f"plan: {what.removeprefix(NETWORK).partition(',')[0]}")
    for end, kind in ENDS.items():
        if what.endswith(end):
            return _row("programs", kind)
    return _first(what, WORK)


def _first(what: str, kinds: Mapping[str, str]) -> str:
    return next((_row("work", kind) for begin, kind in kinds.items() if what.startswith(begin)), "")


def _row(part: str, what: str) -> str:
    return PART.format(part, what)
