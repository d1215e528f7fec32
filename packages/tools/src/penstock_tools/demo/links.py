"""The network of a demonstration: links between its processes, each of which can be cut.

Every link is a port of its own that passes bytes on. What is cut stands still, as on a network
whose packets get lost: nothing is closed and nothing is refused, until it is healed or one side has
waited for long enough. A cut may be one-way: who is cut so hears, and is not heard, or the other
way round; no connection is made then, which takes both ways.
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
_HELD_BYTES_MAX: Final = 4 << 20

Lost = Literal["all", "from", "to"]
"""What is lost of the bytes of whoever is cut: those from it, those to it, or all."""


class DemoLinks:
    """Runs on a thread of its own until :meth:`close`."""

    def __init__(self) -> None:
        self._loop = fast_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._cut: dict[str, Lost] = {}
        self._links: list[_DemoLink] = []

    def open(self, one: str, other: str, port: int) -> int:
        """The port at which ``one`` finds what listens at ``port`` on the side of ``other``."""
        door = socket.create_server((HOST, 0))
        link = _DemoLink((one, other), port)
        self._links.append(link)
        self._do(link.serve(door))
        return int(door.getsockname()[1])

    def cut(self, name: str, lost: Lost = "all") -> None:
        """Let nothing through to or from whoever has this name, or only one of the two."""
        self._cut[name] = lost
        self._do(self._follow())

    def heal(self, name: str) -> None:
        """Let everything through again, also what has waited."""
        self._cut.pop(name, None)
        self._do(self._follow())

    def is_cut(self, name: str) -> bool:
        return name in self._cut

    def close(self) -> None:
        """End every connection."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _follow(self) -> None:
        for link in self._links:
            one, other = (self._cut.get(end) for end in link.ends)
            link.hold(
                (one in ("all", "from") or other in ("all", "to")),
                (one in ("all", "to") or other in ("all", "from")),
            )

    async def _end(self) -> None:
        for link in self._links:
            await link.end()


class _DemoLink:
    """All connections that somebody makes to somebody else."""

    def __init__(self, ends: tuple[str, str], port: int) -> None:
        self.ends = ends
        self.port = port
        self.is_held, self.is_held_back = False, False
        """Whether nothing gets through from the one end to the other; and back."""
        self.sides: set[_Side] = set()
        self.reaching: set[asyncio.Task[None]] = set()
        """Connections to the other side that are being made."""
        self._server: asyncio.AbstractServer | None = None

    async def serve(self, door: socket.socket) -> None:
        """Pass on what comes."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Side(self, None), sock=door)

    def hold(self, is_held: bool, is_held_back: bool) -> None:
        if (is_held, is_held_back) == (self.is_held, self.is_held_back):
            return
        self.is_held, self.is_held_back = is_held, is_held_back
        for side in list(self.sides):
            side.follow()

    async def end(self) -> None:
        if self._server is not None:
            self._server.close()
        while self.sides or self.reaching:
            for task in self.reaching:
                task.cancel()
            for side in list(self.sides):
                side.abort()
            await asyncio.sleep(0)


class _Side(asyncio.Protocol):
    """One end of a connection; what comes here goes out at the other one."""

    def __init__(self, link: _DemoLink, other: _Side | None) -> None:
        self._link = link
        self._other = other
        self._is_first = other is None
        """Whether it is the end that has made the connection."""
        self._transport: asyncio.Transport | None = None
        self._waiting = bytearray()
        self._is_connecting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._link.sides.add(self)
        self.follow()

    def follow(self) -> None:
        """Read, unless the link is cut; connect to the other side first."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        link = self._link
        if link.is_held if self._is_first else link.is_held_back:
            transport.pause_reading()
        else:
            transport.resume_reading()
        if link.is_held or link.is_held_back:
            return
        if self._other is None and not self._is_connecting:
            self._is_connecting = True
            reaching = start_task(self._reach(), name="link")
            self._link.reaching.add(reaching)
            reaching.add_done_callback(self._link.reaching.discard)

    async def _reach(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, peer = await loop.create_connection(
                lambda: _Side(self._link, self), HOST, self._link.port
            )
        except OSError:
            self.abort()
            return
        self._other = peer
        peer.send(bytes(self._waiting))
        self._waiting.clear()
        if self._transport is None:  # it has gone meanwhile
            peer.abort()

    def send(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self._other is None:
            self._waiting += data
            if len(self._waiting) > _HELD_BYTES_MAX:
                self.abort()
        else:
            self._other.send(data)

    def pause_writing(self) -> None:
        if self._other is not None and self._other._transport is not None:
            self._other._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other.follow()

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.sides.discard(self)
        self._transport = None
        peer = self._other
        if peer is not None and peer._transport is not None:
            with suppress(OSError):
                peer._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
