"""A disk whose changes stay in memory, for dry runs that must not change any file."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from penstock_core.vocabulary.ports import Buffer
from penstock_server.storage.disk import DirectoryEntry, Disk


class OverlayDisk:
    """Reads another :class:`~penstock_server.storage.disk.Disk` without changing it, except for
    locks."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._changed: dict[str, bytearray] = {}
        """Contents of the changed and new files, by path."""
        self._removed: set[str] = set()
        """Paths of removed files and directories."""
        self._directories: set[str] = set()
        """Paths of new directories."""
        self._open: dict[int, str] = {}
        """Paths of open files, by their numbers."""
        self._underlying: dict[int, int] = {}
        """Numbers of open files on the underlying disk, by their numbers on this disk."""
        # Far above the numbers of the underlying disk, which `lock` returns unchanged.
        self._numbers = 1 << 30

    def open(self, path: str, *, create: bool = False, private: bool = False) -> int:
        self._numbers += 1
        if create:
            if self._exists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            self._changed[path] = bytearray()
            self._removed.discard(path)
        elif path in self._removed:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        elif path not in self._changed:
            self._underlying[self._numbers] = self._disk.open(path)
        self._open[self._numbers] = path
        return self._numbers

    def close(self, file: int) -> None:
        if self._open.pop(file, None) is None:
            self._disk.close(file)  # a lock
        elif (beneath := self._underlying.pop(file, None)) is not None:
            self._disk.close(beneath)

    def pwrite(self, file: int, chunks: Sequence[Buffer], offset: int) -> None:
        content, written = self._private_copy(file), b"".join(chunks)
        content.extend(bytes(max(offset + len(written) - len(content), 0)))
        content[offset : offset + len(written)] = written

    def pread(self, file: int, size: int, offset: int) -> bytes:
        content = self._changed.get(self._open[file])
        if content is None:
            return self._disk.pread(self._underlying[file], size, offset)
        return bytes(memoryview(content)[offset : offset + size])

    def map(self, file: int) -> memoryview:
        # The bytes are copied, because a bytearray cannot grow while views of it exist.
        content = self._changed.get(self._open[file])
        return (
            self._disk.map(self._underlying[file])
            if content is None
            else memoryview(bytes(content))
        )

    def datasync(self, file: int) -> None:
        """Do nothing: changes are in memory only."""

    def truncate(self, file: int, size: int) -> None:
        content = self._private_copy(file)
        del content[size:]
        content.extend(bytes(size - len(content)))

    def allocate(self, file: int, offset: int, size: int) -> None:
        content = self._private_copy(file)
        content.extend(bytes(max(offset + size - len(content), 0)))

    def size(self, file: int) -> int:
        content = self._changed.get(self._open[file])
        return self._disk.size(self._underlying[file]) if content is None else len(content)

    def rename(self, old: str, new: str, *, replace: bool) -> None:
        if not replace and self._exists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        file = self.open(old)
        self._changed[new] = self._private_copy(file)
        self.close(file)
        self._removed.discard(new)
        self.unlink(old)

    def unlink(self, path: str) -> None:
        self._changed.pop(path, None)
        self._removed.add(path)

    def list(self, path: str) -> list[DirectoryEntry]:
        entries = {entry.name: entry for entry in self._listed(path)}
        for changed, content in self._changed.items():
            parent, _, name = changed.rpartition("/")
            if parent == path:
                entries[name] = DirectoryEntry(name, len(content), is_directory=False)
        for directory in self._directories:
            parent, _, name = directory.rpartition("/")
            if parent == path:
                entries.setdefault(name, DirectoryEntry(name, 0, is_directory=True))
        return sorted(entries.values())

    def make_directory(self, path: str, *, private: bool = False) -> None:
        self._directories.add(path)
        self._removed.discard(path)

    def remove_directory(self, path: str) -> None:
        self._directories.discard(path)
        self._removed.add(path)

    def sync_directory(self, path: str) -> None:
        """Do nothing: changes are in memory only."""

    def lock(self, path: str, holder: str) -> int:
        return self._disk.lock(path, holder)

    def local_path(self, path: str) -> str | None:
        return None

    def _private_copy(self, file: int) -> bytearray:
        """Return the file's bytes as a private copy that may be changed."""
        path = self._open[file]
        if path not in self._changed:
            beneath = self._underlying[file]
            content = self._disk.pread(beneath, self._disk.size(beneath), 0)
            self._changed[path] = bytearray(content)
        return self._changed[path]

    def _listed(self, path: str) -> Sequence[DirectoryEntry]:
        """Return the entries of a directory on disk that were not removed in memory; none if the
        directory exists in memory only."""
        try:
            entries = self._disk.list(path)
        except FileNotFoundError:
            if path not in self._directories:
                raise
            return []
        return [entry for entry in entries if f"{path}/{entry.name}" not in self._removed]

    def _exists(self, path: str) -> bool:
        parent, _, name = path.rpartition("/")
        return any(entry.name == name for entry in self.list(parent))
