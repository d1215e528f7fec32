"""The disk operations that the embedded store uses, and their real implementation.

All code under ``penstock_server.storage.embedded`` uses :class:`Disk`, so a simulation can replace
it by a disk that loses power, tears writes or fills up (``penstock_testing.disk``). All calls are
synchronous and raise ``OSError``; the caller chooses the thread that waits."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock_core.vocabulary.ports import Buffer

_VECTORS_MAX = min(1024, os.sysconf("SC_IOV_MAX"))
"""Largest number of buffers that one ``pwritev`` accepts."""
_JOIN_BELOW = 32 << 10
"""Chunks with fewer bytes than this together are joined before a write, because the copy costs less
than a vectored write."""


class LockHeld(Exception):
    """Raised if another process holds the lock. The text is the description that the other process
    has written into the lock file."""


PRIVATE_FILE = 0o600
"""Permissions of a file that only its owner may read."""
PRIVATE_DIRECTORY = 0o700
"""Permissions of a directory that only its owner may read."""


class DirectoryEntry(NamedTuple):
    """One name in a directory."""

    name: str
    size: int
    is_directory: bool


class Disk(Protocol):
    """Operations on files. Paths are absolute with ``/``; open files are numbers."""

    def open(self, path: str, *, create: bool = False, private: bool = False) -> int:
        """Open a file for reading and writing.

        With ``create`` the file must not exist yet; ``private`` restricts a new file to its owner.
        """
        ...

    def close(self, file: int) -> None: ...

    def pwrite(self, file: int, chunks: Sequence[Buffer], offset: int) -> None:
        """Write all chunks one after the other from ``offset`` on, or raise ``OSError``."""
        ...

    def pread(self, file: int, size: int, offset: int) -> bytes:
        """Return ``size`` bytes, or fewer if the file ends earlier."""
        ...

    def map(self, file: int) -> memoryview:
        """Return the whole file at its current length, mapped without a copy where possible.

        The view shows later writes, and stays valid after ``close`` and ``unlink``.
        """
        ...

    def datasync(self, file: int) -> None:
        """Sync the content and the size of a file to disk."""
        ...

    def truncate(self, file: int, size: int) -> None: ...

    def allocate(self, file: int, offset: int, size: int) -> None:
        """Reserve space for ``offset .. offset + size``; the file is extended by zeros."""
        ...

    def size(self, file: int) -> int: ...

    def rename(self, old: str, new: str, *, replace: bool) -> None:
        """Rename a file within one directory. Raises ``FileExistsError`` if ``new`` exists, unless
        ``replace``."""
        ...

    def unlink(self, path: str) -> None: ...

    def list(self, path: str) -> list[DirectoryEntry]:
        """Return the entries of a directory, sorted by name. Raises ``FileNotFoundError`` if it
        does not exist."""
        ...

    def make_directory(self, path: str, *, private: bool = False) -> None:
        """Create a directory unless it exists. ``private`` restricts it to its owner."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory. Raises ``OSError`` if it is not empty."""
        ...

    def sync_directory(self, path: str) -> None:
        """Sync creations, renames and removals in this directory to disk."""
        ...

    def lock(self, path: str, holder: str) -> int:
        """Lock a file for this process and write ``holder`` into it; ``close`` unlocks it.

        Raises :class:`LockHeld` immediately if another process holds the lock.
        """
        ...

    def local_path(self, path: str) -> str | None:
        """Return a path that other processes can open; None if they cannot reach the file."""
        ...


