"""Clients of the native protocol with a transport in memory."""

from __future__ import annotations

import asyncio

from penstock_core.api.realm import Ping
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, FrameReader, frame
from penstock_server.frontends.native.connection import Connection
from penstock_server.frontends.native.listener import (
    NativeListener,
)


class Wire(asyncio.Transport):
    """A transport that records what a connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = FrameReader()
        self.is_read = True
        self.is_aborted = False
        self.is_closed = False
        self.ended = asyncio.Event()
        self.error: Exception | None = None
        """The error that a write raises, if any."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.error is not None:
            raise self.error
        self.reader.receive(data)

    def abort(self) -> None:
        self.is_aborted = True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high, "somebody has thought about it"

    def is_closing(self) -> bool:
        return self.is_closed

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.is_closed = True
        self.ended.set()

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def heard(self) -> list[wire.FromServer]:
        return [wire.decode_from_server(header) for header, _ in self.reader.frames()]


class Peer:
    """A client that sends its bytes when the test says so."""

    def __init__(self, listener: NativeListener, session: str) -> None:
        self.wire = Wire()
        self.connection = Connection(listener)
        self.connection.connection_made(self.wire)
        self._say(PREFACE)
        self.say(wire.Hello("peer", session))

    def say(self, *messages: wire.Message) -> None:
        """Send messages in one piece."""
        self.say_with(*((message, b"") for message in messages))

    def say_with(self, *frames: tuple[wire.Message, bytes]) -> None:
        """Send messages, each with its body, in one piece."""
        parts = [part for m, beside in frames for part in frame(wire.encode(m), beside)]
        self._say(b"".join(map(bytes, parts)))

    def begin_frame(self, size: int) -> None:
        """Send the first half of a ping with a body of this size."""
        data = b"".join(map(bytes, frame(wire.encode(wire.Asked(7, Ping())), bytes(size))))
        self._rest = data[size // 2 :]
        self._say(data[: size // 2])

    def end_frame(self) -> None:
        self._say(self._rest)

    def _say(self, data: bytes) -> None:
        while data:
            room = self.connection.get_buffer(-1)
            chunk, data = data[: len(room)], data[len(room) :]
            room[: len(chunk)] = chunk
            self.connection.buffer_updated(len(chunk))

    async def answered(self, count: int) -> list[int]:
        """Return the numbers of the next answered requests, in order."""
        return [answer.request for answer in await self.next_answers(count)]

    async def next_answers(self, count: int) -> list[wire.Done | wire.Failed]:
        """Return the next answers, in order."""
        answers: list[wire.Done | wire.Failed] = []
        while len(answers) < count:
            await asyncio.sleep(0)
            messages = self.wire.heard()
            answers += [
                message for message in messages if isinstance(message, wire.Done | wire.Failed)
            ]
        return answers
