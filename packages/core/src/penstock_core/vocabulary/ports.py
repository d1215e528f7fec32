"""Ports: the interfaces through which a realm uses the outside world. Adapters in ``storage``
implement them.

Four ports for a realm's stores, with a kit in ``penstock_testing`` that every adapter must pass:

* :class:`Journal`: fenced append of blocks, the only place where something becomes true.
* :class:`Blobs`: named bytes that never change, though some grow: sealed segments, snapshots.
* :class:`Registry`: small records changed by compare-and-set: format, ownership, manifests.
* :class:`Pages`: the bodies of paged channels, each in a :class:`PageSlot`.

A replicated engine that several nodes share is a :class:`StorageEngine`, which provides the first
three ports; paged channels do not need pages there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Literal, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from penstock_core.vocabulary.timings import Timings as Timings

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    """The source of time. The core always gets the time as an argument."""

    def now_us(self) -> int:
        """Microseconds since the epoch, UTC."""
        ...

    def steady_us(self) -> int:
        """Microseconds since some moment in the past, for leases. This clock cannot be set and
        never goes back. If the machine supports it, it also runs while the machine is suspended."""
        ...


class Offload(Protocol):
    """Runs a blocking call in another thread and waits for it, like ``asyncio.to_thread``."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


async def inline(call: Callable[[], T]) -> T:
    """Run a call in the current thread: an ``Offload`` for simulated time, or if no other work
    waits."""
    return call()


class Block(Struct, frozen=True):
    """A complete block whose checksum is right."""

    seq: int
    """Sequence of the block: 1 for the first block of the journal, then without gaps."""
    data: memoryview


READ_BYTES_MAX = 64 << 20
"""Maximum number of bytes of blocks that are read at a time, by default."""


class DamagedBlock(Struct, frozen=True):
    """Bytes in the middle of the journal that fail their checksum; kept and reported, not
    served."""

    seq: int
    where: str
    """File and byte range, for people."""
    reason: str
    size: int
    count: int = 1
    """Number of sequences that are damaged together, from ``seq`` on."""


Durability = Literal["memory", "local", "quorum"]
"""The failure that a completed append survives: none, loss of power, or loss of a machine with its
disk."""


class JournalInfo(Struct, frozen=True):
    """State and figures of a journal."""

    floor: int
    """The newest trimmed sequence; 0 if no block was trimmed."""
    tail: int
    """The newest block's sequence; equal to ``floor`` if the journal is empty."""
    size: int
    """Size of the stored blocks, in bytes."""
    cut: int
    """Bytes of a torn block that were cut off the end, and set aside, when this journal was
    opened."""
    syncs: Timings | None = None
    """Durations of the syncs since this journal was opened; None if it is not on a disk."""
    durability: Durability = "local"
    waiting_us: int = 0
    """Microseconds that the current append has waited for other machines; 0 if it does not wait."""
    appends: Timings | None = None
    """Durations until other machines had stored an append; None if the journal uses no other
    machines."""
    ambiguous: Mapping[str, int] | None = None
    """Number of appends without an answer at first, by their later outcome: ``stored``,
    ``deposed``, ``refused``, ``unknown``. None if the journal uses no other machines."""


class Journal(Protocol):
    """A log of blocks, appended by one owner at a time."""

    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        """Add one block (the concatenation of ``block``) after ``expected``; return its sequence.

        Succeeds only if the tail is exactly ``expected``. On return the block is on disk when
        ``sync`` (with every earlier block), otherwise it is handed to the operating system.
        Repeating a call with the same bytes and the same ``expected`` returns the same answer.

        The call returns only when the outcome is known, however long that takes; an engine that
        does not answer is asked again. Raises ``Deposed`` if other bytes are stored there or a
        newer epoch has begun, ``Unknown`` if the journal is closed while the outcome is open, and
        ``StorageFailed`` if the disk refuses the write.

        After a failed *sync* the journal refuses all appends, because the state on disk is unknown.
        After a failed *write* that was undone completely (disk full), it may continue.
        """
        ...

    async def reserve(self, size: int) -> None:
        """Make sure that an append of ``size`` bytes will find room on disk.

        Raises ``StorageFailed`` and changes nothing otherwise. If the file system cannot promise
        room, this may succeed and the append still fail.
        """
        ...

    async def read(
        self, first: int, limit: int, bytes_max: int = READ_BYTES_MAX
    ) -> list[Block | DamagedBlock]:
        """Read blocks from ``first`` on, without gaps: at most ``limit`` blocks and ``bytes_max``
        bytes, at least one block. A damaged block is returned as a :class:`DamagedBlock`.

        Raises ``Trimmed`` if ``first`` is at or below the floor.
        """
        ...

    async def sync(self) -> None:
        """Write every appended block to disk. Raises ``StorageFailed``."""
        ...

    async def trim(self, through: int) -> None:
        """Drop blocks up to and including ``through``; :meth:`free` frees their bytes."""
        ...

    async def free(self) -> None:
        """Free the space of trimmed blocks. It may run concurrently with all other calls, and takes
        as long as the file system needs for large files. Raises ``StorageFailed``."""
        ...

    def info(self) -> JournalInfo: ...

    async def close(self) -> None: ...


