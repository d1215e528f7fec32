"""The commands on the pages are commands of the program."""

from __future__ import annotations

from typing import Any

import pytest
import typer.main

from penstock_server.cli.program import app
from tests.docs.pages import PAGES, Command, commands

pytestmark = pytest.mark.slow

COMMANDS = [command for page in PAGES for command in commands(page)]


def parse(arguments: list[str]) -> None:
    """Take arguments apart as the program does, without running anything."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("penstock", arguments)
    while hasattr(command, "resolve_command"):
        name, command, arguments = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        context = command.make_context(name, arguments, parent=context)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.place)
def test_a_command_is_written_right(command: Command) -> None:
    parse(command.arguments)


def test_a_wrong_option_is_noticed() -> None:
    with pytest.raises(Exception, match="--colour"):
        parse(["channel", "create", "orders", "--colour", "red"])
    with pytest.raises(Exception, match="chanel"):
        parse(["chanel", "list"])


def test_every_command_a_newcomer_needs_is_shown() -> None:
    shown = {tuple(command.arguments[:2]) for command in COMMANDS}

    for group in ("channel", "durable", "queue"):
        for word in ("create", "list", "show", "delete"):
            assert (group, word) in shown, f"no page shows penstock {group} {word}"
    assert shown >= {("join", "create"), ("realm", "pause"), ("store", "verify")}
    assert {first for first, *_ in shown} >= {"serve", "publish", "subscribe", "browse", "redrive"}
