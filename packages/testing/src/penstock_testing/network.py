"""A network in memory for a :class:`~penstock_testing.loop.SimLoop`; its faults are determined by a
seed.

It reproduces the faults of real networks. Bytes arrive in pieces of any length after any delay. A
connection is reset while bytes are in flight. One side ends without the other noticing. Connections
fall silent. Bytes of an abandoned connection arrive after those of its successor. A peer stops
reading. A greeting arrives twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, cast

MACHINE: ContextVar[str] = ContextVar("machine", default="")
"""The simulated machine of the current task; tasks that it starts inherit the value."""

WINDOW_BYTES = 32 << 10
"""Maximum number of bytes that are sent but not yet read by the other side; further bytes wait."""
HIGH_WATER_BYTES = 64 << 10
"""Number of unsent bytes above which a program is told to pause writing."""

# Both are sent like pieces of bytes, so that they arrive after the bytes before them.
_EOF = object()
_RESET = object()
_GHOST = "a ghost"
"""Machine of the client's end of a replayed connection. No program runs on it."""

Address = tuple[str, int]
Program = asyncio.BufferedProtocol | asyncio.Protocol


def _context_on(machine: str) -> Context:
    """Return a copy of the current context for a machine."""
    context = copy_context()
    context.run(MACHINE.set, machine)
    return context


