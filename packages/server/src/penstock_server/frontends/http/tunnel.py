"""Runs another protocol inside a WebSocket. The connections of that protocol use the tunnel like an
ordinary transport."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, cast

from penstock_core.wire.websocket import (
    BINARY,
    CLOSE,
    NORMAL,
    PING,
    PONG,
    UNSUPPORTED_DATA,
    VERSION,
    WebSocketReader,
    WebSocketViolation,
    answer_to,
    close_bytes,
    frame_bytes,
    is_key,
)
from penstock_server.frontends.shared.protocol_detection import give

PATHS: Final[Mapping[str, frozenset[str] | None]] = MappingProxyType(
    {"/ws": None, "/mqtt": frozenset(("mqtt",))}
)
"""Paths of WebSockets with their sub-protocols; None for all served sub-protocols. Most MQTT
clients use ``/mqtt`` by default."""


class TunnelTransport(asyncio.Transport):
    """The transport of the inner protocol; it sends each write as a binary message."""

    def __init__(self, outer: asyncio.Transport) -> None:
        super().__init__()
        self._outer = outer
        self.is_ended = False
        """Whether a close frame was sent."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._outer.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self.is_ended or self._outer.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.is_closing():
            self._outer.write(frame_bytes(BINARY, bytes(data)))

    def close(self) -> None:
        self.end(NORMAL)

    def end(self, status: int, reason: str = "") -> None:
        """Close the WebSocket with a status."""
        if not self.is_closing():
            self._outer.write(close_bytes(status, reason))
        self.is_ended = True
        self._outer.close()

    # A WebSocket cannot close one direction alone.
    def can_write_eof(self) -> bool:
        return False

    def abort(self) -> None:
        self._outer.abort()

    def pause_reading(self) -> None:
        self._outer.pause_reading()

    def resume_reading(self) -> None:
        if not self._outer.is_closing():
            self._outer.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._outer.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._outer.get_write_buffer_size()


class WebTunnel(asyncio.Protocol):
    """Passes the data of binary messages to the inner protocol, and answers control frames."""

    def __init__(self, inner: asyncio.BaseProtocol) -> None:
        self._inner = inner
        self._reader = WebSocketReader()
        self._outer: asyncio.Transport | None = None
        self._transport: TunnelTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._outer = cast("asyncio.Transport", transport)
        self._transport = TunnelTransport(self._outer)
        self._inner.connection_made(self._transport)

    def data_received(self, data: bytes) -> None:
        transport, outer = self._transport, self._outer
        assert transport is not None, "a connection was made"
        assert outer is not None, "a connection was made"
        self._reader.receive(data)
        try:
            for opcode, piece in self._reader.pieces():
                # The inner protocol may have closed the connection while it handled an earlier
                # message.
                if transport.is_closing():
                    return
                if opcode == BINARY:
                    give(self._inner, piece)
                elif opcode == PING:
                    outer.write(frame_bytes(PONG, piece))
                elif opcode == CLOSE:
                    transport.end(NORMAL)
                elif opcode != PONG:
                    transport.end(UNSUPPORTED_DATA, "text messages are refused; send binary ones")
        except WebSocketViolation as error:
            transport.end(error.status, str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


class Upgrade:
    """The opening handshake of a WebSocket, from its HTTP request."""

    def __init__(self, method: str, headers: Mapping[str, str]) -> None:
        self._method = method
        self._headers = headers
        names = headers.get("sec-websocket-protocol", "").split(",")
        self.offered = [name.strip() for name in names if name.strip()]
        """Sub-protocols that the client offers, in order of its preference."""

    def fault(self, served: Sequence[str]) -> tuple[int, str] | None:
        """Return the HTTP status and reason why the handshake fails; None if it is valid.

        ``served`` has the supported sub-protocols.
        """
        if self._method != "GET":
            return 400, f"a WebSocket cannot be opened with {self._method[:20]}; use GET"
        if self._headers.get("sec-websocket-version") != VERSION:
            return 426, f"only version {VERSION} of WebSocket is supported"
        if not is_key(self._headers.get("sec-websocket-key", "")):
            return 400, "Sec-WebSocket-Key must be 16 bytes in base64"
        if self.chosen(served) is None:
            names = ", ".join(served)
            return 400, f"Sec-WebSocket-Protocol must offer one of: {names}"
        return None

    def chosen(self, served: Sequence[str]) -> str | None:
        """Return the client's preferred sub-protocol among those served; None without a match."""
        return next((name for name in self.offered if name in served), None)

    def answer(self, protocol: str) -> bytes:
        """Return the response that completes the handshake."""
        return (
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            f"sec-websocket-accept: {answer_to(self._headers['sec-websocket-key'])}\r\n"
            f"sec-websocket-protocol: {protocol}\r\n\r\n"
        ).encode()


def refusal(status: int, text: str) -> bytes:
    """Return a response that refuses the handshake and closes the connection."""
    body = text.encode()
    # The answer 426 has to name the supported version (RFC 6455, section 4.4).
    version = f"sec-websocket-version: {VERSION}\r\n" if status == 426 else ""
    return (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{version}"
        "content-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body
