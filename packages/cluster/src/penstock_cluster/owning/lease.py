"""The lease that limits how long a node may act as the owner of its shards."""

from __future__ import annotations

from typing import Final

from penstock_cluster.owning.clocks import SECOND_US
from penstock_core.vocabulary.errors import InvalidArgument

MARGIN_US: Final = SECOND_US
"""A lease ends this much earlier for its holder than for the nodes that wait for its end, because
clocks may drift apart by as much during one lease."""
LEASE_S_MIN: Final = 2.0
LEASE_S_MAX: Final = 60.0


class Lease:
    """A lease that its holder renews; a new term begins after it has run out."""

    def __init__(self, lease_s: float = 6.0) -> None:
        """Raise ``InvalidArgument`` for a length outside of 2 to 60 seconds."""
        if not LEASE_S_MIN <= lease_s <= LEASE_S_MAX:
            raise InvalidArgument(
                f"cluster.lease_s is {lease_s}; allowed are {LEASE_S_MIN:.0f} to {LEASE_S_MAX:.0f} "
                "seconds"
            )
        self.length_us = int(lease_s * SECOND_US)
        self.until_us = 0
        """End of the lease on the steady clock, for its holder."""
        self.term = 0
        """Number of times the lease has begun. A claim from an earlier term must be confirmed:
        another node may have waited for the end of that term and be about to claim."""

    def record_renewal(self, began_us: int, now_us: int) -> None:
        """Extend the lease after the answer to a renewal that was sent at ``began_us``.

        The lease counts from the sending, because others may have seen the renewal immediately. A
        renewal that is answered after the end of the lease begins a new term.
        """
        if not self.holds(now_us):
            self.term += 1
        self.until_us = max(self.until_us, began_us + self.length_us - MARGIN_US)

    def holds(self, steady_us: int) -> bool:
        """Return whether the holder may rely on the lease at this time of the steady clock."""
        return steady_us < self.until_us
