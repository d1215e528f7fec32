"""Confirmation before something is removed for good: a person is asked, a script has to pass
``--yes``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock_core.printable import plain
from penstock_server.cli.shared.output import note

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Needed without a terminal.")]


def confirm(question: str, *, yes: bool) -> None:
    """Return if ``yes``, or if the person at the terminal agrees; end the command otherwise.

    Without a terminal nobody can answer, so nothing is done. Raises ``typer.BadParameter``.
    """
    if yes:
        return
    question = plain(question)
    if not is_asked():
        raise typer.BadParameter(f"{question} There is no terminal to answer on; pass --yes.")
    if not typer.confirm(question, err=True):
        note("nothing was changed")
        raise typer.Exit(1)


def is_asked() -> bool:
    """Whether there is a terminal at which a person can answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()
