"""A session's second ear in a cluster: a node that stands by tells which node owns the realm.

The owner itself cannot say that it was deposed while it is frozen or cut off. A node that stands by
knows as soon as another one has claimed the realm, and the session leaves for that one at once.
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
"""Seconds between two rounds over the nodes."""


class OwnerWatch:
    """Follows the owners at one node after the other, other than the one of the connection."""

    def __init__(
        self, terms: SessionTerms, tls: SSLContext | None, moved: Callable[[], None]
    ) -> None:
        """``moved`` is called when the session is to leave its connection."""
        self._terms = terms
        self._tls = tls
        self._moved = moved
        self._task: asyncio.Task[None] | None = None
        self._link: Link | None = None
        self._lost = asyncio.Event()

    def begin(self) -> None:
        """Follow from now on, if the session is one of a cluster; once is enough."""
        if self._task is None and len(self._terms.nodes) > 1:
            watching = self._run()
            self._task = start_task(watching, name="penstock-owners", on_failure=leave_to_owner)

    def end(self) -> None:
        """Follow no more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            for address in self._terms.nodes:
                if address not in (self._terms.at, self._terms.named):
                    await self._follow(address)
            await asyncio.sleep(PAUSE_S)

    async def _follow(self, address: Address) -> None:
        """Hear what a node says, until its connection ends."""
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
        match message:
            case wire.Owners():
                if self._terms.told(message):
                    self._moved()
            case wire.Goodbye():
                link.abort()
            case _:
                pass  # answers to pings

    def lost(self, link: Link, reason: BaseException | None) -> None:
        if link is self._link or isinstance(reason, PenstockError):
            self._lost.set()
