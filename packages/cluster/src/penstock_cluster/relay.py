"""Relays of client connections from a standby node to the owner of the realm, byte by byte.

The bytes are the client's, with TLS if it uses TLS. The node adds only a preface that names the
client's address to the owner. A relay is cut when the owner has died or lost ownership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

from penstock_core.loggers import logger
from penstock_core.tasks import start_task
from penstock_core.vocabulary.errors import RemoteProtocolViolation
from penstock_core.vocabulary.ports import Clock
from penstock_core.wire.relay_preface import (
    SIGNATURE,
    Place,
    RelayOrigin,
    may_be_preface,
    relay_preface,
    secret_name,
)
from penstock_server.frontends.shared.handshakes import Handshake
from penstock_server.frontends.shared.protocol_detection import Sniffer, hand_over
from penstock_server.frontends.shared.relayed import peek
from penstock_server.frontends.shared.serving_node import FindOwner
from penstock_server.frontends.shared.transports import close, host_of, place_of
from penstock_server.runtime.access.rare_lines import RareLines

CONNECT_S: Final = 2.0
"""Seconds within which the owner has to accept a relayed connection."""
REPLAY_BYTES_MAX: Final = 64 << 10
"""Maximum number of client bytes kept until the owner answers; a client sends fewer before the
first answer."""
DRAIN_S: Final = 30.0
"""Seconds that one side gets for reading its remaining bytes after the other has closed."""

WantsRelay = Callable[[bytes], bool | None]
"""Decides from the first bytes of a connection whether it is relayed; None if more are needed."""

_log = logger("penstock.cluster")


class RelayEnd(asyncio.Protocol):
    """One of the two connections of a relay; bytes received on it are sent on the other one."""

    def __init__(self, on_closed: Callable[[RelayEnd], None]) -> None:
        """``on_closed`` is called when this end is closed."""
        self.transport: asyncio.Transport | None = None
        self.other: RelayEnd | None = None
        self.owner = ""
        """Name of the node at the other end of the relay."""
        self.rare_lines = RareLines()
        self.has_finished = False
        """Whether the peer of this end has closed its sending side."""
        self.is_over = False
        self.answer_protocol: Callable[[], asyncio.BaseProtocol] | None = None
        """Creates the protocol that answers a client on this node if the owner drops it without an
        answer. None if this node cannot answer: the client's bytes are encrypted or no longer kept,
        the owner has answered, or the owner may have carried out a request."""
        self._replay_bytes = b""
        """The client's bytes so far, in case that this node has to answer them itself."""
        self._on_closed = on_closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        if self.is_alone:
            self.transport.abort()  # the other end closed before this one connected
        elif (target := self._other_transport) is not None and not target.is_reading():
            target.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.answer_protocol is not None:
            # The owner has answered, so this node can no longer answer in its place.
            self.other.forget()
        if self.answer_protocol is not None:
            self._replay_bytes += data
            if len(self._replay_bytes) > REPLAY_BYTES_MAX:
                self.forget()
        if (target := self._other_transport) is not None:
            target.write(data)

    def forget(self) -> None:
        """Drop the kept bytes of the client."""
        self.answer_protocol, self._replay_bytes = None, b""

    def eof_received(self) -> bool:
        self.has_finished = True
        target = self._other_transport
        if self.other is None or target is None or self.other.has_finished:
            return False  # both sides have sent everything
        if self.other.answer_protocol is not None:
            return False  # the owner ends without an answer: this node answers the client
        if target.can_write_eof():
            target.write_eof()
        return True

    def pause_writing(self) -> None:
        # Backpressure: the peer of this end reads too slowly, so the other end stops reading.
        if (target := self._other_transport) is not None and target.is_reading():
            target.pause_reading()

    def resume_writing(self) -> None:
        if (target := self._other_transport) is not None and not target.is_reading():
            target.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.is_over = True
        self._on_closed(self)
        # The other end is closed in the same way: in order, or by a reset.
        if (target := self._other_transport) is not None:
            if self.other is not None and self.other.answer_protocol is not None:
                self.other.answer_here(target, self.other.answer_protocol)
            elif exc is None:
                close(target, DRAIN_S)
            else:
                target.abort()

    def answer_here(
        self, transport: asyncio.Transport, answer_protocol: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        """Continue with the client in another protocol, as if nothing had been relayed."""
        log_no_owner(self.rare_lines, self.owner, "it dropped the connection")
        sent = self._replay_bytes
        self.forget()
        self.transport, self.is_over = None, True
        self._on_closed(self)
        if not transport.is_reading():
            transport.resume_reading()
        hand_over(transport, answer_protocol(), sent)

    def abort(self) -> None:
        """Drop the connection."""
        if self.transport is not None:
            self.transport.abort()

    def cut(self) -> None:
        """Drop both connections."""
        self._on_closed(self)
        self.abort()
        if self.other is not None:
            self.other.abort()

    @property
    def is_alone(self) -> bool:
        """Whether the other connection has ended."""
        return self.other is not None and self.other.is_over

    @property
    def _other_transport(self) -> asyncio.Transport | None:
        """The transport of the other end; None before it is connected and after it has closed."""
        transport = None if self.other is None else self.other.transport
        return None if transport is None or transport.is_closing() else transport


class Relays:
    """The connections that a node relays."""

    def __init__(
        self, owner: FindOwner, secret: bytes, node: str, clock: Clock, relays_max: int
    ) -> None:
        """``node`` is the name of this node. At most ``relays_max`` connections are relayed;
        further clients are sent to the owner."""
        self._secret_name = secret_name(secret)
        self.rare_lines = RareLines()
        self._owner = owner
        self._secret = secret
        self._node = node
        self._clock = clock
        self.relays_max = relays_max
        self._processes: dict[RelayEnd, str] = {}
        """Client ends of all relays, with the process at the other end."""
        self.connecting = 0
        """Number of connections to the owner that are being opened."""
        self.begun = 0
        """Number of connections relayed so far."""

    def __len__(self) -> int:
        return len(self._processes)

    def may_begin(self, front_end: str) -> bool:
        """Return whether the owner accepts relays, and the limit allows one more."""
        owner = self._owner()
        has_room = len(self._processes) + self.connecting < self.relays_max
        if not has_room or owner is None or owner.place(front_end) is None:
            return False
        if owner.secret_name == self._secret_name:
            return True
        reason = "it has another secret" if owner.secret_name else "its version takes no relays"
        log_no_owner(self.rare_lines, owner.name, reason)
        return False

    async def begin(self, front_end: str, client: Place, reached: Place) -> RelayEnd | None:
        """Connect to the owner for a client that has connected to ``reached``. Returns the protocol
        for the client's connection; None if the owner cannot be reached."""
        owner = self._owner()
        place = None if owner is None else owner.place(front_end)
        if owner is None or place is None:
            return None
        # The near end is the connection to the client, the far end that to the owner.
        near, far = RelayEnd(self._forget), RelayEnd(self._forget)
        near.other, far.other = far, near
        near.owner, near.rare_lines = owner.name, self.rare_lines
        self.connecting += 1
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().create_connection(lambda: far, *place)
        except (OSError, TimeoutError) as error:
            log_no_owner(self.rare_lines, owner.name, str(error) or "no answer")
            return None
        finally:
            self.connecting -= 1
        # Another process may own the realm by now.
        if self._process() != owner.process or far.transport is None:
            far.abort()
            return None
        origin = RelayOrigin(client, reached, self._node)
        now_s = self._clock.now_us() // 1_000_000
        preface = relay_preface(origin, self._secret, process=owner.process, now_s=now_s)
        far.transport.write(preface)
        far.transport.pause_reading()  # until the client's end can take the bytes
        self._processes[near] = owner.process
        self.begun += 1
        return near

    def cut(self, *, all_of_them: bool = False) -> None:
        """Cut the relays to processes that are not the owner, or all relays."""
        owner_process = "" if all_of_them else self._process()
        for end, process in list(self._processes.items()):
            if process != owner_process:
                end.cut()

    def _process(self) -> str:
        """Return the process that owns the realm; empty if unknown."""
        owner = self._owner()
        return "" if owner is None else owner.process

    def _forget(self, end: RelayEnd) -> None:
        self._processes.pop(end, None)


class RelayChooser(Sniffer):
    """The beginning of an unencrypted connection to a standby node. It is relayed if its protocol
    asks for that and the owner is known, and answered by this node otherwise."""

    def __init__(
        self,
        relays: Relays,
        front_end: str,
        wants_relay: WantsRelay,
        local: Callable[[], asyncio.BaseProtocol],
        places: UndecidedConnections,
    ) -> None:
        """``local`` creates the protocol that answers on this node."""
        super().__init__(places.patience_s, places.enter, places.leave)
        self._relays = relays
        self._front_end: str = front_end
        self._wants = wants_relay
        self._local = local
        self._relaying: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        self._data += data
        transport = self._transport
        if transport is None or transport.is_closing() or self._relaying is not None:
            return
        # A connection that another node relays to this node is refused: relaying it on might never
        # end.
        if may_be_preface(self._data):
            if len(self._data) >= len(SIGNATURE):
                refuse_relayed(self._relays.rare_lines, host_of(transport))
                transport.abort()
            return
        wants_relay = self._wants(self._data)
        if wants_relay is None:
            return
        if wants_relay and self._relays.may_begin(self._front_end):
            transport.pause_reading()
            self._relaying = start_task(self._relay(transport), name="relay")
        else:
            self._continue_with(transport, self._local())

    async def _relay(self, transport: asyncio.Transport) -> None:
        """Continue with the owner, or answer on this node if the owner cannot be reached."""
        client, reached = place_of(transport, "peername"), place_of(transport, "sockname")
        near = await self._relays.begin(self._front_end, client, reached)
        if transport.is_closing():
            if near is not None:
                near.cut()
            return
        transport.resume_reading()  # first, because the next protocol may pause it immediately
        if near is not None and near.is_alone:
            near = None
        # An owner may have carried out an HTTP request without answering it. In the other protocols
        # the owner changes nothing before its first answer.
        if near is not None and self._front_end != "http":
            near.answer_protocol = self._local
        self._continue_with(transport, self._local() if near is None else near)

    def _continue_with(self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
        """Replace this protocol by another one, which gets the bytes received so far."""
        self.end()
        hand_over(transport, protocol, self._data)


class UndecidedConnections(Protocol):
    """Limits the number of connections whose protocol is not known yet."""

    patience_s: float
    """Longest silence of a connection, in seconds."""

    def enter(self, chooser: RelayChooser) -> bool:
        """Count a connection. Returns whether the limit allows it."""
        ...

    def leave(self, chooser: RelayChooser) -> None:
        """Stop counting a connection."""
        ...


def refuse_relayed(rare_lines: RareLines, peer: str) -> None:
    """Log that a connection relayed by another node was dropped. It is not relayed again, because
    that might never end."""
    if rare_lines.is_due("relay.refused"):
        left_out = rare_lines.left_out("relay.refused")
        reason = "this node does not own the realm"
        _log.warning("relay.refused", peer=peer, reason=reason, left_out=left_out)


def log_no_owner(rare_lines: RareLines, owner: str, reason: str) -> None:
    """Log that a client could not be relayed to the owner, at most once a minute for each
    owner and reason, because clients retry during a takeover."""
    if rare_lines.is_due(owner, reason):
        left_out = rare_lines.left_out(owner, reason)
        _log.warning("relay.no_owner", owner=owner, reason=reason, left_out=left_out)


async def relay_before_tls(relays: Relays, front_end: str, handshake: Handshake) -> RelayEnd | None:
    """Relay a connection before TLS begins; None if this node answers it. Raises
    ``RemoteProtocolViolation`` for a connection that another node relays to this one."""
    sock = handshake.sock
    first_bytes = await peek(sock, len(SIGNATURE), lambda data: not may_be_preface(data))
    if len(first_bytes) < len(SIGNATURE) and may_be_preface(first_bytes):
        return None  # it has ended, as the connection of a health check does
    if may_be_preface(first_bytes):
        refuse_relayed(relays.rare_lines, handshake.address)
        raise RemoteProtocolViolation("this node does not own the realm")
    if not relays.may_begin(front_end):
        return None
    client, reached = sock.getpeername(), sock.getsockname()
    return await relays.begin(front_end, Place(*client[:2]), Place(*reached[:2]))
