"""The embedded journal: checksummed, chained blocks in preallocated files (SEM S1).

``frames`` defines the bytes, ``recovery`` reads them at the next start.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec import Struct

from penstock_core.vocabulary.errors import (
    Damaged,
    Deposed,
    InvalidArgument,
    StorageFailed,
)
from penstock_core.vocabulary.ports import (
    READ_BYTES_MAX,
    Block,
    Buffer,
    Clock,
    DamagedBlock,
    JournalInfo,
    Offload,
    VersionedRecord,
)
from penstock_core.vocabulary.timings import Timings
from penstock_server.storage.disk import Disk, write_all
from penstock_server.storage.embedded.ahead import zeros_behind
from penstock_server.storage.embedded.changes import Changes
from penstock_server.storage.embedded.frames import (
    BLOCK_BYTES_BESIDE,
    BLOCK_HEADER_SIZE,
    FILE_HEADER_SIZE,
    FileHeader,
    file_header,
    frame,
    is_whole,
    padded,
    read_block_header,
)
from penstock_server.storage.embedded.quarantine import QuarantineFolder
from penstock_server.storage.embedded.records import RecordFiles, Unsettled
from penstock_server.storage.embedded.recovery import (
    JournalFile,
    Recovery,
    file_name,
    identity_in,
    journal_files,
)
from penstock_server.storage.journal_arguments import check_read, check_trim

RECORD_KEY = "journal"
"""Key of the journal's own registry record: its id, its floor, and the tail at an orderly close."""


class JournalLimits(Struct, frozen=True, kw_only=True):
    """Sizes of files, and limits for work on the event loop."""

    file_bytes_max: int = 64 << 20
    """Size in bytes at which a new file begins."""
    allocation_bytes: int = 8 << 20
    """Number of bytes that are reserved ahead at once, because writes into reserved space sync
    faster; 0 reserves no space ahead."""
    trimmed_bytes_max: int = 1 << 20
    """Bytes of trimmed blocks in the newest file above which a new file begins."""
    inline_bytes_max: int = 128 << 10
    """Size in bytes above which a thread writes a block that is synced, or reads a block."""
    inline_unsynced_bytes_max: int = 1 << 20
    """Size in bytes above which a thread writes a block that is not synced. Up to this size, which
    is larger than for synced blocks, copying the bytes costs less than using a thread."""
    inline_sync_us_max: int = 1_000
    """Average duration of a sync in microseconds above which a thread makes the syncs."""


class JournalRecord(Struct, frozen=True):
    """The journal's own record in the registry."""

    id: int
    floor: int
    synced: int
    """The tail at the last orderly close or trim: blocks up to it are on disk."""


class _Extent(NamedTuple):
    """Consecutive intact blocks of a file that one read returns."""

    file: JournalFile
    first: int
    end: int

    @property
    def size(self) -> int:
        """Bytes from the payload of the first block to the end of the last block."""
        last = self.end - 1 - self.file.first
        start = self.file.offsets[self.first - self.file.first]
        return self.file.offsets[last] + self.file.sizes[last] - start


