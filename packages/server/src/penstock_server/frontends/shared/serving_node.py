"""Where a node of a cluster that stands by sends those who come to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from penstock_core.vocabulary.errors import Elsewhere, NoQuorum, PenstockError
from penstock_server.frontends.shared.transports import LINGER_S

NOBODY: Final = (
    "no node of the cluster serves this realm at the moment, and one of them will soon; try again"
)

QUORUM_LOST: Final = (
    "the engine of the cluster has no majority of its servers, or this node does not reach it: "
    "nothing can be stored; what was not answered is neither refused nor done"
)


class ServingNode(Struct, frozen=True):
    """The node that serves the realm."""

    name: str
    serves: Mapping[str, str]
    """The URL of each of its front ends."""
    process: str = ""
    """The nonce of this start of the node."""
    secret_name: str = ""
    """What it calls the secret with which relayed connections are signed; empty: it takes none."""

    def url(self, front_end: str) -> str:
        """Where it serves that; empty: it does not."""
        return self.serves.get(front_end, "")

    def place(self, front_end: str) -> tuple[str, int] | None:
        """Host and port where it serves that; None: it does not, or its record has no URL there."""
        try:
            parts = urlsplit(self.url(front_end))
            host, port = parts.hostname, parts.port
        except ValueError:
            return None
        return (host, port) if host and port else None


FindOwner = Callable[[], ServingNode | None]
"""Gives the node that serves the realm now; None while nobody is known to."""


def refusal(owner: ServingNode | None, front_end: str, *, has_quorum: bool = True) -> PenstockError:
    """What somebody is told who has come to a node that stands by. While it does not reach the
    engine and knows nobody who serves, it can promise nothing (SEM N2)."""
    if owner is None:
        return Elsewhere(NOBODY) if has_quorum else NoQuorum(QUORUM_LOST)
    url = owner.url(front_end)
    return Elsewhere(f"node {owner.name} serves this realm now" + (f", at {url}" if url else ""))


def part(transport: asyncio.Transport, last: bytes) -> None:
    """Send the last bytes, and close once the peer has: closing before everything it sends is read
    would destroy what is on its way to it."""
    transport.write(last)
    if transport.can_write_eof():
        transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
    else:  # TLS
        transport.close()
