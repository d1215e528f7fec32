"""Connections that another node of the cluster relays to this one, which owns the realm.

They begin with a preface that says who the client is. It is looked for before TLS and before the
first byte of any protocol; a connection whose preface no node of the cluster has signed is dropped.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from weakref import WeakSet

from msgspec.structs import replace

from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import LimitReached, RemoteProtocolViolation
from penstock_core.vocabulary.ports import Clock
from penstock_core.wire.addresses import is_loopback
from penstock_core.wire.relay_preface import (
    HEAD_BYTES,
    MARK_BYTES,
    VALID_S,
    Place,
    RelayOrigin,
    may_be_preface,
    preface_bytes,
    read_preface,
)
from penstock_server.frontends.shared.handshakes import Handshake
from penstock_server.frontends.shared.protocol_detection import Sniffer, hand_over
from penstock_server.frontends.shared.transports import host_of
from penstock_server.runtime.access.rare_lines import RareLines

LOOK_AGAIN_S: Final = 0.01
"""Seconds until the rest of a preface is looked for, of which a part has come; twice as many each
time."""

_log = logger("penstock.cluster")


class RelayGate:
    """Lets in the connections that nodes of the cluster relay to this process, and counts them."""

    def __init__(self, secret: bytes, process: str, clock: Clock) -> None:
        """``process`` is the nonce of this start of the node."""
        self._secret = secret
        self._process = process
        self._clock = clock
        self._open: WeakSet[RelayedTransport] = WeakSet()
        self._rare_lines = RareLines()
        self._taken: dict[bytes, int] = {}
        """The prefaces that may still be accepted and were used, with when, in seconds since 1970;
        the oldest first."""

    def admit(self, preface: bytes, peer: str) -> RelayOrigin | None:
        """Where a connection comes from; None: it is to be dropped. ``peer`` is who sent it."""
        now_s = self._clock.now_us() // 1_000_000
        try:
            origin = read_preface(preface, self._secret, process=self._process, now_s=now_s)
            self._use(preface, now_s)
        except RemoteProtocolViolation as error:
            self.tell_refused(peer, str(error))
            return None
        if is_loopback(origin.client.host) and not is_loopback(peer):
            # A program on the node's own machine: inside of that one, but not of this one.
            return replace(origin, client=Place(peer, origin.client.port))
        return origin

    def tell_refused(self, peer: str, reason: str) -> None:
        """Log a connection that was dropped: of a peer and a reason once a minute."""
        if self._rare_lines.is_due(peer, reason):
            left_out = self._rare_lines.left_out(peer, reason)
            _log.warning("relay.refused", peer=peer, reason=reason, left_out=left_out)

    def _use(self, preface: bytes, now_s: int) -> None:
        """Take a preface, which a node makes for one connection; raises
        ``RemoteProtocolViolation`` when it comes a second time."""
        while self._taken and (oldest := next(iter(self._taken.items())))[1] < now_s - 2 * VALID_S:
            del self._taken[oldest[0]]
        mark = preface[-MARK_BYTES:]
        if mark in self._taken:
            raise RemoteProtocolViolation("a preface came a second time: somebody has kept it")
        self._taken[mark] = now_s

    async def before_tls(self, handshake: Handshake) -> None:
        """Take the preface from a connection on which TLS begins then. Raises
        ``RemoteProtocolViolation`` for one that no node of the cluster has signed."""
        try:
            preface = await take_preface(handshake.sock)
        except RemoteProtocolViolation as error:
            self.tell_refused(handshake.address, str(error))
            raise
        if not preface:
            return
        origin = self.admit(preface, handshake.address)
        if origin is None:
            raise RemoteProtocolViolation("its preface was refused")
        handshake.wrap = lambda transport: RelayedTransport(transport, origin, self)
        if not handshake.count_for(origin.client.host):
            raise LimitReached("there is no room for a connection of this address")

    def entered(self, transport: RelayedTransport) -> None:
        """Count a connection as long as it is open."""
        self._open.add(transport)

    def open_by_node(self) -> Counter[str]:
        """How many relayed connections are open, by the node that relays them."""
        return Counter(each.origin.node for each in self._open if not each.is_closing())


class RelayedTransport(asyncio.Transport):
    """The transport of a relayed connection: it knows the client's address in the place of the
    node's, and is the transport below in all else."""

    def __init__(self, below: asyncio.Transport, origin: RelayOrigin, gate: RelayGate) -> None:
        super().__init__()
        self._below = below
        self.origin = origin
        self._info = {
            "peername": (origin.client.host, origin.client.port),
            "sockname": (origin.reached.host, origin.reached.port),
            "socket": None,  # whoever asked it would hear of the node
        }
        self.write = below.write  # type: ignore[method-assign]  # called for all that is sent
        gate.entered(self)

    def is_closing(self) -> bool:
        return self._below.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._info[name] if name in self._info else self._below.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._below.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._below.get_protocol()

    def is_reading(self) -> bool:
        return self._below.is_reading()

    def pause_reading(self) -> None:
        self._below.pause_reading()

    def resume_reading(self) -> None:
        self._below.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size()

    def writelines(self, list_of_data: Any) -> None:
        self._below.writelines(list_of_data)

    def write_eof(self) -> None:
        self._below.write_eof()

    def can_write_eof(self) -> bool:
        return self._below.can_write_eof()

    def close(self) -> None:
        self._below.close()

    def abort(self) -> None:
        self._below.abort()


