"""``penstock cluster status`` and ``doctor``, which inspect a cluster from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock_cluster.cli.engine_access import cluster_settings, inspect
from penstock_server.cli.checks.doctor import report
from penstock_server.cli.shared.configuring import Cluster, SettingsFile
from penstock_server.cli.shared.output import (
    ListFormat,
    size,
    write,
    write_facts,
    write_json,
    write_table,
)

if TYPE_CHECKING:
    from penstock_cluster.nodes.cluster_view import ClusterState
    from penstock_cluster.owning.member_view import MemberSeen
    from penstock_core.vocabulary.ports import EngineHealth


Json = Annotated[bool, typer.Option("--json", help="Short for --format json.")]


def register(commands: typer.Typer) -> None:
    """Add the commands ``status`` and ``doctor`` to the group ``cluster``."""
    commands.command("status")(status)
    commands.command("doctor")(doctor)


def status(
    cluster: Cluster = None,
    settings: SettingsFile = None,
    json: Json = False,
    format: ListFormat = "table",
) -> None:
    """Show a cluster: its owner, its nodes, and the servers of its engine.

    The command reads the engine as a node would, and changes nothing. It watches the register
    until every node has renewed its lease, or for the duration of a lease. For a missing node it
    shows since when it is missing; `penstock cluster remove` removes the node. The name of the
    cluster, its lease and the monitoring URLs of NATS come from the settings file and the
    environment, as for `penstock serve`.

    \b
    Examples:
      penstock cluster status --cluster nats://a,b,c
      penstock cluster status --settings /etc/penstock/realm.toml --json
    """

    from penstock_cluster.nodes.cluster_view import state_of

    cluster_options = cluster_settings(cluster, settings)
    state = inspect(
        cluster_options,
        lambda inspector, clock: state_of(inspector, clock, cluster_options.lease_s),
    )
    if json or format == "json":
        write_json({"cluster": cluster_options.name, **_state_json(state)})
        return
    write_facts(_facts(cluster_options.name, state))
    if state.seen is not None:
        write("")
        write_table(
            _MEMBER_COLUMNS, [_member_row(member) for member in state.seen.members], "no node"
        )
        for member in state.seen.members:
            if member.is_alive and member.unfit:
                write(f"{member.node} cannot take over the realm: {member.unfit}")
    write("")
    rows = [
        (
            server.name or "unknown",
            f"down: {server.failure}" if server.failure else ("leads" if server.leads else "up"),
            server.version,
            None if server.room is None else size(server.room),
            server.address,
        )
        for server in state.servers
    ]
    write_table(("SERVER", "STATE", "VERSION", "ROOM", "ADDRESS"), rows, "no server")


def doctor(
    cluster: Cluster = None,
    settings: SettingsFile = None,
    json: Json = False,
    format: ListFormat = "table",
) -> None:
    """Check a cluster: its engine, nodes, clocks, versions and ports.

    A failed check shows the problem and its remedy. The whole journal is read from the leading
    server and compared with its checksums. Nothing is changed. Exit status: 0 if no check failed
    (warnings are possible), 1 if a check failed.

    \b
    Examples:
      penstock cluster doctor --cluster nats://a,b,c
      penstock cluster doctor --settings /etc/penstock/realm.toml --json
    """

    from penstock_cluster.cli.cluster_checks import checks_of
    from penstock_cluster.nodes.cluster_view import examine

    cluster_options = cluster_settings(cluster, settings)
    examined = inspect(
        cluster_options, lambda inspector, clock: examine(inspector, clock, cluster_options.lease_s)
    )
    report(checks_of(cluster_options.name, examined), is_json=json or format == "json")


# --- status -------------------------------------------------------------------------------

_MEMBER_COLUMNS: Final = ("NODE", "STATE", "VERSION", "CLOCK", "ADDRESS")


def _facts(name: str, state: ClusterState) -> Sequence[tuple[str, str]]:
    """Return the lines of `status` above its tables, as pairs of label and text."""
    from penstock_cluster.cli.cluster_checks import room_in

    seen, health = state.seen, state.health
    room = room_in(state.servers)
    if seen is None:
        facts = [
            ("cluster", f"{name}: the engine has no cluster of this name (cluster.name)"),
        ]
    else:
        lease = "not renewed" if seen.lease_left_s is None else f"{seen.lease_left_s:.1f} s left"
        owner = f"{seen.owner}, epoch {seen.epoch}, lease {lease}"
        facts = [
            ("cluster", f"{name}, format {seen.format}"),
            ("owner", owner if seen.owner else f"none, the last epoch was {seen.epoch}"),
        ]
    quorum = "with a majority" if health.has_quorum else "NO MAJORITY"
    return [
        *facts,
        (
            "engine",
            f"{health.kind} {health.version}, {health.present} of {health.servers} servers, "
            f"{quorum}, leader: {health.leader or 'none'}",
        ),
        ("sync", _sync(health)),
        ("room", "unknown" if room is None else f"{size(room)} on a majority of the servers"),
        ("damage", "; ".join(health.damage) or "none reported"),
    ]


def _sync(health: EngineHealth) -> str:
    """Return the sync mode of the servers, and the lag of the slowest one."""
    lag = f"{health.lag:,} appends behind on the server that has the fewest"
    if health.lag and health.present < health.servers:
        lag += " (a server is down)"
    return f"{health.sync or 'unknown'}, {lag if health.lag else 'no server is behind'}"


def _member_row(member: MemberSeen) -> tuple[Any, ...]:
    """Return the row of a node, with the columns `_MEMBER_COLUMNS`."""
    from penstock_cluster.cli.cluster_checks import condition_text

    ahead = member.clock_ahead_s
    clock = "" if ahead is None else f"{ahead:+.1f} s"
    where = member.serves.get("native", member.address)
    state = condition_text(member)
    if member.is_alive and member.unfit:
        state = f"{state}, cannot take over"
    return member.node, state, member.version, clock, where


def _state_json(state: ClusterState) -> dict[str, Any]:
    from penstock_cluster.cli.cluster_checks import room_in

    seen = state.seen
    return {
        "found": seen is not None,
        "owner": "" if seen is None else seen.owner,
        "epoch": 0 if seen is None else seen.epoch,
        "format": 0 if seen is None else seen.format,
        "lease_left_s": None if seen is None else seen.lease_left_s,
        "members": () if seen is None else seen.members,
        "engine": state.health,
        "servers": state.servers,
        "room": room_in(state.servers),
    }
