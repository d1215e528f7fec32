"""Generates the reference page of the command line from the program itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_args

import typer.main

from penstock_server.cli.program import app
from tests.docs.markdown import cell, table

HEAD = """# Commands

Written from the program; `penstock COMMAND --help` says the same.
Every command that talks to a realm takes `--url`, or `PENSTOCK_URL` from the environment.
It ends with 0 when done, 1 when refused (the [error](errors.md) on standard error), \
2 for wrong usage, 130 after Ctrl-C.
"""


def cli_page() -> str:
    """Return the page: every command with its arguments, options and examples."""
    root: Any = typer.main.get_command(app)
    parts = [HEAD]
    for name in root.list_commands(None):
        parts += _command(root.get_command(None, name), f"penstock {name}")
    return "\n".join(parts)


def _command(command: Any, path: str) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    yield f"{'##' if path.count(' ') == 1 else '###'} {path}\n"
    yield _help(command.help or "")
    if inner:
        for name in inner:
            yield from _command(inner[name], f"{path} {name}")
        return
    usage = " ".join(_usage(parameter) for parameter in command.params if not parameter.hidden)
    yield f"```text\n{path} {usage}".rstrip() + "\n```\n"
    rows = [_row(parameter) for parameter in command.params if not parameter.hidden]
    if rows:
        yield table(["", "meaning"], rows) + "\n"


def _usage(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = _argument(parameter)
        return name if parameter.required else f"[{name}]"
    return f"{_longest(parameter)} …" if parameter.required else ""


def _argument(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name).upper()
    return f"{name}..." if parameter.nargs == -1 and not name.endswith("...") else name


def _longest(parameter: Any) -> str:
    return max(map(str, parameter.opts), key=len)


def _row(parameter: Any) -> list[str]:
    if parameter.param_type_name == "argument":
        name = f"`{_argument(parameter)}`"
    else:
        names = sorted([*parameter.opts, *parameter.secondary_opts], key=_length_of_dashes)
        value = "" if parameter.is_flag else f" {_kind(parameter)}"
        name = ", ".join(f"`{option}`" for option in names[:-1])
        name += (", " if name else "") + f"`{names[-1]}{value}`"
    return [name, cell(f"{parameter.help or ''} {_words(parameter)}")]


def _words(parameter: Any) -> str:
    choices = _choices(parameter.type_descriptor.annotation)
    if not choices or parameter.metavar:
        return ""
    return f"One of {', '.join(f'`{choice}`' for choice in choices)}."


def _length_of_dashes(name: str) -> tuple[bool, bool]:
    return name.startswith("--"), name.startswith("--no-")


def _kind(parameter: Any) -> str:
    annotation = parameter.type_descriptor.annotation
    choices = _choices(annotation)
    if choices and not parameter.metavar:
        return "WORD"
    return str(parameter.metavar or getattr(annotation, "__name__", "text")).upper()


def _choices(annotation: Any) -> list[str]:
    """Return the words that an option accepts, if they are few."""
    choices: list[str] = []
    for argument in get_args(annotation):
        choices += [argument] if isinstance(argument, str) else _choices(argument)
    return choices


def _help(text: str) -> str:
    """Return the help of a command, with its preformatted parts as code blocks."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n".join(_block(part) if part.startswith("\b") else f"{part}\n" for part in parts)


def _block(part: str) -> str:
    first, *lines = part.removeprefix("\b").strip("\n").split("\n")
    if first.startswith(" "):
        lines, first = [first, *lines], ""
    body = inspect.cleandoc("\n".join(["", *lines]))
    return f"{first}\n\n```text\n{body}\n```\n" if body else f"{first}\n"
