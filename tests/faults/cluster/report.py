"""The results of a run on a cluster: a table for people; as JSON it is :class:`ClusterLoop`."""

from __future__ import annotations

from msgspec import Struct

from tests.faults.checking import Consuming, Publishing
from tests.faults.cluster.pauses import Pauses
from tests.faults.report import as_table, traffic


class ClusterLoop(Struct):
    """The results of a cluster, from its first node to its end."""

    seed: int
    engine: str
    minutes: float
    load: float
    """Load average of the machine over the last five of these minutes."""
    lease_s: float
    takeovers: int
    pauses: list[Pauses]
    publishers: list[Publishing]
    consumers: list[Consuming]
    damages: list[str]
    """Damaged copies, and whether the damage was reported."""
    notes: list[str]
    violations: list[str]

    @property
    def is_well(self) -> bool:
        return not self.violations


def table(loop: ClusterLoop) -> str:
    """Return the tables of one loop: publishers, consumers, faults and their pauses."""
    parts = [
        *traffic(loop.publishers, loop.consumers),
        as_table(
            ("FAULT", "AT LEAST", "TIMES", "MEDIAN", "WORST", "SLOWEST MEDIAN", "SLOWEST WORST"),
            [
                (
                    row.what,
                    row.least,
                    row.times,
                    *(f"{seconds:.1f} s" for seconds in (row.median_s, row.worst_s)),
                    *(f"{seconds:.1f} s" for seconds in (row.client_median_s, row.client_worst_s)),
                )
                for row in loop.pauses
            ],
        ),
        "\n".join(f"damaged: {what}" for what in loop.damages),
        *loop.notes,
        *(f"seed {loop.seed}: {what[:3_000]}" for what in loop.violations),
    ]
    times = sum(row.times for row in loop.pauses)
    lost = sum(row.lost for row in loop.publishers)
    last = f"{loop.engine}, {loop.minutes:.1f} minutes (load {loop.load:.1f}), {times} faults, "
    last += f"{loop.takeovers} takeovers with leases of {loop.lease_s:g} s, "
    last += f"{lost} acknowledged events lost: "
    last += "everything held" if loop.is_well else f"{len(loop.violations)} VIOLATIONS"
    return "\n\n".join([*filter(None, parts), last]) + "\n"
