"""Captures the data directory of a running realm at one moment, so that it can be copied.

The captured content stays readable while the realm continues. Files of the journal and of pages
stay open, because they change only after their captured length. Growing files also stay open, and
their footers are copied, because the next extension overwrites them. Other files are mapped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from penstock_core.api.backup_files import is_data_file
from penstock_core.columns.files.growing_segment import end_of_batches, tail_or_rebuilt
from penstock_core.columns.files.segments import SegmentIndex
from penstock_core.vocabulary.errors import StorageFailed
from penstock_core.vocabulary.ports import BlobInfo
from penstock_server.storage.audit_file import NAMES as AUDIT_LOGS
from penstock_server.storage.disk import Disk, read_all
from penstock_server.storage.embedded.journal import FileJournal

_SEGMENTS = "segments/"
_WHOLE = 1 << 62
"""A number of bytes that no file exceeds."""


class HeldFile:
    """A captured file, readable up to the length that it had when it was captured. ``stamp``
    identifies its content; 0 if the content under this name may change."""

    def __init__(
        self,
        name: str,
        size: int,
        read: Callable[[int, int], bytes],
        *,
        stamp: int = 0,
        file: int | None = None,
    ) -> None:
        self.name = name
        self.size = size
        self.stamp = stamp
        self._read = read
        self.file = file
        """The open file; None if the content is in memory, or released."""

    def read(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes within the captured length. Raises ``StorageFailed``."""
        readable = min(size, self.size - offset)
        try:
            return self._read(readable, offset) if readable > 0 else b""
        except OSError as error:
            raise StorageFailed(f"{self.name} cannot be read: {error}") from error


class Capture:
    """Captures one data directory. Must be called while nothing is appended to its journal."""

    def __init__(self, root: str, disk: Disk, journal: FileJournal) -> None:
        self._root = root
        self._disk = disk
        self._journal = journal

    def __call__(
        self, blobs: Sequence[BlobInfo], growing: Mapping[str, SegmentIndex]
    ) -> list[HeldFile]:
        """Capture all files; ``growing`` has the recorded indexes of blobs that are extended.

        Raises ``StorageFailed``, and holds no file, if a file cannot be opened.
        """
        held_files: list[HeldFile] = []
        try:
            for capture in self._files(blobs, growing):
                # A file that was deleted since it was listed is not needed: no captured file refers
                # to it.
                with suppress(FileNotFoundError):
                    held_files.append(capture())
        except OSError as error:
            self.release(held_files)
            raise StorageFailed(f"{self._root} cannot be captured: {error}") from error
        return held_files

    def release(self, held_files: Sequence[HeldFile]) -> None:
        """Close captured files."""
        for captured in held_files:
            if captured.file is not None:
                self._disk.close(captured.file)
                captured.file = None

    def _files(
        self, blobs: Sequence[BlobInfo], growing: Mapping[str, SegmentIndex]
    ) -> Iterator[Callable[[], HeldFile]]:
        """Yield a function for each file of the data directory that captures the file as it is
        now."""
        for part in self._journal._files:
            name = part.path.rpartition("/")[2]
            yield partial(self._opened, f"journal/{name}", part.end)  # without reserved space
        for blob in blobs:
            if blob.name in growing:
                yield partial(self._growing, blob.name, growing[blob.name])
            else:
                yield partial(self._mapped, blob.name, blob.size)
        for channel in self._below("pages"):
            for page in self._below(channel):
                yield partial(self._opened, page, _WHOLE)
        for record in self._below("registry"):
            yield partial(self._copied, record)
        for name in AUDIT_LOGS.values():
            yield partial(self._opened, name, _WHOLE)

    def _below(self, directory: str) -> list[str]:
        """Return the paths of a realm's files in a directory."""
        entries = self._disk.list(f"{self._root}/{directory}")
        names = [f"{directory}/{entry.name}" for entry in entries if not entry.name.startswith(".")]
        # Files with other names are not part of a realm, and clients refuse them.
        return [name for name in names if directory == "pages" or is_data_file(name)]

    def _opened(self, name: str, size: int) -> HeldFile:
        """Open a file, and capture its first ``size`` bytes."""
        file = self._disk.open(f"{self._root}/{name}")

        def read(size: int, offset: int) -> bytes:
            return self._disk.pread(file, size, offset)

        return HeldFile(name, min(size, self._disk.size(file)), read, file=file)

    def _growing(self, name: str, index: SegmentIndex) -> HeldFile:
        """Open a growing file, capture the bytes of its recorded batches, and copy its footer. The
        next extension overwrites the footer, and may have begun already.
        """
        file = self._disk.open(f"{self._root}/{name}")
        end = end_of_batches(index.batches)
        tail = tail_or_rebuilt(self._disk.map(file), index)

        def read(size: int, offset: int) -> bytes:
            if offset >= end:
                return tail[offset - end : offset - end + size]
            return self._disk.pread(file, min(size, end - offset), offset)

        return HeldFile(name, min(end, self._disk.size(file)) + len(tail), read, file=file)

    def _mapped(self, name: str, size: int) -> HeldFile:
        """Capture a blob that never changes; ``size`` is its size in bytes."""
        path = f"{self._root}/{name}"
        file = self._disk.open(path)
        try:
            view = self._disk.map(file)
        finally:
            self._disk.close(file)
        stamp = self._stamp(path) if name.startswith(_SEGMENTS) else 0
        return HeldFile(name, min(size, len(view)), _reader(view), stamp=stamp)

    def _stamp(self, path: str) -> int:
        """Return a number that identifies the content of a file, because other content may get the
        name after a removal."""
        local_path = self._disk.local_path(path)
        return 0 if local_path is None else os.stat(local_path).st_mtime_ns

    def _copied(self, name: str) -> HeldFile:
        """Copy a small file. Every change replaces the whole file, so the copy is consistent."""
        content = memoryview(read_all(self._disk, f"{self._root}/{name}"))
        return HeldFile(name, len(content), _reader(content))


def _reader(content: memoryview) -> Callable[[int, int], bytes]:
    return lambda size, offset: bytes(content[offset : offset + size])
