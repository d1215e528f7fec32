"""``penstock settings`` and ``penstock error``: explain settings and error codes."""

from __future__ import annotations

import difflib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock_core.vocabulary.errors import InvalidArgument, PenstockError, error_classes
from penstock_server.cli.shared import completing
from penstock_server.cli.shared.choosing import shown
from penstock_server.cli.shared.configuring import server_flags
from penstock_server.cli.shared.output import ListFormat, write, write_facts, write_json
from penstock_server.cli.shared.server_flags import LOG, PORTS, flags_of

if TYPE_CHECKING:
    from penstock_server.settings.loading import InForce


def register(app: typer.Typer) -> None:
    app.command("settings")(settings)
    app.command("error")(error)


@server_flags("settings", "host", *PORTS, *LOG)
def settings(
    *,
    explain: Annotated[
        bool, typer.Option("--list", help="Say what each option is for, and its default.")
    ] = False,
    format: ListFormat = "table",
    **written: Any,
) -> None:
    """Show what is in force: every option with its value, unit, and where that comes from.

    It is what `penstock serve` would take here and now with the same file, environment and
    flags. An option the server does not know, or a value it does not take, is refused with its
    path; passwords in URLs are hidden.

    \b
    Examples:
      penstock settings
      penstock settings --settings realm.toml --format json
      penstock settings --list
    """
    if explain and format == "table":
        _explain()
        return
    file = written["settings"]
    found = shown(file, flags_of(written))
    if format == "json":
        write_json(found)
        return
    rows = [(each.option, _said(each.value), each.unit, _origin(each, file)) for each in found]
    _aligned([("option", "value", "unit", "from"), *rows])


def _aligned(rows: list[tuple[str, str, str, str]]) -> None:
    """Print a table in which nothing is cut, because half a path is useless."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        write(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        )


def _explain() -> None:
    from penstock_server.settings.loading import described, unit_of, variable_of

    width = max(len(path) for path, _, _ in described())
    for path, default, text in described():
        write(f"{path.ljust(width)}  {_said(default)} {unit_of(path)}".rstrip())
        write(f"    {text}")
        write(f"    {variable_of(path)}")
    write("")
    write("In a settings file, [listen] port = 9000 is listen.port.")


def _said(value: Any) -> str:
    """A value as settings files write it."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _origin(each: InForce, file: Path | None) -> str:
    """Where a setting was made, and so can be changed."""
    match each.origin:
        case "environment":
            return f"environment {each.variable}"
        case "file":
            return f"file {file}"
        case origin:
            return origin


def error(
    code: Annotated[
        str | None,
        typer.Argument(
            help="The code in brackets at the end of an error message.",
            autocompletion=completing.codes,
        ),
    ] = None,
    format: ListFormat = "table",
) -> None:
    """Say what an error code means, or list them all.

    \b
    Example:
      penstock error durable-in-use
    """
    known = error_classes()
    if code is None:
        _list_errors([known[name] for name in sorted(known)], format)
        return
    found = known.get(code.strip("[]"))
    if found is None:
        near = difflib.get_close_matches(code, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else "; penstock error lists them all"
        raise InvalidArgument(f"there is no error {code!r}{hint}")
    if format == "json":
        write_json(_explained(found))
        return
    write_facts(
        [
            ("code", found.code),
            ("class", f"penstock.{found.__name__}"),
            ("means", _meaning(found)),
            ("try again", "may help later" if found.retryable else "will not help by itself"),
        ]
    )


def _list_errors(classes: list[type[PenstockError]], style: str) -> None:
    if style == "json":
        write_json([_explained(each) for each in classes])
        return
    width = max(len(each.code) for each in classes)
    for each in classes:
        write(f"{each.code.ljust(width)}  {_meaning(each)}")


def _explained(found: type[PenstockError]) -> dict[str, Any]:
    return {
        "code": found.code,
        "class": found.__name__,
        "means": _meaning(found),
        "retryable": found.retryable,
    }


def _meaning(found: type[PenstockError]) -> str:
    return " ".join((inspect.getdoc(found) or "").split())
