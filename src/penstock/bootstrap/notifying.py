"""Telling systemd how far a realm is: `sd_notify` in its few lines, without a library.

The protocol is a datagram to the socket that ``NOTIFY_SOCKET`` names; where nothing names one,
nobody waits to be told.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

VARIABLE = "NOTIFY_SOCKET"


def ready(status: str, environment: Mapping[str, str] = os.environ) -> None:
    """Clients may come: what is ordered after the unit may start."""
    _tell(f"READY=1\nSTATUS={status}", environment)


def reloading(environment: Mapping[str, str] = os.environ) -> None:
    """Files are read again; :func:`ready` follows."""
    _tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1_000}", environment)


def stopping(environment: Mapping[str, str] = os.environ) -> None:
    """An orderly end has begun."""
    _tell("STOPPING=1\nSTATUS=stopping", environment)


def _tell(message: str, environment: Mapping[str, str]) -> None:
    address = environment.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # an abstract socket
        address = f"\0{address[1:]}"
    # Whoever asked to be told has gone: the realm is none the worse for it.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(message.encode(), address)
