"""The checks of ``penstock cluster doctor``, derived from the observed state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from penstock_cluster.nodes.cluster_view import ClusterExamined, PortReached
from penstock_cluster.owning.agreement import differing
from penstock_cluster.owning.clocks import APART_US_MAX, SECOND_US
from penstock_cluster.owning.member_view import ClusterSeen, MemberSeen
from penstock_core.vocabulary.engine_room import room_of_majority
from penstock_core.vocabulary.ports import EngineCheck, EngineServer
from penstock_server.cli.checks.checks import DISK_FAILED, DISK_WARNING, Check, Status
from penstock_server.cli.shared.output import size

APART_S_MAX: Final = APART_US_MAX / SECOND_US
"""Offset of a node's clock, in seconds, above which the node claims no shard."""
_REMEDY_MARK: Final = " To fix: "
_MISSING_NODES_REMEDY: Final = (
    "start the others, or have them forgotten: penstock cluster remove NODE; a drained one takes "
    "part again after penstock cluster drain NODE --end"
)


def checks_of(name: str, examined: ClusterExamined) -> Iterator[Check]:
    """Yield the checks of a cluster that was observed."""
    yield from map(_engine_check, examined.checks)
    if examined.failure:
        yield Check("register", "failed", examined.failure)
        return
    seen = examined.seen
    if seen is None:
        remedy = "name another by cluster.name (PENSTOCK_CLUSTER_NAME), or start a node"
        existing = f"; it has {', '.join(examined.clusters)}" if examined.clusters else ""
        problem = f"the engine has no cluster {name!r}{existing}"
        yield Check("register", "failed", problem, remedy=remedy)
        return
    yield _check_owner(seen)
    yield _check_nodes(seen)
    yield _check_versions(seen)
    yield from _check_settings(seen)
    yield from _check_fitness(seen)
    yield _check_damage(seen)
    yield _check_clocks(seen)
    yield from _check_room(examined.servers)
    if others := [cluster for cluster in examined.clusters if cluster != name]:
        note = f"the engine also has {', '.join(others)}: check cluster.name if it should not"
        yield Check("clusters", "ok", note)
    yield from map(_check_port, examined.ports)


