"""A replicated storage engine in memory, for clusters in tests.

:class:`EngineServers` is the state of the servers. Each node uses it through a
:class:`MemoryEngine`, whose requests go through one function, ``call``. A test passes a ``call``
that loses a request or its answer (by raising :class:`NoAnswer`), or that executes it late.

A block consists of one or more frames, and is complete with its last frame. Every frame is appended
by compare-and-set on the newest frame. Frames without data mark epochs and floors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, ClassVar, Final, Literal, TypeVar

from msgspec import Struct

from penstock_core.vocabulary.errors import (
    Conflict,
    Damaged,
    Deposed,
    InvalidArgument,
    StorageFailed,
    Trimmed,
    Unavailable,
    Unknown,
)
from penstock_core.vocabulary.ports import (
    READ_BYTES_MAX,
    BlobInfo,
    Block,
    Buffer,
    Change,
    DamagedBlock,
    EngineCheck,
    EngineHealth,
    EngineServer,
    JournalInfo,
    Offload,
    VersionedRecord,
    inline,
)
from penstock_core.vocabulary.timings import Timings
from penstock_server.storage.journal_arguments import check_read, check_room, check_trim
from penstock_server.storage.memory import MemoryBlobs, MemoryRegistry

T = TypeVar("T")

FRAME_BYTES_MAX: Final = 1 << 20
"""Maximum number of bytes of data in a frame."""
RETRY_S: Final = 0.05
"""Pause before an unanswered request is repeated."""
READ_ONLY_EPOCH: Final = 1 << 62
"""Epoch of a handle that only reads. No owner reaches it, so the handle is never deposed."""


FrameKind = Literal["epoch", "floor", "data"]


class NoAnswer(Exception):
    """The engine did not answer in time; it is unknown whether it executed the request."""


class LogFrame(Struct, frozen=True):
    """An entry in the log of a shard."""

    kind: FrameKind
    epoch: int
    writer: int
    """Number of the handle that wrote the frame; each handle has a different one."""
    block: int
    """The block that the frame is a part of; in a mark, the newest block at that time."""
    part: int = 0
    """Number of the frame within its block, from 0 on."""
    parts: int = 1
    """Number of frames of the block."""
    data: bytes = b""


class ShardLog:
    """The frames of one shard. Their sequences start at 1; the oldest frames may be purged."""

    def __init__(self) -> None:
        self.frames: list[LogFrame] = []
        self.purged = 0
        """Sequence of the newest purged frame."""

    @property
    def last(self) -> int:
        """Sequence of the newest frame."""
        return self.purged + len(self.frames)

    def append(self, expected: int, frame: LogFrame) -> None:
        """Append a frame. Raises ``Conflict`` if ``expected`` is not the newest sequence."""
        if expected != self.last:
            raise Conflict(f"the newest frame is {self.last}, not {expected}")
        self.frames.append(frame)

    def snapshot(self) -> tuple[int, list[LogFrame]]:
        """Return the sequence before the first frame, and all frames."""
        return self.purged, list(self.frames)

    def get(self, first: int, parts: int) -> list[LogFrame]:
        """Return at most ``parts`` frames from sequence ``first`` on. Raises ``Trimmed`` if the
        frame ``first`` is purged."""
        if first <= self.purged:
            raise Trimmed(f"frame {first} is gone: the log starts after {self.purged}")
        begin = first - self.purged - 1
        return self.frames[begin : begin + parts]

    def contains(self, sequence: int, frame: LogFrame) -> bool:
        """Return whether ``frame`` is the frame with that sequence."""
        index = sequence - self.purged - 1
        return 0 <= index < len(self.frames) and self.frames[index] == frame

    def purge(self, below: int) -> None:
        """Delete the frames below a sequence."""
        removed = min(max(below - 1 - self.purged, 0), len(self.frames))
        del self.frames[:removed]
        self.purged += removed


class EngineServers:
    """The state of the servers of an engine, which all nodes share."""

    def __init__(self, servers: int = 3) -> None:
        self.servers = self.running = servers
        """Number of servers, and number of those that are running."""
        self.writers = count(1)
        """Numbers for new handles."""
        self.records = MemoryRegistry()
        self.logs: dict[int, ShardLog] = {}
        """The log of each shard, by number."""
        self.stores: dict[int, MemoryBlobs] = {}
        """The blobs of each shard, by number."""

    def log(self, shard: int) -> ShardLog:
        """Return the log of a shard; it is empty at the first call."""
        return self.logs.setdefault(shard, ShardLog())

    def blobs(self, shard: int) -> MemoryBlobs:
        """Return the blobs of a shard; there are none at the first call."""
        return self.stores.setdefault(shard, MemoryBlobs(grows=False))


class MemoryEngine:
    """The :class:`~penstock_core.vocabulary.ports.StorageEngine` of one node.

    The class attributes name the classes of its parts, so that a test can replace one of them by a
    faulty class.
    """

    journals: ClassVar[type[EngineJournal]]
    registries: ClassVar[type[EngineRegistry]]
    stores: ClassVar[type[EngineBlobs]]

    def __init__(
        self,
        servers: EngineServers | None = None,
        *,
        call: Offload = inline,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        """``call`` executes requests to the servers, or raises :class:`NoAnswer`."""
        self.servers = servers or EngineServers()
        self.requests = RetryingRequests(call)
        self._frame_bytes_max = frame_bytes_max
        self._journals: list[EngineJournal] = []

    async def check(self, shard: int) -> None:
        """Do nothing: an engine in memory has no configuration that could be wrong."""

    async def registry(self) -> EngineRegistry:
        return self.registries(self.servers.records, self.requests)

    async def journal(self, shard: int, epoch: int, *, begins: int = 0) -> EngineJournal:
        """Open the journal of a shard for the owner with this epoch, which excludes older owners
        (:meth:`penstock_core.vocabulary.ports.StorageEngine.journal`)."""
        if epoch < 1 or begins < 0:
            raise InvalidArgument(
                f"epoch is {epoch} and begins is {begins}; they must be at least 1 and at least 0"
            )
        journal = self.journals(
            self.servers.log(shard),
            self.requests,
            epoch=epoch,
            writer=next(self.servers.writers),
            begins=begins,
            frame_bytes_max=self._frame_bytes_max,
        )
        await journal.fence()
        self._journals.append(journal)
        return journal

    async def open_read_only(self, shard: int) -> EngineJournal | None:
        """Open the journal of a shard for reading only; None if it was never begun
        (:meth:`penstock_core.vocabulary.ports.StorageEngine.open_read_only`)."""
        log = self.servers.log(shard)
        if not log.last:
            return None
        journal = self.journals(
            log,
            self.requests,
            epoch=READ_ONLY_EPOCH,
            writer=0,
            begins=0,
            frame_bytes_max=self._frame_bytes_max,
        )
        await journal.read_log()
        self._journals.append(journal)
        return journal

    async def blobs(self, shard: int) -> EngineBlobs:
        return self.stores(self.servers.blobs(shard), self.requests)

    async def health(self) -> EngineHealth:
        servers, running = await self.requests.until_answered(
            lambda: (self.servers.servers, self.servers.running)
        )
        return _health(servers, running)

    async def close(self) -> None:
        for journal in self._journals:
            await journal.close()


class MemoryInspector:
    """The :class:`~penstock_core.vocabulary.ports.EngineInspector` of servers in memory."""

    def __init__(self, servers: EngineServers) -> None:
        self._servers = servers

    async def records(self, prefix: str = "") -> Mapping[str, VersionedRecord]:
        """Return the records of the registry whose keys begin with ``prefix``
        (:meth:`penstock_core.vocabulary.ports.EngineInspector.records`)."""
        if not self._has_quorum:
            raise Unavailable("the engine in memory has no majority of its servers")
        records = self._servers.records
        records_by_key = {key: await records.get(key) for key in await records.list(prefix)}
        return {key: record for key, record in records_by_key.items() if record is not None}

    async def health(self) -> EngineHealth:
        return _health(self._servers.servers, self._servers.running)

    async def servers(self) -> Sequence[EngineServer]:
        """Return the servers, the running ones first; the first server is the leader."""
        return [
            EngineServer(
                name=f"server-{number}",
                address="memory",
                version="1",
                leads=self._has_quorum and number == 1,
                failure="" if number <= self._servers.running else "it is not running",
            )
            for number in range(1, self._servers.servers + 1)
        ]

    async def checks(self, shard: int) -> Sequence[EngineCheck]:
        """Return one check: the number of running servers."""
        description = f"{self._servers.running} of {self._servers.servers} servers are present"
        if not self._has_quorum:
            description += ". To fix: start a majority of them"
        return [EngineCheck(name="servers", finding=description, is_ok=self._has_quorum)]

    async def clusters(self) -> Sequence[str]:
        """Return the name of the only cluster if it has records."""
        return ["penstock"] if await self.records() else []

    async def close(self) -> None:
        """Do nothing: the inspector has no connection."""

    @property
    def _has_quorum(self) -> bool:
        return self._servers.running * 2 > self._servers.servers


def _health(servers: int, running: int) -> EngineHealth:
    """Return the health of an engine; ``running`` of its ``servers`` are running."""
    has_quorum = running * 2 > servers
    return EngineHealth(
        kind="memory",
        version="1",
        has_quorum=has_quorum,
        servers=servers,
        present=running,
        leader="memory" if has_quorum else "",
    )


class RetryingRequests:
    """Sends requests to the servers; :meth:`until_answered` repeats them."""

    def __init__(self, call: Offload) -> None:
        self.once = call

    async def until_answered(self, do: Callable[[], T]) -> T:
        """Repeat an idempotent request until it is answered, and return the answer."""
        while True:
            try:
                return await self.once(do)
            except NoAnswer:
                await self.pause()

    async def pause(self) -> None:
        """Wait before a request is repeated."""
        await asyncio.sleep(RETRY_S)


class EngineJournal:
    """The :class:`~penstock_core.vocabulary.ports.Journal` of a shard, for the owner of one epoch.

    An unanswered append is repeated at the same position until the log shows its outcome: the
    position has this frame, or the frame of another writer.
    """

    def __init__(
        self,
        log: ShardLog,
        requests: RetryingRequests,
        *,
        epoch: int,
        writer: int,
        begins: int,
        frame_bytes_max: int,
    ) -> None:
        self.log = log
        self.requests = requests
        self.epoch = epoch
        self._writer = writer
        self._frame_bytes_max = frame_bytes_max
        self.floor = self.tail = begins
        self.last = 0
        """Sequence of the newest frame that this handle has seen."""
        self.places: dict[int, tuple[int, int, int]] = {}
        """Sequence of the first frame, number of frames and size in bytes of each block."""
        self._waiting_since: float | None = None
        """Time of the loop at the start of the append in progress; None if there is none."""
        self._appends = Timings()
        self._closed = False
        self._deposed_reason = ""
        """Why further appends raise ``Deposed``; empty if they do not."""
        self._unknown_reason = ""
        """Why further appends raise ``Unknown``; empty if they do not."""

    async def fence(self) -> None:
        """Read the log and append the mark of this epoch. Raises ``Deposed`` if the log has a newer
        epoch."""
        while True:
            await self.catch_up()
            try:
                await self.publish(self.frame("epoch", self.tail))
            except Deposed:
                # Another owner appended first. The next reading shows its epoch.
                continue
            return

    async def read_log(self) -> None:
        """Read the log for a handle that does not write."""
        await self.catch_up()
        self._deposed_reason = "this journal was opened to be read only"

    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        """Add a block after block ``expected``, which must be the last one; return its sequence
        (:meth:`penstock_core.vocabulary.ports.Journal.append`). Every append is synced, also
        without ``sync``."""
        self._check_open()
        data = b"".join(block)
        if expected != self.tail:
            return await self._repeat_append(expected, data)
        if self._deposed_reason:
            raise Deposed(self._deposed_reason)
        if self._unknown_reason:
            raise Unknown(self._unknown_reason)
        size, first = self._frame_bytes_max, self.last + 1
        parts = max(1, -(-len(data) // size))  # an empty block also has a frame
        # The reason is set before the first request: if the caller is cancelled, the reason stays
        # set, and later appends are refused.
        self._unknown_reason = (
            f"it is unknown whether block {expected + 1} is stored: its append was interrupted"
        )
        now = asyncio.get_running_loop().time
        self._waiting_since = began = now()
        try:
            for part in range(parts):
                chunk = data[part * size : (part + 1) * size]
                await self.publish(self.frame("data", expected + 1, part, parts=parts, data=chunk))
        except Deposed as error:
            self._deposed_reason = str(error)
            raise
        finally:
            self._waiting_since = None
        self._appends.note(int((now() - began) * 1_000_000))
        self._unknown_reason = ""
        self.places[expected + 1] = first, parts, len(data)
        self.tail = expected + 1
        return self.tail

    async def reserve(self, size: int) -> None:
        """Check the arguments; memory needs no reservation."""
        self._check_open()
        check_room(size)

    async def read(
        self, first: int, limit: int, bytes_max: int = READ_BYTES_MAX
    ) -> list[Block | DamagedBlock]:
        """Read blocks, in order, from sequence ``first`` on
        (:meth:`penstock_core.vocabulary.ports.Journal.read`)."""
        self._check_open()
        check_read(first, limit, floor=self.floor)
        blocks: list[Block | DamagedBlock] = []
        for block in range(first, min(self.tail, first + limit - 1) + 1):
            first_sequence, parts, size = self.places[block]
            bytes_max -= size
            if blocks and bytes_max < 0:
                break
            frames = await self.requests.until_answered(
                partial(self.log.get, first_sequence, parts)
            )
            blocks.append(Block(block, memoryview(b"".join([frame.data for frame in frames]))))
        return blocks

    async def sync(self) -> None:
        """Do nothing: appended blocks are stored already."""
        self._check_open()

    async def free(self) -> None:
        """Do nothing: :meth:`trim` frees the memory."""

    async def trim(self, through: int) -> None:
        """Drop the blocks up to and including ``through``
        (:meth:`penstock_core.vocabulary.ports.Journal.trim`)."""
        self._check_open()
        check_trim(through, tail=self.tail)
        if through <= self.floor:
            return
        if through == self.tail:
            # An empty log would lose the number of the newest block, so a mark keeps it.
            await self.publish(self.frame("floor", through))
            first_kept = self.last
        else:
            first_kept = self.places[through + 1][0]
        await self.requests.until_answered(lambda: self.log.purge(first_kept))
        for block in range(self.floor + 1, through + 1):
            del self.places[block]
        self.floor = through

    def info(self) -> JournalInfo:
        size = sum(size for _, _, size in self.places.values())
        waiting_us = 0
        if self._waiting_since is not None:
            waiting_s = asyncio.get_running_loop().time() - self._waiting_since
            waiting_us = int(waiting_s * 1_000_000)
        return JournalInfo(
            self.floor,
            self.tail,
            size,
            cut=0,
            durability="quorum",
            waiting_us=waiting_us,
            appends=self._appends,
        )

    async def close(self) -> None:
        self._closed = True

    def frame(
        self, kind: FrameKind, block: int, part: int = 0, parts: int = 1, data: bytes = b""
    ) -> LogFrame:
        """Return a frame with the epoch and the writer of this handle."""
        return LogFrame(
            kind, self.epoch, self._writer, block=block, part=part, parts=parts, data=data
        )

    async def publish(self, frame: LogFrame) -> None:
        """Append one frame after the newest frame that this handle has seen; return when the append
        is confirmed. Raises ``Deposed`` if another writer was first."""
        newest = self.last
        while True:
            try:
                await self.requests.once(lambda: self.log.append(newest, frame))
            except NoAnswer:
                if self._closed:
                    raise Unknown("the journal was closed before the engine had answered") from None
                await self.requests.pause()
                continue
            except Conflict as error:
                # An earlier attempt may have been executed although its answer was lost.
                if await self.requests.until_answered(lambda: self.log.contains(newest + 1, frame)):
                    break
                raise Deposed(
                    f"another writer has written after frame {newest}: {error}"
                ) from error
            break
        self.last = newest + 1

    async def catch_up(self) -> None:
        """Read the whole log. Raises ``Deposed`` if it has a newer epoch."""
        purged, frames = await self.requests.until_answered(self.log.snapshot)
        self.last = purged + len(frames)
        self.places.clear()
        if frames:
            # The first frame of a trimmed log is either a mark with the number of the block before
            # it, or the first block itself.
            self.floor = self.tail = frames[0].block - (frames[0].kind == "data")
        block_frames = 0
        """Number of frames of the current incomplete block."""
        for sequence, frame in enumerate(frames, purged + 1):
            if frame.epoch > self.epoch:
                raise Deposed(
                    f"epoch {frame.epoch} has begun; the epoch of this journal is {self.epoch}"
                )
            if frame.kind != "data":
                # A block that an older owner left incomplete ends at the mark of the next owner.
                block_frames = 0
                continue
            block_frames = block_frames + 1 if frame.part else 1
            if frame.part + 1 == frame.parts:
                if frame.block != self.tail + 1:
                    raise Damaged(f"block {frame.block} follows block {self.tail}")
                size = sum(
                    len(part.data)
                    for part in frames[sequence - purged - block_frames :][:block_frames]
                )
                self.places[frame.block] = sequence - block_frames + 1, block_frames, size
                self.tail = frame.block

    async def _repeat_append(self, expected: int, data: bytes) -> int:
        """Return the number of a block that is stored already. Raises ``Deposed`` if another block
        has that number."""
        if self.floor <= expected < self.tail:
            (block,) = await self.read(expected + 1, 1)
            if isinstance(block, Block) and block.data == data:
                return expected + 1
        raise Deposed(f"expected the tail to be {expected}, but it is {self.tail}")

    def _check_open(self) -> None:
        """Raise ``StorageFailed`` if this handle is closed."""
        if self._closed:
            raise StorageFailed("the journal is closed")


class EngineRegistry:
    """The :class:`~penstock_core.vocabulary.ports.Registry` on the engine."""

    def __init__(self, records: MemoryRegistry, requests: RetryingRequests) -> None:
        self._records = records
        self.requests = requests

    async def get(self, key: str) -> VersionedRecord | None:
        return await self.requests.until_answered(lambda: at_once(self._records.get(key)))

    async def cas(self, key: str, expected: int, value: bytes) -> int:
        """Set ``key`` if its version is ``expected``; return the new version
        (:meth:`penstock_core.vocabulary.ports.Registry.cas`)."""
        may_be_executed = False
        while True:
            try:
                return await self.requests.once(
                    lambda: at_once(self._records.cas(key, expected, value))
                )
            except NoAnswer:
                may_be_executed = True
                await self.requests.pause()
            except Conflict:
                # The conflict may be with this request itself, which was executed although its
                # answer was lost.
                if may_be_executed and await self.get(key) == VersionedRecord(
                    expected + 1, bytes(value)
                ):
                    return expected + 1
                raise

    async def delete(self, key: str, expected: int) -> None:
        """Remove ``key`` if its version is ``expected``
        (:meth:`penstock_core.vocabulary.ports.Registry.delete`)."""
        may_be_executed = False
        while True:
            try:
                return await self.requests.once(
                    lambda: at_once(self._records.delete(key, expected))
                )
            except NoAnswer:
                may_be_executed = True
                await self.requests.pause()
            except Conflict:
                # As in `cas`, this request itself may have deleted the key.
                if may_be_executed and await self.get(key) is None:
                    return None
                raise

    async def list(self, prefix: str = "") -> Sequence[str]:
        return await self.requests.until_answered(lambda: at_once(self._records.list(prefix)))

    def watch(self, prefix: str = "") -> AsyncIterator[Change]:
        """Yield the changes from now on, of all nodes."""
        return self._records.watch(prefix)


class EngineBlobs:
    """The :class:`~penstock_core.vocabulary.ports.Blobs` of a shard on the engine."""

    grows: Final = False

    def __init__(self, blobs: MemoryBlobs, requests: RetryingRequests) -> None:
        self._blobs = blobs
        self.requests = requests

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        """Store a blob under a new name (:meth:`penstock_core.vocabulary.ports.Blobs.put`)."""
        await self.requests.until_answered(lambda: at_once(self._blobs.put(name, chunks)))

    async def extend(self, name: str, at: int, chunks: Sequence[Buffer]) -> None:
        """Raise ``IllegalState``. With ``extend``, a deposed owner could write into a file of its
        successor."""
        await self._blobs.extend(name, at, chunks)

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        """Return the bytes of a blob, or ``length`` bytes from ``offset`` on
        (:meth:`penstock_core.vocabulary.ports.Blobs.get`)."""
        return await self.requests.until_answered(
            lambda: at_once(self._blobs.get(name, offset, length))
        )

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        return await self.requests.until_answered(lambda: at_once(self._blobs.list(prefix)))

    async def delete(self, name: str) -> None:
        await self.requests.until_answered(lambda: at_once(self._blobs.delete(name)))

    def local_path(self, name: str) -> str | None:
        return self._blobs.local_path(name)


MemoryEngine.journals = EngineJournal
MemoryEngine.registries = EngineRegistry
MemoryEngine.stores = EngineBlobs


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """Return the result of an asynchronous call that never waits, as calls of stores in memory."""
    try:
        call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the call waits; only calls that never wait are allowed here")
