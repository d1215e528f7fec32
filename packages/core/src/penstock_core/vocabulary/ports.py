"""Ports: what the realm needs from the outside world. Adapters in ``storage`` implement them.

Four ports for a realm's stores, and a kit in ``penstock_testing`` that every adapter must pass:

* :class:`Journal`: fenced append of blocks, the only place where something becomes true.
* :class:`Blobs`: named bytes that never change, though some grow: sealed segments, snapshots.
* :class:`Registry`: small records changed by compare-and-set: format, ownership, manifests.
* :class:`Pages`: the bodies of paged channels, each where a :class:`PageSlot` says.

A replicated engine below several nodes is a :class:`StorageEngine`, which gives out the first
three; nobody asks for pages there.
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
        """Microseconds since some moment in the past, for leases. It cannot be set and never goes
        back, and where the machine has such a clock it also runs while the machine is suspended."""
        ...


class Offload(Protocol):
    """Runs a blocking call elsewhere and waits for it; ``asyncio.to_thread`` does."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


async def inline(call: Callable[[], T]) -> T:
    """The ``Offload`` that runs a call right here: nothing else waits, or time is simulated."""
    return call()


class Block(Struct, frozen=True):
    """A whole, checked block."""

    seq: int
    """1 for the first block ever; dense."""
    data: memoryview


READ_BYTES_MAX = 64 << 20
"""Most bytes of blocks that are read at a time, by default."""


class DamagedBlock(Struct, frozen=True):
    """Bytes in the middle of the journal that fail their checksum. Kept, reported, not served."""

    seq: int
    where: str
    """File and byte range, for people."""
    reason: str
    size: int
    count: int = 1
    """Number of sequences that are damaged together, from ``seq`` on."""


Durability = Literal["memory", "local", "quorum"]
"""What an append that has returned outlives: nothing, the loss of power, or the loss of a machine
with its disk."""


class JournalInfo(Struct, frozen=True):
    floor: int
    """The newest trimmed sequence; 0 when nothing was trimmed."""
    tail: int
    """The newest block's sequence; equal to ``floor`` when empty."""
    size: int
    """Bytes held."""
    cut: int
    """Bytes of a torn tail cut (and kept aside) when this journal was opened."""
    syncs: Timings | None = None
    """How long syncs have taken since then; None: there is no disk."""
    durability: Durability = "local"
    waiting_us: int = 0
    """Microseconds for which the present append has been waiting for other machines; 0: it has
    not."""
    appends: Timings | None = None
    """How long other machines have taken to store what was appended here; None: there are none."""
    ambiguous: Mapping[str, int] | None = None
    """How many appends had no answer at first, by what became of them: ``stored``, ``deposed``,
    ``refused``, ``unknown``. None: there are no other machines."""


class Journal(Protocol):
    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        """Add one block (the concatenation of ``block``) after ``expected``; return its sequence.

        Succeeds only if the tail is exactly ``expected``. On return the block is on disk when
        ``sync`` (with every earlier block), and in the operating system's hands otherwise.
        The same bytes again after the same ``expected`` give the same answer.
        It comes back only when the outcome is known, however long that takes: an engine without an
        answer is asked again. Raises ``Deposed`` when other bytes are there or a newer epoch has
        begun, ``Unknown`` when the journal is closed while the outcome is open, and
        ``StorageFailed`` when the disk refuses;
        after a failed *sync* the journal accepts nothing more (the state on disk is unknown).
        After a failed *write* that was undone completely (disk full), it may go on.
        """
        ...

    async def reserve(self, size: int) -> None:
        """Make sure that an append of ``size`` bytes will find room on disk.

        Raises ``StorageFailed`` and changes nothing when it would not. Where the file system
        cannot promise room, this may succeed and the append still fail.
        """
        ...

    async def read(
        self, first: int, limit: int, bytes_max: int = READ_BYTES_MAX
    ) -> list[Block | DamagedBlock]:
        """Read at most ``limit`` blocks from ``first`` on, without gaps, and at most ``bytes_max``
        bytes; a larger block comes alone. Damage comes as a :class:`DamagedBlock` in its place.

        Raises ``Trimmed`` if ``first`` is at or below the floor.
        """
        ...

    async def sync(self) -> None:
        """Put every appended block on disk."""
        ...

    async def trim(self, through: int) -> None:
        """Forget blocks up to and including ``through``; bytes leave with :meth:`free`."""
        ...

    async def free(self) -> None:
        """Give back the room of blocks that were trimmed. It may run beside everything else, and
        takes as long as the file system does with large files. Raises ``StorageFailed``."""
        ...

    def info(self) -> JournalInfo: ...

    async def close(self) -> None: ...


