"""The two roles of a node: it serves the realm, or it stands by and sends clients to the owner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NoReturn

from penstock_cluster.nodes.node import ClusterNode
from penstock_cluster.nodes.standing_by import StandbyListener
from penstock_cluster.owning.register_records import MemberRecord
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import NoQuorum, Unavailable
from penstock_core.vocabulary.node_figures import SHARD, TenureCounts
from penstock_core.vocabulary.ports import Blobs, Journal, StorageEngine
from penstock_core.wire.native import messages as wire
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.frontends.shared.serving_node import QUORUM_LOST, ServingNode
from penstock_server.runtime.access.incidents import Incidents
from penstock_server.runtime.delivery.owner_lease import OwnerLease
from penstock_server.runtime.realm import RunningRealm

_LEASE_CHECK_S: Final = 0.1
"""Pause between two checks of the lease, in seconds."""
ENGINE_CHECK_S: Final = 10.0
"""Seconds between two health checks of the engine, and the longest wait for an answer."""
_DAMAGES_MAX: Final = 1_000
"""Maximum number of different damages of the engine that are kept."""

OpenRealm = Callable[[Journal, Blobs, OwnerLease], Awaitable[RunningRealm]]
ServeRealm = Callable[[RunningRealm, OwnerLease, asyncio.Event], Awaitable[None]]
"""Serves clients until the event is set, and then closes the realm."""

_log = logger("penstock.cluster")


class NodeRoles:
    """Serves the shard of a :class:`ClusterNode` while it owns it, and stands by otherwise."""

    def __init__(self, open_realm: OpenRealm, serve_realm: ServeRealm) -> None:
        self._open_realm = open_realm
        self._serve_realm = serve_realm
        self._lease: OwnerLease | None = None
        self._standby: StandbyListener | None = None

    async def stand_by(
        self, node: ClusterNode, standby: StandbyListener, on_owner: Callable[[str], None]
    ) -> None:
        """Stand by whenever this node serves nothing, until cancelled. ``on_owner`` is called with
        the name of the owner each time that the node begins to stand by or the owner changes; the
        name is empty if no node is known to serve."""
        self._standby = standby
        await standby.open()
        # None after the node has served: then ``on_owner`` is called even for the same name.
        notified_name: str | None = ""
        try:
            while True:
                await node.changed()
                with node.incidents.barrier("standing by", ends=()):
                    standby.tell_owners()
                    owner = node.owner(SHARD)
                    if not standby.is_open or _is_own(node, owner):
                        notified_name = None
                    elif (name := "" if owner is None else owner.node) != notified_name:
                        on_owner(name)
                        notified_name = name
        finally:
            self._standby = None
            standby.close()

    # --- ShardServer ---------------------------------------------------------------------

    async def open(
        self, shard: int, journal: Journal, blobs: Blobs, lease: OwnerLease
    ) -> RunningRealm:
        """Recover a shard whose journal has been opened for this owner."""
        self._lease = lease
        return await self._open_realm(journal, blobs, lease)

    async def serve(self, realm: RunningRealm, stopping: asyncio.Event) -> None:
        """Serve clients until ``stopping`` is set, then close the realm. Raises the error that has
        ended the realm."""
        assert self._lease is not None, "`open` is called before `serve`"
        # The realm listens at the ports of the standby role.
        if self._standby is not None:
            self._standby.close()
        try:
            await self._serve_realm(realm, self._lease, stopping)
        finally:
            if self._standby is not None:
                await self._standby.open()


async def watch_engine(
    engine: StorageEngine, counts: TenureCounts, incidents: Incidents
) -> NoReturn:
    """Record every few seconds the leader of the engine, the room and the damage on its servers,
    until cancelled."""
    while True:
        leader, room, rooms = "", None, dict[str, int]()
        with (
            incidents.barrier("engine", ends=()),
            suppress(TimeoutError, Unavailable),  # then the leader and the room are unknown
        ):
            async with asyncio.timeout(ENGINE_CHECK_S):
                health = await engine.health()
            leader, room, rooms = health.leader, health.room, dict(health.rooms)
            # Damages are collected, because a later check may not find them again.
            if len(counts.damages) < _DAMAGES_MAX:
                counts.damages.update(health.damage)
        counts.leader, counts.room, counts.rooms = leader, room, rooms
        await asyncio.sleep(ENGINE_CHECK_S)


def serving_node(node: ClusterNode) -> ServingNode | None:
    """Return the node that serves the realm; None if it is this one, or none is known."""
    return None if _is_own(node, node.owner(SHARD)) else owning_node(node)


def owning_node(node: ClusterNode) -> ServingNode | None:
    """Return the node that serves the realm, which may be this one."""
    owner = node.owner(SHARD)
    if owner is None:
        return None
    return ServingNode(owner.node, owner.serves, owner.nonce, secret_name=owner.secret_name)


def owners_in(node: ClusterNode) -> wire.Owners:
    """Return the owners and the live nodes, in the form that clients receive."""
    claim, owner = node.claims.claims.get(SHARD), node.owner(SHARD)
    places = {member.node: _native_place(member) for member in node.present()}
    return wire.Owners(
        version=0 if claim is None else claim.epoch,
        owners={} if owner is None else {SHARD: _native_place(owner)},
        nodes=tuple(filter(None, places.values())),
    )


LOCAL: Final = "local"
"""Key of the address of a member's local channels, among those of its front ends."""


def local_addresses(node: ClusterNode) -> dict[str, str]:
    """Return the address of each node's local channels, by node."""
    members = node.claims.members.values()
    return {member.node: member.serves[LOCAL] for member in members if LOCAL in member.serves}


def unfit_in(node: ClusterNode) -> str:
    """Return why a node could not take over the realm; empty if it could."""
    return node.claims.unfit(node.claims.me, SHARD)


def _native_place(member: MemberRecord) -> str:
    return member.serves.get("native", "").partition("://")[2]


async def tell_owners(node: ClusterNode, listener: NativeListener) -> None:
    """Notify the clients of a realm of every change of the owners, until cancelled."""
    while True:
        await node.changed()
        with listener.realm.incidents.barrier("owners", ends=()):
            listener.tell_owners()


def _is_own(node: ClusterNode, owner: MemberRecord | None) -> bool:
    return owner is not None and owner.node == node.claims.me.node


async def suspend_without_quorum(lease: OwnerLease, listener: NativeListener) -> None:
    """End all sessions when the lease no longer holds, and accept them again once it does: without
    it no answer would be reliable. Runs until cancelled."""
    while True:
        await asyncio.sleep(_LEASE_CHECK_S)
        with listener.realm.incidents.barrier("quorum", ends=()):
            if lease.holds():
                if listener.suspended is not None:
                    listener.resume()
                    _log.info("realm.quorum_back")
            elif listener.suspended is None:
                listener.suspend(NoQuorum(QUORUM_LOST))
                _log.warning("realm.no_quorum", reason=QUORUM_LOST)
