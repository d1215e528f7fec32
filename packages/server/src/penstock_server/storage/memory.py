"""Implementations of the ports in memory, for realms without a data directory and for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from xxhash import xxh3_64_intdigest

from penstock_core.vocabulary.errors import (
    Conflict,
    Damaged,
    Deposed,
    IllegalState,
    InvalidArgument,
    NameDoesNotExist,
    StorageFailed,
)
from penstock_core.vocabulary.ports import (
    READ_BYTES_MAX,
    BlobInfo,
    Block,
    Buffer,
    Change,
    DamagedBlock,
    DamagedBody,
    JournalInfo,
    PagesInfo,
    PageSlot,
    VersionedRecord,
)
from penstock_server.storage.blob_names import check_blob_name, end_of_range
from penstock_server.storage.journal_arguments import check_read, check_room, check_trim
from penstock_server.storage.watching import Watches


class MemoryJournal:
    """A :class:`~penstock_core.vocabulary.ports.Journal` in a list."""

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        """The blocks that were not trimmed."""
        self._floor = 0
        self._closed = False

    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        """Add a block after block ``expected``, which must be the last one; return its sequence
        (:meth:`penstock_core.vocabulary.ports.Journal.append`); ``sync`` has no meaning here."""
        self._check_open()
        written = b"".join(block)
        tail = self._floor + len(self.blocks)
        if expected == tail:
            self.blocks.append(written)
            return tail + 1
        # A repeated append is accepted if it has the same bytes, as in all journals.
        if self._floor <= expected < tail and self.blocks[expected - self._floor] == written:
            return expected + 1
        raise Deposed(
            f"expected the tail to be {expected}, but it is {tail}: another writer has appended"
        )

    async def reserve(self, size: int) -> None:
        """Check the arguments only; memory needs no reservation."""
        self._check_open()
        check_room(size)

    async def read(
        self, first: int, limit: int, bytes_max: int = READ_BYTES_MAX
    ) -> list[Block | DamagedBlock]:
        """Read blocks, in order, from sequence ``first`` on
        (:meth:`penstock_core.vocabulary.ports.Journal.read`)."""
        self._check_open()
        check_read(first, limit, floor=self._floor)
        start = first - self._floor - 1
        blocks: list[Block | DamagedBlock] = []
        for i, block in enumerate(self.blocks[start : start + limit]):
            bytes_max -= len(block)
            if blocks and bytes_max < 0:
                break
            blocks.append(Block(first + i, memoryview(block)))
        return blocks

    async def sync(self) -> None:
        """Do nothing but check that the journal is open."""
        self._check_open()

    async def free(self) -> None:
        """Do nothing: :meth:`trim` has freed the memory."""

    async def trim(self, through: int) -> None:
        """Forget blocks up to ``through``."""
        self._check_open()
        tail = self._floor + len(self.blocks)
        check_trim(through, tail=tail)
        if through > self._floor:
            del self.blocks[: through - self._floor]
            self._floor = through

    def info(self) -> JournalInfo:
        size = sum(map(len, self.blocks))
        tail = self._floor + len(self.blocks)
        return JournalInfo(self._floor, tail, size, cut=0, durability="memory")

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StorageFailed("the journal is closed")


class MemoryBlobs:
    """:class:`~penstock_core.vocabulary.ports.Blobs` in a dictionary."""

    def __init__(self, *, grows: bool = True) -> None:
        self.grows: Final = grows
        self.contents: dict[str, bytes] = {}
        """The blobs by name."""

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        """Store a blob under a new name (:meth:`penstock_core.vocabulary.ports.Blobs.put`)."""
        check_blob_name(name, of_shard=True)
        written = b"".join(chunks)
        # A repeated put is accepted if it has the same bytes, as in all blob stores.
        if self.contents.setdefault(name, written) != written:
            raise Conflict(f"{name} exists with other bytes")

    async def extend(self, name: str, at: int, chunks: Sequence[Buffer]) -> None:
        """Replace the bytes of a blob from offset ``at`` on
        (:meth:`penstock_core.vocabulary.ports.Blobs.extend`)."""
        check_blob_name(name, of_shard=True)
        if not self.grows:
            raise IllegalState(
                f"{name} cannot be extended, because blobs of this store do not grow; put another "
                f"blob"
            )
        if name not in self.contents:
            raise NameDoesNotExist(f"blob {name} does not exist")
        content = self.contents[name]
        if not 0 <= at <= len(content):
            raise InvalidArgument(f"{name} has {len(content)} bytes; byte {at} is not in it")
        self.contents[name] = content[:at] + b"".join(chunks)

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        """Return the bytes of a blob, or ``length`` bytes from ``offset`` on
        (:meth:`penstock_core.vocabulary.ports.Blobs.get`). The range has to lie inside the blob."""
        check_blob_name(name, of_shard=True)
        if name not in self.contents:
            raise NameDoesNotExist(f"blob {name} does not exist")
        content = memoryview(self.contents[name])
        return content[offset : end_of_range(name, len(content), offset, length=length)]

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        """Return the blobs whose names start with ``prefix``, sorted by name."""
        names = sorted(name for name in self.contents if name.startswith(prefix))
        return [BlobInfo(name, len(self.contents[name])) for name in names]

    async def delete(self, name: str) -> None:
        """Remove a blob. A missing blob is not an error."""
        check_blob_name(name, of_shard=True)
        self.contents.pop(name, None)

    def local_path(self, name: str) -> str | None:
        """Return None, because other processes cannot see this memory."""
        check_blob_name(name, of_shard=True)
        return None


class MemoryPages:
    """:class:`~penstock_core.vocabulary.ports.Pages` in dictionaries, lost with the process."""

    def __init__(self) -> None:
        self._channels: dict[int, dict[PageSlot, bytes]] = {}
        self._ends: dict[int, int] = {}
        self._pending: list[tuple[int, PageSlot, Buffer]] = []
        self._closed = False

    async def reserve(self, channel: int, sizes: Sequence[int]) -> None:
        """Do nothing but check that the pages are open; memory needs no reservation."""
        self._check_open()

    def allocate(self, channel: int, body: Buffer) -> PageSlot:
        """Choose the slot of the next body in reserved room, in memory only
        (:meth:`penstock_core.vocabulary.ports.Pages.allocate`)."""
        self._check_open()
        size, offset = memoryview(body).nbytes, self._ends.get(channel, 0)
        # A body takes at least 8 bytes, so that an empty one has a different offset from the next.
        self._ends[channel] = offset + (size // 8 + 1) * 8
        place = PageSlot(1, offset, size, checksum=xxh3_64_intdigest(body))
        self._pending.append((channel, place, body))
        return place

    async def flush(self, *, sync: bool = True) -> None:
        """Write every allocated body (:meth:`penstock_core.vocabulary.ports.Pages.flush`); ``sync``
        has no meaning here."""
        self._check_open()
        for channel, place, body in self._pending:
            self._channels.setdefault(channel, {})[place] = bytes(body)
        self._pending.clear()

    def view(self, channel: int, place: PageSlot) -> memoryview:
        """Return the bytes of a body without a copy
        (:meth:`penstock_core.vocabulary.ports.Pages.view`)."""
        body = self._channels.get(channel, {}).get(place)
        if body is None:
            raise Damaged(f"channel {channel} has no body at byte {place.offset} in memory")
        return memoryview(body)

    async def check(self, channel: int, places: Sequence[PageSlot]) -> list[DamagedBody]:
        """Return the missing bodies; bodies in memory cannot be damaged."""
        self._check_open()
        bodies = self._channels.get(channel, {})
        where = f"channel {channel} in memory"
        return [
            DamagedBody(place, where, "the body does not exist")
            for place in places
            if place not in bodies
        ]

    async def restore(
        self, in_use: Mapping[int, Sequence[PageSlot]], *, keep_rest: bool = False
    ) -> None:
        """Do nothing but check that the pages are open; memory is empty at the start."""
        self._check_open()

    async def release(self, channel: int, places: Sequence[PageSlot]) -> None:
        """Release the slots of removed events
        (:meth:`penstock_core.vocabulary.ports.Pages.release`)."""
        self._check_open()
        bodies, released = self._channels.get(channel, {}), set(places)
        for place in places:
            bodies.pop(place, None)
        # A body may be released before it is flushed; flush() must not bring it back.
        self._pending = [
            body for body in self._pending if body[0] != channel or body[1] not in released
        ]

    async def drop(self, channel: int) -> None:
        """Remove all pages of a deleted channel
        (:meth:`penstock_core.vocabulary.ports.Pages.drop`)."""
        self._check_open()
        self._channels.pop(channel, None)
        self._pending = [body for body in self._pending if body[0] != channel]

    def info(self, channel: int) -> PagesInfo:
        waiting = [place for number, place, _ in self._pending if number == channel]
        used = sum(place.size for place in (*self._channels.get(channel, ()), *waiting))
        return PagesInfo(1 if used else 0, used, used)

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StorageFailed("the pages accept no more bodies after a failure: they are closed")


class MemoryRegistry:
    """A :class:`~penstock_core.vocabulary.ports.Registry` in a dictionary."""

    def __init__(self) -> None:
        self._records: dict[str, VersionedRecord] = {}
        self._watches = Watches()

    async def get(self, key: str) -> VersionedRecord | None:
        return self._records.get(key)

    async def cas(self, key: str, expected: int, value: bytes) -> int:
        """Set ``key`` if its version is ``expected``; return the new version
        (:meth:`penstock_core.vocabulary.ports.Registry.cas`)."""
        if not key:
            raise InvalidArgument("a registry key has at least one character")
        stored_record = self._records.get(key)
        version = stored_record.version if stored_record is not None else 0
        if version != expected:
            raise Conflict(
                f"registry key {key!r} has version {version}, but {expected} was expected"
            )
        record = VersionedRecord(version + 1, bytes(value))
        self._records[key] = record
        self._watches.note(key, record)
        return record.version

    async def delete(self, key: str, expected: int) -> None:
        """Remove ``key`` if its version is ``expected``
        (:meth:`penstock_core.vocabulary.ports.Registry.delete`)."""
        record = self._records.get(key)
        version = record.version if record is not None else 0
        if version != expected:
            raise Conflict(
                f"registry key {key!r} has version {version}, but {expected} was expected"
            )
        if record is not None:
            del self._records[key]
            self._watches.note(key, None)

    async def list(self, prefix: str = "") -> Sequence[str]:
        return sorted(key for key in self._records if key.startswith(prefix))

    def watch(self, prefix: str = "") -> AsyncIterator[Change]:
        """Yield changes from now on. A slow watcher may miss intermediate records."""
        return self._watches.add(prefix)


class InMemory:
    """All stores of a realm without a data directory."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.blobs = MemoryBlobs()
        self.pages = MemoryPages()
        self.registry = MemoryRegistry()
