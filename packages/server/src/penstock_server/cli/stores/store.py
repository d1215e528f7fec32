"""``penstock store``: verify and repair data directories; back up and copy those in use."""

from __future__ import annotations

import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_core.vocabulary.errors import PenstockError
from penstock_server.cli.shared.grouping import command_group
from penstock_server.cli.shared.output import (
    ListFormat,
    count,
    note,
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

FOUND = 1
"""Exit status of ``verify`` when something is damaged."""

commands = command_group(
    "Check and repair a data directory that is not in use; back up a realm that runs."
)


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="store")


@commands.command("verify")
def verify(directory: Directory, format: ListFormat = "table") -> None:
    """Read everything in a data directory and say what is wrong with it; change nothing.

    Every journal block, snapshot, sealed file, page and registry record is read and its checksum
    verified. Exit status: 0 all is well, 1 something is damaged. What was set aside by earlier
    repairs is listed, and is not a finding.

    \b
    Example:
      penstock store verify ./data
    """
    import asyncio

    from penstock_server.bootstrap import stopped  # imports Arrow, so only when a command needs it

    with _quietly():
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
        raise typer.Exit(FOUND)


@commands.command("repair")
def repair(directory: Directory, format: ListFormat = "table") -> None:
    """Set aside what is damaged in a data directory, so that all the rest is sound again.

    Damaged bytes are copied into quarantine/ in the data directory, with a report; events in
    them are counted as quarantined, and durables do not wait for them any more. Nothing is
    deleted that has not been copied. Where nothing is wrong, nothing happens.

    \b
    Example:
      penstock store repair ./data
    """
    import asyncio

    from penstock_server.bootstrap import stopped

    with _quietly():
        repaired = asyncio.run(stopped.repair_store(directory))
    if format == "json":
        write_json(repaired)
        return
    _write_findings(repaired.findings)
    if repaired.is_sound:
        note("nothing is wrong; nothing was changed")
        return
    rows = [(name,) for name in repaired.kept]
    write_table(("IN QUARANTINE",), rows, "nothing had to be copied")
    note(f"{repaired.events} events could not be read and are counted as quarantined")


@commands.command("backup")
def backup(
    folder: Annotated[
        Path, typer.Argument(help="The backup; made, or brought up to date.", metavar="BACKUP")
    ],
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Back up a realm that runs: everything acknowledged until now, in a folder or file.

    Traffic goes on. With a name that ends in .tar it is one file, whole each time; nothing else is
    written beside it. A folder with an earlier backup of the same realm is brought up to date, and
    only what is new is read; it stays whole if that fails. Keep it safe: it holds all events, and
    who may sign in. Needs the right `full` on the realm.

    \b
    Examples:
      penstock store backup ./backup
      penstock store backup /mnt/backups/berlin --url penstock://berlin:9000
      penstock store backup berlin.tar
    """
    with session(url) as realm:
        done = realm.back_up(folder)
    if format == "json":
        write_json(done)
        return
    write(f"{folder}: everything acknowledged before {done.at}")
    was_read = f"{count(done.files_read, 'file')} of {size(done.bytes_read)} read"
    write(f"{count(done.files, 'file')}, {size(done.bytes)}; {was_read}, the others were there")


@commands.command("copy")
def copy(
    to: Annotated[
        str,
        typer.Option("--to", help="Where: s3://bucket/prefix, gs://, hdfs://, or a folder."),
    ],
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is sealed.")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.1, help="Seconds between looks with --follow.")
    ] = 30.0,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove files the realm has no more.")
    ] = False,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Copy the sealed files of a realm that runs, for Spark's executors to read them there.

    Only files that are new or have grown are read; each appears whole, and a copy that was broken
    off goes on. It holds events, and is no backup. Who may write is said by the environment, as
    with AWS_ACCESS_KEY_ID. With `--follow` a realm or store that is away is waited for. Needs the
    right `full` on the realm.

    \b
    Examples:
      penstock store copy --to /mnt/shared/berlin
      penstock store copy --to s3://lake/berlin --follow --prune
    """
    while True:
        try:
            with session(url) as realm:
                _copy(realm, to, prune=prune, format=format, is_told=not follow)
        except PenstockError as error:
            if not (follow and error.retryable):
                raise
            note(f"{error}; tried again in {every:g} s")
        if not follow:
            return
        select.select([], [], [], every)


def _copy(realm: Session, to: str, *, prune: bool, format: ListFormat, is_told: bool) -> None:
    """Copy once, and print the result; with ``is_told`` even if nothing had to be copied."""
    from penstock_server.bootstrap.copies import (
        copy_files,  # imports the clients of all object stores
    )

    done = copy_files(realm, to, prune=prune)
    if not (is_told or done.files_copied or done.files_removed):
        return
    if format == "json":
        write_json(done)
        sys.stdout.flush()
        return
    copied = f"{count(done.files_copied, 'file')} of {size(done.bytes_copied)} copied"
    removed = f", {count(done.files_removed, 'file')} removed" if done.files_removed else ""
    write(f"{count(done.files, 'file')}, {size(done.bytes)}; {copied}{removed}")
    sys.stdout.flush()  # for a program that reads this line by line
    if done.files_left:
        note(f"{count(done.files_left, 'file')} of no more events: --prune removes them")


@commands.command("restore")
def restore(
    folder: Annotated[Path, typer.Argument(help="The backup.", metavar="BACKUP")],
    directory: Annotated[
        Path, typer.Argument(help="Data directory to make; empty or missing.", metavar="DIR")
    ],
) -> None:
    """Make a data directory out of a backup, and verify it.

    Every checksum is compared; when anything fails nothing is left. The realm in it is the one
    that was backed up: do not let clients use both. Exit status: 1 when `verify` finds damage
    that was backed up with it.

    \b
    Example:
      penstock store restore ./backup ./restored
    """
    import asyncio

    from penstock.client.copies.backup import restore as restored
    from penstock_server.bootstrap import stopped

    manifest = restored(folder, directory)
    with _quietly():
        report = asyncio.run(stopped.verify_store(directory))
    write(f"{directory}: realm {manifest.name} as of {manifest.at}, {report.events} events")
    _write_findings(report.findings)
    if report.findings:
        note(f"`penstock store repair {directory}` sets damaged bytes aside")
        raise typer.Exit(FOUND)


def _write_findings(findings: list[Finding]) -> None:
    for found in findings:
        place = "" if found.first_byte is None else f" bytes {found.first_byte}-{found.end_byte}"
        lost = sum(end - first for first, end in found.events)
        events = f" ({lost} events of {found.channel})" if lost else ""
        note(f"{found.file}{place}: {found.reason}{events}")


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep log lines from standard output; what they say is in the report, too."""
    from structlog.testing import capture_logs

    with capture_logs():
        yield