def relayed_by(transport: asyncio.BaseTransport) -> str:
    """The node that relays a connection; empty: none does."""
    return transport.origin.node if isinstance(transport, RelayedTransport) else ""


class PrefaceSniffer(Sniffer):
    """The beginning of a connection without TLS: it may have a preface."""

    is_spare = False
    is_waited_for = True
    """Its peer has to send something, so it may be dropped for another connection."""

    def __init__(
        self,
        gate: RelayGate,
        make: Callable[[], asyncio.BaseProtocol],
        patience_s: float,
        enter: Callable[[PrefaceSniffer], bool],
        leave: Callable[[PrefaceSniffer], None],
    ) -> None:
        """``make`` makes the protocol that goes on once it is known whose connection it is."""
        super().__init__(patience_s, enter, leave)
        self._gate = gate
        self._make = make
        self.address = "localhost"
        self.heard_s = asyncio.get_running_loop().time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.address = host_of(transport)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._transport is None or self._transport.is_closing():
            return
        if not may_be_preface(self._data):
            self._go_on(self._transport, self._data)
            return
        try:
            length = preface_bytes(self._data)
        except RemoteProtocolViolation as error:
            self._gate.tell_refused(self.address, str(error))
            self.abort()
            return
        if length == 0 or len(self._data) < length:
            return
        origin = self._gate.admit(self._data[:length], self.address)
        if origin is None:
            self.abort()
            return
        self._go_on(RelayedTransport(self._transport, origin, self._gate), self._data[length:])

    def _go_on(self, transport: asyncio.Transport, data: bytes) -> None:
        self.end()
        hand_over(transport, self._make(), data)

    def drop(self) -> None:
        """Close it, to make room for another."""
        self.end()
        self.abort()


async def take_preface(sock: socket.socket) -> bytes:
    """The preface with which an accepted socket begins, which is taken from it; empty: it has none,
    and nothing is taken. Raises ``RemoteProtocolViolation``, ``OSError``."""
    begun = await peek(sock, HEAD_BYTES, lambda data: not may_be_preface(data))
    if len(begun) < HEAD_BYTES or not may_be_preface(begun):
        return b""
    length, taken = preface_bytes(begun), b""
    loop = asyncio.get_running_loop()
    while len(taken) < length:
        more = await loop.sock_recv(sock, length - len(taken))
        if not more:
            raise ConnectionResetError("it ended in its preface")
        taken += more
    return taken


async def peek(sock: socket.socket, most: int, is_enough: Callable[[bytes], bool]) -> bytes:
    """The first bytes that have come on a socket, which stay there: ``most`` of them, or fewer once
    they are enough or nothing more comes. Raises ``OSError``."""
    again_s = LOOK_AGAIN_S
    while True:
        await _readable(sock)
        with suppress(BlockingIOError):
            begun = sock.recv(most, socket.MSG_PEEK)
            if len(begun) == most or not begun or is_enough(begun):
                return begun
            await asyncio.sleep(again_s)  # the rest is on its way
            again_s *= 2  # or nothing of the kind: many who send half of it cost no time


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)
