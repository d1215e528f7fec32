"""The checks of ``penstock cluster doctor``, made from what was looked at."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from penstock.cli.checks import Check
from penstock.cluster.observation import ClusterExamined, PortReached
from penstock.core.owning.clocks import APART_US_MAX, SECOND_US
from penstock.core.owning.observing import ClusterSeen, MemberSeen
from penstock.core.vocabulary.ports import EngineCheck

APART_S_MAX: Final = APART_US_MAX / SECOND_US
"""A node whose clock is further off the others' claims nothing."""
_CHANGE: Final = " To change: "


def checks_of(name: str, found: ClusterExamined) -> Iterator[Check]:
    """What there is to say of a cluster that was looked at."""
    yield from map(_engine_check, found.checks)
    if found.failure:
        yield Check("register", "failed", found.failure)
        return
    seen = found.seen
    if seen is None:
        remedy = "name another by cluster.name (PENSTOCK_CLUSTER_NAME), or start a node"
        yield Check("register", "failed", f"there is no cluster {name!r} on the engine", remedy)
        return
    yield _owner(seen)
    yield _nodes(seen)
    yield _versions(seen)
    yield _clocks(seen)
    yield from map(_port, found.ports)


def how_it_is(member: MemberSeen) -> str:
    """The condition of a node, and since when where it is not there."""
    if member.is_alive or not member.renewed_us:
        return member.condition
    at = datetime.fromtimestamp(member.renewed_us // 1_000_000, UTC)
    return f"{member.condition} since {at:%Y-%m-%d %H:%M:%SZ}"


def _engine_check(check: EngineCheck) -> Check:
    name = f"engine {check.name}"
    if check.is_ok:
        return Check(name, "ok", check.found)
    found, _, remedy = check.found.partition(_CHANGE)
    return Check(name, "failed", found, remedy)


def _owner(seen: ClusterSeen) -> Check:
    owner = next((each for each in seen.members if each.condition == "owner"), None)
    if owner is not None:
        return Check("owner", "ok", f"{owner.node}, epoch {seen.epoch}")
    remedy = "start a node; when one runs, its log says why it does not claim the realm"
    if not seen.owner:
        return Check("owner", "failed", "no node owns the realm", remedy)
    found = f"{seen.owner} owns the realm in epoch {seen.epoch}, and does not renew its lease"
    return Check("owner", "failed", found, remedy)


def _nodes(seen: ClusterSeen) -> Check:
    alive = [each.node for each in seen.members if each.is_alive]
    away = [f"{each.node} is {how_it_is(each)}" for each in seen.members if not each.is_alive]
    found = f"{', '.join(alive) or 'none'} there{''.join(f'; {each}' for each in away)}"
    if not alive:
        return Check("nodes", "failed", found, "start the nodes")
    if len(alive) == 1:
        return Check("nodes", "warning", found, "start a second node: nobody could take over")
    return Check(
        "nodes",
        "ok" if not away else "warning",
        found,
        "start the others, or have them forgotten: penstock cluster remove NODE" if away else "",
    )


def _versions(seen: ClusterSeen) -> Check:
    alive = [each for each in seen.members if each.is_alive]
    old = [each.node for each in alive if each.format < seen.format]
    found = ", ".join(f"{each.node} {each.version}" for each in alive) or "no node is there"
    if old:
        what = f"{', '.join(old)} does not know format {seen.format}, which the cluster writes"
        return Check("versions", "failed", f"{what}: {found}", "install a newer version there")
    if len({each.version for each in alive}) > 1:
        return Check("versions", "warning", found, "finish the upgrade of the others")
    return Check("versions", "ok", f"{found}; format {seen.format}")


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
        return Check("clocks", "failed", found, remedy)
    if abs(middle) > APART_S_MAX:
        found = f"{found}; this machine is {-middle:+.1f} s off the nodes"
        return Check("clocks", "warning", found, "set the clock of this machine")
    return Check("clocks", "ok", found)


def _port(port: PortReached) -> Check:
    name = f"port {port.node}"
    if not port.failure:
        return Check(name, "ok", port.url)
    remedy = "open the port in firewalls, or name another address by cluster.advertise there"
    return Check(name, "failed", f"{port.url}: {port.failure}", remedy)