class BlobInfo(Struct, frozen=True):
    """Name and size of a stored blob."""

    name: str
    size: int


class Blobs(Protocol):
    """Named sequences of bytes: sealed segments, snapshots and bodies of large blocks."""

    @property
    def grows(self) -> bool:
        """Whether blobs can be extended. Blobs written by several nodes cannot, because a deposed
        owner would write into a file of its successor."""
        ...

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        """Store immutable bytes; durable on return. Storing the same bytes under the same name
        again succeeds. Other bytes under a taken name raise ``Conflict``. A full disk raises
        ``StorageFailed`` and leaves no partial blob."""
        ...

    async def extend(self, name: str, at: int, chunks: Sequence[Buffer]) -> None:
        """Replace all bytes from ``at`` on; durable on return.

        Bytes before ``at`` are never touched, and existing views keep them. Raises ``IllegalState``
        if blobs do not grow, ``NameDoesNotExist``, ``InvalidArgument`` if ``at`` is after the end,
        and ``StorageFailed``. After the last error the content from ``at`` on is undefined until it
        is replaced again.
        """
        ...

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        """Return the bytes (or a range), without a copy if the adapter can map them. Raises
        ``NameDoesNotExist``."""
        ...

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        """Return the blobs whose name starts with ``prefix``, ordered by name."""
        ...

    async def delete(self, name: str) -> None:
        """Remove a blob. A missing blob is not an error."""
        ...

    def local_path(self, name: str) -> str | None:
        """Return a path that other processes on this machine can map, if the adapter has one."""
        ...


class BlobSum(Struct, frozen=True):
    """Size and checksum of a blob that was not read, as facts or manifests state them."""

    size: int
    checksum: int
    """xxh3_64 of the blob's bytes."""


@runtime_checkable
class ChecksBlobs(Protocol):
    """Blobs that verify fetched bytes before keeping copies of them."""

    def check_against(self, known: Callable[[str], BlobSum | None]) -> None:
        """Verify fetched blobs with ``known``, which returns the expected sum of a name, or None if
        it is not known."""
        ...


class CopyCounts(Struct):
    """Figures of a node's copies of remote blobs, since its realm was opened."""

    bytes: int = 0
    """Bytes of current copies."""
    hits: int = 0
    """Reads answered from a copy."""
    misses: int = 0
    """Reads that had to fetch bytes."""


@runtime_checkable
class KeepsCopies(Protocol):
    """Remote blobs with local copies."""

    @property
    def copies(self) -> CopyCounts: ...


class VersionedRecord(Struct, frozen=True):
    """The value of a key of the registry, with its version."""

    version: int
    """1 at creation, increased by every change. A key that was deleted starts with 1 again."""
    value: bytes


Change = tuple[str, VersionedRecord | None]
"""A key and its new record; None if the key was deleted."""


