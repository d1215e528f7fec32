"""The owner's lease: proves that no other node has become the owner of the shard meanwhile.

An append needs no lease, because a newer owner has fenced the journal and the append fails. What is
sent to clients without an append (deliveries, refusals, results of queries) needs a lease that
holds.
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock_core.vocabulary.formats import FORMAT


class OwnerLease(Protocol):
    """The right of this owner to act for its shard."""

    @property
    def epoch(self) -> int:
        """Fencing token: how often the shard has been claimed, this claim included. File names end
        in it. 0: the realm has its stores for itself and is never claimed."""
        ...

    @property
    def format(self) -> int:
        """The format in which the shard is written: in a cluster the newest one that all nodes
        know. It may rise while the owner serves, and never falls."""
        ...

    def behind(self, format: int) -> tuple[str, ...]:
        """Return the nodes of the cluster that do not know ``format``, each with its version."""
        ...

    def holds(self) -> bool:
        """Whether no other node can be the owner at this moment."""
        ...

    async def held(self) -> None:
        """Wait until the lease holds. Raises ``Deposed`` if another node has become the owner."""
        ...


class EndlessLease:
    """A lease that cannot end, for a realm that has its stores for itself or is only read."""

    format: Final = FORMAT

    def __init__(self, epoch: int = 0) -> None:
        """``epoch`` is that of :class:`OwnerLease`."""
        self.epoch: Final = epoch

    def behind(self, format: int) -> tuple[str, ...]:
        """Return no nodes: no other node writes this realm."""
        return ()

    def holds(self) -> bool:
        return True

    async def held(self) -> None:
        """Return at once: this lease always holds."""


ENDLESS: Final = EndlessLease()
