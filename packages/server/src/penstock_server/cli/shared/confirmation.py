"""Confirmation before data is removed permanently: a question at the terminal, or ``--yes`` in
scripts."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock_core.printable import plain
from penstock_server.cli.shared.output import note

Yes = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Do not ask for confirmation. Required without a terminal."),
]


def confirm(question: str, *, yes: bool) -> None:
    """Return if ``yes`` is set or the user confirms at the terminal; end the command otherwise.

    Raises ``typer.BadParameter`` if there is no terminal and ``yes`` is not set.
    """
    if yes:
        return
    question = plain(question)
    if not has_terminal():
        raise typer.BadParameter(
            f"{question} There is no terminal to answer on; pass --yes to confirm."
        )
    if not typer.confirm(question, err=True):
        note("nothing was changed")
        raise typer.Exit(1)


def has_terminal() -> bool:
    """Return whether a user can answer questions at a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()
