"""Detects the protocol of a connection from its first bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast


def hand_over(transport: asyncio.Transport, protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """Pass a connection to a protocol, with the bytes that were already read."""
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if data:
        give(protocol, data)


def give(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """Pass bytes to a protocol, directly or through its buffer."""
    if isinstance(protocol, asyncio.Protocol):
        protocol.data_received(data)
        return
    assert isinstance(protocol, asyncio.BufferedProtocol), "only these two kinds receive bytes"
    remaining = memoryview(data)
    while remaining:
        buffer = memoryview(protocol.get_buffer(len(remaining)))
        count = min(len(buffer), len(remaining))
        buffer[:count] = remaining[:count]
        remaining = remaining[count:]
        protocol.buffer_updated(count)


class Sniffer(asyncio.Protocol):
    """The beginning of a connection, until its first bytes identify its protocol."""

    def __init__(
        self,
        patience_s: float,
        enter: Callable[[Any], bool],
        leave: Callable[[Any], None],
    ) -> None:
        """``enter`` and ``leave`` are called with the sniffer. A connection is dropped if ``enter``
        returns False, or if it sends no data within ``patience_s`` seconds. ``leave`` is called
        when the beginning of an admitted connection ends.
        """
        self._patience_s = patience_s
        self._enter = enter
        self._leave = leave
        self._data = b""
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.TimerHandle | None = None
        """Timer that drops a silent connection; None while the connection is not counted."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has all methods, but another base class.
        transport = cast("asyncio.Transport", transport)
        if not self._enter(self):
            transport.abort()
            return
        self._transport = transport
        loop = asyncio.get_running_loop()
        self._waiting = loop.call_later(self._patience_s, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end()

    def end(self) -> None:
        """Stop counting the connection; do nothing if it is not counted."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
            self._leave(self)

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()


class ProtocolSniffer(Sniffer):
    """Passes the connection to the native protocol, or to another one that its first bytes
    identify."""

    def __init__(
        self,
        native: Callable[[], asyncio.BaseProtocol],
        others: Mapping[bytes, Callable[[], asyncio.BaseProtocol]],
        patience_s: float,
        enter: Callable[[ProtocolSniffer], bool] = lambda _: True,
        leave: Callable[[ProtocolSniffer], None] = lambda _: None,
    ) -> None:
        """``others`` has the factories of the other protocols by their first bytes."""
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
                return  # more bytes are needed
        self.end()
        hand_over(transport, make(), self._data)
