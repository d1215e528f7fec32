"""What people ask of a cluster, as it stands in its register.

An order is for a process, not for whatever has its name: whoever starts a node anew has it take
part again. Orders to move the realm are for an epoch: they end with the claim that follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock_cluster.owning.clocks import Incarnation

ORDERS_KEY: Final = "cluster/orders"


class MoveOrder(msgspec.Struct, frozen=True):
    """Which process is to own a shard next."""

    node: str
    nonce: str
    epoch: int
    """The claim that it is to follow."""
    by_force: bool = False
    """It claims at once, whatever the owner does."""

    @property
    def process(self) -> Incarnation:
        return self.node, self.nonce


class Orders(msgspec.Struct, frozen=True):
    """All of them, as one record of the register."""

    drained: Mapping[str, str] = {}
    """The nonces of processes that are to own nothing, by their nodes."""
    moves: Mapping[int, MoveOrder] = {}
    """By shard."""
    written_by: str = ""
    """Drawn for each change, which tells it from any other."""

    def is_drained(self, process: Incarnation) -> bool:
        """Whether a process is to own nothing."""
        node, nonce = process
        return self.drained.get(node) == nonce

    def move_of(self, shard: int, epoch: int) -> MoveOrder | None:
        """The order that is in force for a shard whose newest claim has this epoch."""
        move = self.moves.get(shard)
        return move if move is not None and move.epoch == epoch else None

    def with_drained(self, process: Incarnation) -> Orders:
        """A process is to own nothing from now on."""
        node, nonce = process
        return msgspec.structs.replace(self, drained={**self.drained, node: nonce})

    def without_drained(self, node: str) -> Orders:
        """A node may own shards again."""
        drained = {each: nonce for each, nonce in self.drained.items() if each != node}
        return msgspec.structs.replace(self, drained=drained)

    def with_move(self, shard: int, move: MoveOrder) -> Orders:
        """A process is to own a shard; it replaces an order before."""
        return msgspec.structs.replace(self, moves={**self.moves, shard: move})
