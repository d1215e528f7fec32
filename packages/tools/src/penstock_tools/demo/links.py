"""The network of a demonstration: links between its processes, which can be cut.

A link listens on its own port and forwards bytes. A cut link behaves like a network that drops all
packets: connections stay open without progress until the link is healed or one side times out. A
cut may be one-way: a process then receives bytes but cannot send any, or the reverse. New
connections need both directions, so they cannot be made during a one-way cut either.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Literal, cast

from penstock.client.connection.threads import fast_loop
from penstock_core.tasks import start_task

HOST: Final = "127.0.0.1"
_WAITING_BYTES_MAX: Final = 4 << 20
"""Maximum number of bytes that wait for the connection to the destination."""

LostDirection = Literal["all", "from", "to"]
"""The bytes that a cut stops: all, those from the process, or those to it."""


class DemoLinks:
    """All links; they run on a separate thread until :meth:`close`."""

    def __init__(self) -> None:
        self._loop = fast_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._cut: dict[str, LostDirection] = {}
        """The direction of each cut, by the name of the process that is cut off."""
        self._links: list[_DemoLink] = []

    def open(self, source: str, destination: str, port: int) -> int:
        """Open a link, and return the port to which ``source`` connects in order to reach ``port``
        of ``destination``."""
        listener = socket.create_server((HOST, 0))
        link = _DemoLink((source, destination), port)
        self._links.append(link)
        self._run(link.serve(listener))
        return int(listener.getsockname()[1])

    def cut(self, name: str, direction: LostDirection = "all") -> None:
        """Cut off the process of this name, in both directions or in one."""
        self._cut[name] = direction
        self._run(self._update_links())

    def heal(self, name: str) -> None:
        """Reconnect the process of this name, and deliver the bytes that waited at the cut."""
        self._cut.pop(name, None)
        self._run(self._update_links())

    def is_cut(self, name: str) -> bool:
        """Return whether the process of this name is cut off."""
        return name in self._cut

    def close(self) -> None:
        """End every connection."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` on the thread of the links, and wait until it is done."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _update_links(self) -> None:
        for link in self._links:
            source_direction, destination_direction = (self._cut.get(end) for end in link.ends)
            link.set_paused(
                (source_direction in ("all", "from") or destination_direction in ("all", "to")),
                (source_direction in ("all", "to") or destination_direction in ("all", "from")),
            )

    async def _end(self) -> None:
        for link in self._links:
            await link.end()


class _DemoLink:
    """All connections from one process to a port of another."""

    def __init__(self, ends: tuple[str, str], port: int) -> None:
        self.ends = ends
        self.port = port
        self.is_paused, self.is_return_paused = False, False
        """Whether bytes from source to destination wait at the cut, and bytes from destination to
        source."""
        self.sides: set[_Side] = set()
        self.connecting: set[asyncio.Task[None]] = set()
        """Connection attempts to the destination."""
        self._server: asyncio.AbstractServer | None = None

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections and forward their bytes."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Side(self, None), sock=listener)

    def set_paused(self, is_paused: bool, is_return_paused: bool) -> None:
        """Pause or resume the bytes to the destination, and those from it."""
        if (is_paused, is_return_paused) == (self.is_paused, self.is_return_paused):
            return
        self.is_paused, self.is_return_paused = is_paused, is_return_paused
        for side in list(self.sides):
            side.update()

    async def end(self) -> None:
        """Accept no more connections, and abort all of them."""
        if self._server is not None:
            self._server.close()
        # A connection attempt that succeeds meanwhile adds a side, so this repeats until none is
        # left.
        while self.sides or self.connecting:
            for task in self.connecting:
                task.cancel()
            for side in list(self.sides):
                side.abort()
            await asyncio.sleep(0)


class _Side(asyncio.Protocol):
    """One end of a connection; bytes received at it are sent at the other end."""

    def __init__(self, link: _DemoLink, peer: _Side | None) -> None:
        self._link = link
        self._peer = peer
        self._is_first = peer is None
        """Whether this is the end at which the connection was accepted."""
        self._transport: asyncio.Transport | None = None
        """None before the connection is made and after it is lost."""
        self._unsent = bytearray()
        """Bytes received before the connection to the destination was made."""
        self._is_connecting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._link.sides.add(self)
        self.update()

    def update(self) -> None:
        """Read unless the link is cut; connect to the destination first."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        link = self._link
        # Unread bytes fill the receive buffer, and then the peer cannot send either, as in a
        # network that drops all packets.
        if link.is_paused if self._is_first else link.is_return_paused:
            transport.pause_reading()
        else:
            transport.resume_reading()
        if link.is_paused or link.is_return_paused:
            return
        if self._peer is None and not self._is_connecting:
            self._is_connecting = True
            connecting = start_task(self._connect(), name="link")
            self._link.connecting.add(connecting)
            connecting.add_done_callback(self._link.connecting.discard)

    async def _connect(self) -> None:
        """Connect to the destination, and send it the bytes that were received so far."""
        loop = asyncio.get_running_loop()
        try:
            _, peer = await loop.create_connection(
                lambda: _Side(self._link, self), HOST, self._link.port
            )
        except OSError:
            self.abort()
            return
        self._peer = peer
        peer.send(bytes(self._unsent))
        self._unsent.clear()
        if self._transport is None:  # this end was closed in the meantime
            peer.abort()

    def send(self, data: bytes) -> None:
        """Send bytes that the other end received."""
        if self._transport is not None and data:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self._peer is None:
            self._unsent += data
            if len(self._unsent) > _WAITING_BYTES_MAX:
                self.abort()
        else:
            self._peer.send(data)

    def pause_writing(self) -> None:
        if self._peer is not None and self._peer._transport is not None:
            self._peer._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._peer is not None:
            self._peer.update()

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.sides.discard(self)
        self._transport = None
        peer = self._peer
        if peer is not None and peer._transport is not None:
            with suppress(OSError):
                peer._transport.close()

    def abort(self) -> None:
        """Close the connection of this end immediately."""
        if self._transport is not None:
            self._transport.abort()
