"""``penstock doctor``, which checks whether this machine has everything that a realm needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock_core.printable import plain
from penstock_core.vocabulary.errors import PenstockError
from penstock_server.cli.shared import choosing
from penstock_server.cli.shared.configuring import SettingsFile
from penstock_server.cli.shared.output import ListFormat, count, note, write, write_json
from penstock_server.parts import registered

if TYPE_CHECKING:
    from penstock_server.cli.checks.checks import Check

CHECKS: Final = "penstock.checks"
"""Entry point group of functions that yield further checks, as
:class:`~penstock_server.cli.checks.checks.Check`."""
CHECK_FAILED: Final = 1
"""Exit status if a check failed."""

_COLOURS: Final = {"ok": "green", "warning": "yellow", "failed": "red"}


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    data: Annotated[
        Path | None, typer.Option("--data", help="Data directory to check.", metavar="DIR")
    ] = None,
    settings: SettingsFile = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Also check Spark by starting a session.")
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", help="Also write a support archive (.tar.gz).", metavar="FILE"),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option("--log", help="Log of the realm, for the archive.", metavar="FILE"),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing archive.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="PENSTOCK_URL",
            help="URL of the running realm, for the archive. [default: the port of the settings]",
            metavar="URL",
        ),
    ] = None,
    format: ListFormat = "table",
) -> None:
    """Check this machine: installation, data directory, ports, limits, clock, TLS files.

    Nothing is created or changed, except the archive of `--bundle`. It has no events, secrets, or
    names of users and clients, and its manifest.json lists its parts and what they leave out. With
    the data directory of a stopped realm it has the counters stored there, otherwise those of the
    running realm. Exit status: 0 if no check failed (warnings are possible), 1 if a check failed.

    \b
    Examples:
      penstock doctor
      penstock doctor --data ./data --settings realm.toml --spark
      penstock doctor --data ./data --bundle support.tar.gz
    """
    is_json = format == "json"
    if bundle is None:
        report(_checks(data, settings, spark=spark), is_json=is_json)
        return
    from penstock_server.cli.checks import bundle as archive
    from penstock_server.cli.checks.bundle_parts import Sources

    archive.check_target(bundle, data, overwrite=overwrite)
    checks = list(_checks(data, settings, spark=spark))
    sources = Sources(data=data, settings=settings, log=log, url=url, checks=checks)
    archive.write_bundle(bundle, sources, overwrite=overwrite)
    note(f"{bundle}: support archive written; read it before you pass it on")
    report(checks, is_json=is_json)


def report(results: Iterable[Check], *, is_json: bool) -> None:
    """Print each check when it is done and then the number of failures, or all checks at the end
    as JSON. Exit with 1 if a check failed."""
    checks = []
    for check in results:
        checks.append(check)
        if not is_json:
            _show(check)
    failed = sum(check.status == "failed" for check in checks)
    if is_json:
        write_json({"ok": not failed, "checks": checks})
    else:
        warned = sum(check.status == "warning" for check in checks)
        write(f"{count(failed, 'failure')}, {count(warned, 'warning')}")
    if failed:
        raise typer.Exit(CHECK_FAILED)


def _checks(data: Path | None, file: Path | None, *, spark: bool) -> Iterator[Check]:
    """Run the checks one by one, and yield their results."""
    from penstock_server.cli.checks import checks
    from penstock_server.settings import Settings

    yield from checks.installation()
    settings = Settings()
    try:
        settings = choosing.chosen(file)
    except PenstockError as error:
        remedy = "see `penstock settings` for the options"
        yield checks.Check("settings", "failed", str(error), remedy=remedy)
    else:
        if file is not None:
            yield checks.Check("settings", "ok", str(file))
    if data is not None:
        yield from checks.data_directory(data.expanduser().absolute())
    yield from checks.ports(settings)
    yield from checks.file_limit(settings)
    yield from checks.clock(data)
    yield from checks.eavesdroppers(settings)
    yield from checks.certificates(settings)
    if spark:
        yield from _spark()


def _spark() -> Iterator[Check]:
    """Run the checks that the package ``penstock-spark`` has registered, and yield their
    results."""
    from penstock_server.cli.checks import checks

    part = registered(CHECKS).get("spark")
    if part is None:
        remedy = "pip install 'penstock-realm[spark]'"
        yield checks.Check("spark", "failed", "penstock-spark is not installed", remedy=remedy)
    else:
        yield from part.load()()


def _show(check: Check) -> None:
    """Print a check and its remedy."""
    word = typer.style(check.status.ljust(8), fg=_COLOURS[check.status])
    typer.echo(f"{word} {check.name.ljust(15)}  {plain(check.found)}")
    if check.remedy and check.status != "ok":
        typer.echo(f"{' ' * 9}{' ' * 15}  -> {plain(check.remedy)}")
