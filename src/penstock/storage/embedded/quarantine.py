"""Where bytes go that fail their checksum: copied aside once, never deleted (SEM S1)."""

from __future__ import annotations

from penstock.core.ports import Buffer
from penstock.storage.disk import Disk, make_directories, write_all


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
