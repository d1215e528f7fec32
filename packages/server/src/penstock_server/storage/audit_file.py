"""The audit logs as files of the data directory, one record per line.

``audit.ndjson`` records acts, ``audit-sign-ins.ndjson`` sign-ins, ``audit-refusals.ndjson``
refusals.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock_core.vocabulary.errors import StorageFailed
from penstock_core.vocabulary.ports import Offload
from penstock_server.storage.disk import Disk

NAMES = {
    "acts": "audit.ndjson",
    "sign-ins": "audit-sign-ins.ndjson",
    "refusals": "audit-refusals.ndjson",
}
FILE_BYTES_MAX = 16 << 20
"""Bytes above which a log file is renamed to ``audit-1.ndjson`` and so on, and a new one begun.

The highest number is the newest. Renamed files may be moved elsewhere or deleted.
"""
READ_BYTES = 4 << 20
"""Number of bytes at the end of a log that are read when a realm starts."""


class FileAudit:
    """Appends lines and syncs each line. If a crash has left an incomplete line, the next line
    starts after it, and readers skip the incomplete one."""

    def __init__(
        self,
        root: str,
        *,
        disk: Disk,
        offload: Offload,
        name: str = NAMES["acts"],
        files_max: int = 0,
        file_bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        """Prepare a log; the file is opened on first use. ``files_max`` is the number of renamed
        files that are kept, the newest ones; 0 keeps all. A file is renamed above
        ``file_bytes_max`` bytes."""
        self._root = root
        self._name = name
        self._path = f"{root}/{name}"
        self._files_max = files_max
        self._file_bytes_max = file_bytes_max
        self._disk = disk
        self._offload = offload
        self._file: int | None = None
        self._size = 0

    async def append(self, line: bytes) -> None:
        """Append a line. It is on disk on return. Raises ``StorageFailed``."""
        await self._offload(lambda: self._append(line))

    def append_now(self, line: bytes) -> None:
        """Append a line on the calling thread, for shutdown. Raises ``StorageFailed``."""
        self._append(line)

    async def newest(self, count: int) -> Sequence[bytes]:
        """Return the last ``count`` lines, oldest first. Raises ``StorageFailed``."""
        lines: list[bytes] = await self._offload(self._last_lines)
        return lines[-count:]

    def close(self) -> None:
        if self._file is not None:
            self._disk.close(self._file)
            self._file = None

    def _append(self, line: bytes) -> None:
        try:
            if self._size > self._file_bytes_max:
                self._rename_full_file()
            file = self._open_file()
            self._disk.pwrite(file, [line], self._size)
            self._disk.datasync(file)
        except OSError as error:
            raise StorageFailed(f"the audit log {self._path} cannot be written: {error}") from error
        # The size grows only after success, so that the next record overwrites a failed one.
        self._size += len(line)

    def _last_lines(self) -> list[bytes]:
        try:
            file = self._open_file()
            start = max(0, self._size - READ_BYTES)
            tail = self._disk.pread(file, self._size - start, start)
        except OSError as error:
            raise StorageFailed(f"the audit log {self._path} cannot be read: {error}") from error
        lines = tail.split(b"\n")
        # A read that starts inside the file may start inside a line.
        return [line for line in lines[1 if start else 0 :] if line]

    def _open_file(self) -> int:
        """Return the open file; if it is opened now, complete its last line."""
        if self._file is None:
            try:
                self._file = self._disk.open(self._path)
            except FileNotFoundError:
                self._file = self._disk.open(self._path, create=True, private=True)
                self._disk.sync_directory(self._root)
            self._size = self._disk.size(self._file)
            # End a line that a crash has torn, so that the next record starts a new line.
            if self._size and self._disk.pread(self._file, 1, self._size - 1) != b"\n":
                self._disk.pwrite(self._file, [b"\n"], self._size)
                self._size += 1
        return self._file

    def _rename_full_file(self) -> None:
        """Rename the full file, and delete the oldest renamed files above the limit."""
        numbers = renamed_numbers(self._disk, self._root, self._name)
        number = max(numbers, default=0) + 1
        self.close()
        self._disk.rename(
            self._path, f"{self._root}/{_numbered(self._name, number)}", replace=False
        )
        if self._files_max:
            for old in sorted([*numbers, number])[: -self._files_max]:
                self._disk.unlink(f"{self._root}/{_numbered(self._name, old)}")
        self._disk.sync_directory(self._root)


def _numbered(name: str, number: int) -> str:
    """Return the name of an older file of a log. Files are numbered in the order of filling."""
    return f"{name.removesuffix('.ndjson')}-{number}.ndjson"


def renamed_numbers(disk: Disk, root: str, name: str) -> list[int]:
    """Return the numbers of a log's renamed files, oldest first."""
    pattern = re.compile(rf"{re.escape(name.removesuffix('.ndjson'))}-(\d+)\.ndjson")
    matches = (pattern.fullmatch(entry.name) for entry in disk.list(root))
    return sorted(int(match[1]) for match in matches if match)


def files_of(disk: Disk, root: str) -> list[list[str]]:
    """Return the existing files of each log; the files of a log are sorted from the oldest to the
    newest."""
    existing = {entry.name for entry in disk.list(root)}
    logs = [
        [*(_numbered(name, number) for number in renamed_numbers(disk, root, name)), name]
        for name in NAMES.values()
    ]
    return [[name for name in log if name in existing] for log in logs]
