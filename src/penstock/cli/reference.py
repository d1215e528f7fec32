"""Looking things up: the settings of a server, what an error means, how fast it is."""

from __future__ import annotations

import difflib
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.output import ListFormat, write, write_facts, write_json
from penstock.core.errors import InvalidArgument, PenstockError, error_classes


def register(app: typer.Typer) -> None:
    app.command("settings")(settings)
    app.command("error")(error)
    passed_on = {"ignore_unknown_options": True, "help_option_names": []}
    app.command("bench", context_settings={**passed_on, "allow_extra_args": True})(bench)


def settings(format: ListFormat = "table") -> None:
    """List every option of the server.

    \b
    Example:
      penstock settings --format json
    """
    from penstock.settings import described, variable_of

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
    """Measure this machine, from a source checkout.

    Arguments go to the benchmarks.

    \b
    Example:
      penstock bench S1
    """
    root = Path(__file__).resolve().parents[3]
    if not (root / "bench" / "__main__.py").is_file():
        raise InvalidArgument(
            "the benchmarks are not in the installed package; clone the repository and run "
            "make bench there"
        )
    command = [sys.executable, "-m", "bench", *ctx.args]
    status = subprocess.run(command, cwd=root, env=dict(os.environ), check=False).returncode
    raise typer.Exit(status)
