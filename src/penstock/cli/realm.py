"""Opens the session of a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from penstock.client.sync.sync import Session

DEFAULT_URL = "penstock://localhost:9000"

Url = Annotated[
    str,
    typer.Option("--url", envvar="PENSTOCK_URL", help="The realm.", metavar="URL"),
]


@contextmanager
def session(url: str) -> Iterator[Session]:
    """A session for one command. Raises ``CannotConnect``, ``InvalidArgument``."""
    from penstock.client.sync.sync import connect  # imports Arrow, so only when a command needs it

    with connect(url) as opened:
        opened.on_error(lambda error: None)  # the command's own calls raise its errors
        yield opened
