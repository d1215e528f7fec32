"""The real connection object of a real realm, fed with frames that are nearly right.

There is no socket: bytes go in where the transport would put them, so that whatever is raised
there is raised here. Whoever breaks the protocol is shut out; a request that fails for a reason
nobody thought of is answered as ``internal``, and that must not happen either.
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
"""Then there is a fresh one: what earlier inputs have made must not hide what later ones do."""
TURNS_MAX: Final = 200
UNSENT_BYTES_MAX: Final = 32 << 20
"""More than that for some frames in would be a lever."""

SETTINGS: Final = load(overrides={"access.password_rounds": 4_096, "access.failure_delay_s": 0.0})
"""Making passwords and refusing them is to take no time."""
UNFORESEEN: Final = (PenstockError.code, Internal.code)
"""What a request is answered with where nobody thought of what has happened."""

_LENGTHS: Final = struct.Struct("<II")


class Wire(asyncio.Transport):
    """Takes what the realm says, and is never in its way."""

    def __init__(self) -> None:
        super().__init__()
        self.said = bytearray()
        self._closing = False

    def write(self, data: Any) -> None:
        self.said += data
        assert len(self.said) < UNSENT_BYTES_MAX, "a few frames are answered with a flood"

    def close(self) -> None:
        self._closing = True

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is always room."""

    def pause_reading(self) -> None:
        """What was fed is there already."""

    def resume_reading(self) -> None:
        """As above."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Served:
    """A realm in memory on a loop of its own, and native connections to it."""

    def __init__(self, examples_a_realm: int = EXAMPLES_A_REALM) -> None:
        self.loop = asyncio.new_event_loop()
        self._each = examples_a_realm
        self._left = 0
        self._tasks: list[asyncio.Task[Any]] = []

    def take(self, data: bytes) -> None:
        if not self._left:
            self.loop.run_until_complete(self.restart())
            self._left = self._each
        self._left -= 1
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
        assert not self.listener.connections, "a connection that is gone is still counted"

    async def converse(self, data: bytes) -> None:
        """One connection, from its first byte to its loss."""
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
        for message in _heard(bytes(out.said)):
            unforeseen = isinstance(message, wire.Failed) and message.code in UNFORESEEN
            assert not unforeseen, f"nobody has thought of this: {message}"


def _heard(said: bytes) -> Iterator[wire.FromServer]:
    reader = FrameReader()
    reader.receive(said)
    for header, _ in reader.frames():
        yield wire.decode_from_server(header)


@lru_cache
def _served() -> Served:
    served = Served()
    atexit.register(served.close)
    return served


def serve(data: bytes) -> None:
    """The bytes as they are, and then with the lengths of frames made to fit."""
    _served().take(data)
    _served().take(reframed(data))


@lru_cache
def conversations() -> Sequence[bytes]:
    """Each says hello and then does something that is right."""
    batch = body_of([Event(b"abc", properties={"n": 1}), Event(b"d", properties={"n": 2})])
    schema, body = schema_bytes(batch.schema), bytes(batch_bytes(batch))
    create = wire.Asked(1, CreateChannel("orders", Definition(keys={"n": 2})))
    publish = wire.Asked(2, PublishEvents(ChannelId(1), "p", 1, schema=1, sizes=(len(body),)))
    said: list[list[tuple[wire.Message, bytes]]] = [
        [(create, b""), (wire.Schema(1), schema), (publish, body)],
        [
            (wire.Schema(1), schema),
            (wire.Asked(3, StageEvents(ChannelId(1), "s", 1, sizes=(len(body),))), body),
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
        b"".join([*hello, *(part for each in one for part in frame(wire.encode(each[0]), each[1]))])
        for one in said
    ]


def reframed(data: bytes) -> bytes:
    """Bytes with frame lengths that fit, as far as there are frames, so that a change inside of one
    gets further than the reader of frames."""
    found, at = [data[: len(PREFACE)]], len(PREFACE)
    while at + _LENGTHS.size <= len(data):
        length, header = _LENGTHS.unpack_from(data, at)
        end = min(at + 4 + length, len(data))
        inside = data[at + _LENGTHS.size : end]
        header = min(header, len(inside))
        found.append(_LENGTHS.pack(4 + len(inside), header) + inside)
        at = max(end, at + _LENGTHS.size)
    return b"".join(found)
