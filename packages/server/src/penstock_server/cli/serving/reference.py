"""``penstock settings`` and ``penstock error``, which explain settings and error codes."""

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
        bool, typer.Option("--list", help="Describe every option and show its default.")
    ] = False,
    format: ListFormat = "table",
    **written: Any,
) -> None:
    """Show the settings in force: every option with its value, its unit and its origin.

    These are the settings that `penstock serve` would use with the same file, environment and
    flags. An unknown option or an invalid value is refused with its path. Passwords in URLs are
    hidden.

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
    settings_in_force = shown(file, flags_of(written))
    if format == "json":
        write_json(settings_in_force)
        return
    rows = [
        (setting.option, _text_of(setting.value), setting.unit, _origin(setting, file))
        for setting in settings_in_force
    ]
    _write_aligned([("option", "value", "unit", "from"), *rows])


def _write_aligned(rows: list[tuple[str, str, str, str]]) -> None:
    """Print a table without truncating cells, because half a path is useless."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        write(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        )


def _explain() -> None:
    from penstock_server.settings.loading import described, unit_of, variable_of

    width = max(len(path) for path, _, _ in described())
    for path, default, text in described():
        write(f"{path.ljust(width)}  {_text_of(default)} {unit_of(path)}".rstrip())
        write(f"    {text}")
        write(f"    {variable_of(path)}")
    write("")
    write("In a settings file, [listen] port = 9000 is listen.port.")


def _text_of(value: Any) -> str:
    """Return a value as it is written in a settings file."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _origin(setting: InForce, file: Path | None) -> str:
    """Return where a setting was set, which is where the user can change it."""
    match setting.origin:
        case "environment":
            return f"environment {setting.variable}"
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
    """Explain an error code, or list all error codes.

    \b
    Example:
      penstock error durable-in-use
    """
    classes = error_classes()
    if code is None:
        _list_errors([classes[name] for name in sorted(classes)], format)
        return
    error_class = classes.get(code.strip("[]"))
    if error_class is None:
        near = difflib.get_close_matches(code, classes, n=1)
        hint = f"; did you mean {near[0]}?" if near else "; penstock error lists all codes"
        raise InvalidArgument(f"the error code {code!r} does not exist{hint}")
    if format == "json":
        write_json(_document(error_class))
        return
    write_facts(
        [
            ("code", error_class.code),
            ("class", f"penstock.{error_class.__name__}"),
            ("means", _meaning(error_class)),
            ("try again", "may help later" if error_class.retryable else "will not help by itself"),
        ]
    )


def _list_errors(classes: list[type[PenstockError]], style: str) -> None:
    if style == "json":
        write_json([_document(error_class) for error_class in classes])
        return
    width = max(len(error_class.code) for error_class in classes)
    for error_class in classes:
        write(f"{error_class.code.ljust(width)}  {_meaning(error_class)}")


def _document(error_class: type[PenstockError]) -> dict[str, Any]:
    """Return the description of an error for JSON output."""
    return {
        "code": error_class.code,
        "class": error_class.__name__,
        "means": _meaning(error_class),
        "retryable": error_class.retryable,
    }


def _meaning(error_class: type[PenstockError]) -> str:
    """Return the docstring of an error on one line."""
    return " ".join((inspect.getdoc(error_class) or "").split())
