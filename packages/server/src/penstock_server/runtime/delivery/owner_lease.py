"""The owner's lease: while it holds, no other node can become the owner of the shard.

An append needs no lease: if another node is the owner, it has fenced the journal, and the append
fails. Everything that is sent to clients without an append (deliveries, refusals, results of
queries) needs a lease that holds.
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock_core.vocabulary.formats import FORMAT


class OwnerLease(Protocol):
    """The right of this owner to act for its shard."""

    @property
    def epoch(self) -> int:
        """Fencing token: the number of claims of the shard so far, including this owner's. Names of
        files end in it. 0 if the realm does not share its store, so that it is never claimed."""
        ...

    @property
    def format(self) -> int:
        """The format in which the owner writes the shard: in a cluster the newest format that all
        nodes know. It may rise while the owner serves, and never falls."""
        ...

    def nodes_behind(self, format: int) -> tuple[str, ...]:
        """Return the nodes of the cluster that do not know ``format``, each with its version."""
        ...

    def holds(self) -> bool:
        """Whether no other node can be the owner at this moment."""
        ...

    async def held(self) -> None:
        """Wait until the lease holds. Raises ``Deposed`` if another node has become the owner."""
        ...


class EndlessLease:
    """A lease that cannot end, for a realm that does not share its store or is only read."""

    format: Final = FORMAT

    def __init__(self, epoch: int = 0) -> None:
        """``epoch`` is that of :class:`OwnerLease`."""
        self.epoch: Final = epoch

    def nodes_behind(self, format: int) -> tuple[str, ...]:
        """Return no nodes: no other node writes this realm."""
        return ()

    def holds(self) -> bool:
        return True

    async def held(self) -> None:
        """Return immediately: this lease always holds."""


ENDLESS: Final = EndlessLease()
