"""Command lines of files that start ``penstock``, parsed as the program does it."""

from __future__ import annotations

from typing import Any

import typer.main

from penstock_server.cli.program import app


def parse(arguments: list[str]) -> dict[str, Any]:
    """Return the parameters of a command by name, without running it. Groups such as ``cluster``
    are followed to their command. Raises ``click.UsageError`` for a line that is not valid."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("penstock", arguments)
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        context = command.make_context(name, rest, parent=context)
    params: dict[str, Any] = context.params
    return params