class BlobInfo(Struct, frozen=True):
    name: str
    size: int


class Blobs(Protocol):
    @property
    def grows(self) -> bool:
        """Whether blobs can be extended. Those that several nodes write cannot: a deposed owner
        would write into a file of its successor."""
        ...

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        """Store immutable bytes. Durable on return. The same bytes under the same name are fine;
        other bytes under a taken name raise ``Conflict``; a full disk raises ``StorageFailed``
        and leaves nothing."""
        ...

    async def extend(self, name: str, at: int, chunks: Sequence[Buffer]) -> None:
        """Replace everything from byte ``at`` on. Durable on return.

        Bytes before ``at`` are never touched, whatever happens, and views given out keep them.
        Raises ``IllegalState`` where blobs do not grow, ``NameDoesNotExist``, ``InvalidArgument``
        when ``at`` lies behind the end, and ``StorageFailed``: what is from ``at`` on is then
        open until it is replaced again.
        """
        ...

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        """The bytes (or a range), without copying where the adapter can map them.
        Raises ``NameDoesNotExist``."""
        ...

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        """Blobs whose name starts with ``prefix``, ordered by name."""
        ...

    async def delete(self, name: str) -> None:
        """Remove a blob. A missing blob is not an error."""
        ...

    def local_path(self, name: str) -> str | None:
        """A path other processes on this machine can map, if the adapter has one."""
        ...


class BlobSum(Struct, frozen=True):
    """What somebody knows of a blob without having read it."""

    size: int
    checksum: int
    """xxh3_64 of its bytes."""


@runtime_checkable
class ChecksBlobs(Protocol):
    """Blobs that compare what they fetch from elsewhere, and keep, with what it has to be."""

    def check_against(self, known: Callable[[str], BlobSum | None]) -> None:
        """``known`` tells what a blob has to be, by its name; None: nobody knows."""
        ...


class CopyCounts(Struct):
    """Copies that a node keeps of what lies elsewhere, since its realm was opened."""

    bytes: int = 0
    """Bytes that it keeps now."""
    hits: int = 0
    """Reads that a copy has answered."""
    misses: int = 0
    """Reads for which something had to be fetched."""


@runtime_checkable
class KeepsCopies(Protocol):
    """Blobs that lie elsewhere, and of which copies are kept here."""

    @property
    def copies(self) -> CopyCounts: ...


class VersionedRecord(Struct, frozen=True):
    version: int
    """1 at creation, one more with every change. A key that was deleted begins with 1 again."""
    value: bytes


Change = tuple[str, VersionedRecord | None]
"""A key and its new record; None: it was deleted."""


