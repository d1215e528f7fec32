"""The connections of a standby node, for all front ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from penstock_core.vocabulary.errors import PenstockError
from penstock_server.frontends.shared.buffers import Buffers
from penstock_server.frontends.shared.serving_node import FindOwner, refusal

BEGINNINGS_BYTES_MAX: Final = 16 << 20
"""Maximum number of unanswered bytes of all connections of one front end together."""
BEGINNING_SMALL_BYTES: Final = 4_096
"""Bytes of each connection that are not counted."""


class Arrivals:
    """Counts the connections of a standby node; each of them is short."""

    def __init__(
        self,
        owner: FindOwner,
        patience_s: float,
        connections_max: int,
        has_quorum: Callable[[], bool] = lambda: True,
    ) -> None:
        """A connection that has sent nothing after ``patience_s`` seconds is dropped.
        ``has_quorum`` returns whether the node reaches the engine."""
        self.owner = owner
        self.has_quorum = has_quorum
        self.buffers = Buffers(BEGINNINGS_BYTES_MAX, BEGINNING_SMALL_BYTES)
        """Counts the unanswered bytes of all connections."""
        self._patience_s = patience_s
        self._connections_max = connections_max
        self._patience: dict[asyncio.Transport, asyncio.TimerHandle] = {}
        """The timer that drops each connection if it stays silent."""

    def enter(self, transport: asyncio.BaseTransport) -> asyncio.Transport:
        """Count a connection; above the limit it is dropped."""
        # uvloop's transport has all methods, but another base class.
        entered = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._patience[entered] = loop.call_later(self._patience_s, entered.abort)
        if len(self._patience) > self._connections_max:
            entered.abort()
        return entered

    def refusal(self, front_end: str) -> PenstockError:
        """Return the error for a client that wants to be served by this node."""
        return refusal(self.owner(), front_end, has_quorum=self.has_quorum())

    def leave(self, transport: asyncio.Transport) -> None:
        """Stop counting a connection that has ended."""
        if (patience := self._patience.pop(transport, None)) is not None:
            patience.cancel()

    def abort(self) -> None:
        """Drop all connections."""
        for transport in list(self._patience):
            transport.abort()


class StandbyProtocol(asyncio.BaseProtocol):
    """A connection that is answered once, and counted until it ends."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._transport: asyncio.Transport | None = None
        self._has_answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self._arrivals.enter(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._arrivals.leave(self._transport)
            self._transport = None


class ClosingStandby(StandbyProtocol, asyncio.Protocol):
    """Closes the connection, for protocols that cannot redirect a client."""

    def data_received(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.close()
