"""How long a node may take itself for the owner of what it has claimed."""

from __future__ import annotations

from typing import Final

from penstock_cluster.owning.clocks import SECOND_US
from penstock_core.vocabulary.errors import InvalidArgument

MARGIN_US: Final = SECOND_US
"""A lease ends so much earlier for the node that has it than for those who wait for its end: clocks
may run apart by as much in one lease."""
LEASE_S_MIN: Final = 2.0
LEASE_S_MAX: Final = 60.0


class Lease:
    """Renewed by the node that has it; it begins again after it has run out."""

    def __init__(self, lease_s: float = 6.0) -> None:
        """Raises ``InvalidArgument`` for a length outside of 2 to 60 seconds."""
        if not LEASE_S_MIN <= lease_s <= LEASE_S_MAX:
            raise InvalidArgument(
                f"a lease of {lease_s} s: choose {LEASE_S_MIN:.0f} to {LEASE_S_MAX:.0f} seconds"
            )
        self.length_us = int(lease_s * SECOND_US)
        self.until_us = 0
        self.term = 0
        """Counts how often the lease has begun. What was claimed in an earlier term has to be
        confirmed: in between somebody may have waited for the end and be about to claim."""

    def renewed(self, began_us: int, now_us: int) -> None:
        """A renewal was answered that was asked for at ``began_us``.

        It counts from there, for others may have seen it at once. One that is answered after the
        end of the lease begins a new term.
        """
        if not self.holds(now_us):
            self.term += 1
        self.until_us = max(self.until_us, began_us + self.length_us - MARGIN_US)

    def holds(self, steady_us: int) -> bool:
        return steady_us < self.until_us
