"""Looking things up: the settings of a server, what an error means, how fast it is."""

from __future__ import annotations

import difflib
import inspect
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.output import ListFormat, Table, write, write_facts, write_json
from penstock.core.errors import InvalidArgument, PenstockError, error_classes


def register(app: typer.Typer) -> None:
    app.command("settings")(settings)
    app.command("error")(error)
    passed_on = {"ignore_unknown_options": True, "help_option_names": []}
    app.command("bench", context_settings={**passed_on, "allow_extra_args": True})(bench)


def settings(
    file: Annotated[
        Path | None,
        typer.Option(
            "--settings", help="Check this file, and show what is in effect.", metavar="FILE"
        ),
    ] = None,
    format: ListFormat = "table",
) -> None:
    """List every option of the server; with a file, check it and show what is in effect.

    An option the server does not know, or a value it does not take, is refused with its path.

    \b
    Examples:
      penstock settings --format json
      penstock settings --settings realm.toml
    """
    from penstock.settings import described, variable_of

    if file is not None:
        _show_in_effect(file, format)
        return
    if format == "json":
        write_json(
            [
                {"option": path, "variable": variable_of(path), "default": default, "help": text}
                for path, default, text in described()
            ]
        )
        return
    width = max(len(path) for path, _, _ in described())
    for path, default, text in described():
        write(f"{path.ljust(width)}  {default}")
        write(f"    {text}")
        write(f"    {variable_of(path)}")
    write("")
    write("In a settings file, [listen] port = 9000 is listen.port.")


def _show_in_effect(file: Path, style: str) -> None:
    from penstock.cli.server import text_of
    from penstock.settings import in_effect

    found = in_effect(text_of(file), os.environ)
    if style == "json":
        write_json([{"option": path, "value": value, "from": by} for path, value, by in found])
        return
    shown = [(path, "" if value is None else value, by) for path, value, by in found]
    Table(("option", "value", "from")).write(shown)


def error(
    code: Annotated[
        str | None, typer.Argument(help="The code in brackets at the end of an error message.")
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


def bench(ctx: typer.Context) -> None:
    """Measure Penstock beside other servers on this machine.

    Arguments go to the benchmarks: shapes, --peer, --json and more; see `penstock bench --help`.

    \b
    Example:
      penstock bench S1 --peer nats
    """
    from penstock.bench.__main__ import main

    raise typer.Exit(main(ctx.args))
