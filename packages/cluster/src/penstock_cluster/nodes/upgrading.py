"""The end of a rolling upgrade: the cluster writes what its newest version knows.

Until then nodes of two versions serve the realm in turn, and write what both can read. Afterwards
a node of the older version claims nothing any more.
"""

from __future__ import annotations

from msgspec import Struct

from penstock_cluster.nodes.observation import observe
from penstock_cluster.owning.observing import ClusterSeen, MemberSeen
from penstock_cluster.owning.register_records import FORMAT_KEY
from penstock_core.vocabulary.errors import Conflict, IllegalState
from penstock_core.vocabulary.ports import Clock, EngineInspector, Registry


class UpgradeState(Struct, frozen=True, kw_only=True):
    """How far an upgrade is."""

    format: int
    """The format that the nodes write."""
    format_all_know: int
    """The format that they could write; 0: no node is there."""
    members: tuple[MemberSeen, ...]
    """The nodes that count: they are there, or may be there again."""

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing to raise."""
        return self.format_all_know <= self.format

    @property
    def older(self) -> tuple[MemberSeen, ...]:
        """The nodes that know less than the newest does: they are still to be upgraded."""
        newest = max((each.format for each in self.members), default=0)
        return tuple(each for each in self.members if each.format < newest)


async def upgrade_state(
    inspector: EngineInspector, clock: Clock, lease_s: float, cluster: str
) -> UpgradeState:
    """Look at the nodes for as long as it takes to know who is there. Raises ``IllegalState`` where
    there is no cluster."""
    seen = await observe(inspector, clock, lease_s)
    if seen is None:
        raise IllegalState(
            f"there is no cluster {cluster!r} on the engine: its name (cluster.name) may be another"
        )
    return _state_of(seen)


def _state_of(seen: ClusterSeen) -> UpgradeState:
    return UpgradeState(
        format=seen.format,
        format_all_know=seen.format_all_know(),
        members=tuple(each for each in seen.members if each.counts),
    )


async def finish_upgrade(registry: Registry, state: UpgradeState) -> int:
    """Have the cluster write the newest format that all of its nodes know; gives it. There is no
    way back. Raises ``IllegalState`` where no node is there to tell, or some know less than the
    newest."""
    if not state.members:
        raise IllegalState("no node is there: start all of them, each with the newer version")
    newest = max(each.format for each in state.members)
    if older := state.older:
        named = ", ".join(f"{each.node} ({each.version}, {each.condition})" for each in older)
        raise IllegalState(
            f"not every node has the newer version: {named} knows format {older[0].format}, and "
            f"others know {newest}. Upgrade it, or stop it for good"
        )
    record = await registry.get(FORMAT_KEY)
    version, written = (0, 0) if record is None else (record.version, int(record.value))
    if written < newest:
        try:
            await registry.cas(FORMAT_KEY, version, b"%d" % newest)
        except Conflict:
            raise IllegalState("somebody else has raised the format at this moment") from None
    return max(newest, written)
