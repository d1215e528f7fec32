"""A network in memory for a :class:`~penstock_testing.loop.SimLoop`, with faults that are the same
for the same seed.

It does what a real network may do to a stream and a test must see. Bytes come in pieces of any
length and after any time. A connection is reset with bytes under way. One side ends and the other
is never told. Connections fall silent. Bytes of an abandoned connection arrive after those of its
successor. A peer stops reading. A greeting comes twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, cast

MACHINE: ContextVar[str] = ContextVar("machine", default="")
"""The simulated machine of the present task; tasks that it starts inherit it."""

WINDOW_BYTES = 32 << 10
"""Most bytes that are sent and not yet read by the other side; more have to wait."""
HIGH_WATER_BYTES = 64 << 10

_EOF = object()
_RESET = object()

Address = tuple[str, int]
Program = asyncio.BufferedProtocol | asyncio.Protocol


def _context_on(machine: str) -> Context:
    """The present context, on a machine."""
    context = copy_context()
    context.run(MACHINE.set, machine)
    return context


class SimTransport(asyncio.Transport):
    """One end of a connection.

    What its program does when it is called belongs to the machine of this end, whoever has sent
    what it is called for.
    """

    def __init__(self, network: SimNetwork, peer: str, own: str, context: Context) -> None:
        """``peer`` and ``own`` are the hosts of the two ends. ``context``: what its program is
        called in, as asyncio's transports do."""
        super().__init__()
        self.machine = context[MACHINE]
        self._context = context
        self.peer: SimTransport
        """The other end."""
        self.protocol: Program | None = None
        """The program at this end; None: it is gone."""
        self.is_dead = False
        """The program is gone without having been told."""
        self.is_silent = False
        """Nothing leaves this end any more, and nobody is told."""
        self.held_until_s = 0.0
        """Virtual time until which nothing leaves this end."""
        self.said = bytearray()
        """The first bytes that were sent from here, for a replay."""
        self._network = network
        self._info = {"peername": (peer, 1), "sockname": (own, 1)}
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._high_water = HIGH_WATER_BYTES
        self._is_stopped = False
        """The protocol was told to pause writing."""
        self._is_closing = False
        self._is_lost = False
        self._is_finished = False
        """This end has sent its last byte; it still reads."""
        self._has_said_eof = False
        self._window_bytes = 0
        """Bytes sent from here that the other end has not read."""
        self._under_way: deque[object] = deque()
        self._due_s = 0.0
        self._inbox: deque[object] = deque()
        """What has arrived and was not read."""
        self._takes = True

    # --- what programs do ----------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._info.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Another program of this end goes on with the connection."""
        assert isinstance(protocol, Program), "it takes bytes"
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self._is_closing or self._is_lost or self.is_dead

    def is_reading(self) -> bool:
        return self._takes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_water = HIGH_WATER_BYTES if high is None else min(high, HIGH_WATER_BYTES)

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_closing() or not data:
            return
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        self._push()
        if self._unsent_bytes > self._high_water and not self._is_stopped and self.protocol:
            self._is_stopped = True
            self.protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self.is_closing() or self._is_finished:
            return
        self._is_finished = True
        self._finish()

    def pause_reading(self) -> None:
        self._takes = False

    def resume_reading(self) -> None:
        self._takes = True
        self._network.loop.call_soon(self._take, context=self._context)

    def close(self) -> None:
        if self.is_closing():
            return
        self._is_closing = True
        self._finish()

    def abort(self) -> None:
        """Drop the connection. The other side may or may not be told."""
        if self._is_lost or self.is_dead:
            return
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._network.is_told():
            self._send(_RESET)
        else:
            self._network.faults["half-open: an end nobody was told of"] += 1
        self._lose(None)

    # --- what the network does -----------------------------------------------------------

    def reset(self) -> None:
        """Break this end, and tell its program."""
        self._lose(ConnectionResetError("Connection reset by peer"))

    def die(self) -> None:
        """End the program: senders are told by this machine, as long as it has power."""
        self.is_dead = True
        self.protocol = None
        self._unsent.clear()

    @property
    def is_open(self) -> bool:
        return not (self._is_lost or self.is_dead)

    def _push(self) -> None:
        while self._unsent and self._window_bytes < WINDOW_BYTES:
            whole = self._unsent.popleft()
            self._unsent_bytes -= len(whole)
            for piece in self._network.pieces(whole):
                self._window_bytes += len(piece)
                self._send(piece)
        if self._is_closing or self._is_finished:
            self._finish()
        if self._is_stopped and self._unsent_bytes <= self._high_water // 2 and self.protocol:
            self._is_stopped = False
            self.protocol.resume_writing()

    def _finish(self) -> None:
        if self._unsent or self._is_lost:
            return
        if not self._has_said_eof:
            self._has_said_eof = True
            self._send(_EOF)
        if self._is_closing:
            self._lose(None)

    def _send(self, piece: object) -> None:
        """Send something; what is under way keeps its order."""
        network = self._network
        if self.is_silent:
            network.faults["dropped, and nobody told"] += 1
            return
        if isinstance(piece, bytes) and len(self.said) < network.kept_bytes:
            self.said += piece
        now_s = network.loop.time()
        if self.held_until_s > now_s:
            network.faults["held up on its way"] += 1
        self._due_s = max(self._due_s, now_s + network.delay_s(), self.held_until_s)
        self._under_way.append(piece)
        network.loop.call_at(self._due_s, self._arrive, context=self.peer._context)

    def _arrive(self) -> None:
        """Deliver the next thing under way, unless the connection has fallen silent."""
        if self.is_silent and self._under_way:
            self._network.faults["dropped, and nobody told"] += len(self._under_way)
            self._under_way.clear()
        if not self._under_way:
            return
        now_s = self._network.loop.time()
        if self.held_until_s > now_s:
            self._network.faults["held up on its way"] += 1
            again = self._network.loop.call_at
            again(self.held_until_s, self._arrive, context=self.peer._context)
            return
        self.peer._receive(self._under_way.popleft())

    def _receive(self, piece: object) -> None:
        if not self.is_open:
            if isinstance(piece, bytes):
                self._network.faults["dropped, its end was gone"] += 1
            if piece is not _RESET and self._network.answers(self.machine):
                self._send(_RESET)
            return
        if piece is _RESET:
            self.reset()
            return
        self._inbox.append(piece)
        self._take()

    def _take(self) -> None:
        # A server may speak before the client's end has a protocol: the bytes wait, as in a socket.
        while self._inbox and self._takes and self.protocol and not self.is_closing():
            piece = self._inbox.popleft()
            if piece is _EOF:
                if not self.protocol.eof_received():
                    self.close()
                return
            assert isinstance(piece, bytes), "pieces are bytes"
            self._hand_over(piece)
            self.peer._taken(len(piece))

    def _hand_over(self, piece: bytes) -> None:
        rest = memoryview(piece)
        while rest and self.protocol is not None and not self.is_closing():
            if isinstance(self.protocol, asyncio.Protocol):
                self.protocol.data_received(bytes(rest))
                return
            room = memoryview(cast("bytearray", self.protocol.get_buffer(-1)))
            part = rest[: len(room)]
            room[: len(part)] = part
            self.protocol.buffer_updated(len(part))
            rest = rest[len(part) :]

    def _taken(self, count: int) -> None:
        self._window_bytes -= count
        if self.is_open:
            self._context.copy().run(self._push)

    def _lose(self, reason: Exception | None) -> None:
        if self._is_lost or self.is_dead:
            return
        self._is_lost = True
        self._inbox.clear()
        self._network.forget(self)
        self._network.loop.call_soon(self._tell, reason, context=self._context)

    def _tell(self, reason: Exception | None) -> None:
        protocol, self.protocol = self.protocol, None
        if protocol is not None:
            protocol.connection_lost(reason)


