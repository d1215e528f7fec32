"""``penstock store``, whose commands verify and repair data directories, and back up and copy
running realms."""

from __future__ import annotations

import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_core.vocabulary.errors import PenstockError
from penstock_server.cli.shared.grouping import command_group
from penstock_server.cli.shared.output import (
    ListFormat,
    count,
    note,
    quietly,
    size,
    write,
    write_json,
    write_table,
)
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session

if TYPE_CHECKING:
    from penstock.client.sync.sync import Session
    from penstock_server.runtime.upkeep.verification import Finding

Directory = Annotated[Path, typer.Argument(help="Data directory.", metavar="DIR")]

DAMAGED = 1
"""Exit status of ``verify`` if data is damaged."""

commands = command_group(
    "Verify and repair a data directory that is not in use; back up a running realm."
)


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="store")


@commands.command("verify")
def verify(directory: Directory, format: ListFormat = "table") -> None:
    """Read all files of a data directory and report damage; nothing is changed.

    The command reads every journal block, snapshot, sealed file, page and registry record and
    verifies its checksum. Data that earlier repairs set aside is listed, but is not a finding.
    Exit status: 0 if all data is sound, 1 if data is damaged.

    \b
    Example:
      penstock store verify ./data
    """
    import asyncio

    from penstock_server.bootstrap import stopped  # imports Arrow, so only when a command needs it

    with quietly():
        report = asyncio.run(stopped.verify_store(directory))
    if format == "json":
        write_json(report)
    else:
        rows = [
            ("journal blocks", report.blocks),
            ("snapshots", report.snapshots),
            ("sealed files", report.files),
            ("record batches", report.batches),
            ("registry records", report.records),
            ("lines of audit logs", report.audit_lines),
            ("bytes", report.bytes),
            ("events", report.events),
            ("findings", len(report.findings)),
            ("set aside earlier", len(report.quarantined)),
        ]
        write_table(("READ", "COUNT"), rows, "")
        _write_findings(report.findings)
        if report.findings:
            note(f"`penstock store repair {directory}` sets damaged bytes aside")
    if report.findings:
        raise typer.Exit(DAMAGED)


@commands.command("repair")
def repair(directory: Directory, format: ListFormat = "table") -> None:
    """Set damaged data of a data directory aside, so that the rest is sound again.

    Damaged bytes are copied to quarantine/ in the data directory, with a report, before they are
    removed. Events in them are counted as quarantined, and durables no longer wait for them. A
    sound data directory is not changed.

    \b
    Example:
      penstock store repair ./data
    """
    import asyncio

    from penstock_server.bootstrap import stopped

    with quietly():
        outcome = asyncio.run(stopped.repair_store(directory))
    if format == "json":
        write_json(outcome)
        return
    _write_findings(outcome.findings)
    if outcome.is_sound:
        note("no damage; nothing was changed")
        return
    rows = [(name,) for name in outcome.kept]
    write_table(("IN QUARANTINE",), rows, "nothing had to be copied")
    note(f"{outcome.events} events could not be read and are counted as quarantined")


