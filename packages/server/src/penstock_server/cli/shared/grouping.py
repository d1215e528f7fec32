"""Base classes for groups of commands."""

from __future__ import annotations

from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from penstock_server.parts import registered

GROUP: Final = "penstock.commands"
"""Entry point group of functions that register commands with a Typer application;
``cluster.demo`` is the command ``demo`` of the group ``cluster``."""

_LINE_MAX: Final = 1_000
"""Columns for a command's line in a list; more than the first sentence of any help text."""


class CommandGroup(TyperGroup):
    """A group that lists its commands with complete sentences; Typer would truncate them."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        names = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(_LINE_MAX))
            for name, command in names
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def command_group(help: str) -> typer.Typer:
    """Return an empty group of commands with this help text."""
    return typer.Typer(cls=CommandGroup, help=help, no_args_is_help=True, rich_markup_mode=None)


class WordsCommand(TyperCommand):
    """A command whose usage line shows the metavars of its arguments word by word, so that it can
    break between them."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        parameters = self.get_params(ctx)
        arguments = [item for item in parameters if item.param_type_name == "argument"]
        words = [word for argument in arguments for word in (argument.metavar or "").split()]
        return [self.options_metavar or "", *words]


def register_below(group: str, commands: typer.Typer) -> None:
    """Add the commands that installed packages register for a group of commands."""
    for name, part in registered(GROUP).items():
        if name.startswith(f"{group}."):
            part.load()(commands)