class SimTransport(asyncio.Transport):
    """One end of a connection.

    Callbacks of its program run in the context of this end's machine, even if the other end's
    machine triggered them.
    """

    def __init__(self, network: SimNetwork, peer: str, own: str, context: Context) -> None:
        """``peer`` and ``own`` are the hosts of the two ends. The program's callbacks run in
        ``context``, as with asyncio's transports."""
        super().__init__()
        self.machine = context[MACHINE]
        self._context = context
        self.peer: SimTransport
        """The other end."""
        self.protocol: Program | None = None
        """The program at this end; None after its end."""
        self.is_dead = False
        """Whether the program ended without a call of ``connection_lost``."""
        self.is_silent = False
        """Whether this end drops everything it sends, without an error at either end."""
        self.held_until_s = 0.0
        """Virtual time until which this end holds back what it sends."""
        self.said = bytearray()
        """The first bytes that this end sent, for a replay."""
        self._network = network
        self._info = {"peername": (peer, 1), "sockname": (own, 1)}
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._high_water = HIGH_WATER_BYTES
        self._is_write_paused = False
        """Whether the protocol's ``pause_writing`` was called last."""
        self._is_closing = False
        """Whether the connection ends after the unsent bytes."""
        self._is_lost = False
        """Whether the connection has ended at this end."""
        self._is_finished = False
        """Whether this end has sent its last byte; it still reads."""
        self._has_sent_eof = False
        self._window_bytes = 0
        """Bytes that this end sent and the other end has not read."""
        self._in_flight: deque[object] = deque()
        """Sent pieces that have not arrived."""
        self._last_arrival_s = 0.0
        """Virtual time at which the last sent piece arrives."""
        self._inbox: deque[object] = deque()
        """Received pieces that the program has not read."""
        self._is_reading = True

    # --- calls of programs ---------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._info.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the program at this end."""
        assert isinstance(protocol, Program), "the protocol must be a stream protocol"
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self._is_closing or self._is_lost or self.is_dead

    def is_reading(self) -> bool:
        return self._is_reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_water = HIGH_WATER_BYTES if high is None else min(high, HIGH_WATER_BYTES)

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_closing() or not data:
            return
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        self._send_unsent()
        if self._unsent_bytes > self._high_water and not self._is_write_paused and self.protocol:
            self._is_write_paused = True
            self.protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self.is_closing() or self._is_finished:
            return
        self._is_finished = True
        self._finish()

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._network.loop.call_soon(self._deliver_inbox, context=self._context)

    def close(self) -> None:
        if self.is_closing():
            return
        self._is_closing = True
        self._finish()

    def abort(self) -> None:
        """Drop the connection. In a faulty network the other side may not receive the reset."""
        if self._is_lost or self.is_dead:
            return
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._network.is_reset_sent():
            self._send(_RESET)
        else:
            self._network.faults["half-open: the other end got no reset"] += 1
        self._lose(None)

    # --- calls of the network ------------------------------------------------------------

    def reset(self) -> None:
        """End the connection at this end with a ``ConnectionResetError``."""
        self._lose(ConnectionResetError("Connection reset by peer"))

    def die(self) -> None:
        """End the program without calling it. While the machine has power, it resets connections to
        the program."""
        self.is_dead = True
        self.protocol = None
        self._unsent.clear()

    @property
    def is_open(self) -> bool:
        """Whether the connection has not ended at this end."""
        return not (self._is_lost or self.is_dead)

    def _send_unsent(self) -> None:
        """Send as many unsent bytes as the window allows."""
        while self._unsent and self._window_bytes < WINDOW_BYTES:
            chunk = self._unsent.popleft()
            self._unsent_bytes -= len(chunk)
            for segment in self._network.pieces(chunk):
                self._window_bytes += len(segment)
                self._send(segment)
        if self._is_closing or self._is_finished:
            self._finish()
        # As in asyncio, writing continues well below the limit, so that it is not paused and
        # resumed for each piece.
        if self._is_write_paused and self._unsent_bytes <= self._high_water // 2 and self.protocol:
            self._is_write_paused = False
            self.protocol.resume_writing()

    def _finish(self) -> None:
        """Send an EOF after the unsent bytes, and end a connection that is closing."""
        if self._unsent or self._is_lost:
            return
        if not self._has_sent_eof:
            self._has_sent_eof = True
            self._send(_EOF)
        if self._is_closing:
            self._lose(None)

    def _send(self, piece: object) -> None:
        """Send bytes, an EOF or a reset; it arrives after everything sent so far."""
        network = self._network
        if self.is_silent:
            network.faults["dropped silently"] += 1
            return
        if isinstance(piece, bytes) and len(self.said) < network.kept_bytes:
            self.said += piece
        now_s = network.loop.time()
        if self.held_until_s > now_s:
            network.faults["delayed in flight"] += 1
        # No piece arrives before the previous one: TCP keeps the order of a connection's bytes.
        self._last_arrival_s = max(
            self._last_arrival_s, now_s + network.delay_s(), self.held_until_s
        )
        self._in_flight.append(piece)
        network.loop.call_at(self._last_arrival_s, self._arrive, context=self.peer._context)

    def _arrive(self) -> None:
        """Deliver the next piece in flight, unless the connection has fallen silent."""
        if self.is_silent and self._in_flight:
            self._network.faults["dropped silently"] += len(self._in_flight)
            self._in_flight.clear()
        if not self._in_flight:
            return
        now_s = self._network.loop.time()
        if self.held_until_s > now_s:
            self._network.faults["delayed in flight"] += 1
            call_at = self._network.loop.call_at
            call_at(self.held_until_s, self._arrive, context=self.peer._context)
            return
        self.peer._receive(self._in_flight.popleft())

    def _receive(self, piece: object) -> None:
        """Process a piece that has arrived. If this end has ended, answer with a reset."""
        if not self.is_open:
            if isinstance(piece, bytes):
                self._network.faults["dropped because its receiver had ended"] += 1
            if piece is not _RESET and self._network.answers(self.machine):
                self._send(_RESET)
            return
        if piece is _RESET:
            self.reset()
            return
        self._inbox.append(piece)
        self._deliver_inbox()

    def _deliver_inbox(self) -> None:
        """Pass the received pieces to the program, as long as it reads."""
        # A server may send before the client's end has a protocol; the bytes wait, as in a socket.
        while self._inbox and self._is_reading and self.protocol and not self.is_closing():
            segment = self._inbox.popleft()
            if segment is _EOF:
                if not self.protocol.eof_received():
                    self.close()
                return
            assert isinstance(segment, bytes), "pieces are bytes"
            self._pass_to_protocol(segment)
            self.peer._release_window(len(segment))

    def _pass_to_protocol(self, piece: bytes) -> None:
        """Pass bytes to the program, in parts if its buffer is smaller."""
        unread = memoryview(piece)
        while unread and self.protocol is not None and not self.is_closing():
            if isinstance(self.protocol, asyncio.Protocol):
                self.protocol.data_received(bytes(unread))
                return
            buffer = memoryview(cast("bytearray", self.protocol.get_buffer(-1)))
            part = unread[: len(buffer)]
            buffer[: len(part)] = part
            self.protocol.buffer_updated(len(part))
            unread = unread[len(part) :]

    def _release_window(self, count: int) -> None:
        """Record that the other end has read ``count`` bytes, and send more."""
        self._window_bytes -= count
        # The other end calls this method. Sending may call this end's program, so it runs in the
        # context of this end.
        if self.is_open:
            self._context.copy().run(self._send_unsent)

    def _lose(self, reason: Exception | None) -> None:
        """End the connection at this end, and report it to the program."""
        if self._is_lost or self.is_dead:
            return
        self._is_lost = True
        self._inbox.clear()
        self._network.forget(self)
        self._network.loop.call_soon(self._report_loss, reason, context=self._context)

    def _report_loss(self, reason: Exception | None) -> None:
        """Call ``connection_lost`` of the program, once."""
        protocol, self.protocol = self.protocol, None
        if protocol is not None:
            protocol.connection_lost(reason)


