"""``penstock cluster drain``, ``move``, ``take-over``, ``remove`` and ``upgrade``, which give
orders to a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from penstock_cluster.cli.engine_access import (
    cluster_settings,
    inspect,
    on_engine,
    opened_engine,
    opened_inspector,
)
from penstock_server.cli.shared.configuring import Cluster, SettingsFile
from penstock_server.cli.shared.confirmation import Yes, confirm
from penstock_server.cli.shared.output import ListFormat, note, write, write_json, write_table

if TYPE_CHECKING:
    from penstock_cluster.nodes.cluster_orders import ClusterOrders, OrderDone
    from penstock_core.vocabulary.ports import Clock, StorageEngine

NodeName = Annotated[str, typer.Argument(help="Name of a node, as `cluster status` shows it.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
T = TypeVar("T")


def register(commands: typer.Typer) -> None:
    """Add all of them to the group ``cluster``."""
    commands.command("drain")(drain)
    commands.command("move")(move)
    commands.command("take-over")(take_over)
    commands.command("remove")(remove)
    commands.command("upgrade")(upgrade)


def drain(
    node: NodeName,
    end: Annotated[
        bool, typer.Option("--end", help="End the drain, so that the node may own the realm again.")
    ] = False,
    cluster: Cluster = None,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """Drain a node, for example before its machine is stopped for maintenance.

    If the node owns the realm, it hands the realm over to another node, and clients follow; the
    command waits until the other node owns the realm. A drained node does not take over the realm
    until it is restarted, or until `--end`. The command is refused if no other node could own the
    realm.

    \b
    Examples:
      penstock cluster drain n1 --cluster nats://a,b,c
      penstock cluster drain n1 --end --settings /etc/penstock/realm.toml
    """
    if end:
        _ordered(cluster, settings, lambda orders: orders.admit(node))
        if json:
            write_json({"node": node, "drained": False})
        else:
            write(f"{node} may own the realm again")
        return
    done = _ordered(cluster, settings, lambda orders: orders.drain(node))
    if json:
        write_json({"node": node, "drained": True, **_as_json(done)})
    elif done.took_s:
        write(f"{node} is drained: {_summary(done)}")
    else:
        write(f"{node} is drained; {_owner(done)}")


def move(
    node: NodeName, cluster: Cluster = None, settings: SettingsFile = None, json: Json = False
) -> None:
    """Move the realm to a node: its owner hands the realm over in order, and clients follow.

    The command waits until a node has claimed the realm. This is another node if the named one
    fails meanwhile.

    \b
    Examples:
      penstock cluster move n2 --cluster nats://a,b,c
      penstock cluster move n2 --settings /etc/penstock/realm.toml --json
    """
    _show(node, _ordered(cluster, settings, lambda orders: orders.move(node)), json=json)


def take_over(
    node: NodeName,
    cluster: Cluster = None,
    settings: SettingsFile = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Make a node take over the realm by force, without the current owner.

    Use this only if `move` fails because the owner neither hands over nor ends. Acknowledged data
    is kept, because only the newest owner can store data. An old owner that reaches the register
    stops at once. One that is cut off may deliver events until its lease ends, including events
    that the new owner has delivered and clients have acknowledged meanwhile. The command asks for
    confirmation.

    \b
    Examples:
      penstock cluster take-over n2 --cluster nats://a,b,c
      penstock cluster take-over n2 --settings /etc/penstock/realm.toml --yes
    """
    confirm(
        f"Make {node} take over the realm by force? An owner that is cut off from the engine may "
        f"deliver events twice until its lease ends.",
        yes=yes,
    )
    done = _ordered(cluster, settings, lambda orders: orders.move(node, by_force=True))
    _show(node, done, json=json)


