"""A disk in memory that loses power, fills up and decays; its faults are determined by a seed.

It reproduces the faults of real disks. Bytes that were not synced are lost, torn at sector borders,
or written out of order. Files that were created, moved or removed without a sync of their directory
reappear or vanish. A failed sync drops the bytes, and the next sync reports success.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from penstock_core.vocabulary.ports import Buffer
from penstock_server.storage.disk import DirectoryEntry, LockHeld

SECTOR = 512
"""Number of bytes that a power cut writes completely or not at all."""

_PAGE = 4096
"""Number of bytes that become unreadable together."""


class _Write(NamedTuple):
    """Bytes written to a file."""

    offset: int
    written: bytes


class _Resize(NamedTuple):
    """A new length of a file; added bytes are zero."""

    size: int


class _File:
    """A file: its bytes as programs see them, its bytes on the disk, and the unsynced changes."""

    def __init__(self) -> None:
        self.live = bytearray()
        """The bytes as programs see them."""
        self.durable = bytearray()
        """The bytes that survive a power cut."""
        self.pending: list[_Write | _Resize] = []
        """The changes since the last sync."""
        self.unreadable: set[int] = set()
        """Numbers of the pages that cannot be read."""

    def apply(self, change: _Write | _Resize) -> None:
        """Change the file without a sync."""
        try:
            _apply(self.live, change)
        except BufferError:
            # A bytearray with mappings cannot be resized, so the mappings keep the old object and
            # its size.
            self.live = bytearray(self.live)
            _apply(self.live, change)
        self.pending.append(change)

    def shorten(self, size: int) -> None:
        """Truncate the file to ``size`` bytes, on the disk and for programs."""
        # The cut is durable, so a later power cut must not undo the writes before it.
        self.make_durable()
        self.live, self.durable = self.live[:size], self.durable[:size]

    def make_durable(self) -> None:
        """Sync the file."""
        for change in self.pending:
            _apply(self.durable, change)
        self.pending.clear()

    def cut(self, random: Random, faults: Counter[str]) -> None:
        """Cut the power: each sector of the unsynced changes is either kept or lost."""
        # The outcome is drawn for the whole file first, so that files without any unsynced change
        # or with all of them are as frequent as mixtures.
        outcome = random.choice(("none", "all", "some", "some"))
        is_earlier_lost = False
        """Whether an earlier change was lost."""
        for change in self.pending:
            if isinstance(change, _Resize):
                if outcome == "all" or (outcome == "some" and random.random() < 0.5):
                    _apply(self.durable, change)
                else:
                    faults["unsynced length lost"] += 1
                continue
            sectors, written_sectors, reordered_sectors = _sectors(change), 0, 0
            for sector in sectors:
                if outcome == "all" or (outcome == "some" and random.random() < 0.5):
                    _apply(self.durable, sector)
                    written_sectors += 1
                    reordered_sectors += is_earlier_lost
                else:
                    is_earlier_lost = True
            if written_sectors < len(sectors):
                faults["unsynced write torn" if written_sectors else "unsynced write lost"] += 1
            if reordered_sectors:
                faults["unsynced write kept although an earlier one was lost"] += 1
        self.pending.clear()
        self.live = bytearray(self.durable)


class _Directory:
    """A directory: its names as programs see them, its names on the disk, and the unsynced
    changes."""

    def __init__(self) -> None:
        self.live: dict[str, _File | _Directory] = {}
        self.durable: dict[str, _File | _Directory] = {}
        self.pending: list[dict[str, _File | _Directory | None]] = []
        """The changes since the last sync: new files by name, or None for a removed name."""

    def apply(self, change: dict[str, _File | _Directory | None]) -> None:
        """Change names without a sync."""
        _rename(self.live, change)
        self.pending.append(change)

    def make_durable(self) -> None:
        """Sync the directory."""
        self.durable = dict(self.live)
        self.pending.clear()

    def cut(self, random: Random, faults: Counter[str]) -> None:
        """Cut the power: each unsynced change of names is either kept or lost, in this folder and
        below."""
        outcome = random.choice(("none", "all", "some", "some"))
        for change in self.pending:
            if outcome == "all" or (outcome == "some" and random.random() < 0.5):
                _rename(self.durable, change)
            else:
                faults["unsynced change of a name lost"] += 1
        self.pending.clear()
        self.live = dict(self.durable)
        for node in self.live.values():
            node.cut(random, faults)


class FaultyDisk:
    """A :class:`~penstock_server.storage.disk.Disk` with faults that a test requests or that are
    drawn from a seed."""

    def __init__(
        self,
        seed: int = 0,
        *,
        on_sync: Callable[[], None] | None = None,
        on_halt: Callable[[], None] | None = None,
    ) -> None:
        """``on_sync`` is called at each sync; simulations advance their clock in it. ``on_halt`` is
        called when the disk halts because of :meth:`halt_after` or :meth:`halt_in_sync`."""
        self._random = Random(seed)
        self._root = _Directory()
        self._open: dict[int, _File] = {}
        """Open files by handle."""
        self._locks: dict[int, tuple[_File, str]] = {}
        """Locked files and the holders of their locks, by handle."""
        self._last_handle = 3
        """The newest handle."""
        self._on_sync = on_sync
        self.on_halt = on_halt
        self._syncs_to_fail = 0
        self._writes_to_fail = 0
        self._good_syncs = 0
        """Number of syncs that succeed before syncs fail."""
        self._is_halted = False
        self._calls_left = 0
        """Number of calls until the disk halts; 0 if no halt was requested."""
        self._syncs_left = 0
        """Number of syncs until the disk halts; 0 if no halt was requested."""
        self._sync_bytes_min = 0
        """Minimum number of bytes of a sync that counts towards the halt."""
        self.free_bytes: int | None = None
        """Free bytes; a write or reservation that needs more fails with ENOSPC. None if the disk
        has no limit."""
        self.syncs = 0
        """Number of file syncs."""
        self.faults: Counter[str] = Counter()
        """Faults that had an effect, by kind."""

    # Faults

    def power_cut(self) -> None:
        """Cut the power: each unsynced change is kept, torn or lost, and files and locks are
        closed."""
        self._is_halted, self._calls_left, self._syncs_left = False, 0, 0
        self._root.cut(self._random, self.faults)
        self._open.clear()
        self._locks.clear()

    def kill(self) -> None:
        """Kill the process but not the machine: files and locks are closed, and all bytes are
        kept."""
        self._is_halted, self._calls_left, self._syncs_left = False, 0, 0
        self._open.clear()
        self._locks.clear()

    def halt(self) -> None:
        """Refuse all further calls until :meth:`kill` or :meth:`power_cut`, so that the last
        actions of the program have no effect."""
        self._is_halted, self._calls_left, self._syncs_left = True, 0, 0

    def halt_after(self, calls: int) -> None:
        """Halt in the middle of an operation of the program: in the call with the number ``calls``,
        counted from now on. A call counts once for each file and directory that it looks up."""
        self._calls_left = calls

    def halt_in_sync(self, syncs: int, *, least_bytes: int = 0) -> None:
        """Halt in the middle of the sync with the number ``syncs``, counted over all files from now
        on. Only syncs that write at least ``least_bytes`` are counted."""
        self._syncs_left, self._sync_bytes_min = syncs, least_bytes

    def fail_writes(self, times: int = 1) -> None:
        """Fail the next ``times`` writes with EIO after a part of their bytes."""
        self._writes_to_fail = times

    def fail_syncs(self, times: int = 1) -> None:
        """Fail the next ``times`` syncs of files or directories with EIO; their bytes are lost."""
        self._good_syncs, self._syncs_to_fail = 0, times

    def fail_syncs_after(self, good: int) -> None:
        """Fail all syncs after the next ``good`` ones, until ``fail_syncs(0)``."""
        self._good_syncs, self._syncs_to_fail = good, 1 << 60

    def flip(self, path: str, offset: int, *, bit: int = 0) -> None:
        """Flip one bit on the disk and in every cache."""
        file = self._file(path)
        self.faults["bit flipped"] += 1
        file.live[offset] ^= 1 << bit
        if offset < len(file.durable):
            file.durable[offset] = file.live[offset]

    def shorten(self, path: str, size: int) -> None:
        """Truncate the file to ``size`` bytes durably."""
        self.faults["file cut off"] += 1
        self._file(path).shorten(size)

    def make_unreadable(self, path: str, offset: int) -> None:
        """Fail all further reads of the 4 KiB page at ``offset`` with EIO."""
        self._file(path).unreadable.add(offset // _PAGE)

    def content(self, path: str) -> bytes:
        """Return the bytes of a file as a program reads them."""
        return bytes(self._file(path).live)

    # Disk

    def open(self, path: str, *, create: bool = False, private: bool = False) -> int:
        directory, name = self._parent(path)
        if create:
            if name in directory.live:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            directory.apply({name: _File()})
        return self._handle(self._file(path))

    def close(self, file: int) -> None:
        self._locks.pop(file, None)
        if self._open.pop(file, None) is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def pwrite(self, file: int, chunks: Sequence[Buffer], offset: int) -> None:
        node = self._node(file)
        data = b"".join(chunks)
        free_after = self._reserve_bytes(node, offset + len(data))
        if free_after < 0:
            # A full disk writes as much as fits.
            written = data[: max(len(data) + free_after, 0)]
            node.apply(_Write(offset, written))
            self.free_bytes = 0
            self.faults["no room for a write"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._writes_to_fail:
            self._writes_to_fail -= 1
            self.faults["write failed half-way"] += 1
            node.apply(_Write(offset, data[: self._random.randrange(len(data) + 1)]))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        node.apply(_Write(offset, data))

    def pread(self, file: int, size: int, offset: int) -> bytes:
        node = self._node(file)
        _check_readable(node, offset, offset + size)
        return bytes(memoryview(node.live)[offset : offset + size])

    def map(self, file: int) -> memoryview:
        node = self._node(file)
        _check_readable(node, 0, len(node.live))
        return memoryview(node.live).toreadonly()

    def datasync(self, file: int) -> None:
        if self._syncs_left and self._open_bytes(file) >= self._sync_bytes_min:
            self._syncs_left -= 1
            # The disk halts within the last one of these syncs.
            self._calls_left = self._calls_left if self._syncs_left else 1
        node = self._node(file)
        self.syncs += 1
        if self._is_sync_failing():
            # As on Linux, the kernel marks the failed pages clean, so the next sync succeeds
            # without them.
            node.pending.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        node.make_durable()

    def truncate(self, file: int, size: int) -> None:
        node = self._node(file)
        if self.free_bytes is not None:
            self.free_bytes += max(len(node.live) - size, 0)
        node.apply(_Resize(size))

    def allocate(self, file: int, offset: int, size: int) -> None:
        node = self._node(file)
        end = max(offset + size, len(node.live))
        if self._reserve_bytes(node, end) < 0:
            self.faults["no room for a reservation"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        node.apply(_Resize(end))

    def size(self, file: int) -> int:
        return len(self._node(file).live)

    def rename(self, old: str, new: str, *, replace: bool) -> None:
        directory, name = self._parent(old)
        target, new_name = self._parent(new)
        # One change has both names, so a power cut keeps or loses the move as a whole.
        assert target is directory, "files are only moved within a directory"
        node = self._file(old)
        if not replace and new_name in directory.live:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        directory.apply({name: None, new_name: node})

    def unlink(self, path: str) -> None:
        node = self._file(path)
        directory, name = self._parent(path)
        if self.free_bytes is not None:
            self.free_bytes += len(node.live)
        directory.apply({name: None})

    def list(self, path: str) -> list[DirectoryEntry]:
        return sorted(
            DirectoryEntry(name, len(node.live), isinstance(node, _Directory))
            for name, node in self._directory(path).live.items()
        )

    def make_directory(self, path: str, *, private: bool = False) -> None:
        directory, name = self._parent(path)
        if not isinstance(directory.live.get(name), _Directory):
            directory.apply({name: _Directory()})

    def remove_directory(self, path: str) -> None:
        if self._directory(path).live:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        directory, name = self._parent(path)
        directory.apply({name: None})

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        if self._is_sync_failing():
            directory.pending.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        directory.make_durable()

    def lock(self, path: str, holder: str) -> int:
        directory, name = self._parent(path)
        if name not in directory.live:
            directory.apply({name: _File()})
        node = self._file(path)
        for locked, lock_holder in self._locks.values():
            if locked is node:
                raise LockHeld(lock_holder)
        number = self._handle(node)
        self._locks[number] = (node, holder)
        return number

    def local_path(self, path: str) -> str | None:
        return None

    # Internals

    def _handle(self, node: _File) -> int:
        """Open a file, and return its new handle."""
        self._last_handle += 1
        self._open[self._last_handle] = node
        return self._last_handle

    def _node(self, file: int) -> _File:
        """Return the file of a handle. Raises ``OSError`` if the handle is closed or the disk has
        halted."""
        self._check_runs()
        try:
            return self._open[file]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    def _open_bytes(self, file: int) -> int:
        """Return the number of bytes that a sync of an open file would write."""
        pending = self._open[file].pending if file in self._open else ()
        return sum(len(change.written) for change in pending if isinstance(change, _Write))

    def _check_runs(self) -> None:
        """Count a call. Raises ``OSError`` if the disk has halted or halts in this call."""
        if self._calls_left and not self._is_halted:
            self._calls_left -= 1
            if not self._calls_left:
                self._is_halted = True
                self.faults["power gone in the middle of a call"] += 1
                if self.on_halt is not None:
                    self.on_halt()
        if self._is_halted:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _directory(self, path: str) -> _Directory:
        """Return the directory at a path. Raises ``FileNotFoundError``."""
        self._check_runs()
        node: _File | _Directory | None = self._root
        for part in path.strip("/").split("/"):
            if part:
                node = node.live.get(part) if isinstance(node, _Directory) else None
        if not isinstance(node, _Directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        """Return the directory that contains a path, and the name in it."""
        parent_path, _, name = path.rpartition("/")
        return self._directory(parent_path), name

    def _file(self, path: str) -> _File:
        """Return the file at a path. Raises ``FileNotFoundError``."""
        directory, name = self._parent(path)
        node = directory.live.get(name)
        if not isinstance(node, _File):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def _reserve_bytes(self, node: _File, end: int) -> int:
        """Reserve space so that a file can grow to ``end``, and return the remaining free bytes. If
        the result is negative, that many bytes are missing and nothing is reserved. On a disk
        without a limit, the result has no meaning except that it is not negative."""
        growth = max(end - len(node.live), 0)
        if self.free_bytes is None:
            return growth
        free_bytes = self.free_bytes - growth
        if free_bytes >= 0:
            self.free_bytes = free_bytes
        return free_bytes

    def _is_sync_failing(self) -> bool:
        """Count a sync, and return whether it fails."""
        if self._on_sync is not None:
            self._on_sync()
        if not self._syncs_to_fail:
            return False
        if self._good_syncs:
            self._good_syncs -= 1
            return False
        self._syncs_to_fail -= 1
        self.faults["sync failed, its bytes lost"] += 1
        return True


def _apply(content: bytearray, change: _Write | _Resize) -> None:
    """Change the bytes of a file; a gap before written bytes is filled with zeros."""
    if isinstance(change, _Resize):
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
    elif change.written:
        end = change.offset + len(change.written)
        content.extend(bytes(max(end - len(content), 0)))
        content[change.offset : end] = change.written


def _sectors(change: _Write) -> list[_Write]:
    """Split a write at sector borders."""
    sectors = []
    offset, end = change.offset, change.offset + len(change.written)
    while offset < end:
        border = min((offset // SECTOR + 1) * SECTOR, end)
        sectors.append(
            _Write(offset, change.written[offset - change.offset : border - change.offset])
        )
        offset = border
    return sectors


def _rename(
    names: dict[str, _File | _Directory], change: dict[str, _File | _Directory | None]
) -> None:
    """Apply a change to the names of a directory."""
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _check_readable(node: _File, first: int, end: int) -> None:
    """Raise ``OSError`` if a byte from ``first`` to ``end`` is on an unreadable page."""
    end = min(end, len(node.live))
    if any(first < (page + 1) * _PAGE and end > page * _PAGE for page in node.unreadable):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
