"""Tells systemd the state of the realm, by the ``sd_notify`` protocol.

It is a datagram to the socket in ``NOTIFY_SOCKET``; without that variable nothing is sent.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

from penstock_core.printable import on_one_line

VARIABLE = "NOTIFY_SOCKET"


def ready(status: str, environment: Mapping[str, str] = os.environ) -> None:
    """The realm is ready for clients, so units that are ordered after it may start."""
    _tell(f"READY=1\nSTATUS={status}", environment)


def reloading(environment: Mapping[str, str] = os.environ) -> None:
    """Configuration files are being reloaded; :func:`ready` follows."""
    _tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1_000}", environment)


def stopping(environment: Mapping[str, str] = os.environ) -> None:
    """An orderly shutdown has begun."""
    _tell("STOPPING=1\nSTATUS=stopping", environment)


def waiting(status: str, environment: Mapping[str, str] = os.environ) -> None:
    """The realm has not started yet, for the reason in ``status``."""
    _tell(f"STATUS={on_one_line(status)}", environment)


def _tell(message: str, environment: Mapping[str, str]) -> None:
    address = environment.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # an abstract socket
        address = f"\0{address[1:]}"
    # Nobody listens on the socket any more, which does not concern the realm.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(message.encode(), address)