def remove(
    node: NodeName, cluster: Cluster = None, settings: SettingsFile = None, json: Json = False
) -> None:
    """Remove a node that will not return from the register of the cluster.

    The command is refused for a running node. If the node does return, it is part of the cluster
    again.

    \b
    Examples:
      penstock cluster remove n3 --cluster nats://a,b,c
      penstock cluster remove n3 --settings /etc/penstock/realm.toml
    """
    _ordered(cluster, settings, lambda orders: orders.remove(node))
    if json:
        write_json({"node": node, "removed": True})
    else:
        write(f"{node} is no longer a node of the cluster")


def upgrade(
    cluster: Cluster = None,
    settings: SettingsFile = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="Write the newest format from now on.")
    ] = False,
    format: ListFormat = "table",
) -> None:
    """Show the progress of a rolling upgrade; with `--finish`, end it after all nodes are upgraded.

    During an upgrade, nodes are replaced one by one, and write the format that the oldest of them
    can read. `--finish` switches to the newest format that all nodes can read. This cannot be
    undone: from then on, nodes of an older version do not serve. `--finish` is refused while an
    older node runs or may run: a frozen node counts, a stopped node does not.

    \b
    Examples:
      penstock cluster upgrade --cluster nats://a,b,c
      penstock cluster upgrade --cluster nats://a,b,c --finish
    """
    from penstock_cluster.nodes.upgrading import finish_upgrade, upgrade_state

    wanted = cluster_settings(cluster, settings)
    state = inspect(
        wanted,
        lambda inspector, clock: upgrade_state(
            inspector, clock, wanted.lease_s, cluster=wanted.name
        ),
    )
    written = state.format
    if finish:

        async def done(engine: StorageEngine, clock: Clock) -> int:
            return await finish_upgrade(await engine.registry(), state)

        written = on_engine(wanted, done)
    if format == "json":
        format_all_know = state.format_all_know
        shown = {"format": written, "format_all_know": format_all_know, "members": state.members}
        write_json({**shown, "older": [member.node for member in state.older]})
        return
    rows = [
        (member.node, member.condition, member.version, member.format) for member in state.members
    ]
    write_table(("NODE", "STATE", "VERSION", "FORMAT"), rows, "no node")
    write("")
    write(f"the cluster writes format {written}")
    if older := state.older:
        note(f"still to be upgraded: {', '.join(member.node for member in older)}")
    elif state.is_finished:
        note("nothing to finish: the nodes have no newer format in common")
    elif not finish:
        note(f"every node can read format {state.format_all_know}; --finish switches to it")


def _show(node: str, done: OrderDone, *, json: bool) -> None:
    if json:
        write_json(_as_json(done))
    elif not done.took_s:
        write(f"{node} owns the realm already, in epoch {done.epoch}")
    else:
        write(_summary(done))


def _summary(done: OrderDone) -> str:
    return f"{_owner(done)}, after {done.took_s:.1f} s"


def _owner(done: OrderDone) -> str:
    if not done.owner:
        return "no node owns the realm"
    return f"{done.owner} owns the realm in epoch {done.epoch}"


def _as_json(done: OrderDone) -> dict[str, object]:
    return {"owner": done.owner, "epoch": done.epoch, "took_s": round(done.took_s, 3)}


def _ordered(
    url: str | None, file: Path | None, order: Callable[[ClusterOrders], Awaitable[T]]
) -> T:
    """Give an order and return its result. Raises ``InvalidArgument``, ``NameDoesNotExist``,
    ``IllegalState``, ``Unavailable``, ``Damaged``."""
    import asyncio

    from penstock_cluster.nodes.cluster_orders import ClusterOrders
    from penstock_server.runtime.writer.clock import SystemClock

    wanted = cluster_settings(url, file)
    clock = SystemClock()

    async def run() -> T:
        async with opened_inspector(wanted, clock) as inspector:
            # Fails at once without a majority, instead of waiting for one.
            await inspector.records("cluster/")
            async with opened_engine(wanted, clock) as engine:
                registry = await engine.registry()
                return await order(
                    ClusterOrders(inspector, registry, clock, lease_s=wanted.lease_s)
                )

    return asyncio.run(run())
