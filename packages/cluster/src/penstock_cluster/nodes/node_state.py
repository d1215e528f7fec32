"""The state of the cluster and of each node's process, as the owner of a realm reports it.

The metrics of a node are those of its own process. The owner, which knows the users' rights,
answers for every node.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from penstock_cluster.nodes.node import ClusterNode
from penstock_cluster.nodes.roles import local_addresses
from penstock_cluster.owning.clocks import SECOND_US
from penstock_cluster.owning.local_names import LocalNames
from penstock_cluster.owning.register_records import MemberRecord
from penstock_cluster.relay import Relays
from penstock_core.api.realm import ClusterInfo, ClusterNodeInfo, LocalStoreInfo
from penstock_core.vocabulary.node_figures import SHARD, NodeFigures
from penstock_server.runtime.realm import RunningRealm

_PROC: Final = Path("/proc")
_TICKS_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

# Indexes of the fields of ``/proc/self/stat``, counted after the name of the program.
_USER_TICKS: Final = 11
_SYSTEM_TICKS: Final = 12
_STARTED_TICKS: Final = 19
_VIRTUAL_BYTES: Final = 20
_RESIDENT_PAGES: Final = 21


def process_figures(folder: Path = _PROC) -> dict[str, float]:
    """Return the metrics of this process on Linux, by the names that Prometheus gives them. The
    client library is not used: only the owner loads it, and loading takes 50 ms. Empty on other
    systems."""
    try:
        # The name of the program is in parentheses and may contain spaces and parentheses itself.
        fields = (folder / "self/stat").read_text().rpartition(")")[2].split()
        booted_s = _boot_time_s((folder / "stat").read_text())
        descriptors = len(os.listdir(folder / "self/fd"))
        return {
            "process_cpu_seconds_total": (
                (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / _TICKS_S
            ),
            "process_resident_memory_bytes": float(int(fields[_RESIDENT_PAGES]) * _PAGE_BYTES),
            "process_virtual_memory_bytes": float(fields[_VIRTUAL_BYTES]),
            "process_start_time_seconds": booted_s + int(fields[_STARTED_TICKS]) / _TICKS_S,
            "process_open_fds": float(descriptors),
            "process_max_fds": float(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        }
    except (OSError, ValueError, IndexError):  # another system, or no descriptor is left
        return {}


def _boot_time_s(stat: str) -> float:
    """Return the boot time in ``/proc/stat``, in seconds since 1970."""
    return float(stat.partition("btime ")[2].split(maxsplit=1)[0])


def cluster_info(
    node: ClusterNode, realm: RunningRealm, now_us: int, local: LocalNames | None = None
) -> ClusterInfo:
    """Return the owner's view of its cluster at a moment of its steady clock."""
    addresses, local_names = local_addresses(node), {} if local is None else local.names
    claims = node.claims
    present = {(member.node, member.nonce) for member in claims.present(now_us)}
    claim = claims.claims.get(SHARD)
    members = sorted(claims.members.values(), key=lambda member: member.node)
    return ClusterInfo(
        node=claims.me.node,
        epoch=0 if claim is None else claim.epoch,
        lease_s=claims.lease.length_us / SECOND_US,
        lease_left_s=max(0, claims.lease.until_us - now_us) / SECOND_US,
        engine_waiting_s=realm.journal_info.waiting_us / SECOND_US,
        nodes=[
            ClusterNodeInfo(
                node=member.node,
                state=_state(node, member, (member.node, member.nonce) in present),
                version=member.version,
                url=member.serves.get("native", ""),
                renewed_us=member.wall_us,
                local_url=addresses.get(member.node, ""),
                unfit=claims.unfit(member, SHARD),
            )
            for member in members
            if not member.removed
        ],
        local=[
            LocalStoreInfo(
                name=name, kind=store.kind, node=store.node, url=addresses.get(store.node, "")
            )
            for name, store in sorted(local_names.items())
            if store.ruling == "granted"
        ],
    )


def _state(node: ClusterNode, member: MemberRecord, is_present: bool) -> str:
    """Return the state of a member. Only the owner calls this, so this node is the owner."""
    if member.nonce == node.claims.me.nonce:
        return "owner"
    if not is_present:
        return "left" if member.leaving else "down"
    drained = node.claims.orders.is_drained((member.node, member.nonce))
    return "drained" if drained else "stands by"


def node_figures(node: ClusterNode, relays: Relays, process: Mapping[str, float]) -> NodeFigures:
    """Return the figures of this node, with those of its ``process``."""
    claim, counts = node.claims.claims.get(SHARD), node.tenures
    return NodeFigures(
        process=process,
        relays=len(relays),
        relays_opened=relays.begun,
        epoch=0 if claim is None else claim.epoch,
        takeovers=dict(counts.claims),
        takeover_us=counts.takeover_us,
        deposed=counts.deposed,
        incidents=node.incidents.counts(),
    )


def figures_of(
    node: ClusterNode, name: str, own_figures: Callable[[], NodeFigures | None]
) -> NodeFigures | None:
    """Return the metrics of the node ``name``; None if they are not known. ``own_figures`` returns
    the metrics of this node; other nodes publish theirs with each renewal."""
    if name == node.claims.me.node:
        return own_figures()
    member = node.claims.members.get(name)
    return None if member is None else member.figures
