"""A replicated storage engine in memory: what nodes of a cluster share, without any server.

:class:`EngineServers` is what the servers hold. A node reaches it through a :class:`MemoryEngine`,
and all that it asks goes through one ``call``: a test puts one in its place that loses a request or
its answer (by raising :class:`NoAnswer`), or has it done late.

A block is one frame or several, and true once its last frame is there. Every frame is appended by
compare-and-set of the frame before it. Marks of epochs and floors are frames without a block.
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
RETRY_S: Final = 0.05
"""How long somebody without an answer waits before asking again."""
LOOKING: Final = 1 << 62
"""The epoch of who only looks: none is newer."""


FrameKind = Literal["epoch", "floor", "data"]


class NoAnswer(Exception):
    """The engine did not answer in time: whether it has done what it was asked is unknown."""


class LogFrame(Struct, frozen=True):
    """One entry in the log of a shard."""

    kind: FrameKind
    epoch: int
    writer: int
    """Which handle has written it; no other has this number."""
    block: int
    """The block it is a part of; with marks the newest block there was."""
    part: int = 0
    parts: int = 1
    data: bytes = b""


class ShardLog:
    """The frames of one shard, with sequences from 1 on, of which the oldest may be purged."""

    def __init__(self) -> None:
        self.frames: list[LogFrame] = []
        self.purged = 0

    @property
    def last(self) -> int:
        return self.purged + len(self.frames)

    def append(self, expected: int, frame: LogFrame) -> None:
        """Add a frame after the newest, if that is ``expected``; else raises ``Conflict``."""
        if expected != self.last:
            raise Conflict(f"the newest frame is {self.last}, not {expected}")
        self.frames.append(frame)

    def held(self) -> tuple[int, list[LogFrame]]:
        """All frames, and the sequence before the first of them."""
        return self.purged, list(self.frames)

    def get(self, first: int, parts: int) -> list[LogFrame]:
        """Frames by their sequence. Raises ``Trimmed`` if the first is purged."""
        if first <= self.purged:
            raise Trimmed(f"frame {first} is gone: the log starts after {self.purged}")
        begin = first - self.purged - 1
        return self.frames[begin : begin + parts]

    def holds(self, sequence: int, frame: LogFrame) -> bool:
        """Whether this is the frame with that sequence."""
        at = sequence - self.purged - 1
        return 0 <= at < len(self.frames) and self.frames[at] == frame

    def purge(self, below: int) -> None:
        """Forget frames below a sequence."""
        gone = min(max(below - 1 - self.purged, 0), len(self.frames))
        del self.frames[:gone]
        self.purged += gone


class EngineServers:
    """What the servers of an engine hold, whoever asks them."""

    def __init__(self, servers: int = 3) -> None:
        self.servers = self.present = servers
        self.writers = count(1)
        self.records = MemoryRegistry()
        self._logs: dict[int, ShardLog] = {}
        self._blobs: dict[int, MemoryBlobs] = {}

    def log(self, shard: int) -> ShardLog:
        return self._logs.setdefault(shard, ShardLog())

    def blobs(self, shard: int) -> MemoryBlobs:
        return self._blobs.setdefault(shard, MemoryBlobs(grows=False))


class MemoryEngine:
    """The :class:`~penstock_core.vocabulary.ports.StorageEngine` as one node sees it.

    What it gives out are the classes it names, so that a test can make one of them err.
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
        """``call`` does what the servers are asked, or raises :class:`NoAnswer`."""
        self.servers = servers or EngineServers()
        self._asking = Asking(call)
        self._frame_bytes_max = frame_bytes_max
        self._journals: list[EngineJournal] = []

    async def check(self, shard: int) -> None:
        """Nothing is ever wrong with it."""

    async def registry(self) -> EngineRegistry:
        return self.registries(self.servers.records, self._asking)

    async def journal(self, shard: int, epoch: int, *, begins: int = 0) -> EngineJournal:
        """See :meth:`penstock_core.vocabulary.ports.StorageEngine.journal`."""
        if epoch < 1 or begins < 0:
            raise InvalidArgument(f"epoch {epoch}, begins {begins}: at least 1 and at least 0")
        journal = self.journals(
            self.servers.log(shard),
            self._asking,
            epoch=epoch,
            writer=next(self.servers.writers),
            begins=begins,
            frame_bytes_max=self._frame_bytes_max,
        )
        await journal.fence()
        self._journals.append(journal)
        return journal

    async def look(self, shard: int) -> EngineJournal | None:
        """See :meth:`penstock_core.vocabulary.ports.StorageEngine.look`."""
        log = self.servers.log(shard)
        if not log.last:
            return None
        journal = self.journals(
            log,
            self._asking,
            epoch=LOOKING,
            writer=0,
            begins=0,
            frame_bytes_max=self._frame_bytes_max,
        )
        await journal.look()
        self._journals.append(journal)
        return journal

    async def blobs(self, shard: int) -> EngineBlobs:
        return self.stores(self.servers.blobs(shard), self._asking)

    async def health(self) -> EngineHealth:
        servers, present = await self._asking.patiently(
            lambda: (self.servers.servers, self.servers.present)
        )
        return _health(servers, present)

    async def close(self) -> None:
        for journal in self._journals:
            await journal.close()


