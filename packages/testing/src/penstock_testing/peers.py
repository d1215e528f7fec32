"""A peer for tests that speaks the native protocol frame by frame, correctly or not."""

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


class RawPeer:
    """One connection to a realm, on which the test sends every byte."""

    def __init__(
        self,
        url: str,
        *,
        receive_bytes: int | None = None,
        patience_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        """``receive_bytes`` makes a small receive buffer, for a peer that does not keep up. After
        ``patience_s`` seconds sending and receiving raise ``TimeoutError``."""
        address = parse_url(url).addresses[0]
        self._socket = socket.socket()
        if receive_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(patience_s)
        self._socket.connect((address.host, address.port))
        self._reader = FrameReader()
        self._waiting: list[tuple[wire.FromServer, bytes]] = []

    def wait_at_most(self, patience_s: float) -> None:
        """Change how long sending and receiving may take."""
        self._socket.settimeout(patience_s)

    def send(self, *pieces: bytes | bytearray | memoryview) -> None:
        """Send raw bytes. Whether the realm still reads shows when an answer is expected."""
        try:
            self._socket.sendall(b"".join(pieces))
        except ConnectionError:
            return

    def say(self, message: wire.Message, *bodies: bytes) -> None:
        self.send(*frame(wire.encode(message), *bodies))

    def greet(self, session: str = "raw") -> wire.Welcome:
        self.send(PREFACE)
        self.say(wire.Hello("raw peer", session))
        return self.hear(wire.Welcome)

    def hear(self, kind: type[M]) -> M:
        """The next message of a type; others are skipped.

        Raises ``EOFError`` when the realm closes first, ``TimeoutError`` when none comes.
        """
        while True:
            message, _ = self._next()
            if isinstance(message, kind):
                return message

    def hear_until(self, request: int) -> list[wire.FromServer]:
        """All messages up to the answer to ``request``, or until the realm closes."""
        found: list[wire.FromServer] = []
        try:
            while True:
                found.append(self._next()[0])
                if isinstance(found[-1], wire.Done | wire.Failed) and found[-1].request == request:
                    return found
        except EOFError:
            return found

    def _next(self) -> tuple[wire.FromServer, bytes]:
        while not self._waiting:
            try:
                piece = self._socket.recv(1 << 16)
            except ConnectionError:
                piece = b""
            if not piece:
                raise EOFError("the realm has hung up")
            self._reader.receive(piece)
            for header, body in self._reader.frames():
                self._waiting.append((wire.decode_from_server(header), bytes(body)))
        return self._waiting.pop(0)

    @property
    def is_closed_by_the_realm(self) -> bool:
        """Whether the connection ends; waits for the next message or the end."""
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
