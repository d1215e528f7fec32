"""A peer that speaks the native protocol frame by frame, correctly or not, for tests."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import TypeVar

from penstock.client.connection.urls import parse_url
from penstock_core.vocabulary.errors import RemoteProtocolViolation
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, FrameReader, frame

M = TypeVar("M")

ANSWER_TIMEOUT_S = 60.0
"""Default timeout of sending and receiving. It is large because test machines are busy."""


class RawPeer:
    """A connection to a realm on which the test sends every byte itself."""

    def __init__(
        self,
        url: str,
        *,
        receive_bytes: int | None = None,
        patience_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        """``receive_bytes`` is the size of the socket's receive buffer, for a peer that reads too
        slowly. Sending and receiving raise ``TimeoutError`` after ``patience_s`` seconds."""
        address = parse_url(url).addresses[0]
        self._socket = socket.socket()
        if receive_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(patience_s)
        self._socket.connect((address.host, address.port))
        self._reader = FrameReader()
        self._waiting: list[tuple[wire.FromServer, bytes]] = []
        """Received messages that were not returned to the test yet, with their bodies."""

    def wait_at_most(self, patience_s: float) -> None:
        """Change the timeout of sending and receiving."""
        self._socket.settimeout(patience_s)

    def send(self, *pieces: bytes | bytearray | memoryview) -> None:
        """Send raw bytes. Errors of the connection are ignored here; they show when the test waits
        for an answer."""
        try:
            self._socket.sendall(b"".join(pieces))
        except ConnectionError:
            return

    def say(self, message: wire.Message, *bodies: bytes) -> None:
        """Send a message as a correct frame."""
        self.send(*frame(wire.encode(message), *bodies))

    def greet(self, session: str = "raw") -> wire.Welcome:
        """Open a session, as every correct client does first, and return the answer."""
        self.send(PREFACE)
        self.say(wire.Hello("raw peer", session))
        return self.hear(wire.Welcome)

    def hear(self, kind: type[M]) -> M:
        """Return the next message of a type; other messages are skipped.

        Raises ``EOFError`` if the realm closes the connection, and ``TimeoutError`` if no message
        arrives.
        """
        while True:
            message, _ = self._next()
            if isinstance(message, kind):
                return message

    def hear_until(self, request: int) -> list[wire.FromServer]:
        """Return all messages up to the answer to ``request``, or up to the end of the
        connection."""
        messages: list[wire.FromServer] = []
        try:
            while True:
                messages.append(self._next()[0])
                if (
                    isinstance(messages[-1], wire.Done | wire.Failed)
                    and messages[-1].request == request
                ):
                    return messages
        except EOFError:
            return messages

    def _next(self) -> tuple[wire.FromServer, bytes]:
        """Return the next message and its body. Raises ``EOFError`` at the end of the
        connection."""
        while not self._waiting:
            try:
                chunk = self._socket.recv(1 << 16)
            except ConnectionError:
                chunk = b""
            if not chunk:
                raise EOFError("the realm closed the connection")
            self._reader.receive(chunk)
            for header, body in self._reader.frames():
                self._waiting.append((wire.decode_from_server(header), bytes(body)))
        return self._waiting.pop(0)

    @property
    def is_closed_by_the_realm(self) -> bool:
        """Whether the realm closes the connection before it sends another message; waits for
        either."""
        try:
            self._next()
        except (EOFError, RemoteProtocolViolation):
            return True
        return False

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