class Registry(Protocol):
    async def get(self, key: str) -> VersionedRecord | None: ...

    async def cas(self, key: str, expected: int, value: bytes) -> int:
        """Set ``key`` if its version is ``expected`` (0: it does not exist yet); durable on
        return. Gives the new version; raises ``Conflict`` when somebody was faster.

        An engine that does not answer is asked again until it does. If it has done what it was
        asked and the answer was lost, only the value tells whose change it was: values of keys that
        several nodes write name their writer, with something that no other change has.
        """
        ...

    async def delete(self, key: str, expected: int) -> None:
        """Remove ``key`` if its version is ``expected``; durable on return. Raises ``Conflict``
        when somebody was faster, and for a key that does not exist unless 0 is expected."""
        ...

    async def list(self, prefix: str = "") -> Sequence[str]: ...

    def watch(self, prefix: str = "") -> AsyncIterator[Change]:
        """Changes under ``prefix`` from now on. A hint: some may be skipped, and all may be late,
        so who relies on a key also asks for it from time to time."""
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
    """A body whose bytes are not those that were put there. Kept, reported, not served."""

    place: PageSlot
    where: str
    """File and byte range, for people."""
    reason: str


class PagesInfo(Struct, frozen=True):
    """The contents of one channel's pages."""

    pages: int
    size: int
    """Bytes taken from the disk, room kept ready included."""
    used: int
    """Bytes of bodies that were not released."""


class Pages(Protocol):
    """Bodies in pages of their channel, readable without a copy (SEM C1g).

    A journal holds the facts, and a place for each body: ``reserve`` before deciding,
    ``allocate`` while deciding, ``flush`` before the facts are appended, ``release`` once the
    facts that remove the events are on disk. A crash in between leaves bytes that no place names.
    One writer, one call at a time; only ``view`` and ``info`` may come at any time.
    """

    async def reserve(self, channel: int, sizes: Sequence[int]) -> None:
        """Make sure that bodies of these sizes, in this order, will find room on disk.

        Room reserved before and not allocated is given up. Raises ``StorageFailed``, and nothing
        has changed, when there is no room. Where the file system cannot promise room, this may
        succeed and the flush still fail.
        """
        ...

    def allocate(self, channel: int, body: Buffer) -> PageSlot:
        """Choose the place of the next body: in reserved room, in memory only.

        The sizes have to be those reserved, in their order; bodies may be left out or be smaller.
        Until the flush the bytes must not change, and cannot be viewed.
        """
        ...

    async def flush(self, *, sync: bool = True) -> None:
        """Write every allocated body. On return they are on disk when ``sync`` (with everything
        flushed before), and in the operating system's hands otherwise.

        Raises ``StorageFailed``: the bodies allocated since the last flush have no place then.
        After a failed *sync* the pages take nothing more (the state on disk is unknown).
        """
        ...

    def view(self, channel: int, place: PageSlot) -> memoryview:
        """The bytes of a body, neither copied nor checked. The view stays valid while it is held,
        whatever happens to the page. Raises ``Damaged`` if the slot does not exist."""
        ...

    async def check(self, channel: int, places: Sequence[PageSlot]) -> list[DamagedBody]:
        """The bodies that are not what was written (SEM S1). Copies of damaged bytes are kept if
        they can be read."""
        ...

    async def restore(
        self, in_use: Mapping[int, Sequence[PageSlot]], *, keep_rest: bool = False
    ) -> None:
        """Say which slots are in use, by channel; called once, after opening and before
        ``reserve``.

        Other bytes may be removed or overwritten from now on. With ``keep_rest`` they stay, because
        a damaged journal may have lost the facts that name them (SEM S1). Raises ``StorageFailed``.
        """
        ...

    async def release(self, channel: int, places: Sequence[PageSlot]) -> None:
        """Release the slots of events that are gone. The disk is freed when a whole page is free.
        Slots that are not in use are no error. Raises ``StorageFailed`` if a page cannot be
        removed; the next release tries it again."""
        ...

    async def drop(self, channel: int) -> None:
        """Remove all pages of a channel, which was deleted."""
        ...

    def info(self, channel: int) -> PagesInfo: ...

    async def close(self) -> None:
        """Sync what was flushed without a sync. Closing twice is harmless."""
        ...


