"""``penstock cluster import``, ``export``, ``backup`` and ``restore``, which move a realm into a
cluster and out of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_cluster.cli.engine_access import cluster_settings, on_engine, opened_inspector
from penstock_server.cli.shared.configuring import Cluster, SettingsFile
from penstock_server.cli.shared.output import ListFormat, count, note, size, write, write_json
from penstock_server.cli.shared.progress import progress

if TYPE_CHECKING:
    from penstock_cluster.bootstrap.relocating import RealmMoved
    from penstock_core.vocabulary.ports import Clock, StorageEngine, VersionedRecord
    from penstock_server.settings import ClusterSettings

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be moved, without moving it.")
]


def register(commands: typer.Typer) -> None:
    """Add the commands of this module to the group ``cluster``."""
    commands.command("import")(import_)
    commands.command("export")(export)
    commands.command("backup")(backup)
    commands.command("restore")(restore)


def import_(
    directory: Annotated[
        Path | None,
        typer.Argument(help="Data directory of a stopped realm, or a backup.", metavar="DIR"),
    ] = None,
    cluster: Cluster = None,
    settings: SettingsFile = None,
    dry_run: DryRun = False,
    ahead: Annotated[
        bool,
        typer.Option("--ahead", help="Only copy the sealed files now; import the rest later."),
    ] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Remove the data of an unfinished import.")
    ] = False,
    format: ListFormat = "table",
) -> None:
    """Move a realm into a cluster without a realm; ids, durables, counters and users stay the same.

    The realm must be stopped; its directory is only read. Run the command again to continue an
    interrupted import; no node serves the cluster before it is finished. To shorten the downtime,
    back up the running realm and import the backup with `--ahead`; then stop the realm and import
    its directory, which copies only the rest. With a backup as DIR, the command restores a
    cluster. The cluster's name comes from the settings file and the environment, as for
    `penstock serve`.

    \b
    Examples:
      penstock cluster import ./data --cluster nats://a,b,c --dry-run
      penstock cluster import ./data --cluster nats://a,b,c
      penstock cluster import ./backup --cluster nats://a,b,c --ahead
    """
    import asyncio

    from penstock_cluster.bootstrap import relocating
    from penstock_core.vocabulary.errors import InvalidArgument

    if (directory is None) != abandon or (abandon and (ahead or dry_run)):
        raise InvalidArgument(
            "name the DIR of a realm, or use --abandon without DIR and other options"
        )
    cluster_options = cluster_settings(cluster, settings)
    if directory is None:
        was_unfinished = on_engine(
            cluster_options,
            lambda engine, clock: relocating.abandon_import(engine, clock, cluster_options.name),
        )
        write(
            "the data of the unfinished import is removed"
            if was_unfinished
            else "the cluster has no unfinished import"
        )
        return
    with _directory(directory) as place:
        if dry_run:
            moved = asyncio.run(_plan(place, cluster_options))
        else:

            async def move_realm(engine: StorageEngine, clock: Clock) -> RealmMoved:
                async with relocating.source_realm(place) as source:
                    plan = relocating.plan_import(source).plan
                    with progress("copying", plan.bytes + plan.unsealed_bytes) as bar:
                        return await relocating.import_realm(
                            source,
                            engine,
                            clock,
                            cluster=cluster_options.name,
                            ahead=ahead,
                            on_progress=bar.show,
                        )

            moved = on_engine(cluster_options, move_realm)
    _show(moved, format, _ending(cluster_options.name, moved, dry_run=dry_run, ahead=ahead))


def export(
    directory: Annotated[
        Path, typer.Argument(help="Data directory to create; empty or missing.", metavar="DIR")
    ],
    cluster: Cluster = None,
    settings: SettingsFile = None,
    format: ListFormat = "table",
) -> None:
    """Write the realm of a cluster to a data directory, to serve it on one machine.

    The directory has everything acknowledged before, with ids, durables, counters and users. The
    command reads the engine without changing it, so nodes may run or not. `penstock serve --data
    DIR` serves the directory; to leave the cluster permanently, stop its nodes first. DIR appears
    only when it is complete on disk.

    \b
    Example:
      penstock cluster export ./data --cluster nats://a,b,c
    """
    from penstock_cluster.bootstrap import relocating

    cluster_options = cluster_settings(cluster, settings)
    target = directory.expanduser().absolute()

    async def move_realm(engine: StorageEngine, clock: Clock) -> RealmMoved:
        records = await _records(cluster_options)
        return await relocating.export_realm(
            engine, records, target, clock=clock, cluster=cluster_options.name
        )

    moved = on_engine(cluster_options, move_realm)
    _show(moved, format, f"`penstock serve --data {directory}` serves it on one machine")


def backup(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the backup; created or updated.", metavar="BACKUP")
    ],
    cluster: Cluster = None,
    settings: SettingsFile = None,
    format: ListFormat = "table",
) -> None:
    """Back up the realm of a cluster to a folder.

    The backup has everything that was acknowledged before the command started. The command reads
    the engine, so nodes may run or not, and clients may use the realm meanwhile. If the folder has
    an earlier backup of the same cluster, only new data is read; the earlier backup stays complete
    if the command fails. `penstock cluster restore` restores it into a cluster without a realm,
    and `penstock store restore` into a data directory. Keep the backup safe: it has all events and
    the credentials of all users.

    \b
    Example:
      penstock cluster backup ./backup --cluster nats://a,b,c
    """
    from penstock_cluster.bootstrap.cluster_backup import ClusterBackup, back_up_cluster

    cluster_options = cluster_settings(cluster, settings)
    target = folder.expanduser().absolute()

    async def write_backup(engine: StorageEngine, clock: Clock) -> ClusterBackup:
        return await back_up_cluster(
            engine,
            await _records(cluster_options),
            target,
            clock=clock,
            cluster=cluster_options.name,
        )

    result = on_engine(cluster_options, write_backup)
    if format == "json":
        write_json(result)
        return
    write(f"{folder}: everything acknowledged before {result.at}")
    written = (
        f"{count(result.files_written, 'file')} written, the others were already in the backup"
    )
    write(f"{count(result.files, 'file')}, {size(result.bytes)}; {written}")


def restore(
    folder: Annotated[Path, typer.Argument(help="The backup.", metavar="BACKUP")],
    cluster: Cluster = None,
    settings: SettingsFile = None,
    dry_run: DryRun = False,
    format: ListFormat = "table",
) -> None:
    """Restore a backup of a cluster or of a single-machine realm into a cluster without a realm.

    Every checksum is compared. Run the command again to continue an interrupted restore; no node
    serves the cluster before it is finished. Then start the nodes. The restored realm has the
    identity of the original: do not let clients use both.

    \b
    Example:
      penstock cluster restore ./backup --cluster nats://a,b,c
    """
    from penstock_core.api.backup_files import MANIFEST
    from penstock_core.vocabulary.errors import InvalidArgument

    if not (folder.is_file() or (folder / MANIFEST).is_file()):
        raise InvalidArgument(f"{folder} is not a backup: it has no {MANIFEST}")
    import_(folder, cluster, settings, dry_run=dry_run, format=format)


async def _records(settings: ClusterSettings) -> Mapping[str, VersionedRecord]:
    """Return the records of a cluster's register, without creating anything."""
    from penstock_server.runtime.writer.clock import SystemClock

    async with opened_inspector(settings, SystemClock()) as inspector:
        return await inspector.records()


