"""Notifies systemd of the state of the realm with the ``sd_notify`` protocol.

Each notification is a datagram to the socket in ``NOTIFY_SOCKET``; without that variable nothing is
sent.
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
    """Notify that the realm is ready for clients, so that units ordered after it may start."""
    _notify(f"READY=1\nSTATUS={status}", environment)


def reloading(environment: Mapping[str, str] = os.environ) -> None:
    """Notify that configuration files are being reloaded; :func:`ready` follows."""
    _notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1_000}", environment)


def stopping(environment: Mapping[str, str] = os.environ) -> None:
    """Notify that an orderly shutdown has begun."""
    _notify("STOPPING=1\nSTATUS=stopping", environment)


def waiting(status: str, environment: Mapping[str, str] = os.environ) -> None:
    """Notify that the realm has not started yet, for the reason in ``status``."""
    _notify(f"STATUS={on_one_line(status)}", environment)


def _notify(message: str, environment: Mapping[str, str]) -> None:
    address = environment.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # an abstract socket
        address = f"\0{address[1:]}"
    # If the socket no longer has a listener, the notification is lost, which is harmless.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(message.encode(), address)