def condition_text(member: MemberSeen) -> str:
    """Return the condition of a node. For a node that is not alive, add the time of its latest
    renewal."""
    if member.is_alive or not member.renewed_us:
        return member.condition
    renewed = datetime.fromtimestamp(member.renewed_us // 1_000_000, UTC)
    return f"{member.condition} since {renewed:%Y-%m-%d %H:%M:%SZ}"


def _engine_check(check: EngineCheck) -> Check:
    """Convert a check that the engine has made itself. The remedy of a failed check is part of its
    text."""
    name = f"engine {check.name}"
    if check.is_ok and check.not_checked:
        silent = f"not checked: {', '.join(check.not_checked)}"
        result = f"{check.finding}; {silent}" if check.finding else silent
        return Check(
            name,
            "warning",
            result,
            remedy="start the servers that are down, or make them reachable from this machine",
        )
    if check.is_ok:
        return Check(name, "ok", check.finding)
    result, _, remedy = check.finding.partition(_REMEDY_MARK)
    return Check(name, "failed", result, remedy=remedy)


def _check_owner(seen: ClusterSeen) -> Check:
    """Check that a node owns the realm and renews its lease."""
    owner = next((member for member in seen.members if member.condition == "owner"), None)
    if owner is not None:
        return Check("owner", "ok", f"{owner.node}, epoch {seen.epoch}")
    remedy = "start a node; when one runs, its log says why it does not claim the realm"
    if not seen.owner:
        return Check("owner", "failed", "no node owns the realm", remedy=remedy)
    problem = f"{seen.owner} owns the realm in epoch {seen.epoch}, and does not renew its lease"
    return Check("owner", "failed", problem, remedy=remedy)


def _check_nodes(seen: ClusterSeen) -> Check:
    """Check that all nodes are alive; without a second node no failover is possible."""
    alive = [member.node for member in seen.members if member.is_alive]
    missing = [
        f"{member.node} is {condition_text(member)}"
        for member in seen.members
        if not member.is_alive
    ]
    missing += [
        f"{member.node} is drained" for member in seen.members if member.condition == "drained"
    ]
    summary = f"{', '.join(alive) or 'none'} there{''.join(f'; {problem}' for problem in missing)}"
    if not alive:
        return Check("nodes", "failed", summary, remedy="start the nodes")
    if len(alive) == 1:
        return Check(
            "nodes", "warning", summary, remedy="start a second node: no other node could take over"
        )
    return Check(
        "nodes",
        "ok" if not missing else "warning",
        summary,
        remedy=_MISSING_NODES_REMEDY if missing else "",
    )


def _check_versions(seen: ClusterSeen) -> Check:
    """Check that all live nodes know the cluster's format and have one version."""
    alive = [member for member in seen.members if member.is_alive]
    old = [member.node for member in alive if member.format < seen.format]
    summary = ", ".join(f"{member.node} {member.version}" for member in alive) or "no node is there"
    if old:
        problem = f"{', '.join(old)} does not know format {seen.format}, which the cluster writes"
        return Check(
            "versions", "failed", f"{problem}: {summary}", remedy="install a newer version there"
        )
    if len({member.version for member in alive}) > 1:
        return Check("versions", "warning", summary, remedy="finish the upgrade of the others")
    return Check("versions", "ok", f"{summary}; format {seen.format}")


def _check_settings(seen: ClusterSeen) -> Iterator[Check]:
    """Check that the live nodes share one secret and have the settings of the realm's owner."""
    alive = [member for member in seen.members if member.is_alive]
    unknown = [member.node for member in alive if not member.settings]
    differ = [
        f"{name} is {member.settings[name]!r} at {member.node}, not {seen.settings[name]!r}"
        for member in alive
        for name in differing(member.settings, seen.settings)
    ]
    if differ:
        remedy = "give all nodes the same settings, and restart each node that you change"
        yield Check("settings", "failed", "; ".join(differ), remedy=remedy)
    elif unknown or not seen.settings:
        problem = f"not checked: {', '.join(unknown) or 'the owner'} does not report its settings"
        yield Check("settings", "warning", problem, remedy="finish the upgrade of the nodes")
    else:
        yield Check("settings", "ok", f"{len(seen.settings)} settings are equal on all nodes")
    secrets = {member.secret_name: member.node for member in alive if member.secret_name}
    if len(secrets) > 1:
        problem = f"{' and '.join(sorted(secrets.values()))} have different secrets"
        remedy = (
            "give all nodes one secret (cluster.secret_file): relayed connections fail until then"
        )
        yield Check("secret", "failed", problem, remedy=remedy)


def _check_fitness(seen: ClusterSeen) -> Iterator[Check]:
    """Yield a failed check for each node that could not take over the realm for a reason other
    than its settings."""
    for member in seen.members:
        if member.is_alive and member.unfit and not differing(member.settings, seen.settings):
            remedy = "its log says more (node.unfit); it takes part again by itself"
            yield Check(f"node {member.node}", "failed", member.unfit, remedy=remedy)


def _check_damage(seen: ClusterSeen) -> Check:
    """Check that the owner has found no damage when it recovered the realm."""
    owner = next((member for member in seen.members if member.condition == "owner"), None)
    if owner is None:
        return Check("damage", "warning", "not checked: no node serves the realm")
    if owner.damages:
        problem = (
            f"{owner.node} found {owner.damages:,} pieces of damage when it recovered the realm"
        )
        remedy = "penstock info and realm.damage in its log say what is damaged"
        return Check("damage", "failed", problem, remedy=remedy)
    return Check("damage", "ok", f"{owner.node} found none when it recovered the realm")


def room_in(servers: Sequence[EngineServer]) -> int | None:
    """Return the bytes that fit on a majority of an engine's servers; None if too few report
    it."""
    rooms = [server.room for server in servers if server.room is not None]
    return room_of_majority(rooms, len(servers))


def _check_room(servers: Sequence[EngineServer]) -> Iterator[Check]:
    """Check the room on the servers of the engine that report it. The engine refuses appends when a
    majority of its servers has no room; a single full server will soon fail."""
    rooms = {
        server.name or server.address: server.room for server in servers if server.room is not None
    }
    if not rooms:
        return
    summary = ", ".join(f"{size(room)} at {name}" for name, room in rooms.items())
    room = room_in(servers)
    full = [name for name, room in rooms.items() if room < DISK_WARNING]
    where = f"on the disk of {', '.join(full)}, or raise max_file_store in nats-server.conf there"
    if room is None:
        problem = (
            f"not checked: {len(rooms)} of {len(servers)} servers report their free space: "
            f"{summary}"
        )
        yield Check("engine room", "warning", problem, remedy="start the others")
    elif room < DISK_WARNING:
        status: Status = "failed" if room < DISK_FAILED else "warning"
        problem = f"a majority of the servers has room for {size(room)}: {summary}"
        yield Check("engine room", status, problem, remedy=f"make room {where}")
    elif full:
        problem = f"little free space at {', '.join(full)}; the others are a majority: {summary}"
        yield Check("engine room", "warning", problem, remedy=f"make room {where}")
    else:
        yield Check("engine room", "ok", summary)


def _check_clocks(seen: ClusterSeen) -> Check:
    """Check that the clocks of the nodes and of this machine are close to the median."""
    ahead_s = {
        member.node: member.clock_ahead_s
        for member in seen.members
        if member.clock_ahead_s is not None
    }
    if not ahead_s:
        return Check("clocks", "warning", "no node has renewed: nothing to compare")
    # This machine's clock makes an even number of clocks odd, so that one is in the middle.
    compared = sorted([*ahead_s.values(), *([0.0] if len(ahead_s) % 2 == 0 else [])])
    middle = compared[len(compared) // 2]
    off = {node: ahead - middle for node, ahead in ahead_s.items()}
    summary = ", ".join(f"{node} {ahead:+.1f} s" for node, ahead in off.items())
    wrong = [node for node, ahead in off.items() if abs(ahead) > APART_S_MAX]
    if wrong:
        remedy = f"set the clock of {', '.join(wrong)}, with NTP or chrony"
        return Check("clocks", "failed", summary, remedy=remedy)
    if abs(middle) > APART_S_MAX:
        summary = f"{summary}; this machine is {-middle:+.1f} s off the nodes"
        return Check("clocks", "warning", summary, remedy="set the clock of this machine")
    return Check("clocks", "ok", summary)


def _check_port(port: PortReached) -> Check:
    """Return the check of a port of a node that was probed from this machine."""
    name = f"port {port.node}"
    if not port.failure:
        return Check(name, "ok", port.url)
    remedy = "open the port in firewalls, or name another address by cluster.advertise there"
    return Check(name, "failed", f"{port.url}: {port.failure}", remedy=remedy)