class RealDisk:
    """The operating system's files."""

    def open(self, path: str, *, create: bool = False, private: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        # The group may read events, for DuckDB and Spark (see `secrecy`).
        return os.open(path, flags, PRIVATE_FILE if private else 0o640)

    def close(self, file: int) -> None:
        os.close(file)

    def pwrite(self, file: int, chunks: Sequence[Buffer], offset: int) -> None:
        # A single chunk is written without the lists that the general case needs.
        if len(chunks) == 1:
            chunk_bytes = memoryview(chunks[0]).cast("B")
            written = os.pwritev(file, [chunk_bytes], offset)
            if written == chunk_bytes.nbytes:
                return
            chunks, offset = [chunk_bytes[written:]], offset + written
        views = [memoryview(chunk) for chunk in chunks]
        if len(views) > 1 and sum(view.nbytes for view in views) < _JOIN_BELOW:
            views = [memoryview(b"".join(views))]
        queue = [byte_view for view in views if (byte_view := view.cast("B")).nbytes]
        start = 0
        while start < len(queue):
            written = os.pwritev(file, queue[start : start + _VECTORS_MAX], offset)
            if written == 0:
                raise OSError(errno.EIO, "the disk accepted no bytes")
            # The system may write fewer bytes than requested. Skip the written chunks, and cut a
            # partly written one.
            offset += written
            while start < len(queue) and written >= queue[start].nbytes:
                written -= queue[start].nbytes
                start += 1
            if written:
                queue[start] = queue[start][written:]

    def pread(self, file: int, size: int, offset: int) -> bytes:
        parts = []
        # The system may return fewer bytes than requested, also before the end of the file.
        while size and (part := os.pread(file, size, offset)):
            parts.append(part)
            size -= len(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def map(self, file: int) -> memoryview:
        size = os.fstat(file).st_size
        # An empty file cannot be mapped.
        if not size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file, size, prot=mmap.PROT_READ))

    def datasync(self, file: int) -> None:
        if sys.platform == "darwin":  # its fsync does not flush the drive's cache
            fcntl.fcntl(file, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(file)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def allocate(self, file: int, offset: int, size: int) -> None:
        if sys.platform != "darwin":  # macOS has no preallocation; files grow as they are written
            os.posix_fallocate(file, offset, size)

    def size(self, file: int) -> int:
        return os.fstat(file).st_size

    def rename(self, old: str, new: str, *, replace: bool) -> None:
        if replace:
            os.replace(old, new)
            return
        # A hard link fails if `new` exists, which a rename would overwrite.
        try:
            os.link(old, new)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            # Without hard links, check first: the lock keeps other processes out of the directory.
            if os.path.lexists(new):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from None
            os.rename(old, new)
        else:
            os.unlink(old)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def list(self, path: str) -> list[DirectoryEntry]:
        with os.scandir(path) as scanned:
            entries = [
                DirectoryEntry(
                    entry.name,
                    entry.stat(follow_symlinks=False).st_size,
                    entry.is_dir(follow_symlinks=False),
                )
                for entry in scanned
            ]
        return sorted(entries)

    def make_directory(self, path: str, *, private: bool = False) -> None:
        try:
            os.mkdir(path, PRIVATE_DIRECTORY if private else 0o750)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def lock(self, path: str, holder: str) -> int:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(file, 200, 0).decode("utf-8", "replace").strip()
            os.close(file)
            raise LockHeld(text or "an unnamed process") from None
        os.ftruncate(file, 0)
        os.pwrite(file, f"{holder}\n".encode(), 0)
        return file

    def local_path(self, path: str) -> str | None:
        return path


def make_directories(disk: Disk, path: str, below: str, *, private: bool = False) -> None:
    """Create ``path`` and missing directories between it and ``below``, each synced to disk."""
    parts = path.removeprefix(below).strip("/").split("/")
    parent = below.rstrip("/") or "/"
    for part in parts:
        child = f"{parent.rstrip('/')}/{part}"
        try:
            is_used = bool(disk.list(child))
        except FileNotFoundError:
            disk.make_directory(child, private=private)
            is_used = False
        # Also for an existing empty directory, because a crash may have prevented its sync.
        if not is_used:
            disk.sync_directory(parent)
        parent = child


def write_all(disk: Disk, path: str, chunks: Sequence[Buffer], *, private: bool = False) -> None:
    """Create ``path`` with these bytes, synced on return. A failure leaves no file behind."""
    file = disk.open(path, create=True, private=private)
    # Synced before the caller renames the file or refers to it, so that no name on disk ever stands
    # for missing bytes.
    try:
        disk.pwrite(file, chunks, 0)
        disk.datasync(file)
    except OSError:
        disk.unlink(path)
        raise
    finally:
        disk.close(file)


def read_all(disk: Disk, path: str) -> bytes:
    """Return the bytes of a small file."""
    file = disk.open(path)
    try:
        return disk.pread(file, disk.size(file), 0)
    finally:
        disk.close(file)