class MemoryInspector:
    """The :class:`~penstock_core.vocabulary.ports.EngineInspector` of servers in memory."""

    def __init__(self, servers: EngineServers) -> None:
        self._servers = servers

    async def records(self, prefix: str = "") -> Mapping[str, VersionedRecord]:
        """See :meth:`penstock_core.vocabulary.ports.EngineInspector.records`."""
        if not self._has_quorum:
            raise Unavailable("the engine in memory has no majority of its servers")
        records = self._servers.records
        found = {key: await records.get(key) for key in await records.list(prefix)}
        return {key: record for key, record in found.items() if record is not None}

    async def health(self) -> EngineHealth:
        return _health(self._servers.servers, self._servers.present)

    async def servers(self) -> Sequence[EngineServer]:
        """The ones that are present come first, and the first of all leads."""
        return [
            EngineServer(
                name=f"server-{number}",
                address="memory",
                version="1",
                leads=self._has_quorum and number == 1,
                failure="" if number <= self._servers.present else "it is gone",
            )
            for number in range(1, self._servers.servers + 1)
        ]

    async def checks(self, shard: int) -> Sequence[EngineCheck]:
        """There is nothing but the number of servers that could be wrong."""
        found = f"{self._servers.present} of {self._servers.servers} servers are present"
        if not self._has_quorum:
            found += ". To change: start a majority of them"
        return [EngineCheck(name="servers", found=found, is_ok=self._has_quorum)]

    async def clusters(self) -> Sequence[str]:
        """The one that the servers have."""
        return ["penstock"] if await self.records() else []

    async def close(self) -> None:
        """Nothing to do."""

    @property
    def _has_quorum(self) -> bool:
        return self._servers.present * 2 > self._servers.servers


def _health(servers: int, present: int) -> EngineHealth:
    has_quorum = present * 2 > servers
    return EngineHealth(
        kind="memory",
        version="1",
        has_quorum=has_quorum,
        servers=servers,
        present=present,
        leader="memory" if has_quorum else "",
    )


class Asking:
    """Asks the servers until they answer."""

    def __init__(self, call: Offload) -> None:
        self.once = call

    async def patiently(self, do: Callable[[], T]) -> T:
        """The answer to what may be done twice."""
        while True:
            try:
                return await self.once(do)
            except NoAnswer:
                await self.pause()

    async def pause(self) -> None:
        """Wait a little before asking again."""
        await asyncio.sleep(RETRY_S)