async def _plan(directory: Path, settings: ClusterSettings) -> RealmMoved:
    """Return the result that an import of a data directory would have, without changing anything.
    Raises the errors that would refuse the import."""
    from penstock_cluster.bootstrap import relocating

    records = await _records(settings)
    async with relocating.source_realm(directory) as source:
        relocating.check_is_free(records, source.identity, settings.name)
        return relocating.plan_import(source)


@contextmanager
def _directory(path: Path) -> Iterator[Path]:
    """Yield the data directory at a path. A backup is restored into a temporary one."""
    from penstock.client.copies.backup import restore
    from penstock_core.api.backup_files import MANIFEST

    place = path.expanduser().absolute()
    if not (place.is_file() or (place / MANIFEST).is_file()):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix=".penstock-", dir=place.parent) as folder:
        restore(place, Path(folder, "data"))
        yield Path(folder, "data")


def _ending(cluster: str, moved: RealmMoved, *, dry_run: bool, ahead: bool) -> str:
    """Return the last line that an import prints: its result and the next step."""
    if dry_run:
        return f"nothing was changed; the cluster {cluster!r} can import the realm"
    if ahead:
        return (
            f"{count(moved.copied, 'file')} copied; the cluster {cluster!r} waits for the rest: "
            f"stop the realm, and import its data directory"
        )
    return f"the cluster {cluster!r} has the realm; start its nodes"


def _show(moved: RealmMoved, format: ListFormat, ending: str) -> None:
    """Print the numbers of stores, events and files of a move, and ``ending`` as the last line."""
    if format == "json":
        write_json(moved)
        return
    plan = moved.plan
    write(
        f"realm {moved.realm}: {count(plan.channels, 'channel')}, {count(plan.queues, 'queue')}, "
        f"{count(plan.durables, 'durable')}, {count(plan.events, 'event')}"
    )
    write(
        f"{count(plan.files, 'sealed file')} of {size(plan.bytes)}, and {size(plan.unsealed_bytes)}"
        f" in no file yet; {'with its users and rights' if moved.users else 'no users'}"
    )
    if plan.local:
        note(f"not cluster-wide, and empty after a takeover: {', '.join(plan.local)}")
    note(ending)