class Registry(Protocol):
    """Small records by key, changed by compare-and-set."""

    async def get(self, key: str) -> VersionedRecord | None: ...

    async def cas(self, key: str, expected: int, value: bytes) -> int:
        """Set ``key`` if its version is ``expected`` (0: it does not exist yet); durable on
        return. Return the new version; raises ``Conflict`` if another client was faster.

        An engine that does not answer is asked again until it does. If it made the change and the
        answer was lost, only the value shows whose change it was. Values of keys that several nodes
        write therefore name their writer, with a part that no other change has.
        """
        ...

    async def delete(self, key: str, expected: int) -> None:
        """Remove ``key`` if its version is ``expected``; durable on return. Raises ``Conflict`` if
        another client was faster, or if the key does not exist and ``expected`` is not 0."""
        ...

    async def list(self, prefix: str = "") -> Sequence[str]: ...

    def watch(self, prefix: str = "") -> AsyncIterator[Change]:
        """Yield changes under ``prefix`` from now on. They are hints: some may be skipped and all
        may be late, so a caller that relies on a key must also poll it."""
        ...


class PageSlot(Struct, frozen=True, array_like=True, gc=False):
    """The slot of a body in the pages of its channel."""

    page: int
    """1 or more; newer pages have larger numbers."""
    offset: int
    """Offset in bytes, a multiple of 8."""
    size: int
    checksum: int
    """xxh3_64 of the bytes."""


class DamagedBody(Struct, frozen=True):
    """A body whose bytes differ from the bytes written; kept and reported, not served."""

    place: PageSlot
    where: str
    """File and byte range, for people."""
    reason: str


class PagesInfo(Struct, frozen=True):
    """The contents of one channel's pages."""

    pages: int
    size: int
    """Bytes used on disk, including reserved room."""
    used: int
    """Bytes of bodies that were not released."""


class Pages(Protocol):
    """Bodies in pages of their channel, readable without a copy (SEM C1g).

    A journal holds the facts, and a slot for each body. Call ``reserve`` before deciding,
    ``allocate`` while deciding, ``flush`` before the facts are appended, and ``release`` once the
    facts that remove the events are on disk. A crash in between leaves bytes that no slot refers
    to. There is one writer, one call at a time; only ``view`` and ``info`` may be called at any
    time.
    """

    async def reserve(self, channel: int, sizes: Sequence[int]) -> None:
        """Make sure that bodies of these sizes, in this order, will find room on disk.

        Room reserved before and not allocated is released. Raises ``StorageFailed`` and changes
        nothing if the disk has no room. If the file system cannot promise room, this may succeed
        and the flush still fail.
        """
        ...

    def allocate(self, channel: int, body: Buffer) -> PageSlot:
        """Choose the slot of the next body in reserved room, in memory only.

        The sizes must be the reserved ones in the same order; bodies may be left out or be smaller.
        Until the flush the bytes must not change, and cannot be viewed.
        """
        ...

    async def flush(self, *, sync: bool = True) -> None:
        """Write every allocated body. On return they are on disk when ``sync`` (with all earlier
        flushes), otherwise they are handed to the operating system.

        Raises ``StorageFailed``; the bodies allocated since the last flush then have no slot. After
        a failed *sync* the pages refuse all writes, because the state on disk is unknown.
        """
        ...

    def view(self, channel: int, place: PageSlot) -> memoryview:
        """Return the bytes of a body, neither copied nor checked. The view stays valid while it is
        referenced, even if the page is removed. Raises ``Damaged`` if the slot does not exist."""
        ...

    async def check(self, channel: int, places: Sequence[PageSlot]) -> list[DamagedBody]:
        """Return the bodies that differ from the bytes written (SEM S1). Copies of damaged bytes
        are kept if they can be read."""
        ...

    async def restore(
        self, in_use: Mapping[int, Sequence[PageSlot]], *, keep_rest: bool = False
    ) -> None:
        """Pass the slots that are in use, by channel. Called once, after opening and before
        ``reserve``.

        Other bytes may be removed or overwritten from now on. With ``keep_rest`` they stay, because
        a damaged journal may have lost the facts that name them (SEM S1). Raises ``StorageFailed``.
        """
        ...

    async def release(self, channel: int, places: Sequence[PageSlot]) -> None:
        """Release the slots of removed events. Disk space is freed when a whole page is free. Slots
        that are not in use are ignored. Raises ``StorageFailed`` if a page cannot be removed; the
        next release tries again."""
        ...

    async def drop(self, channel: int) -> None:
        """Remove all pages of a deleted channel."""
        ...

    def info(self, channel: int) -> PagesInfo: ...

    async def close(self) -> None:
        """Sync flushed bodies and close. Closing twice is allowed."""
        ...


