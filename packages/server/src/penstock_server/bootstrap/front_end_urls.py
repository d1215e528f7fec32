"""The URLs of a realm's front ends."""

from __future__ import annotations

from penstock.client.connection.urls import Address
from penstock_server.frontends.front_end import FrontEnd


def front_end_url(front_end: FrontEnd, host: str, port: int, *, is_safe: bool) -> str:
    """Return the URL of a front end; ``is_safe`` is whether it uses TLS."""
    return f"{front_end.schemes[is_safe]}{Address(host, port)}"