class EngineHealth(Struct, frozen=True, kw_only=True):
    """The state of a storage engine, for people and alarms."""

    kind: str
    """The engine: ``memory``, ``jetstream``, ``postgresql``."""
    version: str
    """The oldest version among its servers."""
    has_quorum: bool
    """Whether appends can be stored now."""
    servers: int
    """Number of servers that belong to it."""
    present: int
    """Number of them that answer."""
    leader: str = ""
    """Name of the server that takes appends; empty if there is none."""
    sync: str = ""
    """When its servers put on disk what they have acknowledged, in the engine's own words."""
    lag: int = 0
    """How many appends the server that is farthest behind has still to store."""
    damage: tuple[str, ...] = ()
    """Damage that was found on its servers."""
    room: int | None = None
    """Bytes that a majority of its servers may still store; None if too few report their room."""
    rooms: Mapping[str, int] = {}
    """Bytes that each server may still store, of the servers that report it."""


class EngineServer(Struct, frozen=True, kw_only=True):
    """One server of a storage engine, as it was found by somebody who looks on."""

    name: str
    """Its own name; empty while it does not answer."""
    address: str
    """Where it was asked."""
    version: str = ""
    leads: bool = False
    """Whether it takes appends."""
    room: int | None = None
    """Bytes that it may still store; None: it does not tell."""
    failure: str = ""
    """Why it could not be asked, or cannot serve."""


class EngineCheck(Struct, frozen=True, kw_only=True):
    """One thing that a storage engine has to promise, and whether it does."""

    name: str
    finding: str
    """The observed state; if it is wrong, with the setting to change."""
    is_ok: bool
    not_checked: tuple[str, ...] = ()
    """Servers of which it is not known, because they did not answer."""


class EngineInspector(Protocol):
    """Looks at a storage engine from outside of its cluster: nothing is made, fenced or changed,
    and no server is waited for longer than some seconds."""

    async def records(self, prefix: str = "") -> Mapping[str, VersionedRecord]:
        """The records of the registry whose keys begin with ``prefix``; none where there is no
        registry. Raises ``Unavailable`` when no majority of the servers answers."""
        ...

    async def health(self) -> EngineHealth: ...

    async def servers(self) -> Sequence[EngineServer]:
        """Every server that the engine is known to have."""
        ...

    async def checks(self, shard: int) -> Sequence[EngineCheck]:
        """Everything that a node checks before it trusts the engine, each by itself."""
        ...

    async def clusters(self) -> Sequence[str]:
        """The names of all clusters on the engine. Raises ``Unavailable``."""
        ...

    async def close(self) -> None: ...


class StorageEngine(Protocol):
    """A replicated store below several nodes: a fenced log for each shard, one registry, and blobs
    where there is no object store."""

    async def check(self, shard: int) -> None:
        """Look whether the engine keeps what it acknowledges, and still has what was acknowledged
        for this shard. Nothing is fenced. Raises ``Unavailable``, naming the line to change."""
        ...

    async def registry(self) -> Registry: ...

    async def journal(self, shard: int, epoch: int, *, begins: int = 0) -> Journal:
        """Open the journal of a shard for the owner with this epoch, 1 or more: from its return on,
        no owner with an older epoch can append. What such an owner has begun and not finished is
        gone; the number of a block that was torn is given again.

        A journal that does not exist yet begins behind block ``begins``. Opening again with the
        same epoch is fine. Raises ``Deposed`` when an owner with a newer epoch has opened it, and
        then changes nothing; ``Damaged`` when no whole copy is left.
        """
        ...

    async def open_read_only(self, shard: int) -> Journal | None:
        """Open the journal of a shard as it is now, for reading only; None: it was never begun.

        Nothing is fenced or created, and the owner of the shard continues. Reading a block that the
        owner trims meanwhile raises ``Trimmed``; blocks that it appends are not visible. Raises
        ``Damaged`` when no complete copy is left.
        """
        ...

    async def blobs(self, shard: int) -> Blobs:
        """Blobs on the engine itself; they do not grow."""
        ...

    async def health(self) -> EngineHealth: ...

    async def close(self) -> None:
        """Let go of the engine; journals of it are closed. Closing twice is fine."""
        ...
