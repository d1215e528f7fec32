"""Before something is taken away for good: a person is asked, a script has to have said so."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.cli.output import note
from penstock.core.printable import plain

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Needed without a terminal.")]


def confirm(question: str, *, yes: bool) -> None:
    """Return if ``yes``, or if somebody at the terminal says so; ends the command otherwise.

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
    """Whether there is somebody who reads the question and may answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()
