"""The URLs under which the front ends of a realm are reached."""

from __future__ import annotations

from typing import Final

from penstock.client.connection.urls import SCHEME, TLS_SCHEME, Address
from penstock.frontends.shared.serving_node import FrontEnd

SCHEMES: Final[dict[FrontEnd, tuple[str, str]]] = {
    "native": (SCHEME, TLS_SCHEME),
    "http": ("http://", "https://"),
    "amqp": ("amqp://", "amqps://"),
    "mqtt": ("mqtt://", "mqtts://"),
}
"""The beginnings of a front end's URLs, without TLS and with it."""


def front_end_url(front_end: FrontEnd, host: str, port: int, *, is_safe: bool) -> str:
    """Where a front end is; ``is_safe`` with TLS."""
    return f"{SCHEMES[front_end][is_safe]}{Address(host, port)}"
