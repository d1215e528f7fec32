"""What the writer may rely on: that nobody else has become the owner of its shard meanwhile.

An append proves it, for a newer owner has fenced the journal. Whatever leaves without one
(deliveries, refusals, what somebody has looked up) needs a lease that holds.
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock_core.vocabulary.formats import FORMAT


class OwnerLease(Protocol):
    @property
    def epoch(self) -> int:
        """How often the shard has been claimed, this time included; 0: nobody claims it, for the
        realm has its stores for itself. Names of its files end in it."""
        ...

    @property
    def format(self) -> int:
        """The format in which the shard is written: in a cluster the newest that all nodes know. It
        may be raised meanwhile, and never goes back."""
        ...

    def behind(self, format: int) -> tuple[str, ...]:
        """The nodes of the cluster that do not know ``format``, each with its version."""
        ...

    def holds(self) -> bool:
        """Whether nobody else can be the owner at this moment."""
        ...

    async def held(self) -> None:
        """Come back once it holds. Raises ``Deposed`` when it never will again."""
        ...


class EndlessLease:
    """A lease that cannot end: of a realm that has its stores for itself, or is only read."""

    format: Final = FORMAT

    def __init__(self, epoch: int = 0) -> None:
        """``epoch`` as in :class:`OwnerLease`."""
        self.epoch: Final = epoch

    def behind(self, format: int) -> tuple[str, ...]:
        """None: no other node writes here."""
        return ()

    def holds(self) -> bool:
        return True

    async def held(self) -> None:
        """It holds."""


ENDLESS: Final = EndlessLease()
