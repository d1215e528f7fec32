"""Orders of operators to the nodes of a cluster, as stored in its register.

An order addresses one process, not every later process of that node: a restarted node takes part
again. An order to move the realm belongs to an epoch and ends with the next claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock_cluster.owning.clocks import Incarnation

ORDERS_KEY: Final = "cluster/orders"


class MoveOrder(msgspec.Struct, frozen=True):
    """An order that one process is to own a shard next."""

    node: str
    nonce: str
    epoch: int
    """Epoch of the claim that the move replaces."""
    by_force: bool = False
    """Whether the process claims immediately, whatever the owner does."""

    @property
    def process(self) -> Incarnation:
        return self.node, self.nonce


class Orders(msgspec.Struct, frozen=True):
    """All orders, as one record of the register."""

    drained: Mapping[str, str] = {}
    """Nonces of the processes that are to own nothing, by node."""
    moves: Mapping[int, MoveOrder] = {}
    """Orders to move a shard, by shard."""
    written_by: str = ""
    """Random token that identifies the latest change."""

    def is_drained(self, process: Incarnation) -> bool:
        """Return whether a process is to own nothing."""
        node, nonce = process
        return self.drained.get(node) == nonce

    def move_of(self, shard: int, epoch: int) -> MoveOrder | None:
        """Return the order in force for a shard whose newest claim has this epoch, or None."""
        move = self.moves.get(shard)
        return move if move is not None and move.epoch == epoch else None

    def with_drained(self, process: Incarnation) -> Orders:
        """Return the orders with a process that is to own nothing from now on."""
        node, nonce = process
        return msgspec.structs.replace(self, drained={**self.drained, node: nonce})

    def without_drained(self, node: str) -> Orders:
        """Return the orders without a drained node, which may own shards again."""
        drained = {
            drained_node: nonce
            for drained_node, nonce in self.drained.items()
            if drained_node != node
        }
        return msgspec.structs.replace(self, drained=drained)

    def with_move(self, shard: int, move: MoveOrder) -> Orders:
        """Return the orders with a move, which replaces an earlier one for the shard."""
        return msgspec.structs.replace(self, moves={**self.moves, shard: move})
