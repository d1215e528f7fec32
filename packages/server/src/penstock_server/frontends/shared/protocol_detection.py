"""Finds out from its first bytes which protocol a connection speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast


def hand_over(transport: asyncio.Transport, protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """Let a protocol go on with a connection of which these bytes have been read."""
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if data:
        give(protocol, data)


def give(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """Have a protocol receive bytes, in the way that it takes them."""
    if isinstance(protocol, asyncio.Protocol):
        protocol.data_received(data)
        return
    assert isinstance(protocol, asyncio.BufferedProtocol), "it takes bytes"
    left = memoryview(data)
    while left:
        room = memoryview(protocol.get_buffer(len(left)))
        taken = min(len(room), len(left))
        room[:taken] = left[:taken]
        left = left[taken:]
        protocol.buffer_updated(taken)


class Sniffer(asyncio.Protocol):
    """The beginning of a connection, until its first bytes say who goes on with it."""

    def __init__(
        self,
        patience_s: float,
        enter: Callable[[Any], bool],
        leave: Callable[[Any], None],
    ) -> None:
        """A connection that sends nothing in ``patience_s`` seconds is dropped, and so is one for
        which ``enter`` says that there is no room; ``leave`` is called at the end of each that had
        some. Both take the sniffer itself.
        """
        self._patience_s = patience_s
        self._enter = enter
        self._leave = leave
        self._data = b""
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        if not self._enter(self):
            transport.abort()
            return
        self._transport = transport
        loop = asyncio.get_running_loop()
        self._waiting = loop.call_later(self._patience_s, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end()

    def end(self) -> None:
        """Stop counting it, if it still is."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
            self._leave(self)

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()


class ProtocolSniffer(Sniffer):
    """Hands its transport to the native protocol or to one that begins with other bytes, as soon as
    it is known which."""

    def __init__(
        self,
        native: Callable[[], asyncio.BaseProtocol],
        others: Mapping[bytes, Callable[[], asyncio.BaseProtocol]],
        patience_s: float,
        enter: Callable[[ProtocolSniffer], bool] = lambda _: True,
        leave: Callable[[ProtocolSniffer], None] = lambda _: None,
    ) -> None:
        """``others`` makes each of the other protocols, by its first bytes."""
        super().__init__(patience_s, enter, leave)
        self._native = native
        self._others = others

    def data_received(self, data: bytes) -> None:
        self._data += data
        transport = self._transport
        if transport is None:
            return
        make: Callable[[], asyncio.BaseProtocol] = self._native
        for first_bytes, other in self._others.items():
            if self._data.startswith(first_bytes):
                make = other
            elif first_bytes.startswith(self._data):
                return  # more bytes have to come
        self.end()
        hand_over(transport, make(), self._data)
