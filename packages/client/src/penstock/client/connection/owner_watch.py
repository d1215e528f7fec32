"""Watches which node of a cluster owns the realm, over a connection to a standby node.

An owner that is frozen or cut off cannot notify its sessions that it was deposed. A standby node
learns immediately when another node has claimed the realm, and the session then connects to that
node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ssl import SSLContext
from typing import Final

from penstock.client.connection.terms import SessionTerms
from penstock.client.connection.transport import Link
from penstock.client.connection.urls import Address
from penstock_core.api.realm import Ping
from penstock_core.tasks import leave_to_owner, start_task
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.wire.native import messages as wire

PAUSE_S: Final = 1.0
"""Seconds between two rounds of attempts to follow the owner at each of the nodes."""


class OwnerWatch:
    """Follows, at a node other than the one the session is connected to, which node owns the
    realm. If that node fails, the next one is used."""

    def __init__(
        self, terms: SessionTerms, tls: SSLContext | None, moved: Callable[[], None]
    ) -> None:
        """``moved`` is called when another node owns the realm, so that the session should drop its
        connection."""
        self._terms = terms
        self._tls = tls
        self._moved = moved
        self._task: asyncio.Task[None] | None = None
        self._link: Link | None = None
        self._lost = asyncio.Event()

    def begin(self) -> None:
        """Begin to watch, if the realm is in a cluster and the watch has not begun."""
        if self._task is None and len(self._terms.nodes) > 1:
            watching = self._run()
            self._task = start_task(watching, name="penstock-owners", on_failure=leave_to_owner)

    def end(self) -> None:
        """End the watch."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            for address in self._terms.nodes:
                # A deposed owner that is frozen or cut off could not report this itself.
                if address not in (self._terms.current_address, self._terms.announced_owner):
                    await self._follow(address)
            await asyncio.sleep(PAUSE_S)

    async def _follow(self, address: Address) -> None:
        """Receive reports about the owner from a node until the connection to the node ends."""
        loop = asyncio.get_running_loop()
        self._lost.clear()
        try:
            async with asyncio.timeout(self._terms.connect_timeout_s):
                _, self._link = await loop.create_connection(
                    lambda: Link(self), address.host, address.port, ssl=self._tls
                )
        except (OSError, TimeoutError):
            return
        link = self._link
        try:
            link.send(wire.Follow())
            await self._until_lost(link)
        finally:
            self._link = None
            link.abort()

    async def _until_lost(self, link: Link) -> None:
        """Wait until the connection is lost, or the node has not answered pings for
        ``dead_after_s`` seconds."""
        loop = asyncio.get_running_loop()
        while not self._lost.is_set():
            try:
                async with asyncio.timeout(self._terms.ping_after_s):
                    await self._lost.wait()
            except TimeoutError:
                if loop.time() - link.heard_s >= self._terms.dead_after_s:
                    return
                link.send(wire.Asked(0, Ping()))

    # --- Receiver ------------------------------------------------------------------------

    def received(self, link: Link, message: wire.FromServer, body: memoryview) -> None:
        """Process a report about the owner, and drop the connection if the node says goodbye."""
        match message:
            case wire.Owners():
                if self._terms.note_owners(message):
                    self._moved()
            case wire.Goodbye():
                link.abort()
            case _:
                pass  # answers to pings

    def lost(self, link: Link, reason: BaseException | None) -> None:
        if link is self._link or isinstance(reason, PenstockError):
            self._lost.set()
