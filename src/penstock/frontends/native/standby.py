"""The connections of a node that stands by: a native one is told who serves, and ended."""

from __future__ import annotations

import asyncio
from typing import cast

from penstock.core.bounds import HEADER_BYTES_MAX
from penstock.core.vocabulary.errors import PenstockError
from penstock.frontends.native.connection import GREETING_BYTES_MAX
from penstock.frontends.shared.serving_node import FindOwner, part, refusal
from penstock.wire.native import messages as wire
from penstock.wire.native.frames import PREFACE, FrameReader, frame


class Arrivals:
    """The connections of a node that stands by. None of them stays for long."""

    def __init__(self, owner: FindOwner, patience_s: float, connections_max: int) -> None:
        """A connection that has said nothing after ``patience_s`` seconds is dropped."""
        self.owner = owner
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

    def leave(self, transport: asyncio.Transport) -> None:
        """Forget a connection that has ended."""
        if (patience := self._patience.pop(transport, None)) is not None:
            patience.cancel()

    def abort(self) -> None:
        """Drop all connections."""
        for transport in list(self._patience):
            transport.abort()


class StandbyConnection(asyncio.BufferedProtocol):
    """Waits for the first frame, whatever it asks, and answers with the address of the owner."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._reader = FrameReader(
            preface=PREFACE,
            frame_bytes_max=GREETING_BYTES_MAX,
            header_bytes_max=HEADER_BYTES_MAX,
        )
        self._transport: asyncio.Transport | None = None
        self._has_answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self._arrivals.enter(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._arrivals.leave(self._transport)
            self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, count: int) -> None:
        if self._has_answered:
            return
        self._reader.buffer_updated(count)
        try:
            for _ in self._reader.frames():
                self._answer(*self._where())
                return
        except PenstockError as error:
            self._answer(error, "")

    def _where(self) -> tuple[PenstockError, str]:
        owner = self._arrivals.owner()
        url = "" if owner is None else owner.url("native")
        return refusal(owner, "native"), url.partition("://")[2]

    def _answer(self, reason: PenstockError, address: str) -> None:
        self._has_answered = True
        said: wire.Goodbye = wire.Goodbye(reason.code, str(reason))
        if address:
            said = wire.Redirect(reason.code, str(reason), address)
        if self._transport is not None:
            part(self._transport, b"".join(map(bytes, frame(wire.encode(said)))))
