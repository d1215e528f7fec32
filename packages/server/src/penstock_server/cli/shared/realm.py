"""Opens the session of a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_core.vocabulary.errors import AccessDenied, NameDoesNotExist

if TYPE_CHECKING:
    from penstock.client.sync.sync import Session

DEFAULT_URL = "penstock://localhost:9000"

Url = Annotated[
    str,
    typer.Option("--url", envvar="PENSTOCK_URL", help="The realm.", metavar="URL"),
]

Local = Annotated[
    str | None,
    typer.Option("--local", help="Make it on this node of the cluster alone.", metavar="NODE"),
]


@contextmanager
def session(url: str) -> Iterator[Session]:
    """A session for one command. Raises ``CannotConnect``, ``InvalidArgument``."""
    from penstock.client.sync.sync import connect  # imports Arrow, so only when a command needs it

    with connect(url) as opened:
        opened.on_error(lambda error: None)  # the command's own calls raise its errors
        opened.on_interruption(lambda error: None)  # it goes on by itself, or its calls fail
        yield opened


@contextmanager
def session_at(url: str, node: str | None) -> Iterator[Session]:
    """A session for one command: with the local channels of a node of the cluster, or with the
    realm itself where no node is named. Raises ``NameDoesNotExist``, ``CannotConnect``,
    ``InvalidArgument``."""
    if node is None:
        with session(url) as realm:
            yield realm
        return
    from penstock.client.connection.urls import moved_to

    with session(url) as realm:
        doors = {each.node: each.local_url for each in realm.cluster().nodes if each.local_url}
    if node not in doors:
        known = ", ".join(sorted(doors)) or "none"
        raise NameDoesNotExist(
            f"no node {node} with local channels is known; nodes that have them: {known} "
            f"(penstock serve --local-port)"
        )
    with session(moved_to(url, doors[node])) as local:
        yield local


def local_names(realm: Session, kind: str) -> list[str]:
    """The stores of a kind that single nodes of the cluster have for themselves, as lists show
    them; none for those who may not look at the cluster."""
    with suppress(AccessDenied):
        return [f"{each.name} @{each.node}" for each in realm.cluster().local if each.kind == kind]
    return []
