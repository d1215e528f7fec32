"""The checks of ``penstock cluster doctor``, made from what was looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from penstock_cluster.nodes.observation import ClusterExamined, PortReached
from penstock_cluster.owning.agreement import differing
from penstock_cluster.owning.clocks import APART_US_MAX, SECOND_US
from penstock_cluster.owning.observing import ClusterSeen, MemberSeen
from penstock_core.vocabulary.engine_room import room_of_majority
from penstock_core.vocabulary.ports import EngineCheck, EngineServer
from penstock_server.cli.checks.checks import DISK_FAILED, DISK_WARNING, Check, Status
from penstock_server.cli.shared.output import size

APART_S_MAX: Final = APART_US_MAX / SECOND_US
"""A node whose clock is further off the others' claims nothing."""
_CHANGE: Final = " To change: "
_AWAY: Final = (
    "start the others, or have them forgotten: penstock cluster remove NODE; a drained one takes "
    "part again after penstock cluster drain NODE --end"
)


def checks_of(name: str, found: ClusterExamined) -> Iterator[Check]:
    """What there is to say of a cluster that was looked at."""
    yield from map(_engine_check, found.checks)
    if found.failure:
        yield Check("register", "failed", found.failure)
        return
    seen = found.seen
    if seen is None:
        remedy = "name another by cluster.name (PENSTOCK_CLUSTER_NAME), or start a node"
        others = f"; it has {', '.join(found.clusters)}" if found.clusters else ""
        told = f"there is no cluster {name!r} on the engine{others}"
        yield Check("register", "failed", told, remedy=remedy)
        return
    yield _owner(seen)
    yield _nodes(seen)
    yield _versions(seen)
    yield from _settings(seen)
    yield from _fitness(seen)
    yield _damage(seen)
    yield _clocks(seen)
    yield from _room(found.servers)
    if others_there := [each for each in found.clusters if each != name]:
        told = f"the engine also has {', '.join(others_there)}: check cluster.name if it should not"
        yield Check("clusters", "ok", told)
    yield from map(_port, found.ports)


