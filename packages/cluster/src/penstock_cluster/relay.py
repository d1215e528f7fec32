"""A node that stands by relays connections to the owner of the realm, byte by byte.

The bytes are those of the client, also where they are TLS: what the node adds is a preface that
tells the owner who the client is. The relay is cut when the owner is gone, or owns no more.
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
"""How long the owner may take to accept a connection that is relayed to it."""
SAID_BYTES_MAX: Final = 64 << 10
"""Bytes of a client that are remembered until the owner has answered: it says less at first."""
READ_REST_S: Final = 30.0
"""How long one side may take to read what is left for it when the other has gone."""

Wants = Callable[[bytes], bool | None]
"""From the first bytes of a connection: whether it is to be relayed; None: more of them are
needed."""

_log = logger("penstock.cluster")


class RelayEnd(asyncio.Protocol):
    """One of the two connections of a relay: what comes here leaves there."""

    def __init__(self, left: Callable[[RelayEnd], None]) -> None:
        """``left`` is called when this end is over."""
        self.transport: asyncio.Transport | None = None
        self.other: RelayEnd | None = None
        self.owner = ""
        """The name of the node to which it leads."""
        self.rare_lines = RareLines()
        self.has_finished = False
        """Whether the peer of this end sends nothing more."""
        self.is_over = False
        self.instead: Callable[[], asyncio.BaseProtocol] | None = None
        """Makes the protocol that answers a client here, if the owner drops it without a word; None
        where none may: what it has said is encrypted or forgotten, the owner has answered, or it
        may have done what a request says."""
        self._said = b""
        self._left = left

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        if self.is_alone:
            self.transport.abort()  # it has ended before this end was there
        elif (to := self._beyond) is not None and not to.is_reading():
            to.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.instead is not None:
            self.other.forget()  # it is answered
        if self.instead is not None:
            self._said += data
            if len(self._said) > SAID_BYTES_MAX:
                self.forget()
        if (to := self._beyond) is not None:
            to.write(data)

    def forget(self) -> None:
        """Remember no more what the client has said."""
        self.instead, self._said = None, b""

    def eof_received(self) -> bool:
        self.has_finished = True
        to = self._beyond
        if self.other is None or to is None or self.other.has_finished:
            return False  # both sides have said all they had to
        if self.other.instead is not None:
            return False  # the owner has not said a word
        if to.can_write_eof():
            to.write_eof()
        return True

    def pause_writing(self) -> None:
        if (to := self._beyond) is not None and to.is_reading():
            to.pause_reading()

    def resume_writing(self) -> None:
        if (to := self._beyond) is not None and not to.is_reading():
            to.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.is_over = True
        self._left(self)
        if (to := self._beyond) is not None:
            if self.other is not None and self.other.instead is not None:
                self.other.answer_here(to, self.other.instead)
            elif exc is None:
                close(to, READ_REST_S)
            else:
                to.abort()

    def answer_here(
        self, transport: asyncio.Transport, instead: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        """Let another protocol go on with the client as if nothing had been relayed."""
        tell_no_owner(self.rare_lines, self.owner, "it dropped the connection")
        said = self._said
        self.forget()
        self.transport, self.is_over = None, True
        self._left(self)
        if not transport.is_reading():
            transport.resume_reading()
        hand_over(transport, instead(), said)

    def abort(self) -> None:
        """Drop the connection."""
        if self.transport is not None:
            self.transport.abort()

    def cut(self) -> None:
        """Drop both connections."""
        self._left(self)
        self.abort()
        if self.other is not None:
            self.other.abort()

    @property
    def is_alone(self) -> bool:
        """Whether the other connection has ended."""
        return self.other is not None and self.other.is_over

    @property
    def _beyond(self) -> asyncio.Transport | None:
        transport = None if self.other is None else self.other.transport
        return None if transport is None or transport.is_closing() else transport


class Relays:
    """The connections that a node relays."""

    def __init__(
        self, owner: FindOwner, secret: bytes, node: str, clock: Clock, relays_max: int
    ) -> None:
        """``node`` is the name of this one. ``relays_max`` connections are relayed at most; others
        are told where to go."""
        self._secret_name = secret_name(secret)
        self.rare_lines = RareLines()
        self._owner = owner
        self._secret = secret
        self._node = node
        self._clock = clock
        self._relays_max = relays_max
        self._processes: dict[RelayEnd, str] = {}
        """The client's end of each relay, with the process to which it leads."""
        self._connecting = 0
        self.begun = 0
        """How many connections have been relayed."""

    def __len__(self) -> int:
        return len(self._processes)

    def may_begin(self, front_end: str) -> bool:
        """Whether there is an owner that takes relays, and room for one more."""
        owner = self._owner()
        has_room = len(self._processes) + self._connecting < self._relays_max
        if not has_room or owner is None or owner.place(front_end) is None:
            return False
        if owner.secret_name == self._secret_name:
            return True
        reason = "it has another secret" if owner.secret_name else "its version takes no relays"
        tell_no_owner(self.rare_lines, owner.name, reason)
        return False

    async def begin(self, front_end: str, client: Place, reached: Place) -> RelayEnd | None:
        """Connect to the owner for a client that has connected to ``reached``. Gives the protocol
        for the client's connection; None: the owner cannot be reached."""
        owner = self._owner()
        place = None if owner is None else owner.place(front_end)
        if owner is None or place is None:
            return None
        near, far = RelayEnd(self._left), RelayEnd(self._left)
        near.other, far.other = far, near
        near.owner, near.rare_lines = owner.name, self.rare_lines
        self._connecting += 1
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().create_connection(lambda: far, *place)
        except (OSError, TimeoutError) as error:
            tell_no_owner(self.rare_lines, owner.name, str(error) or "no answer")
            return None
        finally:
            self._connecting -= 1
        if self._process() != owner.process or far.transport is None:
            far.abort()
            return None
        origin = RelayOrigin(client, reached, self._node)
        now_s = self._clock.now_us() // 1_000_000
        preface = relay_preface(origin, self._secret, process=owner.process, now_s=now_s)
        far.transport.write(preface)
        far.transport.pause_reading()  # until there is somebody to pass it on to
        self._processes[near] = owner.process
        self.begun += 1
        return near

    def cut(self, *, all_of_them: bool = False) -> None:
        """Cut the relays that lead to a process which is not the owner, or all."""
        now = "" if all_of_them else self._process()
        for end, process in list(self._processes.items()):
            if process != now:
                end.cut()

    def _process(self) -> str:
        owner = self._owner()
        return "" if owner is None else owner.process

    def _left(self, end: RelayEnd) -> None:
        self._processes.pop(end, None)