class Door:
    """A listening address, as ``loop.create_server`` gives it."""

    def __init__(self, network: SimNetwork, address: Address, context: Context) -> None:
        self._network = network
        self._address = address
        self.machine = context[MACHINE]
        self.context = context
        """What the program that listens is called in."""
        self.make: Callable[[], Program]
        self.sockets = (self,)

    def getsockname(self) -> Address:
        return self._address

    def close(self) -> None:
        self._network.doors.pop(self._address, None)


class SimNetwork:
    """All connections of a simulation. Faults are ordered, or drawn from the seed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        self.loop = loop
        self.doors: dict[Address, Door] = {}
        self.ends: dict[SimTransport, None] = {}
        """Ends of connections that are open."""
        self.is_faulty = False
        """Whether the end of a connection may fail to reach the other side."""
        self.is_shut = False
        """Whether nothing gets through, on old or new connections, without anybody being told."""
        self.down: set[str] = set()
        """Machines without power."""
        self.hosts: dict[str, str] = {}
        """Addresses of machines that are not ``127.0.0.1``, as the other ends see them."""
        self.kept_bytes = 0
        """How many bytes of a connection are kept for a replay."""
        self.lag_s = 0.001
        self.faults: Counter[str] = Counter()
        """Faults that really happened, by kind."""
        self._random = random

    # --- what loops ask for --------------------------------------------------------------

    async def create_server(self, make: Callable[[], Program], host: str, port: int) -> Door:
        door = Door(self, (host, port), _context_on(MACHINE.get()))
        door.make = make
        self.doors[host, port] = door
        return door

    async def create_connection(
        self, make: Callable[[], Program], host: str, port: int
    ) -> tuple[SimTransport, Program]:
        """Connect to an address. Raises ``ConnectionRefusedError``; waits for ever if the other
        machine has no power."""
        await asyncio.sleep(self.delay_s())
        door = self.doors.get((host, port))
        while self.is_shut or (door is None and self.down):
            await asyncio.sleep(1)  # waits until the caller gives up
            door = self.doors.get((host, port))
        if door is None:
            raise ConnectionRefusedError(111, "Connection refused")
        near = self._connected(MACHINE.get(), door)
        await asyncio.sleep(self.delay_s())
        protocol = make()
        near.protocol = protocol
        protocol.connection_made(near)
        if near._is_lost:  # the other side has closed it meanwhile, and nobody was there to be told
            reason = ConnectionResetError("Connection reset by peer")
            self.loop.call_soon(near._tell, reason, context=near._context)
        self.loop.call_soon(near._take)
        return near, protocol

    def _connected(self, machine: str, door: Door) -> SimTransport:
        """The listening side's end of a new connection; gives the other end."""
        host, own = (self.hosts.get(each, "127.0.0.1") for each in (door.machine, machine))
        near = SimTransport(self, host, own, context=_context_on(machine))
        far = SimTransport(self, own, host, context=door.context.copy())
        near.peer, far.peer = far, near
        self.ends |= {near: None, far: None}
        door.context.copy().run(self._accepted, door, far)
        return near

    def _accepted(self, door: Door, far: SimTransport) -> None:
        far.protocol = door.make()
        far.protocol.connection_made(far)

    # --- faults --------------------------------------------------------------------------

    def replay(self, said: bytes, address: Address) -> None:
        """Repeat bytes that an earlier connection has sent, on a connection that nobody else
        uses."""
        door = self.doors.get(address)
        if door is None or self.is_shut:
            return
        self.faults["said twice, over a connection of its own"] += 1
        near = self._connected("a ghost", door)
        near.write(said)
        near.is_dead = True
        self.forget(near)

    def shut(self, *, shut: bool) -> None:
        """Part all machines from each other, or join them again. Bytes under way are lost with
        their connections, and nobody is told."""
        self.is_shut = shut
        for end in list(self.ends) if shut else ():
            end.is_silent = True

    def kill(self, machine: str) -> None:
        """Kill the programs of a machine; the machine resets their connections."""
        for end in self._ends_on(machine):
            end.die()
            end._send(_RESET)
            self.forget(end)
        self._close_doors(machine)

    def power_off(self, machine: str) -> None:
        """Switch a machine off; it says nothing until :meth:`power_on`."""
        for end in self._ends_on(machine):
            end.is_silent = True
            end.die()
            self.forget(end)
        self._close_doors(machine)
        self.down.add(machine)

    def power_on(self, machine: str) -> None:
        self.down.discard(machine)

    def heal(self) -> None:
        """Stop all faults, and tell programs of the connections that were silently lost."""
        self.is_faulty = self.is_shut = False
        for end in list(self.ends):
            if end.is_silent or end.peer.is_silent or not end.peer.is_open:
                end.reset()
            end.held_until_s = 0.0

    def connections(self) -> list[tuple[SimTransport, SimTransport]]:
        """Both ends of each open connection: the one that connected, and the listener's."""
        doors = {door.machine for door in self.doors.values()}
        return [
            (end, end.peer)
            for end in self.ends
            if end.machine not in doors and end.is_open and end.peer.is_open
        ]

    # --- inside --------------------------------------------------------------------------

    def _ends_on(self, machine: str) -> Iterator[SimTransport]:
        return iter([end for end in self.ends if end.machine == machine])

    def _close_doors(self, machine: str) -> None:
        for door in list(self.doors.values()):
            if door.machine == machine:
                door.close()

    def forget(self, end: SimTransport) -> None:
        self.ends.pop(end, None)

    def answers(self, machine: str) -> bool:
        """Whether a machine answers that no program listens."""
        return machine not in self.down and not self.is_shut and machine != "a ghost"

    def is_told(self) -> bool:
        return not self.is_faulty or self._random.random() < 0.7

    def delay_s(self) -> float:
        return min(self._random.expovariate(1 / self.lag_s), 60 * self.lag_s)

    def pieces(self, whole: bytes) -> Iterator[bytes]:
        """The bytes, cut anywhere or not at all."""
        random, at = self._random, 0
        while len(whole) - at > 1 and random.random() < 0.3:
            cut = at + random.randint(1, min(len(whole) - at - 1, 4 << 10))
            self.faults["cut in two, anywhere"] += 1
            yield whole[at:cut]
            at = cut
        yield whole[at:]
