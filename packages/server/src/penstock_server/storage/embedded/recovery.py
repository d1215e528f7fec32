"""Opens a journal directory: finds its blocks, its damage, and the offset at which writing
continues (SEM S1).

Bytes that fail their checksum are treated in one of two ways. If a later block, a newer file or the
record of an orderly close proves that the bytes had been synced, they are damage: the damage is
reported, the bytes are copied to quarantine, and the blocks after them are served. Otherwise these
bytes and all bytes after them are the tail of a power cut, which was never acknowledged: the
journal is cut back to the last block before them, and the cut bytes are copied to quarantine.
Intact blocks are synced again before they are served, so that they also survive the next power cut.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import NamedTuple

from penstock_core.vocabulary.ports import DamagedBlock
from penstock_server.storage.disk import Disk
from penstock_server.storage.embedded.frames import (
    BLOCK_HEADER_SIZE,
    FILE_HEADER_SIZE,
    BlockHeader,
    JournalRange,
    Scan,
    read_file_header,
    scan,
)
from penstock_server.storage.embedded.quarantine import QuarantineFolder

_RETRY_SIZE = 1 << 12
"""Number of bytes that are read at once after a read error, so that a bad sector affects only these
bytes."""
_HEADER = "the block header is damaged"
"""Reason for damage without a readable block header."""


class JournalFile:
    """An open file of the journal, with the positions of its blocks."""

    __slots__ = ("end", "file", "first", "offsets", "path", "readers", "retired", "sizes", "zeroed")

    def __init__(self, path: str, file: int, first: int) -> None:
        self.path = path
        self.file = file
        self.first = first
        self.end = FILE_HEADER_SIZE
        """Offset of the next block."""
        self.offsets = array("q")
        """Offset of the payload of each block from ``first`` on; -1 if the block is damaged."""
        self.sizes = array("q")
        self.readers = 0
        """Number of reads in progress."""
        self.retired = False
        """Whether the journal has deleted the file; its last reader closes it."""
        self.zeroed = 0
        """Offset of the end of the zeros that were written into reserved space (see the module
        ``ahead``)."""

    @property
    def last(self) -> int:
        """The newest sequence in this file; ``first - 1`` if it has none."""
        return self.first + len(self.offsets) - 1

    def place(self, seq: int, offset: int, size: int) -> None:
        """Record the position of block ``seq``. Sequences that are skipped before it count as
        damaged."""
        missing = seq - self.first - len(self.offsets)
        if missing:
            self.offsets.extend([-1] * missing)
            self.sizes.extend([0] * missing)
        self.offsets.append(offset)
        self.sizes.append(size)


class RecoveredJournal(NamedTuple):
    """The recovered journal, with a torn tail cut off."""

    files: list[JournalFile]
    damage: list[DamagedBlock]
    tail: int
    previous: int
    """Checksum of the newest block; 0 without a block, or if it is unknown."""
    torn_bytes: int
    """Bytes of unacknowledged blocks that were cut off the newest file."""
    roll: bool
    """Whether the newest file ends in damage, so that writing continues in a new file."""


class _Candidate(NamedTuple):
    file: JournalFile
    data: bytes
    scan: Scan
    start: int
    """Checksum of the last block of the previous file, from the header of this file; 0 if
    unknown."""
    is_known: bool
    """Whether the header of the file is intact and belongs to this journal."""


def file_name(first: int) -> str:
    return f"{first:020d}.log"


def journal_files(disk: Disk, path: str) -> list[tuple[int, str]]:
    """Return the first sequence and the path of every journal file in a directory, ascending. Other
    files are ignored."""
    files = []
    for entry in disk.list(path):
        stem = entry.name.removesuffix(".log")
        if entry.name.endswith(".log") and len(stem) == 20 and stem.isdecimal():
            files.append((int(stem), f"{path}/{entry.name}"))
    return files


def read_patiently(disk: Disk, file: int) -> bytes:
    """Return all bytes of a file. Unreadable parts become zeros, so that their checksums fail."""
    size = disk.size(file)
    try:
        return disk.pread(file, size, 0)
    except OSError:
        offsets = range(0, size, _RETRY_SIZE)
        return b"".join(_part(disk, file, offset, size=size) for offset in offsets)


def _part(disk: Disk, file: int, offset: int, size: int) -> bytes:
    """Return a small part of a file; zeros if the disk cannot read it."""
    length = min(_RETRY_SIZE, size - offset)
    try:
        return disk.pread(file, length, offset)
    except OSError:
        return bytes(length)


def identity_in(disk: Disk, path: str) -> int | None:
    """Return the journal id in the headers of the files; None if no header is intact."""
    for _, file_path in journal_files(disk, path):
        file = disk.open(file_path)
        try:
            header = read_file_header(disk.pread(file, FILE_HEADER_SIZE, 0))
        finally:
            disk.close(file)
        if header is not None:
            return header.identity
    return None


class Recovery:
    """Opens the files of one journal directory."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        quarantine: QuarantineFolder,
        identity: int,
        floor: int,
        synced: int,
    ) -> None:
        self._disk = disk
        self._path = path
        self._quarantine = quarantine
        self._identity = identity
        self._floor = floor
        self._newest_synced = max(floor, synced)
        """The newest sequence known to have been synced."""
        self._files: list[JournalFile] = []
        self._damage: list[DamagedBlock] = []
        self._newest_seq = floor
        self._previous = 0
        """Checksum of the newest block; 0 if it is unknown."""
        self._torn_bytes = 0
        self._roll = False

    def run(self) -> RecoveredJournal:
        """Read all files. Raises ``OSError`` if one cannot be opened or cut."""
        self._drop_trimmed()
        listed = journal_files(self._disk, self._path)
        if listed:
            # If the first file begins after the floor, `_add_file` reports the blocks in between as
            # missing.
            self._newest_seq = self._floor if listed[0][0] > self._floor else listed[0][0] - 1
            # A file begins only after a sync of the file before it.
            self._newest_synced = max(self._newest_synced, listed[-1][0] - 1)
        # The newest file is read first: its headers have the newest synced sequence, which decides
        # whether a bad block in any file is damage or a torn tail.
        last = self._load(*listed[-1]) if listed else None
        if last is not None:
            self._newest_synced = max(self._newest_synced, last.scan.synced)
        for (first, path), (following, _) in pairwise(listed):
            self._add_file(self._load(first, path), following)
        if last is not None:
            self._add_file(last, None)
        if self._files:
            self._write_again(self._files[-1])
        self._note_lost_tail()
        damage = [block for block in self._damage if block.seq + block.count - 1 > self._floor]
        return RecoveredJournal(
            self._files,
            damage,
            self._newest_seq,
            previous=self._previous,
            torn_bytes=self._torn_bytes,
            roll=self._roll,
        )

    def _write_again(self, file: JournalFile) -> None:
        """Write again and sync the blocks that are not known to be on disk.

        After a crash they may be in the system's cache only. A sync alone is not enough: after a
        failed sync the system may treat unwritten pages as written.
        """
        fresh = file.offsets[max(0, self._newest_synced + 1 - file.first) :]
        start = min((offset for offset in fresh if offset >= 0), default=0) - BLOCK_HEADER_SIZE
        if start > 0:
            content = self._disk.pread(file.file, file.end - start, start)
            self._disk.pwrite(file.file, [content], start)
        self._disk.datasync(file.file)

    def _drop_trimmed(self) -> None:
        """Finish a trim that a crash interrupted."""
        listed = journal_files(self._disk, self._path)
        for (_, path), (following, _) in pairwise(listed):
            if following - 1 <= self._floor:
                self._disk.unlink(path)

    def _load(self, first: int, path: str) -> _Candidate:
        """Open a file and read its header and blocks."""
        file = self._disk.open(path)
        data = read_patiently(self._disk, file)
        header = read_file_header(data)
        content = scan(data, self._identity, first)
        is_known = header is not None and header.identity == self._identity
        start = header.previous if header is not None and is_known else 0
        return _Candidate(
            JournalFile(path, file, first), data, content, start=start, is_known=is_known
        )

    def _add_file(self, candidate: _Candidate, limit: int | None) -> None:
        """Add the blocks of a file; ``limit`` is the first sequence of the next file, or None."""
        file = candidate.file
        if file.first > self._newest_seq + 1:
            gap = JournalRange(
                self._newest_seq + 1,
                file.first - self._newest_seq - 1,
                0,
                end=0,
                header=None,
                reason="missing",
            )
            self._report(gap, where=f"{self._path}: no file has these blocks", data=b"")
            self._previous = candidate.start
        if not candidate.is_known and not self._is_worth_keeping(candidate, limit):
            return
        self._roll = False
        self._files.append(file)
        file.end = candidate.scan.end
        if not self._add_blocks(candidate, limit):
            return
        if candidate.scan.trailing:
            self._handle_trailing(candidate, limit)

    def _is_worth_keeping(self, candidate: _Candidate, limit: int | None) -> bool:
        """Copy a damaged file header to quarantine, and return whether the file has blocks.

        The newest file may have none, if a crash has interrupted its creation; it is deleted.
        """
        file, data = candidate.file, candidate.data
        if data[:FILE_HEADER_SIZE].strip(b"\0"):
            self._quarantine.keep(f"journal-{file.first:020d}.header", data[:FILE_HEADER_SIZE])
        if limit is not None or candidate.scan.pieces or self._newest_synced >= file.first:
            return True
        if candidate.scan.trailing:
            self._cut_off_bytes(candidate, FILE_HEADER_SIZE, is_last=False)
        self._disk.close(file.file)
        self._disk.unlink(file.path)
        self._disk.sync_directory(self._path)
        self._roll = True
        return False

    def _add_blocks(self, candidate: _Candidate, limit: int | None) -> bool:
        """Add the blocks of a file. Return True if all were added, and False if the file was cut or
        overlaps the next one."""
        for block_range in candidate.scan.pieces:
            if block_range.seq <= self._newest_seq:
                continue
            if limit is not None and block_range.seq + block_range.span > limit:
                # Sequences from `limit` on are in the next file.
                if limit > block_range.seq:
                    span = limit - block_range.seq
                    self._keep(candidate, block_range._replace(span=span), _HEADER)
                return False
            reason = block_range.reason or self._chain_fault(block_range.header)
            if reason and block_range.seq + block_range.span - 1 > self._newest_synced:
                self._cut_off_block(candidate, block_range, reason)
                return False
            self._keep(candidate, block_range, reason)
        return True

    def _handle_trailing(self, candidate: _Candidate, limit: int | None) -> None:
        """Handle the bytes after the last readable header."""
        start = candidate.scan.end
        newest_synced = self._newest_synced if limit is None else limit - 1
        if newest_synced > self._newest_seq:
            count = newest_synced - self._newest_seq
            end = start + candidate.scan.trailing
            damaged = JournalRange(
                self._newest_seq + 1, count, start, end=end, header=None, reason=_HEADER
            )
            self._keep(candidate, damaged, _HEADER)
        else:
            self._cut_off_bytes(candidate, start, is_last=limit is None)

    def _chain_fault(self, header: BlockHeader | None) -> str:
        """Return the fault of a block that does not follow the previous one; empty if it does, or
        if the checksum of the previous block is unknown."""
        if header is None or not self._previous or header.previous == self._previous:
            return ""
        return f"it does not follow block {header.seq - 1}: the hash chain is broken"

    def _keep(self, candidate: _Candidate, block_range: JournalRange, reason: str) -> None:
        """Record the position of an intact block. If ``reason`` is not empty, report these bytes as
        damaged."""
        if reason:
            where = f"{candidate.file.path} bytes {block_range.start}-{block_range.end}"
            self._report(block_range._replace(reason=reason), where=where, data=candidate.data)
        else:
            assert block_range.header is not None, "an intact block has a header"
            body = block_range.start + BLOCK_HEADER_SIZE
            candidate.file.place(block_range.seq, body, block_range.header.length)
        self._newest_seq = block_range.seq + block_range.span - 1
        self._previous = block_range.header.checksum if block_range.header is not None else 0
        self._roll = bool(reason)

    def _report(self, block_range: JournalRange, *, where: str, data: bytes) -> None:
        """Report a damaged range, and copy its bytes to quarantine."""
        damaged = data[block_range.start : block_range.end]
        if damaged:
            self._quarantine.keep(f"journal-{block_range.seq:020d}.block", damaged)
        self._damage.append(
            DamagedBlock(
                block_range.seq,
                where,
                block_range.reason,
                size=block_range.end - block_range.start,
                count=block_range.span,
            )
        )
        self._newest_seq = max(self._newest_seq, block_range.seq + block_range.span - 1)

    def _cut_off_block(self, candidate: _Candidate, block_range: JournalRange, reason: str) -> None:
        """Cut off a block that was never acknowledged, and everything after it (SEM S1)."""
        if block_range.seq <= self._newest_synced:
            # The range stands for several blocks. Blocks that were synced are damage; later ones
            # are cut off.
            synced = block_range._replace(span=self._newest_synced - block_range.seq + 1)
            self._keep(candidate, synced, reason)
        candidate.file.end = block_range.start
        self._cut_off_bytes(candidate, block_range.start, is_last=True)

    def _cut_off_bytes(self, candidate: _Candidate, start: int, *, is_last: bool) -> None:
        """Copy the bytes from ``start`` on to quarantine. The newest file is truncated there."""
        end = candidate.scan.end + candidate.scan.trailing
        torn = candidate.data[start:end].rstrip(b"\0")
        if torn:
            name = f"journal-{self._newest_seq + 1:020d}.{'tail' if is_last else 'rest'}"
            self._quarantine.keep(name, torn)
        # A file that ends in damage is not changed, because writing continues in a new file.
        if is_last and not self._roll:
            self._torn_bytes += end - start
            self._disk.truncate(candidate.file.file, start)
            self._disk.datasync(candidate.file.file)

    def _note_lost_tail(self) -> None:
        """Report blocks that had been synced at the end of the journal and are missing now."""
        if self._newest_synced > self._newest_seq:
            missing_range = JournalRange(
                self._newest_seq + 1,
                self._newest_synced - self._newest_seq,
                0,
                end=0,
                header=None,
                reason="missing",
            )
            self._report(missing_range, where=f"{self._path}: the end of the newest file", data=b"")
            self._previous, self._roll = 0, True
