"""Help that can be read: whole, at the width of a usual terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main
from typer.testing import CliRunner

from penstock_server.cli.program import app


def helps(command: Any, parent: Any = None, name: str = "penstock") -> Iterator[tuple[str, str]]:
    """The path and the help of each command, at 80 columns."""
    context = command.context_class(command, parent, name, terminal_width=80)
    yield context.command_path, command.get_help(context)
    for below, subcommand in getattr(command, "commands", {}).items():
        yield from helps(subcommand, context, below)


def test_help_is_whole_at_80_columns() -> None:
    shown = dict(helps(typer.main.get_command(app)))

    assert "penstock durable create" in shown
    for path, text in shown.items():
        for line in text.splitlines():
            assert len(line) <= 80, (path, line)
            assert "\N{HORIZONTAL ELLIPSIS}" not in line, (path, line)
            # Only what may be repeated is followed by dots.
            assert not re.search(r"[a-z,]\.\.\.", line), (path, line)


def test_a_list_of_commands_has_their_whole_sentences() -> None:
    shown = CliRunner().invoke(app, ["--help"], terminal_width=80).stdout

    help_text = " ".join(shown.split())
    assert (
        "Publish dead events again, each exactly once, and remove them from the dead event store."
        in help_text
    )
    assert "rates by channel and durable, lag, connections, memory, disk." in help_text
