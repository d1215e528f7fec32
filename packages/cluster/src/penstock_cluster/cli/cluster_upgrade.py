"""``penstock cluster upgrade``: how far a rolling upgrade is, and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock_cluster.cli.engine_access import cluster_settings, on_engine
from penstock_server.cli.shared.configuring import Cluster, SettingsFile
from penstock_server.cli.shared.output import ListFormat, note, write, write_json, write_table

if TYPE_CHECKING:
    from penstock_cluster.nodes.upgrading import UpgradeState
    from penstock_core.vocabulary.ports import Clock, StorageEngine


def register(commands: typer.Typer) -> None:
    """Add it to the group ``cluster``."""
    commands.command("upgrade")(upgrade)


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
    import asyncio

    from penstock_cluster.bootstrap import cluster as adapters
    from penstock_cluster.nodes.upgrading import finish_upgrade, upgrade_state
    from penstock_server.runtime.writer.clock import SystemClock

    wanted = cluster_settings(cluster, settings)

    async def look() -> UpgradeState:
        clock = SystemClock()
        inspector = adapters.open_inspector(wanted, clock)
        try:
            return await upgrade_state(inspector, clock, wanted.lease_s, cluster=wanted.name)
        finally:
            await inspector.close()

    state = asyncio.run(look())
    written = state.format
    if finish:

        async def done(engine: StorageEngine, clock: Clock) -> int:
            return await finish_upgrade(await engine.registry(), state)

        written = on_engine(wanted, done)
    if format == "json":
        known = state.format_all_know
        found = {"format": written, "format_all_know": known, "members": state.members}
        write_json({**found, "older": [each.node for each in state.older]})
        return
    rows = [(each.node, each.condition, each.version, each.format) for each in state.members]
    write_table(("NODE", "STATE", "VERSION", "FORMAT"), rows, "no node")
    write("")
    write(f"the cluster writes format {written}")
    if older := state.older:
        note(f"still to be upgraded: {', '.join(each.node for each in older)}")
    elif state.is_finished:
        note("nothing to finish: no newer format is known to every node")
    elif not finish:
        note(f"every node knows format {state.format_all_know}: --finish has them write it")
