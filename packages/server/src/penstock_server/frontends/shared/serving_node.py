"""Redirects from a standby node of a cluster to the node that serves the realm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from penstock_core.vocabulary.errors import Elsewhere, NoQuorum, PenstockError
from penstock_server.frontends.shared.transports import LINGER_S

NO_OWNER: Final = (
    "no node of the cluster serves this realm at the moment, and one of them will soon; try again"
)

QUORUM_LOST: Final = (
    "the cluster's engine has no majority of its servers, or this node does not reach it, so data "
    "cannot be stored; the outcome of unanswered requests is unknown"
)


class ServingNode(Struct, frozen=True):
    """The node that serves the realm."""

    name: str
    serves: Mapping[str, str]
    """URLs of the node's front ends, by name of the front end."""
    process: str = ""
    """Nonce of this start of the node."""
    secret_name: str = ""
    """Name of the secret that signs relayed connections; empty if the node accepts none."""

    def url(self, front_end: str) -> str:
        """Return the URL of a front end; empty if the node does not serve it."""
        return self.serves.get(front_end, "")

    def place(self, front_end: str) -> tuple[str, int] | None:
        """Return the host and port of a front end; None if the node does not serve it or its URL is
        not valid."""
        try:
            parts = urlsplit(self.url(front_end))
            host, port = parts.hostname, parts.port
        except ValueError:
            return None
        return (host, port) if host and port else None


FindOwner = Callable[[], ServingNode | None]
"""Returns the node that serves the realm now; None if it is unknown."""


def refusal(owner: ServingNode | None, front_end: str, *, has_quorum: bool = True) -> PenstockError:
    """Return the error for clients of a standby node: ``Elsewhere``, which names the owner if it is
    known, or ``NoQuorum`` if the owner is unknown and the engine cannot be reached (SEM N2)."""
    if owner is None:
        return Elsewhere(NO_OWNER) if has_quorum else NoQuorum(QUORUM_LOST)
    url = owner.url(front_end)
    return Elsewhere(f"node {owner.name} serves this realm now" + (f", at {url}" if url else ""))


def part(transport: asyncio.Transport, last: bytes) -> None:
    """Send the bytes ``last``, and close the connection after the peer has closed its side. Closing
    it while data from the peer is unread would reset the connection, and ``last`` could be lost."""
    transport.write(last)
    if transport.can_write_eof():
        transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
    else:  # TLS
        transport.close()