@commands.command("backup")
def backup(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder or .tar file of the backup; created or updated.", metavar="BACKUP"
        ),
    ],
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Back up a running realm to a folder or a file.

    The backup has everything that was acknowledged before the command started. Clients may use
    the realm meanwhile. If the folder has an earlier backup of the same realm, only new data is
    read; the earlier backup stays complete if the command fails. A name that ends in .tar makes a
    single file, which is written in full each time. Keep the backup safe: it has all events and
    the credentials of all users. Requires the right `full` on the realm.

    \b
    Examples:
      penstock store backup ./backup
      penstock store backup /mnt/backups/berlin --url penstock://berlin:9000
      penstock store backup berlin.tar
    """
    with session(url) as realm:
        outcome = realm.back_up(folder)
    if format == "json":
        write_json(outcome)
        return
    write(f"{folder}: everything acknowledged before {outcome.at}")
    files_read = f"{count(outcome.files_read, 'file')} of {size(outcome.bytes_read)} read"
    write(
        f"{count(outcome.files, 'file')}, {size(outcome.bytes)}; {files_read}, the others were "
        "already in the backup"
    )


@commands.command("copy")
def copy(
    to: Annotated[
        str,
        typer.Option("--to", help="Target: s3://bucket/prefix, gs://, hdfs://, or a folder."),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep running and copy newly sealed files.")
    ] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.1, help="Seconds between two copies with --follow.")
    ] = 30.0,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove files that the realm no longer has.")
    ] = False,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Copy the sealed files of a running realm to a place where Spark executors can read them.

    Only files that are new or have grown are copied. Each file appears in the target only when it
    is complete; run the command again to continue an interrupted copy. The copy has events and is
    not a backup. Credentials for the target come from the environment, such as
    AWS_ACCESS_KEY_ID. With `--follow` the command waits while the realm or the target is
    unavailable. Requires the right `full` on the realm.

    \b
    Examples:
      penstock store copy --to /mnt/shared/berlin
      penstock store copy --to s3://lake/berlin --follow --prune
    """
    while True:
        try:
            with session(url) as realm:
                _copy(realm, to, prune=prune, format=format, always_print=not follow)
        except PenstockError as error:
            if not (follow and error.retryable):
                raise
            note(f"{error}; next attempt in {every:g} s")
        if not follow:
            return
        select.select([], [], [], every)


def _copy(realm: Session, to: str, *, prune: bool, format: ListFormat, always_print: bool) -> None:
    """Copy once and print the result; ``always_print`` prints it even if no file had to be
    copied."""
    from penstock_server.bootstrap.copies import (
        copy_files,  # imports the clients of all object stores
    )

    outcome = copy_files(realm, to, prune=prune)
    if not (always_print or outcome.files_copied or outcome.files_removed):
        return
    if format == "json":
        write_json(outcome)
        sys.stdout.flush()
        return
    copied = f"{count(outcome.files_copied, 'file')} of {size(outcome.bytes_copied)} copied"
    removed = f", {count(outcome.files_removed, 'file')} removed" if outcome.files_removed else ""
    write(f"{count(outcome.files, 'file')}, {size(outcome.bytes)}; {copied}{removed}")
    sys.stdout.flush()  # for a program that reads this line by line
    if outcome.files_left:
        note(
            f"{count(outcome.files_left, 'file')} that the realm no longer has: --prune removes "
            "them"
        )


@commands.command("restore")
def restore(
    folder: Annotated[Path, typer.Argument(help="The backup.", metavar="BACKUP")],
    directory: Annotated[
        Path, typer.Argument(help="Data directory to create; empty or missing.", metavar="DIR")
    ],
) -> None:
    """Create a data directory from a backup, and verify it.

    Every checksum is compared; if one differs, no data directory is left. The restored realm has
    the identity of the original: do not let clients use both. Exit status: 1 if `verify` finds
    damage that the original already had.

    \b
    Example:
      penstock store restore ./backup ./restored
    """
    import asyncio

    from penstock.client.copies.backup import restore as restore_backup
    from penstock_server.bootstrap import stopped

    manifest = restore_backup(folder, directory)
    with quietly():
        report = asyncio.run(stopped.verify_store(directory))
    write(f"{directory}: realm {manifest.name} as of {manifest.at}, {report.events} events")
    _write_findings(report.findings)
    if report.findings:
        note(f"`penstock store repair {directory}` sets damaged bytes aside")
        raise typer.Exit(DAMAGED)


def _write_findings(findings: list[Finding]) -> None:
    for item in findings:
        place = "" if item.first_byte is None else f" bytes {item.first_byte}-{item.end_byte}"
        lost = sum(end - first for first, end in item.events)
        events = f" ({lost} events of {item.channel})" if lost else ""
        note(f"{item.file}{place}: {item.reason}{events}")
