"""The end of a rolling upgrade: the cluster then writes the format of its newest version.

Before the end, nodes of two versions serve the realm in turn, and write a format that both can
read. Afterwards a node of the older version cannot claim the realm.
"""

from __future__ import annotations

from msgspec import Struct

from penstock_cluster.nodes.cluster_view import observe
from penstock_cluster.owning.member_view import ClusterSeen, MemberSeen
from penstock_cluster.owning.register_records import FORMAT_KEY
from penstock_core.vocabulary.errors import Conflict, IllegalState
from penstock_core.vocabulary.ports import Clock, EngineInspector, Registry


class UpgradeState(Struct, frozen=True, kw_only=True):
    """The progress of an upgrade."""

    format: int
    """Format that the nodes write."""
    format_all_know: int
    """Newest format that all members know; 0 without a member."""
    members: tuple[MemberSeen, ...]
    """Nodes that are alive, and silent nodes, which may be frozen and resume."""

    @property
    def is_finished(self) -> bool:
        """Whether the format cannot be raised further."""
        return self.format_all_know <= self.format

    @property
    def older(self) -> tuple[MemberSeen, ...]:
        """Nodes that know an older format than the newest node; they are still to be upgraded."""
        newest = max((member.format for member in self.members), default=0)
        return tuple(member for member in self.members if member.format < newest)


async def upgrade_state(
    inspector: EngineInspector, clock: Clock, lease_s: float, cluster: str
) -> UpgradeState:
    """Observe the nodes until the register shows which of them are alive. Raises ``IllegalState``
    if the cluster does not exist."""
    seen = await observe(inspector, clock, lease_s)
    if seen is None:
        raise IllegalState(f"the engine has no cluster {cluster!r}: check its name (cluster.name)")
    return _state_of(seen)


def _state_of(seen: ClusterSeen) -> UpgradeState:
    return UpgradeState(
        format=seen.format,
        format_all_know=seen.format_all_know(),
        members=tuple(member for member in seen.members if member.may_serve),
    )


async def finish_upgrade(registry: Registry, state: UpgradeState) -> int:
    """Let the cluster write the newest format that all of its nodes know, and return it. This
    cannot be undone. Raises ``IllegalState`` if no node is alive, or some know an older format than
    the newest."""
    if not state.members:
        raise IllegalState("no node is running: start all of them, each with the newer version")
    newest = max(member.format for member in state.members)
    if older := state.older:
        listed = ", ".join(
            f"{member.node} ({member.version}, {member.condition})" for member in older
        )
        raise IllegalState(
            f"not every node has the newer version: {listed} knows format {older[0].format}, and "
            f"others know {newest}. Upgrade it, or stop it for good"
        )
    record = await registry.get(FORMAT_KEY)
    version, written = (0, 0) if record is None else (record.version, int(record.value))
    if written < newest:
        try:
            await registry.cas(FORMAT_KEY, version, b"%d" % newest)
        except Conflict:
            raise IllegalState("the format has just been raised by another command") from None
    return max(newest, written)
