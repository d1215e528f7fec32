"""Accepts connections that another cluster node relays to this one, which owns the realm.

A relayed connection begins with a preface that identifies the client, before TLS and before the
first byte of any protocol. A connection whose preface is not signed by a node of the cluster is
dropped.
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

RETRY_S: Final = 0.01
"""Seconds until the rest of an incomplete preface is read; the wait doubles each time."""

_log = logger("penstock.cluster")


class RelayGate:
    """Admits connections that cluster nodes relay to this process, and counts them."""

    def __init__(self, secret: bytes, process: str, clock: Clock) -> None:
        """``process`` is the nonce of this start of the node."""
        self._secret = secret
        self.process = process
        self._clock = clock
        self._open: WeakSet[RelayedTransport] = WeakSet()
        self._rare_lines = RareLines()
        self.used: dict[bytes, int] = {}
        """Used prefaces that have not expired, with the time of use in seconds since 1970; oldest
        first."""

    def admit(self, preface: bytes, peer: str) -> RelayOrigin | None:
        """Return the origin of a connection; None if the preface is refused. ``peer`` is the
        address of its sender."""
        now_s = self._clock.now_us() // 1_000_000
        try:
            origin = read_preface(preface, self._secret, process=self.process, now_s=now_s)
            self._use(preface, now_s)
        except RemoteProtocolViolation as error:
            self.log_refused(peer, str(error))
            return None
        if is_loopback(origin.client.host) and not is_loopback(peer):
            # The client is local to the relaying machine, so it must not count as local here.
            return replace(origin, client=Place(peer, origin.client.port))
        return origin

    def log_refused(self, peer: str, reason: str) -> None:
        """Log a dropped connection, at most once a minute per peer and reason."""
        if self._rare_lines.is_due(peer, reason):
            left_out = self._rare_lines.left_out(peer, reason)
            _log.warning("relay.refused", peer=peer, reason=reason, left_out=left_out)

    def _use(self, preface: bytes, now_s: int) -> None:
        """Mark a preface as used. A node makes each preface for a single connection, so a second
        use is a replay and raises ``RemoteProtocolViolation``."""
        # If the clock of the relaying node is ahead, its preface may be accepted until twice
        # `VALID_S` after its first use.
        while self.used and (oldest := next(iter(self.used.items())))[1] < now_s - 2 * VALID_S:
            del self.used[oldest[0]]
        mark = preface[-MARK_BYTES:]
        if mark in self.used:
            raise RemoteProtocolViolation("the preface was used before; it may be a replay")
        self.used[mark] = now_s

    async def before_tls(self, handshake: Handshake) -> None:
        """Read the preface of a connection before its TLS handshake. Raises
        ``RemoteProtocolViolation`` if it is not signed by a node of the cluster, and
        ``LimitReached`` if the client's address has too many connections."""
        try:
            preface = await take_preface(handshake.sock)
        except RemoteProtocolViolation as error:
            self.log_refused(handshake.address, str(error))
            raise
        if not preface:
            return
        origin = self.admit(preface, handshake.address)
        if origin is None:
            raise RemoteProtocolViolation("the preface was refused")
        handshake.wrap = lambda transport: RelayedTransport(transport, origin, self)
        if not handshake.count_for(origin.client.host):
            raise LimitReached("the address has too many connections")

    def count_connection(self, transport: RelayedTransport) -> None:
        """Count a connection while it is open."""
        self._open.add(transport)

    def open_by_node(self) -> Counter[str]:
        """Return the number of open relayed connections by relaying node."""
        return Counter(
            transport.origin.node for transport in self._open if not transport.is_closing()
        )


class RelayedTransport(asyncio.Transport):
    """The transport of a relayed connection. It has the client's address instead of the node's,
    and otherwise behaves like the transport below."""

    def __init__(self, below: asyncio.Transport, origin: RelayOrigin, gate: RelayGate) -> None:
        super().__init__()
        self._below = below
        self.origin = origin
        self._info = {
            "peername": (origin.client.host, origin.client.port),
            "sockname": (origin.reached.host, origin.reached.port),
            "socket": None,  # the socket's addresses are those of the node, not of the client
        }
        self.write = below.write  # type: ignore[method-assign]  # saves a call for each write
        gate.count_connection(self)

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
    """Return the name of the node that relays a connection; empty if it is direct."""
    return transport.origin.node if isinstance(transport, RelayedTransport) else ""


class PrefaceSniffer(Sniffer):
    """The beginning of a connection without TLS, which may have a preface."""

    is_spare = False
    owes_data = True
    """The realm waits for data from the peer, so the connection may be dropped for another."""

    def __init__(
        self,
        gate: RelayGate,
        make: Callable[[], asyncio.BaseProtocol],
        patience_s: float,
        enter: Callable[[PrefaceSniffer], bool],
        leave: Callable[[PrefaceSniffer], None],
    ) -> None:
        """``make`` creates the protocol that receives the connection after the preface."""
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
            self._pass_on(self._transport, self._data)
            return
        try:
            length = preface_bytes(self._data)
        except RemoteProtocolViolation as error:
            self._gate.log_refused(self.address, str(error))
            self.abort()
            return
        if length == 0 or len(self._data) < length:
            return  # more bytes are needed
        origin = self._gate.admit(self._data[:length], self.address)
        if origin is None:
            self.abort()
            return
        self._pass_on(RelayedTransport(self._transport, origin, self._gate), self._data[length:])

    def _pass_on(self, transport: asyncio.Transport, data: bytes) -> None:
        """Hand the transport over to the actual protocol, with the bytes read so far."""
        self.end()
        hand_over(transport, self._make(), data)

    def drop(self) -> None:
        """Close the connection to make room for another."""
        self.end()
        self.abort()


async def take_preface(sock: socket.socket) -> bytes:
    """Read the preface of an accepted socket. Without a preface, return empty bytes and consume
    nothing. Raises ``RemoteProtocolViolation``, ``OSError``."""
    head = await peek(sock, HEAD_BYTES, lambda data: not may_be_preface(data))
    if len(head) < HEAD_BYTES or not may_be_preface(head):
        return b""
    length, preface = preface_bytes(head), b""
    loop = asyncio.get_running_loop()
    while len(preface) < length:
        data = await loop.sock_recv(sock, length - len(preface))
        if not data:
            raise ConnectionResetError("the connection ended in its preface")
        preface += data
    return preface


async def peek(sock: socket.socket, most: int, is_enough: Callable[[bytes], bool]) -> bytes:
    """Return the first bytes of a socket without consuming them: ``most`` bytes, or fewer if
    ``is_enough`` accepts them or the peer has closed its side. Raises ``OSError``."""
    retry_s = RETRY_S
    while True:
        await _wait_readable(sock)
        with suppress(BlockingIOError):
            head = sock.recv(most, socket.MSG_PEEK)
            if len(head) == most or not head or is_enough(head):
                return head
            # The socket stays readable, so wait by time. The wait doubles, so that many peers that
            # send only a part do not load the processor.
            await asyncio.sleep(retry_s)
            retry_s *= 2


async def _wait_readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)
