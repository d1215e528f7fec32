"""Where bytes go that fail their checksum: copied aside once, never deleted (SEM S1)."""

from __future__ import annotations

from typing import Final

from penstock.core.vocabulary.ports import Buffer
from penstock.storage.disk import Disk, make_directories, write_all

_NAME_MAX: Final = 230
"""Characters of a file's name before a number is put to it; most file systems take 255."""


class Quarantine:
    """The ``quarantine`` directory of a data directory; made when first needed."""

    __slots__ = ("_disk", "_path", "_root")

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root
        self._path = f"{root}/quarantine"

    def keep(self, name: str, damaged: Buffer) -> str:
        """Put a durable copy of ``damaged`` aside; say where. The same bytes are kept once."""
        make_directories(self._disk, self._path, self._root, private=True)
        taken = {entry.name: entry.size for entry in self._disk.list(self._path)}
        if len(name) > _NAME_MAX:  # both ends tell: the channel, the ids and the bytes
            name = f"{name[: _NAME_MAX // 2]}~~{name[-_NAME_MAX // 2 :]}"
        number, target = 1, name
        while target in taken:
            if self._holds(target, damaged):
                return f"{self._path}/{target}"
            number += 1
            target = f"{name}.{number}"
        write_all(self._disk, f"{self._path}/{target}", [damaged], private=True)
        self._disk.sync_directory(self._path)
        return f"{self._path}/{target}"

    def _holds(self, name: str, damaged: Buffer) -> bool:
        file = self._disk.open(f"{self._path}/{name}")
        try:
            size = self._disk.size(file)
            return size == len(damaged) and self._disk.pread(file, size, 0) == damaged
        finally:
            self._disk.close(file)
