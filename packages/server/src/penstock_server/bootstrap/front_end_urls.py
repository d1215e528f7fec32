"""The URLs under which the front ends of a realm are reached."""

from __future__ import annotations

from penstock.client.connection.urls import Address
from penstock_server.frontends.front_end import FrontEnd


def front_end_url(front_end: FrontEnd, host: str, port: int, *, is_safe: bool) -> str:
    """Where a front end is; ``is_safe`` with TLS."""
    return f"{front_end.schemes[is_safe]}{Address(host, port)}"
