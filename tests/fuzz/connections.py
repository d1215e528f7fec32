"""The real native connection object of a real realm, fed with almost valid frames.

No socket is involved: bytes are passed in where the transport would pass them, so that errors are
raised here. A client that breaks the protocol is disconnected. A request that fails for an
unforeseen reason is answered as ``internal``, which must not happen either.
"""

from __future__ import annotations

import asyncio
import atexit
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from penstock_core.api.channels import CreateChannel, DescribeMissing, ListChannels, PurgeChannel
from penstock_core.api.publishing import PublishEvents, StageEvents
from penstock_core.api.realm import Ping
from penstock_core.api.subscriptions import Attach, Settle, Subscribe
from penstock_core.api.transactions import BeginTransaction
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.ipc import batch_bytes, schema_bytes
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import Internal, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, FrameReader, frame
from penstock_server.bootstrap import native_listener, open_realm
from penstock_server.frontends.native.connection import Connection
from penstock_server.settings.loading import load

EXAMPLES_A_REALM: Final = 200
"""After this many inputs the realm is replaced, so that state left by earlier inputs does not hide
the effect of later ones."""
TURNS_MAX: Final = 200
UNSENT_BYTES_MAX: Final = 32 << 20
"""Bound on the answer to a few frames, which must not be much larger than they are."""

SETTINGS: Final = load(overrides={"access.password_rounds": 4_096, "access.failure_delay_s": 0.0})
"""Fast settings for hashing passwords and refusing them."""
UNFORESEEN: Final = (PenstockError.code, Internal.code)
"""Codes of requests that failed for an unforeseen reason."""

_LENGTHS: Final = struct.Struct("<II")


class Wire(asyncio.Transport):
    """A transport that collects the realm's answer and always has room."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self._closing = False

    def write(self, data: Any) -> None:
        self.written += data
        assert len(self.written) < UNSENT_BYTES_MAX, "the answer is far larger than its request"

    def close(self) -> None:
        self._closing = True

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits, because the transport always has room."""

    def pause_reading(self) -> None:
        """Ignore the request: all bytes are passed in at once."""

    def resume_reading(self) -> None:
        """Ignore the request, as above."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Served:
    """A realm in memory with its own event loop, and native connections to it."""

    def __init__(self, examples_a_realm: int = EXAMPLES_A_REALM) -> None:
        self.loop = asyncio.new_event_loop()
        self._inputs_a_realm = examples_a_realm
        self._inputs_left = 0
        self._tasks: list[asyncio.Task[Any]] = []

    def handle(self, data: bytes) -> None:
        if not self._inputs_left:
            self.loop.run_until_complete(self.restart())
            self._inputs_left = self._inputs_a_realm
        self._inputs_left -= 1
        self.loop.run_until_complete(self._serve(data))

    def close(self) -> None:
        self.loop.run_until_complete(self._stop())
        self.loop.close()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []

    async def restart(self) -> None:
        await self._stop()
        realm = await open_realm(None, SETTINGS)
        self.listener = native_listener(realm, SETTINGS, "0")
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(realm.run()),
            loop.create_task(self.listener.run(ready)),
        ]
        await ready.wait()

    async def _serve(self, data: bytes) -> None:
        await self.converse(data)
        for task in self._tasks:
            assert not task.done(), f"the realm has ended: {task}"
        assert not self.listener.connections, "a closed connection is still counted"

    async def converse(self, data: bytes) -> None:
        """Play one connection, from its first byte to its loss."""
        connection, out = Connection(self.listener), Wire()
        connection.connection_made(out)
        rest = memoryview(data)
        while rest and not out.is_closing():
            room = connection.get_buffer(-1)
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            connection.buffer_updated(count)
            rest = rest[count:]
            await asyncio.sleep(0)
        for _ in range(TURNS_MAX):
            await asyncio.sleep(0)
        connection.connection_lost(None)
        await asyncio.sleep(0)
        for message in _messages_in(bytes(out.written)):
            unforeseen = isinstance(message, wire.Failed) and message.code in UNFORESEEN
            assert not unforeseen, f"an unforeseen error of the connection: {message}"


def _messages_in(written: bytes) -> Iterator[wire.FromServer]:
    reader = FrameReader()
    reader.receive(written)
    for header, _ in reader.frames():
        yield wire.decode_from_server(header)


@lru_cache
def _served() -> Served:
    served = Served()
    atexit.register(served.close)
    return served


def serve(data: bytes) -> None:
    """Converse with the bytes as they are, and with frame lengths that fit."""
    _served().handle(data)
    _served().handle(reframed(data))


@lru_cache
def conversations() -> Sequence[bytes]:
    """Valid conversations: a hello, and then requests."""
    batch = body_of([Event(b"abc", properties={"n": 1}), Event(b"d", properties={"n": 2})])
    schema, rows = schema_bytes(batch.schema), bytes(batch_bytes(batch))
    create = wire.Asked(1, CreateChannel("orders", Definition(keys={"n": 2})))
    publish = wire.Asked(2, PublishEvents(ChannelId(1), "p", 1, schema=1, sizes=(len(rows),)))
    exchanges: list[list[tuple[wire.Message, bytes]]] = [
        [(create, b""), (wire.Schema(1), schema), (publish, rows)],
        [
            (wire.Schema(1), schema),
            (wire.Asked(3, StageEvents(ChannelId(1), "s", 1, sizes=(len(rows),))), rows),
        ],
        [
            (create, b""),
            (
                wire.Asked(
                    4, Subscribe(ChannelId(1), 1, FromEarliest(), credit=10, selector="n > 1")
                ),
                b"",
            ),
        ],
        [
            (
                wire.Asked(
                    5, Attach(ChannelId(1), 1, "d", window=10, pull=False, selector="n = 1")
                ),
                b"",
            ),
            (wire.Credit(1, 5, 0), b""),
        ],
        [(wire.Asked(6, Settle(1, (Span(0, 1),))), b""), (wire.Asked(7, ListChannels()), b"")],
        [
            (wire.Asked(8, PurgeChannel(ChannelId(1), 0, 5, selector="n = 1")), b""),
            (wire.Asked(9, DescribeMissing(ChannelId(1), 0, 9)), b""),
        ],
        [
            (wire.Asked(10, BeginTransaction("tx", (ChannelId(1),))), b""),
            (wire.Asked(0, Ping()), b""),
            (wire.Bye(), b""),
        ],
    ]
    hello = [PREFACE, *frame(wire.encode(wire.Hello("fuzz", "fuzz")))]
    return [
        b"".join(
            [
                *hello,
                *(
                    part
                    for message_and_body in exchange
                    for part in frame(wire.encode(message_and_body[0]), message_and_body[1])
                ),
            ]
        )
        for exchange in exchanges
    ]


def reframed(data: bytes) -> bytes:
    """Return the bytes with frame lengths that fit, so that a change inside of a frame gets past
    the reader of frames."""
    frames, start = [data[: len(PREFACE)]], len(PREFACE)
    while start + _LENGTHS.size <= len(data):
        length, header = _LENGTHS.unpack_from(data, start)
        end = min(start + 4 + length, len(data))
        content = data[start + _LENGTHS.size : end]
        header = min(header, len(content))
        frames.append(_LENGTHS.pack(4 + len(content), header) + content)
        start = max(end, start + _LENGTHS.size)
    return b"".join(frames)
