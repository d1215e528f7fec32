"""One network connection to a realm. It sends frames and decodes received messages, but does not
interpret them."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import pyarrow as pa

from penstock_core.columns.schema.ipc import schema_from
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, FrameReader, coalesced, frame


class Receiver(Protocol):
    """Receives the messages and the loss of a connection."""

    def received(self, link: Link, message: wire.FromServer, body: memoryview) -> None:
        """Process a message. The bytes of ``body`` do not change as long as it is referenced."""
        ...

    def lost(self, link: Link, reason: BaseException | None) -> None:
        """Process the end of the connection; ``reason`` is None if the peer closed it cleanly."""
        ...


class Link(asyncio.BufferedProtocol):
    """One network connection. It passes messages, and the loss of the connection, to its
    receiver."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._reader = FrameReader()
        self.transport: asyncio.Transport | None = None
        self._out: list[bytes | memoryview] = []
        self._flush_is_due = False
        self._loop = asyncio.get_running_loop()
        self._drained = asyncio.Event()
        self._drained.set()
        self.is_drained = True
        """Whether the write buffer has room."""
        self._closed = asyncio.Event()
        self.schemas: dict[int, pa.Schema] = {}
        """Schemas that the server has announced on this connection, by number."""
        self.announced: set[int] = set()
        """Numbers of the schemas that the client has announced on this connection."""
        self.heard_s = self._loop.time()
        """Time of the event loop at which data was last received."""

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    async def drain(self) -> None:
        """Wait until the write buffer has room."""
        await self._drained.wait()

    def send(self, message: wire.Message, *bodies: bytes | bytearray | memoryview) -> None:
        """Queue a frame. The frames of one turn of the event loop are written together."""
        self._out += frame(wire.encode(message), *bodies)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write the queued frames to the socket."""
        self._flush_is_due = False
        out, self._out = self._out, []
        if not out or self.transport is None or self.transport.is_closing():
            return
        for part in coalesced(out) if len(out) > 1 else out:
            self.transport.write(part)

    def finish(self) -> None:
        """Send the queued frames, then close the sending direction. Data of the peer is still
        received."""
        self.flush()
        if self.is_open and self.transport is not None and self.transport.can_write_eof():
            self.transport.write_eof()

    async def wait_closed(self, silent_s: float) -> None:
        """Wait until the peer has also closed its direction. Abort the connection if no data
        arrives for ``silent_s`` seconds."""
        begun_s = self._loop.time()
        while not self._closed.is_set():
            remaining_s = max(begun_s, self.heard_s) + silent_s - self._loop.time()
            if remaining_s <= 0:
                self.abort()
                return
            try:
                async with asyncio.timeout(remaining_s):
                    await self._closed.wait()
            except TimeoutError:
                continue  # data may have arrived, which extends the wait

    def abort(self) -> None:
        """Drop the connection immediately."""
        if self.transport is not None:
            self.transport.abort()

    # --- asyncio -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the methods of asyncio.Transport, but not the base class.
        transport = cast("asyncio.Transport", transport)
        self.transport = transport
        # More than asyncio's 64 KB, so that a large batch does not stop the writer immediately.
        transport.set_write_buffer_limits(high=4 << 20)
        # Written without waiting for the send queue: the preface must come before all frames.
        transport.write(PREFACE)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, count: int) -> None:
        """Decode the received frames, and pass the messages to the receiver."""
        self.heard_s = self._loop.time()
        reader = self._reader
        reader.buffer_updated(count)
        try:
            while reader.holds_bytes and (next_frame := reader.next_frame()) is not None:
                header, body = next_frame
                message = wire.decode_from_server(header)
                if isinstance(message, wire.Schema):
                    self.schemas[message.number] = schema_from(bytes(body))
                else:
                    self._receiver.received(self, message, body)
        except PenstockError as error:
            # Reported before the abort, which would report the loss without this reason.
            self._receiver.lost(self, error)
            self.abort()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.is_drained = False
        self._drained.clear()

    def resume_writing(self) -> None:
        self.is_drained = True
        self._drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.is_drained = True
        self._drained.set()
        self._closed.set()
        self._receiver.lost(self, exc)
