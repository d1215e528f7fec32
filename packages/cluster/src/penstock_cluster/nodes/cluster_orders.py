"""Give orders to the nodes of a cluster: write them to its register, and wait until the nodes have
carried them out. The process that gives an order is not a member."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from penstock_cluster.nodes.cluster_view import POLL_S, claim_in, observe
from penstock_cluster.nodes.local_names import change_local_names
from penstock_cluster.nodes.node import orders_of
from penstock_cluster.nodes.register_updates import change_record
from penstock_cluster.owning.member_view import ClusterSeen, MemberSeen
from penstock_cluster.owning.operator_orders import ORDERS_KEY, MoveOrder, Orders
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
"""Seconds within which the nodes have to carry out an order."""


class OrderDone(Struct, frozen=True):
    """The result of an order."""

    owner: str
    """Node that owns the realm now; empty if none does."""
    epoch: int
    took_s: float
    """Seconds until the register has shown the result; 0 if nothing had to change."""


async def change_orders(registry: Registry, change: Callable[[Orders], Orders]) -> Orders:
    """Change the stored orders. Raises ``Damaged``."""
    return await change_record(registry, ORDERS_KEY, orders_of, change=change)


class ClusterOrders:
    """Gives orders to a cluster. Each order observes the cluster first and refuses what is
    impossible: ``NameDoesNotExist`` for an unknown node, ``IllegalState`` for one that could not
    obey."""

    def __init__(
        self, inspector: EngineInspector, registry: Registry, clock: Clock, lease_s: float
    ) -> None:
        self._inspector = inspector
        self._registry = registry
        self._clock = clock
        self._lease_s = lease_s

    async def drain(self, node: str) -> OrderDone:
        """Keep a node from owning shards as long as its process lives. Returns once another node
        owns its shards."""
        seen = await self._observe()
        member = _live_member(seen, node)
        others = [
            candidate.node
            for candidate in seen.members
            if candidate.may_own and candidate.node != node
        ]
        if not others:
            raise IllegalState(
                f"no other node could own the realm: start one before {node} is drained, or stop "
                f"{node} if the realm is to end with it"
            )
        process = member.node, member.nonce
        await change_orders(self._registry, lambda orders: orders.with_drained(process))
        if member.condition != "owner":
            return OrderDone(seen.owner, seen.epoch, 0.0)
        return await self._wait_until(lambda owner, epoch: epoch > seen.epoch and owner != node)

    async def admit(self, node: str) -> None:
        """Let a drained node own the realm again; it takes the realm when another node leaves."""
        _member_of(await self._observe(), node)
        await change_orders(self._registry, lambda orders: orders.without_drained(node))

    async def move(self, node: str, *, by_force: bool = False) -> OrderDone:
        """Let a node own the realm: in an orderly way, or ``by_force`` whatever its owner does."""
        seen = await self._observe(only=node if by_force else "")
        member = _live_member(seen, node)
        if member.condition == "owner":
            return OrderDone(node, seen.epoch, 0.0)
        if not member.may_own:
            if member.unfit and member.condition == "stands by":
                raise IllegalState(f"{node} cannot own the realm: {member.unfit}")
            raise IllegalState(f"{node} is {member.condition}: it cannot own the realm")
        owner = next((member for member in seen.members if member.condition == "owner"), None)
        if owner is None and not by_force:
            raise IllegalState(
                f"the owner of the realm ({seen.owner or 'none'}) does not renew its lease and "
                f"cannot hand it over; take it over by force, or wait for the end of the lease"
            )
        move = MoveOrder(member.node, member.nonce, seen.epoch, by_force=by_force)
        await change_orders(self._registry, lambda orders: orders.with_move(SHARD, move))
        return await self._wait_until(lambda _, epoch: epoch > seen.epoch)

    async def remove(self, node: str) -> None:
        """Remove a node that will not return from the register, with the names of its local stores.
        If the node does return, it is a member again."""
        member = _member_of(await self._observe(), node)
        if member.is_alive:
            raise IllegalState(f"{node} is running ({member.condition}): stop it first")
        key = MEMBERS + node
        record = await self._registry.get(key)
        if record is None:
            return
        current = read_record(key, record, MemberRecord)
        if current.nonce != member.nonce:
            raise IllegalState(f"{node} has just been started again")
        # The member record is changed first, because this fails if the node is running again;
        # nothing else is removed in this case.
        removed = msgspec.structs.replace(current, removed=True)
        try:
            await self._registry.cas(key, record.version, msgspec.json.encode(removed))
        except Conflict as error:
            raise IllegalState(f"{node} is running again: it has renewed its lease") from error
        await change_orders(self._registry, lambda orders: orders.without_drained(node))
        await change_local_names(self._registry, lambda names: names.without_node(node))

    async def _observe(self, only: str = "") -> ClusterSeen:
        """Return the observed cluster. Raises ``NameDoesNotExist`` if it does not exist."""
        seen = await observe(self._inspector, self._clock, self._lease_s, only=only)
        if seen is None:
            raise NameDoesNotExist(
                "the engine has no cluster of this name; cluster.name "
                "(PENSTOCK_CLUSTER_NAME) names another"
            )
        return seen

    async def _wait_until(self, is_done: Callable[[str, int], bool]) -> OrderDone:
        """Poll the claim of the realm until ``is_done`` accepts its owner and epoch. Raises
        ``Unavailable`` after `DONE_S_MAX` seconds."""
        began_us = self._clock.steady_us()
        while True:
            claim = await claim_in(self._inspector)
            took_s = (self._clock.steady_us() - began_us) / 1e6
            if claim is not None and claim.owner and is_done(claim.owner, claim.epoch):
                return OrderDone(claim.owner, claim.epoch, took_s)
            if took_s > DONE_S_MAX:
                raise Unavailable(
                    f"no node has carried out the order within {DONE_S_MAX:.0f} s; it stays in "
                    f"force: see the logs of the nodes for the reason"
                )
            await asyncio.sleep(POLL_S / 4)


def _member_of(seen: ClusterSeen, node: str) -> MemberSeen:
    """Return a node of the cluster. Raises ``NameDoesNotExist``."""
    for member in seen.members:
        if member.node == node:
            return member
    names = ", ".join(member.node for member in seen.members) or "none"
    raise NameDoesNotExist(f"this cluster has no node {node!r}; its nodes are: {names}")


def _live_member(seen: ClusterSeen, node: str) -> MemberSeen:
    """Return a live node of the cluster. Raises ``NameDoesNotExist``, ``IllegalState``."""
    member = _member_of(seen, node)
    if not member.is_alive:
        raise IllegalState(f"{node} is {member.condition}: start it first")
    return member