class FileJournal:
    """The :class:`~penstock_core.vocabulary.ports.Journal` in a directory, with one writer that
    makes one append at a time.

    After a failed sync, or if an append was cancelled while writing, the content on disk is
    unknown. All calls except reads are then refused until the journal is opened again.
    """

    def __init__(
        self,
        root: str,
        *,
        disk: Disk,
        offload: Offload,
        clock: Clock,
        identity: Callable[[], int],
        limits: JournalLimits | None = None,
    ) -> None:
        """Open or create ``<root>/journal``. Reads all of it, which may take a while.

        ``identity`` returns 64 random bits as the id of a new journal.
        """
        self._disk = disk
        self._offload = offload
        self._clock = clock
        self._limits = limits or JournalLimits()
        # Indexed by the boolean `sync`: the first limit is for blocks that are not synced.
        self._inline_max = self._limits.inline_unsynced_bytes_max, self._limits.inline_bytes_max
        self._path = f"{root}/journal"
        self._records = RecordFiles(disk, f"{root}/registry")
        self._changes = Changes("the journal accepts no more blocks after a failure", offload)
        self._syncs = Timings()
        self._retired: list[JournalFile] = []
        """Files below the floor, which :meth:`free` deletes."""
        self._deleting = threading.Lock()
        """Lock held during a deletion, because a cancelled deletion may still run in its thread."""
        quarantine = QuarantineFolder(disk, root)
        record, self._record_version = self._load_record(quarantine, identity)
        self._identity = record.id
        self._floor = record.floor
        recovered = Recovery(
            disk,
            self._path,
            quarantine,
            identity=record.id,
            floor=record.floor,
            synced=record.synced,
        ).run()
        self._files = recovered.files
        self._damage = recovered.damage
        self._tail = recovered.tail
        self._previous = recovered.previous
        self._cut = recovered.torn_bytes
        """Bytes of unacknowledged blocks that the recovery has cut off."""
        if not self._files or recovered.roll:
            self._roll()
        self._reserved = disk.size(self._files[-1].file)
        """Offset of the end of the reserved space in the newest file."""
        self._synced = self._tail
        """The newest sequence that is known to be on disk."""

    def info(self) -> JournalInfo:
        size = sum(file.end for file in self._files)
        return JournalInfo(self._floor, self._tail, size, cut=self._cut, syncs=self._syncs)

    @property
    def damage(self) -> Sequence[DamagedBlock]:
        """The blocks that were damaged when the journal was opened, oldest first."""
        return tuple(self._damage)

    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        """Add a block after block ``expected``, which must be the last one; return its sequence
        (:meth:`penstock_core.vocabulary.ports.Journal.append`)."""
        if self._changes.failed or self._changes.is_busy:
            self._changes.check_idle()
        if expected != self._tail:
            return await self._append_again(expected, block, sync=sync)
        seq, length = self._tail + 1, 0
        for chunk in block:
            length += memoryview(chunk).nbytes
        write = partial(self._write, block, sync=sync)
        is_quick = not sync or self._syncs.recent_us < self._limits.inline_sync_us_max
        await self._changes.make(write, inline=is_quick and length < self._inline_max[sync])
        return seq

    async def reserve(self, size: int) -> None:
        """Make sure that an append of ``size`` bytes will find room on disk
        (:meth:`penstock_core.vocabulary.ports.Journal.reserve`)."""
        if self._changes.failed or self._changes.is_busy:
            self._changes.check_idle()
        if size < 0:
            raise InvalidArgument(f"cannot reserve {size} bytes; the size has to be 0 or more")
        block_size = size + BLOCK_BYTES_BESIDE
        end = self._files[-1].end + block_size
        if end > self._reserved or end > self._limits.file_bytes_max:
            await self._change(
                lambda: self._try_make_room(block_size, promised=True),
                # A full file is synced before the next one begins, which may take long.
                inline=not self._is_full_for(block_size),
                syncs=False,
            )

    async def sync(self) -> None:
        """Sync all appended blocks. Raises ``StorageFailed``; after that, every further change
        also fails."""
        self._changes.check_idle()
        if self._synced < self._tail:
            await self._change(self._sync_tail, inline=True, syncs=True)

    async def read(
        self, first: int, limit: int, bytes_max: int = READ_BYTES_MAX
    ) -> list[Block | DamagedBlock]:
        """Read blocks, in order, from sequence ``first`` on
        (:meth:`penstock_core.vocabulary.ports.Journal.read`). Every block is checked again."""
        check_read(first, limit, floor=self._floor)
        if not self._files:
            raise StorageFailed(self._changes.failed)
        blocks: list[Block | DamagedBlock] = []
        seq = first
        while seq <= self._tail and len(blocks) < limit:
            damage = self._damage_at(seq)
            if damage is not None:
                blocks.append(damage)
                seq += damage.count
                continue
            extent = self._extent(seq, limit - len(blocks), bytes_max)
            bytes_max -= extent.size
            if blocks and bytes_max < 0:
                break
            read_blocks = await self._read_extent(extent)
            blocks.extend(read_blocks)
            seq += len(read_blocks)
        return blocks

    async def trim(self, through: int) -> None:
        """Forget blocks up to ``through``. The new floor is on disk on return; :meth:`free` deletes
        the files without other blocks.

        The floor is stored in the registry record ``journal``, because the newest trimmed blocks
        may be in a file that later blocks need.
        """
        self._changes.check_idle()
        check_trim(through, tail=self._tail)
        if through <= self._floor:
            return
        # Synced first, because the record states that all blocks up to the tail are on disk.
        await self.sync()

        def persist() -> None:
            self._store_record(floor=through)
            self._leave_behind(through)

        await self._change(persist, inline=False, syncs=False)
        self._floor = through
        while len(self._files) > 1 and self._files[1].first - 1 <= through:
            self._retired.append(self._files.pop(0))
        self._damage = [
            damage for damage in self._damage if damage.seq + damage.count - 1 > through
        ]

    async def free(self) -> None:
        """Delete files that have only trimmed blocks, in a thread, because deleting a large file
        takes up to 100 ms. Readers that have a file open can finish. Raises ``StorageFailed``."""
        retired, self._retired = self._retired, []
        if retired:
            for file in retired:
                file.retired = True
            unread = [file for file in retired if not file.readers]
            await self._offload(lambda: self._delete(retired, unread))

    def _delete(self, retired: Sequence[JournalFile], unread: Sequence[JournalFile]) -> None:
        """Delete retired files, and close those without readers. If the journal was closed before,
        another process may use the files, so they are left to the next start."""
        failed: StorageFailed | None = None
        with self._deleting:
            for file in retired if self._files else ():
                try:
                    self._disk.unlink(file.path)
                except OSError as error:
                    failed = StorageFailed(f"{file.path} could not be removed: {error}")
            for file in unread:
                self._disk.close(file.file)
        if failed is not None:
            raise failed

    def _leave_behind(self, through: int) -> None:
        """Begin a new file if the newest one has many trimmed bytes, so that the old file can
        also be deleted once its few other blocks are trimmed. A full disk postpones this."""
        file = self._files[-1]
        if file.first > through or file.end <= FILE_HEADER_SIZE + self._limits.trimmed_bytes_max:
            return
        try:
            self._begin_file()
        except OSError as error:
            if self._changes.failed:
                raise StorageFailed(self._changes.failed) from error

    async def close(self) -> None:
        """Sync, record an orderly close, and close the files. A second call does nothing."""
        with self._deleting, self._changes.alone:
            if not self._files:
                return
            try:
                if not self._changes.failed:
                    self._close_orderly()
            finally:
                for file in (*self._files, *self._retired):
                    self._disk.close(file.file)
                self._files, self._retired = [], []
                self._changes.failed = "the journal is closed"

    # Writing

    async def _change(self, call: Callable[[], None], *, inline: bool, syncs: bool) -> None:
        """Make a change with ``inline`` on the event loop, unless it ``syncs`` and syncs are slow
        now."""
        is_quick = not syncs or self._syncs.recent_us < self._limits.inline_sync_us_max
        await self._changes.make(call, inline=inline and is_quick)

    def _write(self, block: Sequence[Buffer], *, sync: bool) -> None:
        """Append a block to the newest file, or to a new one if it does not fit, and sync it."""
        seq, synced, previous = self._tail + 1, self._synced, self._previous
        chunks, header = frame(block, self._identity, seq=seq, synced=synced, previous=previous)
        size = padded(header.length)
        end = self._files[-1].end + size
        if end > self._reserved or end > self._limits.file_bytes_max:
            self._try_make_room(size)
        file = self._files[-1]
        is_at_zeros = file.end + size <= file.zeroed
        if sync and not is_at_zeros and (zeros := zeros_behind(file, size, self._reserved)):
            chunks.append(zeros)
        try:
            self._disk.pwrite(file.file, chunks, file.end)
        except OSError as error:
            self._undo(error)
            raise StorageFailed(f"{file.path}: block {header.seq} not written: {error}") from error
        file.place(header.seq, file.end + BLOCK_HEADER_SIZE, header.length)
        file.end += size
        self._reserved = max(self._reserved, file.end)
        self._tail, self._previous = header.seq, header.checksum
        if sync:
            self._sync_tail()

    def _try_make_room(self, size: int, *, promised: bool = False) -> None:
        try:
            self._make_room(size, promised=promised)
        except OSError as error:
            seq = self._tail + 1
            raise StorageFailed(f"{self._path}: no room for block {seq}: {error}") from error

    def _make_room(self, size: int, *, promised: bool = False) -> None:
        """Begin a new file if ``size`` bytes do not fit into the newest one, and reserve space
        ahead. With ``promised``, raise ``StorageFailed`` if the bytes cannot be reserved."""
        file, limits = self._files[-1], self._limits
        if self._is_full_for(size):
            self._begin_file()
            file = self._files[-1]
        end = file.end + size
        if end <= self._reserved or not (promised or limits.allocation_bytes):
            return
        ahead = max(end, min(end + limits.allocation_bytes, limits.file_bytes_max))
        # A disk that is too full to reserve ahead may still have room for this block.
        if not self._allocate(ahead) and promised and not self._allocate(end):
            raise StorageFailed(f"{file.path}: no room for a block of {size} bytes")

    def _begin_file(self) -> None:
        """Begin a new file, and free the reserved space of the present one."""
        file = self._files[-1]
        # The old file is synced first, because recovery takes a newer file as proof that all blocks
        # before it are on disk.
        self._sync_tail()
        self._disk.truncate(file.file, file.end)
        self._reserved = file.end
        self._roll()
        self._reserved = FILE_HEADER_SIZE

    def _is_full_for(self, size: int) -> bool:
        file = self._files[-1]
        return file.end > FILE_HEADER_SIZE and file.end + size > self._limits.file_bytes_max

    def _allocate(self, end: int) -> bool:
        """Reserve space in the newest file up to ``end``; return False if the disk is full."""
        file = self._files[-1].file
        try:
            self._disk.allocate(file, self._reserved, end - self._reserved)
        except OSError:
            # Free the space that was reserved before the failure.
            self._disk.truncate(file, self._reserved)
            return False
        self._reserved = end
        return True

    def _roll(self) -> None:
        """Create a new file; every block before it is already on disk."""
        first = self._tail + 1
        path = f"{self._path}/{file_name(first)}"
        header = file_header(FileHeader(self._identity, first, self._previous))
        try:
            write_all(self._disk, path, [header])
        except OSError as error:
            self._forget(path, error)
            raise
        try:
            self._disk.sync_directory(self._path)
            self._files.append(JournalFile(path, self._disk.open(path), first))
        except OSError as error:
            self._changes.failed = f"the new file {path} might not survive a power failure: {error}"
            raise

    def _forget(self, path: str, error: OSError) -> None:
        """Make sure that a file whose creation failed does not exist, also after a power cut. If
        that also fails, all further changes are refused.

        Later blocks are appended to the present file. If the new file reappeared after a power cut,
        the next start would expect these blocks in the new file, and lose them.
        """
        try:
            self._disk.sync_directory(self._path)
            exists = any(listed == path for _, listed in journal_files(self._disk, self._path))
        except OSError:
            exists = True
        if exists:
            self._changes.failed = f"{error}; and the new file {path} might reappear"

    def _undo(self, error: OSError) -> None:
        """Undo a failed write. If that also fails, all further changes are refused."""
        file = self._files[-1]
        try:
            file.zeroed = file.end
            self._disk.truncate(file.file, file.end)
            self._disk.datasync(file.file)
        except OSError as second:
            self._changes.failed = f"{error}; and it could not be undone: {second}"
        else:
            self._reserved = file.end

    def _sync_tail(self) -> None:
        started = self._clock.now_us()
        file = self._files[-1]
        try:
            self._disk.datasync(file.file)
        except OSError as error:
            # The sync is not retried: the system may have dropped the unwritten pages, so that a
            # second sync would succeed and write nothing.
            self._changes.failed = f"{file.path} could not be synced: {error}"
            raise StorageFailed(self._changes.failed) from error
        self._syncs.note(self._clock.now_us() - started)
        self._synced = self._tail

    def _close_orderly(self) -> None:
        """Sync the journal, free reserved space, and record an orderly close."""
        file = self._files[-1]
        try:
            self._sync_tail()
            self._disk.truncate(file.file, file.end)
            self._disk.datasync(file.file)
            self._store_record(floor=self._floor)
        except OSError as error:
            raise StorageFailed(f"{self._path}: was not closed properly: {error}") from error

    # Repeated appends

    async def _append_again(self, expected: int, block: Sequence[Buffer], *, sync: bool) -> int:
        """Return the sequence of an append that is repeated with the same bytes. Raise ``Deposed``
        for any other append that does not follow the tail."""
        seq = expected + 1
        if self._floor < seq <= self._tail and self._damage_at(seq) is None:
            stored = (await self.read(seq, 1))[0]
            if isinstance(stored, Block) and stored.data == b"".join(block):
                if sync and seq > self._synced:
                    await self.sync()
                return seq
        raise Deposed(
            f"expected the tail to be {expected}, but it is {self._tail}: another writer has "
            f"appended"
        )

    # Reading

    def _damage_at(self, seq: int) -> DamagedBlock | None:
        """Return the part of a damaged range from block ``seq`` on; None if the block is not
        damaged."""
        index = bisect_right(self._damage, seq, key=lambda damage: damage.seq) - 1
        if index < 0:
            return None
        damage = self._damage[index]
        skipped = seq - damage.seq
        if skipped >= damage.count:
            return None
        return msgspec.structs.replace(damage, seq=seq, count=damage.count - skipped)

    def _extent(self, seq: int, limit: int, bytes_max: int) -> _Extent:
        """Return the range of blocks from ``seq`` on that one read can return: blocks of one file,
        without damaged blocks between them, of limited size."""
        index = bisect_right(self._files, seq, key=lambda file: file.first) - 1
        file = self._files[index]
        last = min(file.last, seq + limit - 1)
        following = bisect_right(self._damage, seq, key=lambda damage: damage.seq)
        if following < len(self._damage):
            last = min(last, self._damage[following].seq - 1)
        start = file.offsets[seq - file.first]
        size_max = min(bytes_max, _EXTENT_BYTES)
        while last > seq and file.offsets[last - file.first] - start > size_max:
            last = seq + (last - seq) // 2
        return _Extent(file, seq, last + 1)

    async def _read_extent(self, extent: _Extent) -> list[Block | DamagedBlock]:
        """Read blocks in the loop, or in a thread if they are large."""
        file = extent.file
        file.readers += 1
        try:
            if extent.size < self._limits.inline_bytes_max:
                return self._read_blocks(extent)
            return await self._offload(lambda: self._read_blocks(extent))
        finally:
            file.readers -= 1
            if file.retired and not file.readers:
                self._disk.close(file.file)

    def _read_blocks(self, extent: _Extent) -> list[Block | DamagedBlock]:
        file, first = extent.file, extent.first
        base = file.offsets[first - file.first] - BLOCK_HEADER_SIZE
        try:
            data = memoryview(self._disk.pread(file.file, extent.size + BLOCK_HEADER_SIZE, base))
        except OSError as error:
            if extent.end == first + 1:
                return [self._newly_damaged(file, first, f"the disk cannot read it: {error}")]
            # Halve the extent until only the blocks with unreadable sectors fail.
            half = (first + extent.end) // 2
            parts = extent._replace(end=half), extent._replace(first=half)
            return [block for part in parts for block in self._read_blocks(part)]
        blocks: list[Block | DamagedBlock] = []
        for seq in range(first, extent.end):
            body = file.offsets[seq - file.first] - base
            header = read_block_header(data, body - BLOCK_HEADER_SIZE, self._identity)
            if header is None or header.seq != seq:
                blocks.append(self._newly_damaged(file, seq, "the block header is damaged"))
            elif not is_whole(data, body - BLOCK_HEADER_SIZE, header):
                blocks.append(self._newly_damaged(file, seq, "the payload fails its checksum"))
            else:
                blocks.append(Block(seq, data[body : body + header.length]))
        return blocks

    def _newly_damaged(self, file: JournalFile, seq: int, reason: str) -> DamagedBlock:
        """Return the report about a block that fails its check."""
        start = file.offsets[seq - file.first] - BLOCK_HEADER_SIZE
        size = padded(file.sizes[seq - file.first])
        return DamagedBlock(seq, f"{file.path} bytes {start}-{start + size}", reason, size=size)

    # Floor and identity

    def _load_record(
        self, quarantine: QuarantineFolder, identity: Callable[[], int]
    ) -> tuple[JournalRecord, int]:
        """Return the journal's own record and its version. A missing record is built from the
        files."""
        try:
            stored = self._records.load(RECORD_KEY)
        except Damaged:
            quarantine.keep("registry-journal.record", self._records.raw(RECORD_KEY))
            stored = None
        if stored is not None:
            return msgspec.json.decode(stored.value, type=JournalRecord), stored.version
        listed = journal_files(self._disk, self._path)
        stored_id = identity_in(self._disk, self._path)
        if listed and stored_id is None:
            raise Damaged(
                f"{self._path}: all file headers are damaged and the registry record "
                f"{RECORD_KEY!r} is missing; restore either from a copy"
            )
        floor = listed[0][0] - 1 if listed else 0
        record = JournalRecord(identity() if stored_id is None else stored_id, floor, 0)
        self._records.store(RECORD_KEY, VersionedRecord(1, msgspec.json.encode(record)))
        return record, 1

    def _store_record(self, *, floor: int) -> None:
        """Store the journal's own record with a new floor."""
        record = JournalRecord(self._identity, floor, self._synced)
        version = self._record_version + 1
        try:
            self._records.store(RECORD_KEY, VersionedRecord(version, msgspec.json.encode(record)))
        except Unsettled as error:
            self._changes.failed = f"the floor could not be synced: {error}"
            raise StorageFailed(self._changes.failed) from error
        except OSError as error:
            raise StorageFailed(f"the floor {floor} could not be written: {error}") from error
        self._record_version = version


_EXTENT_BYTES = 16 << 20
"""Approximate number of bytes that are read at once."""
