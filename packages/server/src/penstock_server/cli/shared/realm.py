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
    typer.Option("--url", envvar="PENSTOCK_URL", help="URL of the realm.", metavar="URL"),
]

Local = Annotated[
    str | None,
    typer.Option("--local", help="Create it on this node of the cluster only.", metavar="NODE"),
]


@contextmanager
def session(url: str) -> Iterator[Session]:
    """Open a session for one command. Raises ``CannotConnect``, ``InvalidArgument``."""
    from penstock.client.sync.sync import connect  # imports Arrow, so only when a command needs it

    with connect(url) as opened:
        opened.on_error(lambda error: None)  # the command's own calls raise its errors
        opened.on_interruption(lambda error: None)  # it reconnects by itself, or its calls fail
        yield opened


@contextmanager
def session_at(url: str, node: str | None) -> Iterator[Session]:
    """Open a session for one command, with the local channels of a cluster node, or with the realm
    if ``node`` is None.

    Raises ``NameDoesNotExist``, ``CannotConnect``, ``InvalidArgument``.
    """
    if node is None:
        with session(url) as realm:
            yield realm
        return
    from penstock.client.connection.urls import moved_to

    with session(url) as realm:
        nodes = realm.cluster().nodes
    local_urls = {member.node: member.local_url for member in nodes if member.local_url}
    if node not in local_urls:
        names = ", ".join(sorted(local_urls)) or "none"
        raise NameDoesNotExist(
            f"the cluster has no node {node} with local channels; nodes with local channels: "
            f"{names} (start a node with penstock serve --local-port)"
        )
    with session(moved_to(url, local_urls[node])) as local:
        yield local


def local_names(realm: Session, kind: str) -> list[str]:
    """Return the local stores of a kind of all cluster nodes, as ``name @node``; empty if the user
    may not see the cluster."""
    with suppress(AccessDenied):
        stores = realm.cluster().local
        return [f"{store.name} @{store.node}" for store in stores if store.kind == kind]
    return []