class RelayChooser(Sniffer):
    """The beginning of a connection to a node that stands by, without TLS: relayed if it is of the
    kind for that and there is an owner, or else answered here."""

    def __init__(
        self,
        relays: Relays,
        front_end: str,
        wants: Wants,
        local: Callable[[], asyncio.BaseProtocol],
        places: WaitingPlaces,
    ) -> None:
        """``local`` makes the protocol that answers here."""
        super().__init__(places.patience_s, places.enter, places.leave)
        self._relays = relays
        self._front_end: str = front_end
        self._wants = wants
        self._local = local
        self._relaying: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        self._data += data
        transport = self._transport
        if transport is None or transport.is_closing() or self._relaying is not None:
            return
        if may_be_preface(self._data):
            if len(self._data) >= len(SIGNATURE):
                refuse_relayed(self._relays.rare_lines, host_of(transport))
                transport.abort()
            return
        wants = self._wants(self._data)
        if wants is None:
            return
        if wants and self._relays.may_begin(self._front_end):
            transport.pause_reading()
            self._relaying = start_task(self._relay(transport), name="relay")
        else:
            self._go_on(transport, self._local())

    async def _relay(self, transport: asyncio.Transport) -> None:
        """Go on with the owner, or here if it cannot be reached."""
        client, reached = place_of(transport, "peername"), place_of(transport, "sockname")
        near = await self._relays.begin(self._front_end, client, reached)
        if transport.is_closing():
            if near is not None:
                near.cut()
            return
        transport.resume_reading()  # first of all: who goes on may pause it at once
        if near is not None and near.is_alone:
            near = None
        if near is not None and self._front_end != "http":
            near.instead = self._local  # before its first answer the owner has done nothing
        self._go_on(transport, self._local() if near is None else near)

    def _go_on(self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
        self.end()
        hand_over(transport, protocol, self._data)


class WaitingPlaces(Protocol):
    """Where connections are counted of which it is not known yet what becomes of them."""

    patience_s: float
    """How long one may send nothing."""

    def enter(self, waiting: RelayChooser) -> bool:
        """Count one; gives whether there is room."""
        ...

    def leave(self, waiting: RelayChooser) -> None:
        """Count it no more."""
        ...


def refuse_relayed(rare_lines: RareLines, peer: str) -> None:
    """Log that a connection was dropped that another node relayed to this one. It is not relayed
    again: it might never end."""
    if rare_lines.is_due("relay.refused"):
        left_out = rare_lines.left_out("relay.refused")
        reason = "this node does not own the realm"
        _log.warning("relay.refused", peer=peer, reason=reason, left_out=left_out)


def tell_no_owner(rare_lines: RareLines, owner: str, reason: str) -> None:
    """Log that a client could not be relayed to the owner: of an owner and a reason once a minute,
    since every client tries again and again while a node takes over."""
    if rare_lines.is_due(owner, reason):
        left_out = rare_lines.left_out(owner, reason)
        _log.warning("relay.no_owner", owner=owner, reason=reason, left_out=left_out)


async def relay_before_tls(relays: Relays, front_end: str, handshake: Handshake) -> RelayEnd | None:
    """Relay a connection on which TLS would begin, TLS and all; None: it is answered here. Raises
    ``RemoteProtocolViolation`` for one that somebody relays to this node."""
    sock = handshake.sock
    begun = await peek(sock, len(SIGNATURE), lambda data: not may_be_preface(data))
    if len(begun) < len(SIGNATURE) and may_be_preface(begun):
        return None  # it has ended, as the connection of a health check does
    if may_be_preface(begun):
        refuse_relayed(relays.rare_lines, handshake.address)
        raise RemoteProtocolViolation("this node does not own the realm")
    if not relays.may_begin(front_end):
        return None
    client, reached = sock.getpeername(), sock.getsockname()
    return await relays.begin(front_end, Place(*client[:2]), Place(*reached[:2]))
