"""Ports for engines that nodes bring along, which take three in a row."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from random import SystemRandom

from penstock_testing.nats_servers import PORTS

ROW = 3


def free_rows(count: int) -> list[int]:
    """The first ports of so many rows that nobody listens on."""
    found: list[int] = []
    with ExitStack() as held:
        for first in SystemRandom().sample(PORTS[::ROW], len(PORTS) // ROW):
            row = ExitStack()
            with suppress(OSError):
                for port in range(first, first + ROW):
                    row.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(first)
            held.push(row)
            if len(found) == count:
                return found
    raise AssertionError(f"no {count} rows of {PORTS} are free")
