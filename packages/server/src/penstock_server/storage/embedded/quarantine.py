"""The quarantine: copies of bytes that fail their checksum, never deleted (SEM S1)."""

from __future__ import annotations

from typing import Final

from penstock_core.vocabulary.ports import Buffer
from penstock_server.storage.disk import Disk, make_directories, write_all

_NAME_MAX: Final = 230
"""Characters of a file name before a number is appended; most file systems allow 255."""


class QuarantineFolder:
    """The directory ``quarantine`` of a data directory, created on first use."""

    __slots__ = ("_disk", "_path", "_root")

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root
        self._path = f"{root}/quarantine"

    def keep(self, name: str, damaged: Buffer) -> str:
        """Store a synced copy of ``damaged`` and return its path. Equal bytes are stored once."""
        make_directories(self._disk, self._path, self._root, private=True)
        existing = {entry.name for entry in self._disk.list(self._path)}
        # Cut in the middle, because the channel is at the start and the ids are at the end.
        if len(name) > _NAME_MAX:
            name = f"{name[: _NAME_MAX // 2]}~~{name[-_NAME_MAX // 2 :]}"
        number, target = 1, name
        while target in existing:
            if self._has_content(target, damaged):
                return f"{self._path}/{target}"
            number += 1
            target = f"{name}.{number}"
        write_all(self._disk, f"{self._path}/{target}", [damaged], private=True)
        self._disk.sync_directory(self._path)
        return f"{self._path}/{target}"

    def _has_content(self, name: str, damaged: Buffer) -> bool:
        file = self._disk.open(f"{self._path}/{name}")
        try:
            size = self._disk.size(file)
            return size == len(damaged) and self._disk.pread(file, size, 0) == damaged
        finally:
            self._disk.close(file)