def how_it_is(member: MemberSeen) -> str:
    """The condition of a node, and since when where it is not there."""
    if member.is_alive or not member.renewed_us:
        return member.condition
    at = datetime.fromtimestamp(member.renewed_us // 1_000_000, UTC)
    return f"{member.condition} since {at:%Y-%m-%d %H:%M:%SZ}"


def _engine_check(check: EngineCheck) -> Check:
    name = f"engine {check.name}"
    if check.is_ok and check.not_checked:
        silent = f"not checked: {', '.join(check.not_checked)}"
        found = f"{check.found}; {silent}" if check.found else silent
        return Check(
            name, "warning", found, remedy="start what is down, or let this machine reach it"
        )
    if check.is_ok:
        return Check(name, "ok", check.found)
    found, _, remedy = check.found.partition(_CHANGE)
    return Check(name, "failed", found, remedy=remedy)


def _owner(seen: ClusterSeen) -> Check:
    owner = next((each for each in seen.members if each.condition == "owner"), None)
    if owner is not None:
        return Check("owner", "ok", f"{owner.node}, epoch {seen.epoch}")
    remedy = "start a node; when one runs, its log says why it does not claim the realm"
    if not seen.owner:
        return Check("owner", "failed", "no node owns the realm", remedy=remedy)
    found = f"{seen.owner} owns the realm in epoch {seen.epoch}, and does not renew its lease"
    return Check("owner", "failed", found, remedy=remedy)


def _nodes(seen: ClusterSeen) -> Check:
    alive = [each.node for each in seen.members if each.is_alive]
    away = [f"{each.node} is {how_it_is(each)}" for each in seen.members if not each.is_alive]
    away += [f"{each.node} is drained" for each in seen.members if each.condition == "drained"]
    found = f"{', '.join(alive) or 'none'} there{''.join(f'; {each}' for each in away)}"
    if not alive:
        return Check("nodes", "failed", found, remedy="start the nodes")
    if len(alive) == 1:
        return Check(
            "nodes", "warning", found, remedy="start a second node: nobody could take over"
        )
    return Check(
        "nodes",
        "ok" if not away else "warning",
        found,
        remedy=_AWAY if away else "",
    )


def _versions(seen: ClusterSeen) -> Check:
    alive = [each for each in seen.members if each.is_alive]
    old = [each.node for each in alive if each.format < seen.format]
    found = ", ".join(f"{each.node} {each.version}" for each in alive) or "no node is there"
    if old:
        what = f"{', '.join(old)} does not know format {seen.format}, which the cluster writes"
        return Check(
            "versions", "failed", f"{what}: {found}", remedy="install a newer version there"
        )
    if len({each.version for each in alive}) > 1:
        return Check("versions", "warning", found, remedy="finish the upgrade of the others")
    return Check("versions", "ok", f"{found}; format {seen.format}")


def _settings(seen: ClusterSeen) -> Iterator[Check]:
    """Whether the nodes that are there have the settings with which the realm is served, and one
    secret."""
    alive = [each for each in seen.members if each.is_alive]
    silent = [each.node for each in alive if not each.settings]
    differ = [
        f"{name} is {each.settings[name]!r} at {each.node}, not {seen.settings[name]!r}"
        for each in alive
        for name in differing(each.settings, seen.settings)
    ]
    if differ:
        remedy = "give all nodes the same settings, and start those anew that you change"
        yield Check("settings", "failed", "; ".join(differ), remedy=remedy)
    elif silent or not seen.settings:
        told = f"not checked: {', '.join(silent) or 'the owner'} does not tell its settings"
        yield Check("settings", "warning", told, remedy="finish the upgrade of the nodes")
    else:
        yield Check("settings", "ok", f"{len(seen.settings)} settings are alike on all nodes")
    secrets = {each.secret_name: each.node for each in alive if each.secret_name}
    if len(secrets) > 1:
        found = f"{' and '.join(sorted(secrets.values()))} have different secrets"
        remedy = "give all nodes one secret (cluster.secret_file): what they relay is dropped"
        yield Check("secret", "failed", found, remedy=remedy)


def _fitness(seen: ClusterSeen) -> Iterator[Check]:
    """Nodes that could not take the realm over, for another reason than their settings."""
    for each in seen.members:
        if each.is_alive and each.unfit and not differing(each.settings, seen.settings):
            remedy = "its log says more (node.unfit); it takes part again by itself"
            yield Check(f"node {each.node}", "failed", each.unfit, remedy=remedy)


def _damage(seen: ClusterSeen) -> Check:
    owner = next((each for each in seen.members if each.condition == "owner"), None)
    if owner is None:
        return Check("damage", "warning", "not checked: no node serves the realm")
    if owner.damages:
        found = f"{owner.node} found {owner.damages:,} pieces of damage when it recovered the realm"
        remedy = "penstock info and realm.damage in its log say what is damaged"
        return Check("damage", "failed", found, remedy=remedy)
    return Check("damage", "ok", f"{owner.node} found none when it recovered the realm")


def room_in(servers: Sequence[EngineServer]) -> int | None:
    """Bytes that a majority of an engine's servers has room for; None: too few of them tell."""
    told = [server.room for server in servers if server.room is not None]
    return room_of_majority(told, len(servers))


def _room(servers: Sequence[EngineServer]) -> Iterator[Check]:
    """Whether the servers of the engine have room, as far as they tell. The engine refuses appends
    by the room of a majority; a server that is full is one that will soon be missing."""
    rooms = {each.name or each.address: each.room for each in servers if each.room is not None}
    if not rooms:
        return
    found = ", ".join(f"{size(room)} at {name}" for name, room in rooms.items())
    room = room_in(servers)
    full = [name for name, room in rooms.items() if room < DISK_WARNING]
    where = f"on the disk of {', '.join(full)}, or raise max_file_store in nats-server.conf there"
    if room is None:
        told = f"not checked: {len(rooms)} of {len(servers)} servers tell their room: {found}"
        yield Check("engine room", "warning", told, remedy="start the others")
    elif room < DISK_WARNING:
        status: Status = "failed" if room < DISK_FAILED else "warning"
        told = f"a majority of the servers has room for {size(room)}: {found}"
        yield Check("engine room", status, told, remedy=f"make room {where}")
    elif full:
        told = f"little room at {', '.join(full)}, which the others can do without: {found}"
        yield Check("engine room", "warning", told, remedy=f"make room {where}")
    else:
        yield Check("engine room", "ok", found)


def _clocks(seen: ClusterSeen) -> Check:
    known = {
        each.node: each.clock_ahead_s for each in seen.members if each.clock_ahead_s is not None
    }
    if not known:
        return Check("clocks", "warning", "no node has renewed: nothing to compare")
    compared = sorted([*known.values(), *([0.0] if len(known) % 2 == 0 else [])])
    middle = compared[len(compared) // 2]  # where it is a matter of two, this machine decides
    off = {node: ahead - middle for node, ahead in known.items()}
    found = ", ".join(f"{node} {each:+.1f} s" for node, each in off.items())
    wrong = [node for node, each in off.items() if abs(each) > APART_S_MAX]
    if wrong:
        remedy = f"set the clock of {', '.join(wrong)}, with NTP or chrony"
        return Check("clocks", "failed", found, remedy=remedy)
    if abs(middle) > APART_S_MAX:
        found = f"{found}; this machine is {-middle:+.1f} s off the nodes"
        return Check("clocks", "warning", found, remedy="set the clock of this machine")
    return Check("clocks", "ok", found)


def _port(port: PortReached) -> Check:
    name = f"port {port.node}"
    if not port.failure:
        return Check(name, "ok", port.url)
    remedy = "open the port in firewalls, or name another address by cluster.advertise there"
    return Check(name, "failed", f"{port.url}: {port.failure}", remedy=remedy)