class EngineHealth(Struct, frozen=True, kw_only=True):
    """State of a storage engine, for administrators and alarms."""

    kind: str
    """The engine: ``memory``, ``jetstream``, ``postgresql``."""
    version: str
    """The oldest version among the engine's servers."""
    has_quorum: bool
    """Whether a majority of the engine's servers can store appends now."""
    servers: int
    """Number of servers that belong to the engine."""
    present: int
    """Number of the engine's servers that answer."""
    leader: str = ""
    """Name of the server that accepts appends; empty if no server does."""
    sync: str = ""
    """The time at which the servers write acknowledged appends to disk, in the engine's terms."""
    lag: int = 0
    """Number of appends that the slowest server still has to store."""
    damage: tuple[str, ...] = ()
    """Damage found on the engine's servers."""
    room: int | None = None
    """Bytes that a majority of the servers may still store; None if too few servers report their
    free bytes."""
    rooms: Mapping[str, int] = {}
    """Bytes that each server may still store; servers that do not report them are left out."""


class EngineServer(Struct, frozen=True, kw_only=True):
    """One server of a storage engine, as an inspection sees it."""

    name: str
    """The server's name; empty while it does not answer."""
    address: str
    """The address at which it was queried."""
    version: str = ""
    leads: bool = False
    """Whether the server is the leader, which accepts appends."""
    room: int | None = None
    """Bytes that the server may still store; None if it does not report them."""
    failure: str = ""
    """The reason why the server could not be queried or cannot serve; empty if it can."""


class EngineCheck(Struct, frozen=True, kw_only=True):
    """The result of checking one requirement on a storage engine."""

    name: str
    finding: str
    """The observed state; if it is wrong, with the setting to change."""
    is_ok: bool
    not_checked: tuple[str, ...] = ()
    """Servers that could not be checked, because they did not answer."""


class EngineInspector(Protocol):
    """Inspects a storage engine from outside its cluster. It creates, fences and changes nothing,
    and waits at most some seconds for a server."""

    async def records(self, prefix: str = "") -> Mapping[str, VersionedRecord]:
        """Return the records of the registry whose keys begin with ``prefix``; none without a
        registry. Raises ``Unavailable`` if no majority of the servers answers."""
        ...

    async def health(self) -> EngineHealth: ...

    async def servers(self) -> Sequence[EngineServer]:
        """Return all known servers of the engine."""
        ...

    async def checks(self, shard: int) -> Sequence[EngineCheck]:
        """Run every check that a node makes before it uses the engine, and return the results."""
        ...

    async def clusters(self) -> Sequence[str]:
        """Return the names of all clusters on the engine. Raises ``Unavailable``."""
        ...

    async def close(self) -> None: ...


class StorageEngine(Protocol):
    """A replicated store shared by several nodes: a fenced log for each shard, one registry, and
    blobs if no object store is used."""

    async def check(self, shard: int) -> None:
        """Check that the engine keeps acknowledged appends, and still has those of this shard. The
        check fences no owner. Raises ``Unavailable``, which names the setting to change."""
        ...

    async def registry(self) -> Registry: ...

    async def journal(self, shard: int, epoch: int, *, begins: int = 0) -> Journal:
        """Open the journal of a shard for the owner with this epoch, 1 or more. After the return no
        owner with an older epoch can append. Unfinished appends of such an owner are dropped; the
        sequence of a torn block is assigned again.

        A journal that does not exist yet begins after block ``begins``. Opening again with the same
        epoch is allowed. Raises ``Deposed`` and changes nothing if an owner with a newer epoch has
        opened it, and ``Damaged`` if no complete copy is left.
        """
        ...

    async def open_read_only(self, shard: int) -> Journal | None:
        """Open the journal of a shard as it is now, for reading only. Return None if it was never
        begun.

        Nothing is fenced or created, and the owner of the shard continues. Reading a block that the
        owner has trimmed since then raises ``Trimmed``; blocks that it appends are not visible.
        Raises ``Damaged`` when no complete copy is left.
        """
        ...

    async def blobs(self, shard: int) -> Blobs:
        """Return blobs stored on the engine itself; they do not grow."""
        ...

    async def health(self) -> EngineHealth: ...

    async def close(self) -> None:
        """Close the engine's journals, then its connections. May be called twice."""
        ...