class Door:
    """A listening address. ``create_server`` of the simulated loop returns it as the server."""

    def __init__(self, network: SimNetwork, address: Address, context: Context) -> None:
        self._network = network
        self._address = address
        self.machine = context[MACHINE]
        self.context = context
        """The context of the listening program."""
        self.make: Callable[[], Program]
        """Creates the program of a new connection."""
        self.sockets = (self,)  # callers ask the sockets of a server for its address

    def getsockname(self) -> Address:
        return self._address

    def close(self) -> None:
        self._network.doors.pop(self._address, None)


class SimNetwork:
    """All connections of a simulation. A test requests faults, or they are drawn from the seed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        self.loop = loop
        self.doors: dict[Address, Door] = {}
        """Listening addresses."""
        self.ends: dict[SimTransport, None] = {}
        """Ends of connections that are open."""
        self.is_faulty = False
        """Whether the reset of an aborted connection may be lost."""
        self.is_shut = False
        """Whether the network drops everything silently, on existing and new connections."""
        self.down: set[str] = set()
        """Machines without power."""
        self.hosts: dict[str, str] = {}
        """Addresses of machines, as other machines see them; the default is ``127.0.0.1``."""
        self.kept_bytes = 0
        """Number of bytes from the start of each connection that are kept for a replay."""
        self.lag_s = 0.001
        """Mean delay of a piece, in seconds."""
        self.faults: Counter[str] = Counter()
        """Faults that had an effect, by kind."""
        self._random = random

    # --- calls of loops ------------------------------------------------------------------

    async def create_server(self, make: Callable[[], Program], host: str, port: int) -> Door:
        door = Door(self, (host, port), _context_on(MACHINE.get()))
        door.make = make
        self.doors[host, port] = door
        return door

    async def create_connection(
        self, make: Callable[[], Program], host: str, port: int
    ) -> tuple[SimTransport, Program]:
        """Connect to an address. While the network is shut, or while no program listens there and a
        machine has no power, the call waits. Otherwise it raises ``ConnectionRefusedError`` if no
        program listens there."""
        await asyncio.sleep(self.delay_s())
        door = self.doors.get((host, port))
        while self.is_shut or (door is None and self.down):
            # The wait ends with the timeout of the caller, or when the machine can be reached.
            await asyncio.sleep(1)
            door = self.doors.get((host, port))
        if door is None:
            raise ConnectionRefusedError(111, "Connection refused")
        client_end = self._create_ends(MACHINE.get(), door)
        await asyncio.sleep(self.delay_s())
        protocol = make()
        client_end.protocol = protocol
        protocol.connection_made(client_end)
        if client_end._is_lost:
            # The other side closed the connection before this end had a program.
            reason = ConnectionResetError("Connection reset by peer")
            self.loop.call_soon(client_end._report_loss, reason, context=client_end._context)
        self.loop.call_soon(client_end._deliver_inbox)
        return client_end, protocol

    def _create_ends(self, machine: str, door: Door) -> SimTransport:
        """Create both ends of a connection, pass one to the listener, and return the other."""
        host, own_host = (self.hosts.get(name, "127.0.0.1") for name in (door.machine, machine))
        client_end = SimTransport(self, host, own_host, context=_context_on(machine))
        listener_end = SimTransport(self, own_host, host, context=door.context.copy())
        client_end.peer, listener_end.peer = listener_end, client_end
        self.ends |= {client_end: None, listener_end: None}
        door.context.copy().run(self._accept, door, listener_end)
        return client_end

    def _accept(self, door: Door, listener_end: SimTransport) -> None:
        """Create the program of the listener's end, and connect the two."""
        listener_end.protocol = door.make()
        listener_end.protocol.connection_made(listener_end)

    # --- faults --------------------------------------------------------------------------

    def replay(self, said: bytes, address: Address) -> None:
        """Send the bytes of an earlier connection again, on a new connection without a program."""
        door = self.doors.get(address)
        if door is None or self.is_shut:
            return
        self.faults["replayed on a new connection"] += 1
        client_end = self._create_ends(_GHOST, door)
        client_end.write(said)
        # An end without a program ignores every answer.
        client_end.is_dead = True
        self.forget(client_end)

    def shut(self, *, shut: bool) -> None:
        """Separate all machines, or reconnect them. Existing connections silently lose their bytes
        in flight and stay dead."""
        self.is_shut = shut
        for end in list(self.ends) if shut else ():
            end.is_silent = True

    def kill(self, machine: str) -> None:
        """End the programs of a machine; the machine resets their connections."""
        for end in self._ends_on(machine):
            end.die()
            end._send(_RESET)
            self.forget(end)
        self._close_doors(machine)

    def power_off(self, machine: str) -> None:
        """Switch a machine off; it sends nothing until :meth:`power_on`."""
        for end in self._ends_on(machine):
            end.is_silent = True
            end.die()
            self.forget(end)
        self._close_doors(machine)
        self.down.add(machine)

    def power_on(self, machine: str) -> None:
        """Switch a machine on; its earlier connections stay dead."""
        self.down.discard(machine)

    def heal(self) -> None:
        """Stop all faults, and reset the connections that were silently lost."""
        self.is_faulty = self.is_shut = False
        for end in list(self.ends):
            if end.is_silent or end.peer.is_silent or not end.peer.is_open:
                end.reset()
            end.held_until_s = 0.0

    def connections(self) -> list[tuple[SimTransport, SimTransport]]:
        """Return both ends of each open connection: the client's and the listener's."""
        doors = {door.machine for door in self.doors.values()}
        return [
            (end, end.peer)
            for end in self.ends
            if end.machine not in doors and end.is_open and end.peer.is_open
        ]

    # --- internals -----------------------------------------------------------------------

    def _ends_on(self, machine: str) -> Iterator[SimTransport]:
        """Return the open ends on a machine; they may be removed during the iteration."""
        return iter([end for end in self.ends if end.machine == machine])

    def _close_doors(self, machine: str) -> None:
        for door in list(self.doors.values()):
            if door.machine == machine:
                door.close()

    def forget(self, end: SimTransport) -> None:
        """Remove an end whose connection has ended."""
        self.ends.pop(end, None)

    def answers(self, machine: str) -> bool:
        """Return whether a machine resets connections to programs that have ended."""
        return machine not in self.down and not self.is_shut and machine != _GHOST

    def is_reset_sent(self) -> bool:
        """Draw whether the reset of an aborted connection reaches the other end."""
        return not self.is_faulty or self._random.random() < 0.7

    def delay_s(self) -> float:
        """Draw the delay of a piece, in seconds."""
        return min(self._random.expovariate(1 / self.lag_s), 60 * self.lag_s)

    def pieces(self, whole: bytes) -> Iterator[bytes]:
        """Yield the bytes in pieces that are cut at random."""
        random, start = self._random, 0
        while len(whole) - start > 1 and random.random() < 0.3:
            cut = start + random.randint(1, min(len(whole) - start - 1, 4 << 10))
            self.faults["cut at a random byte"] += 1
            yield whole[start:cut]
            start = cut
        yield whole[start:]