class EngineJournal:
    """The :class:`~penstock_core.vocabulary.ports.Journal` of a shard, for the owner of one epoch.

    An append without an answer is asked again in the same place until the log shows what became of
    it: there is this very frame, or somebody else's.
    """

    def __init__(
        self,
        log: ShardLog,
        asking: Asking,
        *,
        epoch: int,
        writer: int,
        begins: int,
        frame_bytes_max: int,
    ) -> None:
        self._log = log
        self._asking = asking
        self._epoch = epoch
        self._writer = writer
        self._frame_bytes_max = frame_bytes_max
        self._floor = self._tail = begins
        self._last = 0
        """Sequence of the newest frame this handle knows."""
        self._places: dict[int, tuple[int, int, int]] = {}
        """By block, the sequence of its first frame, how many it has, and its bytes."""
        self._waiting_since: float | None = None
        self._appends = Timings()
        self._closed = False
        self._deposed = ""
        self._unknown = ""

    async def fence(self) -> None:
        """Read what is there and mark the epoch behind it. Raises ``Deposed``."""
        while True:
            await self._catch_up()
            try:
                await self._publish(self._frame("epoch", self._tail))
            except Deposed:
                continue  # an older owner was faster once more, or a newer one: the log will tell
            return

    async def look(self) -> None:
        """Read what is there, for somebody who does not write."""
        await self._catch_up()
        self._deposed = "this journal was opened to be read only"

    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        """See :meth:`penstock_core.vocabulary.ports.Journal.append`; every append is synced."""
        self._check_open()
        data = b"".join(block)
        if expected != self._tail:
            return await self._again(expected, data)
        if self._deposed:
            raise Deposed(self._deposed)
        if self._unknown:
            raise Unknown(self._unknown)
        size, first = self._frame_bytes_max, self._last + 1
        parts = max(1, -(-len(data) // size))
        self._unknown = f"what became of block {expected + 1} is unknown: its append was broken off"
        now = asyncio.get_running_loop().time
        self._waiting_since = began = now()
        try:
            for part in range(parts):
                chunk = data[part * size : (part + 1) * size]
                await self._publish(
                    self._frame("data", expected + 1, part, parts=parts, data=chunk)
                )
        except Deposed as error:
            self._deposed = str(error)
            raise
        finally:
            self._waiting_since = None
        self._appends.note(int((now() - began) * 1_000_000))
        self._unknown = ""
        self._places[expected + 1] = first, parts, len(data)
        self._tail = expected + 1
        return self._tail

    async def reserve(self, size: int) -> None:
        """Nothing to do: there is no disk that could be full."""
        self._check_open()
        check_room(size)

    async def read(
        self, first: int, limit: int, bytes_max: int = READ_BYTES_MAX
    ) -> list[Block | DamagedBlock]:
        """See :meth:`penstock_core.vocabulary.ports.Journal.read`."""
        self._check_open()
        check_read(first, limit, floor=self._floor)
        found: list[Block | DamagedBlock] = []
        for block in range(first, min(self._tail, first + limit - 1) + 1):
            at, parts, size = self._places[block]
            bytes_max -= size
            if found and bytes_max < 0:
                break
            frames = await self._asking.patiently(partial(self._log.get, at, parts))
            found.append(Block(block, memoryview(b"".join([frame.data for frame in frames]))))
        return found

    async def sync(self) -> None:
        """Nothing to do: what was appended is there."""
        self._check_open()

    async def free(self) -> None:
        """Nothing to do: :meth:`trim` gives back the room itself."""

    async def trim(self, through: int) -> None:
        """See :meth:`penstock_core.vocabulary.ports.Journal.trim`."""
        self._check_open()
        check_trim(through, tail=self._tail)
        if through <= self._floor:
            return
        if through == self._tail:  # an empty log would forget the number of the newest block
            await self._publish(self._frame("floor", through))
            kept = self._last
        else:
            kept = self._places[through + 1][0]
        await self._asking.patiently(lambda: self._log.purge(kept))
        for block in range(self._floor + 1, through + 1):
            del self._places[block]
        self._floor = through

    def info(self) -> JournalInfo:
        size = sum(size for _, _, size in self._places.values())
        waiting_us = 0
        if self._waiting_since is not None:
            waiting_s = asyncio.get_running_loop().time() - self._waiting_since
            waiting_us = int(waiting_s * 1_000_000)
        return JournalInfo(
            self._floor,
            self._tail,
            size,
            cut=0,
            durability="quorum",
            waiting_us=waiting_us,
            appends=self._appends,
        )

    async def close(self) -> None:
        self._closed = True

    def _frame(
        self, kind: FrameKind, block: int, part: int = 0, parts: int = 1, data: bytes = b""
    ) -> LogFrame:
        return LogFrame(
            kind, self._epoch, self._writer, block=block, part=part, parts=parts, data=data
        )

    async def _publish(self, frame: LogFrame) -> None:
        """Append one frame after the newest this handle knows; comes back when that is known."""
        at = self._last
        while True:
            try:
                await self._asking.once(lambda: self._log.append(at, frame))
            except NoAnswer:
                if self._closed:
                    raise Unknown("the journal was closed before the engine had answered") from None
                await self._asking.pause()
                continue
            except Conflict as error:
                if await self._asking.patiently(lambda: self._log.holds(at + 1, frame)):
                    break
                raise Deposed(f"somebody else has written after frame {at}: {error}") from error
            break
        self._last = at + 1

    async def _catch_up(self) -> None:
        """Learn what is in the log. Raises ``Deposed``."""
        before, frames = await self._asking.patiently(self._log.held)
        self._last = before + len(frames)
        self._places.clear()
        if frames:
            self._floor = self._tail = frames[0].block - (frames[0].kind == "data")
        begun = 0
        """How many frames of a block that is not whole yet were just before this one."""
        for sequence, frame in enumerate(frames, before + 1):
            if frame.epoch > self._epoch:
                raise Deposed(
                    f"epoch {frame.epoch} of this journal has begun; {self._epoch} is over"
                )
            if frame.kind != "data":
                begun = 0  # what an older owner had begun is torn
                continue
            begun = begun + 1 if frame.part else 1
            if frame.part + 1 == frame.parts:
                if frame.block != self._tail + 1:
                    raise Damaged(f"block {frame.block} comes behind block {self._tail}")
                size = sum(len(part.data) for part in frames[sequence - before - begun :][:begun])
                self._places[frame.block] = sequence - begun + 1, begun, size
                self._tail = frame.block

    async def _again(self, expected: int, data: bytes) -> int:
        if self._floor <= expected < self._tail:
            (known,) = await self.read(expected + 1, 1)
            if isinstance(known, Block) and known.data == data:
                return expected + 1
        raise Deposed(f"expected the tail to be {expected}, it is {self._tail}")

    def _check_open(self) -> None:
        if self._closed:
            raise StorageFailed("the journal is closed")


class EngineRegistry:
    """The :class:`~penstock_core.vocabulary.ports.Registry` on the engine."""

    def __init__(self, records: MemoryRegistry, asking: Asking) -> None:
        self._records = records
        self._asking = asking

    async def get(self, key: str) -> VersionedRecord | None:
        return await self._asking.patiently(lambda: at_once(self._records.get(key)))

    async def cas(self, key: str, expected: int, value: bytes) -> int:
        """See :meth:`penstock_core.vocabulary.ports.Registry.cas`."""
        may_be_done = False
        while True:
            try:
                return await self._asking.once(
                    lambda: at_once(self._records.cas(key, expected, value))
                )
            except NoAnswer:
                may_be_done = True
                await self._asking.pause()
            except Conflict:
                if may_be_done and await self.get(key) == VersionedRecord(
                    expected + 1, bytes(value)
                ):
                    return expected + 1
                raise

    async def delete(self, key: str, expected: int) -> None:
        """See :meth:`penstock_core.vocabulary.ports.Registry.delete`."""
        may_be_done = False
        while True:
            try:
                return await self._asking.once(lambda: at_once(self._records.delete(key, expected)))
            except NoAnswer:
                may_be_done = True
                await self._asking.pause()
            except Conflict:
                if may_be_done and await self.get(key) is None:
                    return None
                raise

    async def list(self, prefix: str = "") -> Sequence[str]:
        return await self._asking.patiently(lambda: at_once(self._records.list(prefix)))

    def watch(self, prefix: str = "") -> AsyncIterator[Change]:
        """Changes from now on, by whichever node."""
        return self._records.watch(prefix)


class EngineBlobs:
    """The :class:`~penstock_core.vocabulary.ports.Blobs` of a shard on the engine."""

    grows: Final = False

    def __init__(self, blobs: MemoryBlobs, asking: Asking) -> None:
        self._blobs = blobs
        self._asking = asking

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        """See :meth:`penstock_core.vocabulary.ports.Blobs.put`."""
        await self._asking.patiently(lambda: at_once(self._blobs.put(name, chunks)))

    async def extend(self, name: str, at: int, chunks: Sequence[Buffer]) -> None:
        """Raises ``IllegalState``: a deposed owner would write into a file of its successor."""
        await self._blobs.extend(name, at, chunks)

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        """See :meth:`penstock_core.vocabulary.ports.Blobs.get`."""
        return await self._asking.patiently(lambda: at_once(self._blobs.get(name, offset, length)))

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        return await self._asking.patiently(lambda: at_once(self._blobs.list(prefix)))

    async def delete(self, name: str) -> None:
        await self._asking.patiently(lambda: at_once(self._blobs.delete(name)))

    def local_path(self, name: str) -> str | None:
        return self._blobs.local_path(name)


MemoryEngine.journals = EngineJournal
MemoryEngine.registries = EngineRegistry
MemoryEngine.stores = EngineBlobs


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """The result of an asynchronous call that waits for nothing: the stores in memory are such."""
    try:
        call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits for something")
