"""The connections of a node that stands by, of whatever front end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from penstock_core.vocabulary.errors import PenstockError
from penstock_server.frontends.shared.buffers import Buffers
from penstock_server.frontends.shared.serving_node import FindOwner, refusal

BEGINNINGS_BYTES_MAX: Final = 16 << 20
"""Bytes that the connections of one front end have sent and that are not answered, together."""
BEGINNING_SMALL_BYTES: Final = 4_096
"""Bytes of each of them that are not counted."""


class Arrivals:
    """The connections of a node that stands by. None of them stays for long."""

    def __init__(
        self,
        owner: FindOwner,
        patience_s: float,
        connections_max: int,
        has_quorum: Callable[[], bool] = lambda: True,
    ) -> None:
        """A connection that has said nothing after ``patience_s`` seconds is dropped.
        ``has_quorum`` says whether the node reaches the engine."""
        self.owner = owner
        self.has_quorum = has_quorum
        self.buffers = Buffers(BEGINNINGS_BYTES_MAX, BEGINNING_SMALL_BYTES)
        """What clients have sent that are not answered yet."""
        self._patience_s = patience_s
        self._connections_max = connections_max
        self._patience: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def enter(self, transport: asyncio.BaseTransport) -> asyncio.Transport:
        """Count a connection; one for which there is no room is dropped."""
        entered = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        loop = asyncio.get_running_loop()
        self._patience[entered] = loop.call_later(self._patience_s, entered.abort)
        if len(self._patience) > self._connections_max:
            entered.abort()
        return entered

    def refusal(self, front_end: str) -> PenstockError:
        """What somebody is told who wants to be served here."""
        return refusal(self.owner(), front_end, has_quorum=self.has_quorum())

    def leave(self, transport: asyncio.Transport) -> None:
        """Forget a connection that has ended."""
        if (patience := self._patience.pop(transport, None)) is not None:
            patience.cancel()

    def abort(self) -> None:
        """Drop all connections."""
        for transport in list(self._patience):
            transport.abort()


class StandbyProtocol(asyncio.BaseProtocol):
    """One connection: it is answered once, and counted until it has ended."""

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
    """Closes the connection, for a protocol that has no words for where the realm is served."""

    def data_received(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.close()
