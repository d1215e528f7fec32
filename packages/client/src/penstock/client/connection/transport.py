"""One connection to a realm: frames out, messages in. It does not know what they mean."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import pyarrow as pa

from penstock_core.columns.schema.ipc import schema_from
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, FrameReader, coalesced, frame


class Receiver(Protocol):
    def received(self, link: Link, message: wire.FromServer, body: memoryview) -> None: ...

    def lost(self, link: Link, reason: BaseException | None) -> None: ...


class Link(asyncio.BufferedProtocol):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes | memoryview] = []
        self._flush_is_due = False
        self._loop = asyncio.get_running_loop()
        self._drained = asyncio.Event()
        self._drained.set()
        self.is_drained = True
        """Whether the connection takes more at once."""
        self._gone = asyncio.Event()
        self.schemas: dict[int, pa.Schema] = {}
        """Schemas the server has announced on this connection."""
        self.announced: set[int] = set()
        """Schemas this side has announced."""
        self.heard_s = self._loop.time()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def drained(self) -> None:
        """Wait until the connection takes more."""
        await self._drained.wait()

    def send(self, message: wire.Message, *bodies: bytes | bytearray | memoryview) -> None:
        """Queue a frame; frames of one turn of the loop leave together."""
        self._out += frame(wire.encode(message), *bodies)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flush_is_due = False
        out, self._out = self._out, []
        if not out or self._transport is None or self._transport.is_closing():
            return
        for part in coalesced(out) if len(out) > 1 else out:
            self._transport.write(part)

    def finish(self) -> None:
        """Send what is queued and nothing after it; what the peer sends is still read."""
        self.flush()
        if self.is_open and self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    async def gone(self, silent_s: float) -> None:
        """Wait until the peer has ended it, too, or drop it once nothing was heard for long."""
        begun_s = self._loop.time()
        while not self._gone.is_set():
            left_s = max(begun_s, self.heard_s) + silent_s - self._loop.time()
            if left_s <= 0:
                self.abort()
                return
            try:
                async with asyncio.timeout(left_s):
                    await self._gone.wait()
            except TimeoutError:
                continue  # something may have come meanwhile

    def abort(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is one in all but its base class
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=4 << 20)
        transport.write(PREFACE)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, count: int) -> None:
        self.heard_s = self._loop.time()
        reader = self._reader
        reader.buffer_updated(count)
        try:
            while reader.holds_bytes and (found := reader.next_frame()) is not None:
                header, body = found
                message = wire.decode_from_server(header)
                if isinstance(message, wire.Schema):
                    self.schemas[message.number] = schema_from(bytes(body))
                else:
                    self._receiver.received(self, message, body)
        except PenstockError as error:
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
        self._transport = None
        self.is_drained = True
        self._drained.set()
        self._gone.set()
        self._receiver.lost(self, exc)
