"""Free loopback ports for servers that a test or a demonstration starts.

A port that is only probed can be taken by another process before the server listens on it, or
while the server is killed and restarted. So each process that asks for ports claims a block of
them, and its ports come from that block in turn.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from random import SystemRandom
from typing import Final

HOST: Final = "127.0.0.1"
PORTS: Final = range(10_000, 32_768)
"""Ports outside the ephemeral range of operating systems. An ephemeral port could be taken by an
outgoing connection."""
BLOCK_PORTS: Final = 512
"""Number of ports of a block, including the one that claims it. A port is used again only after all
the others, so that a server that was killed finds its port free when it restarts."""


class PortBlock:
    """A block of ports that belongs to this process until :meth:`close`."""

    def __init__(self) -> None:
        """Claim a block. Raises ``AssertionError`` if all blocks are claimed."""
        blocks = [
            PORTS[first : first + BLOCK_PORTS]
            for first in range(0, len(PORTS) - BLOCK_PORTS + 1, BLOCK_PORTS)
        ]
        # The generator of `random` would not do: tests seed it, and two processes with the same
        # seed would begin at the same block.
        SystemRandom().shuffle(blocks)
        for block in blocks:
            # The claim is a bound socket, so the operating system gives it up when this process
            # ends, however it ends.
            claim = _bound(block[0])
            if claim is not None:
                self._claim, self._ports, self._position = claim, block[1:], 0
                return
        raise AssertionError(f"all blocks of the ports {PORTS} are claimed by other processes")

    def close(self) -> None:
        """Let other processes claim the block."""
        self._claim.close()

    def take(self, count: int) -> list[int]:
        """Return ``count`` different ports that are not in use.

        The ports are consecutive, unless one in between is in use or the block ends in between.
        Raises ``AssertionError`` if the block has fewer free ports.
        """
        ports: list[int] = []
        for _ in self._ports:
            if len(ports) == count:
                break
            port = self._ports[self._position]
            self._position = (self._position + 1) % len(self._ports)
            if _is_free(port):
                ports.append(port)
        if len(ports) < count:
            raise AssertionError(f"fewer than {count} ports of {self._ports} are free")
        return ports

    def take_row(self, length: int) -> int:
        """Return the first of ``length`` consecutive ports that are not in use.

        Raises ``AssertionError`` if the block has no such row.
        """
        for _ in range(len(self._ports) // length):
            row = self.take(length)
            if row[-1] - row[0] == length - 1:
                return row[0]
        raise AssertionError(f"no {length} consecutive ports of {self._ports} are free")


_block: PortBlock | None = None
"""The block of this process; claimed when a port is requested for the first time."""


def free_ports(count: int) -> list[int]:
    """Return ``count`` different loopback ports that are not in use and that no other process gets
    from this function. Raises ``AssertionError`` if there are not so many."""
    return _own_block().take(count)


def free_port() -> int:
    """Like :func:`free_ports`, but return one port."""
    return _own_block().take(1)[0]


def free_row(length: int) -> int:
    """Like :func:`free_ports`, but return the first of ``length`` consecutive ports."""
    return _own_block().take_row(length)


def _own_block() -> PortBlock:
    """Return the block of this process."""
    global _block
    if _block is None:
        _block = PortBlock()
    return _block


def _is_free(port: int) -> bool:
    """Return whether no process uses a port now."""
    probe = _bound(port)
    if probe is None:
        return False
    probe.close()
    return True


def _bound(port: int) -> socket.socket | None:
    """Return a socket that is bound to a port, or ``None`` if the port is in use."""
    bound = socket.socket()
    with suppress(OSError):
        bound.bind((HOST, port))
        return bound
    bound.close()
    return None
