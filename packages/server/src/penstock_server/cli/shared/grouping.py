"""What all groups of commands have in common."""

from __future__ import annotations

from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from penstock_server.parts import registered

GROUP: Final = "penstock.commands"
"""Group of functions that register commands with a Typer application; ``cluster.demo`` is the
command ``demo`` of the group ``cluster``."""

_LINE_MAX: Final = 1_000
"""Columns for a line of help; more than the first sentence of any command has."""


class CommandGroup(TyperGroup):
    """A group that lists its commands with whole sentences instead of cutting them."""

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
    """An empty group of commands with this help."""
    return typer.Typer(cls=CommandGroup, help=help, no_args_is_help=True, rich_markup_mode=None)


class WordsCommand(TyperCommand):
    """A command whose usage has the words of its arguments as they are written, each of which may
    go to a line of its own."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument"]
        words = [word for each in arguments for word in (each.metavar or "").split()]
        return [self.options_metavar or "", *words]


def register_below(group: str, commands: typer.Typer) -> None:
    """Add to a group of commands those that installed packages register for it."""
    for name, part in registered(GROUP).items():
        if name.startswith(f"{group}."):
            part.load()(commands)
