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
    """Add the commands of this module to the group ``cluster``."""
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
        _give_order(cluster, settings, lambda orders: orders.admit(node))
        if json:
            write_json({"node": node, "drained": False})
        else:
            write(f"{node} may own the realm again")
        return
    result = _give_order(cluster, settings, lambda orders: orders.drain(node))
    if json:
        write_json({"node": node, "drained": True, **_as_json(result)})
    elif result.took_s:
        write(f"{node} is drained: {_summary(result)}")
    else:
        write(f"{node} is drained; {_owner(result)}")


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
    _show(node, _give_order(cluster, settings, lambda orders: orders.move(node)), json=json)


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
    stops immediately. One that is cut off may deliver events until its lease ends, including events
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
    result = _give_order(cluster, settings, lambda orders: orders.move(node, by_force=True))
    _show(node, result, json=json)


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
    _give_order(cluster, settings, lambda orders: orders.remove(node))
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

    cluster_options = cluster_settings(cluster, settings)
    state = inspect(
        cluster_options,
        lambda inspector, clock: upgrade_state(
            inspector, clock, cluster_options.lease_s, cluster=cluster_options.name
        ),
    )
    written = state.format
    if finish:

        async def result(engine: StorageEngine, clock: Clock) -> int:
            return await finish_upgrade(await engine.registry(), state)

        written = on_engine(cluster_options, result)
    if format == "json":
        format_all_know = state.format_all_know
        formats = {"format": written, "format_all_know": format_all_know, "members": state.members}
        write_json({**formats, "older": [member.node for member in state.older]})
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


def _show(node: str, result: OrderDone, *, json: bool) -> None:
    """Print the result of an order to move the realm to a node."""
    if json:
        write_json(_as_json(result))
    elif not result.took_s:
        write(f"{node} owns the realm already, in epoch {result.epoch}")
    else:
        write(_summary(result))


def _summary(result: OrderDone) -> str:
    return f"{_owner(result)}, after {result.took_s:.1f} s"


def _owner(result: OrderDone) -> str:
    if not result.owner:
        return "no node owns the realm"
    return f"{result.owner} owns the realm in epoch {result.epoch}"


def _as_json(result: OrderDone) -> dict[str, object]:
    return {"owner": result.owner, "epoch": result.epoch, "took_s": round(result.took_s, 3)}


def _give_order(
    url: str | None, file: Path | None, order: Callable[[ClusterOrders], Awaitable[T]]
) -> T:
    """Give an order and return its result. Raises ``InvalidArgument``, ``NameDoesNotExist``,
    ``IllegalState``, ``Unavailable``, ``Damaged``."""
    import asyncio

    from penstock_cluster.nodes.cluster_orders import ClusterOrders
    from penstock_server.runtime.writer.clock import SystemClock

    cluster_options = cluster_settings(url, file)
    clock = SystemClock()

    async def run() -> T:
        async with opened_inspector(cluster_options, clock) as inspector:
            # Fails immediately without a majority, instead of waiting for one.
            await inspector.records("cluster/")
            async with opened_engine(cluster_options, clock) as engine:
                registry = await engine.registry()
                return await order(
                    ClusterOrders(inspector, registry, clock, lease_s=cluster_options.lease_s)
                )

    return asyncio.run(run())
