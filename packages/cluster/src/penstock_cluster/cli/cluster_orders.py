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
Json = Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")]
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
        bool, typer.Option("--end", help="End it: the node may own the realm again.")
    ] = False,
    cluster: Cluster = None,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """Have a node own nothing, for example before it is stopped or its machine is worked on.

    If it owns the realm, it hands it over in order to another node, and clients follow; the command
    comes back when that one owns it. The node takes nothing until it is started again, or until
    `--end`. It is refused where no other node could own the realm.

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
    """Have a node own the realm: its owner hands it over in order, and clients follow.

    The command comes back when a node has claimed it. Where the one that was named dies meanwhile,
    that is another one.

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
    """Have a node own the realm by force, whatever its owner does.

    For an owner that does not hand over and does not end. What was acknowledged is kept, since only
    the newest owner can store anything. An owner that sees the register says nothing any more; one
    that is cut off from it may go on delivering until its lease is over, also what its successor
    has delivered and had acknowledged meanwhile. So `move` comes first, and this asks.

    \b
    Examples:
      penstock cluster take-over n2 --cluster nats://a,b,c
      penstock cluster take-over n2 --settings /etc/penstock/realm.toml --yes
    """
    confirm(
        f"Have {node} take the realm over by force? An owner that is cut off from the engine may "
        f"deliver events twice until its lease is over.",
        yes=yes,
    )
    done = _ordered(cluster, settings, lambda orders: orders.move(node, by_force=True))
    _show(node, done, json=json)


def remove(
    node: NodeName, cluster: Cluster = None, settings: SettingsFile = None, json: Json = False
) -> None:
    """Forget a node that will not come back, so that nobody is told of it any more.

    It is refused for a node that is there. One that does come back is a node of the cluster again.

    \b
    Examples:
      penstock cluster remove n3 --cluster nats://a,b,c
      penstock cluster remove n3 --settings /etc/penstock/realm.toml
    """
    _ordered(cluster, settings, lambda orders: orders.remove(node))
    if json:
        write_json({"node": node, "removed": True})
    else:
        write(f"{node} is no node of the cluster any more")


def upgrade(
    cluster: Cluster = None,
    settings: SettingsFile = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="Write what the newer version knows, from now on.")
    ] = False,
    format: ListFormat = "table",
) -> None:
    """Show how far a rolling upgrade is; with `--finish`, end it once every node has the version.

    Nodes are replaced one after the other, and write what the oldest of them can read. `--finish`
    has them write the newest format that all of them know; from then on a node of an older version
    does not serve any more, and there is no way back. It is refused while such a node is there, or
    may be: one that is frozen counts, one that was stopped does not.

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
        note("nothing to finish: no newer format is known to every node")
    elif not finish:
        note(f"every node knows format {state.format_all_know}: --finish has them write it")


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
