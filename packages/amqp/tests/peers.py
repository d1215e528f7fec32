"""A peer that sends any frames, and reads the answers frame by frame."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit

from penstock_amqp.wire.frames import Frame, frame_of

PATIENCE_S = 10.0


class Peer:
    """A socket with all bytes it has received."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        assert where.hostname is not None
        assert where.port is not None
        self._socket = socket.create_connection((where.hostname, where.port), PATIENCE_S)
        self.heard = b""
        self._read = 8
        """Offset of the next frame to return; it begins after the protocol header."""

    def say(self, data: bytes) -> None:
        self._socket.sendall(data)

    def hear(self, part: bytes) -> None:
        """Wait until these bytes were received."""
        while part not in self.heard:
            self._hear_more()

    def next(self, code: int | None = None) -> Frame:
        """Return the next frame, or the next one of a kind."""
        while True:
            offset = self._read
            while len(self.heard) < offset + 8:
                self._hear_more()
            end = offset + int.from_bytes(self.heard[offset : offset + 4], "big")
            while len(self.heard) < end:
                self._hear_more()
            self._read = end
            frame = frame_of(self.heard[offset:end]) if end > offset + 8 else None
            if frame is not None and code in (None, frame.code):
                return frame

    def _hear_more(self) -> None:
        more = self._socket.recv(1 << 16)
        assert more, f"closed after {self.heard!r}"
        self.heard += more

    def hear_all(self) -> bytes:
        """Wait until the other side disconnects."""
        try:
            while more := self._socket.recv(1 << 16):
                self.heard += more
        except ConnectionResetError:
            pass
        return self.heard

    def conditions(self) -> list[bytes]:
        return re.findall(rb"amqp:[a-z:-]*(?:error|exceeded|field|handle)", self.heard)

    def hang_up(self) -> None:
        self._socket.close()
