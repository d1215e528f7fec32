"""Orders that people give the nodes of a cluster: written to its register, and followed until the
nodes have done what they say. Whoever gives one is no member."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from penstock_cluster.nodes.changing import change_record
from penstock_cluster.nodes.local_names import change_local_names
from penstock_cluster.nodes.node import orders_of
from penstock_cluster.nodes.observation import LOOK_S, claim_in, observe
from penstock_cluster.owning.observing import ClusterSeen, MemberSeen
from penstock_cluster.owning.orders import ORDERS_KEY, MoveOrder, Orders
from penstock_cluster.owning.register_records import MEMBERS, MemberRecord, read_record
from penstock_core.vocabulary.errors import (
    Conflict,
    IllegalState,
    NameDoesNotExist,
    Unavailable,
)
from penstock_core.vocabulary.node_figures import SHARD
from penstock_core.vocabulary.ports import Clock, EngineInspector, Registry

DONE_S_MAX: Final = 60.0
"""How long the nodes may take to do what they are told."""


class OrderDone(Struct, frozen=True):
    """What has become of an order."""

    owner: str
    """The node that owns the realm now; empty: none."""
    epoch: int
    took_s: float
    """Until the register has shown it; 0: there was nothing to do."""


async def change_orders(registry: Registry, change: Callable[[Orders], Orders]) -> Orders:
    """Write orders on top of those there are. Raises ``Damaged``."""
    return await change_record(registry, ORDERS_KEY, orders_of, change=change)


class ClusterOrders:
    """Gives orders to a cluster. Each looks at the cluster first, and refuses what could not be
    done: ``NameDoesNotExist`` for a node that there is not, ``IllegalState`` for one that could not
    do it."""

    def __init__(
        self, inspector: EngineInspector, registry: Registry, clock: Clock, lease_s: float
    ) -> None:
        self._inspector = inspector
        self._registry = registry
        self._clock = clock
        self._lease_s = lease_s

    async def drain(self, node: str) -> OrderDone:
        """Have a node own nothing as long as its process lives. Comes back when another one owns
        what it had."""
        seen = await self._seen()
        member = _alive(seen, node)
        others = [each.node for each in seen.members if each.may_own and each.node != node]
        if not others:
            raise IllegalState(
                f"no other node could own the realm: start one before {node} is drained, or stop "
                f"{node} if the realm is to end with it"
            )
        process = member.node, member.nonce
        await change_orders(self._registry, lambda orders: orders.with_drained(process))
        if member.condition != "owner":
            return OrderDone(seen.owner, seen.epoch, 0.0)
        return await self._until(lambda owner, epoch: epoch > seen.epoch and owner != node)

    async def admit(self, node: str) -> None:
        """Let a node that was drained own the realm again; it takes it when another one goes."""
        _known(await self._seen(), node)
        await change_orders(self._registry, lambda orders: orders.without_drained(node))

    async def move(self, node: str, *, by_force: bool = False) -> OrderDone:
        """Have a node own the realm: in order, or ``by_force`` whatever its owner does."""
        seen = await self._seen(only=node if by_force else "")
        member = _alive(seen, node)
        if member.condition == "owner":
            return OrderDone(node, seen.epoch, 0.0)
        if not member.may_own:
            if member.unfit and member.condition == "stands by":
                raise IllegalState(f"{node} takes nothing: {member.unfit}")
            raise IllegalState(f"{node} is {member.condition}: it takes nothing")
        owner = next((each for each in seen.members if each.condition == "owner"), None)
        if owner is None and not by_force:
            raise IllegalState(
                f"{seen.owner or 'nobody'} owns the realm and does not renew its lease: there is "
                f"nobody to hand it over; take it over by force, or wait for the end of the lease"
            )
        move = MoveOrder(member.node, member.nonce, seen.epoch, by_force=by_force)
        await change_orders(self._registry, lambda orders: orders.with_move(SHARD, move))
        return await self._until(lambda _, epoch: epoch > seen.epoch)

    async def remove(self, node: str) -> None:
        """Forget a node that will not come back, and the names of its local stores. One that does
        is there again."""
        member = _known(await self._seen(), node)
        if member.is_alive:
            raise IllegalState(f"{node} is there ({member.condition}): stop it first")
        key = MEMBERS + node
        record = await self._registry.get(key)
        if record is None:
            return
        shown = read_record(key, record, MemberRecord)
        if shown.nonce != member.nonce:
            raise IllegalState(f"{node} has just been started again")
        gone = msgspec.structs.replace(shown, removed=True)
        try:
            await self._registry.cas(key, record.version, msgspec.json.encode(gone))
        except Conflict as error:
            raise IllegalState(f"{node} is there again: it has renewed its lease") from error
        await change_orders(self._registry, lambda orders: orders.without_drained(node))
        await change_local_names(self._registry, lambda names: names.without_node(node))

    async def _seen(self, only: str = "") -> ClusterSeen:
        seen = await observe(self._inspector, self._clock, self._lease_s, only=only)
        if seen is None:
            raise NameDoesNotExist(
                "there is no cluster of this name on the engine; cluster.name "
                "(PENSTOCK_CLUSTER_NAME) names another"
            )
        return seen

    async def _until(self, is_done: Callable[[str, int], bool]) -> OrderDone:
        began_us = self._clock.steady_us()
        while True:
            claim = await claim_in(self._inspector)
            took_s = (self._clock.steady_us() - began_us) / 1e6
            if claim is not None and claim.owner and is_done(claim.owner, claim.epoch):
                return OrderDone(claim.owner, claim.epoch, took_s)
            if took_s > DONE_S_MAX:
                raise Unavailable(
                    f"after {DONE_S_MAX:.0f} s nobody has done it; the order stays in force: the "
                    f"logs of the nodes say what keeps them from it"
                )
            await asyncio.sleep(LOOK_S / 4)


def _known(seen: ClusterSeen, node: str) -> MemberSeen:
    for member in seen.members:
        if member.node == node:
            return member
    names = ", ".join(each.node for each in seen.members) or "none"
    raise NameDoesNotExist(f"there is no node {node!r} in this cluster; there are: {names}")


def _alive(seen: ClusterSeen, node: str) -> MemberSeen:
    member = _known(seen, node)
    if not member.is_alive:
        raise IllegalState(f"{node} is {member.condition}: start it first")
    return member
