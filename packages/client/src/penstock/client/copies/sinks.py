"""Writes the files of backups and exports one after another, and a manifest at the end.

A folder or tar file without a manifest is not valid, so that an interrupted copy is never mistaken
for a complete one. The methods block; asynchronous callers run them in a thread.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from xxhash import xxh3_64

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.ports import Buffer

FolderLike = str | os.PathLike[str]

_LOST_AND_FOUND = "lost+found"
"""Folder in the root of an ext4 file system; it does not count as content."""


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Convert an ``OSError`` in the block into ``InvalidArgument`` that names the path."""
    try:
        yield
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be used: {error.strerror or error}") from error


class Sink:
    """Writes files and computes the digest of each. Its methods raise ``InvalidArgument`` if
    writing fails."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        self._digest = xxh3_64()

    def write(self, part: Buffer) -> None:
        """Append bytes to the file that was begun last."""
        self._digest.update(part)
        self._append(part)

    def close(self) -> None:
        """Close the open file, if any."""
        if self._file is not None:
            self._file.close()

    def _open(self, path: Path, flag: int, mode: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flag
        # A file object instead of a descriptor: if a thread still writes after close(), it gets an
        # error and cannot write to another file that has received the same descriptor.
        self._file = FileIO(os.open(path, flags, mode), "w")

    def _append(self, part: Buffer) -> None:
        assert self._file is not None, "a file was begun"
        view = memoryview(part).cast("B")
        with usable(self.path):
            # One call may write fewer bytes than it was passed.
            while view:
                view = view[self._file.write(view) :]

    def _sync(self) -> None:
        """Sync the open file to disk, then close it."""
        assert self._file is not None, "a file was begun"
        with usable(self.path), self._file:
            os.fsync(self._file.fileno())


class FolderSink(Sink):
    """Writes to a folder. Each file is synced to disk at its end."""

    _flag = os.O_EXCL

    def begin(self, name: str, size: int = 0, at_us: int = 0, *, is_secret: bool = True) -> None:
        """Begin the file ``name``. With ``is_secret`` only the owner may read it.

        ``size`` and ``at_us`` are ignored; only a tar file needs them in advance.
        """
        path = self.path / name
        with usable(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if is_secret else 0o750)
            self._open(path, self._flag, mode=0o600 if is_secret else 0o640)
        self._digest.reset()

    def end(self) -> str:
        """Sync the file to disk, and return its XXH3-64 digest in hexadecimal."""
        self._sync()
        return self._digest.hexdigest()

    def put(self, name: str, content: Buffer) -> str:
        """Write a whole file, and return its XXH3-64 digest in hexadecimal."""
        self.begin(name)
        self.write(content)
        return self.end()

    def publish(self, manifest: str, content: bytes) -> None:
        """Replace the file ``manifest`` atomically. Before that, the names of all other files are
        synced, so that a crash leaves no manifest without its files."""
        self.sync_directories()
        partial = f"{manifest}.partial"
        self.put(partial, content)
        with usable(self.path):
            (self.path / partial).replace(self.path / manifest)
            sync_directory(self.path)

    def sync_directories(self) -> None:
        """Sync all folders, so that the names of all files survive a crash."""
        with usable(self.path):
            for folder, _, _ in os.walk(self.path):
                sync_directory(Path(folder))


class NewFolder(FolderSink):
    """Writes to a folder that is empty or missing. After a failure, :meth:`clear` removes all
    files."""

    def __init__(self, path: Path, *, mode: int, purpose: str) -> None:
        """``mode`` has the access rights of a folder that is created.

        Raises ``InvalidArgument`` if the folder is not empty; ``purpose`` is the end of its text.
        """
        super().__init__(path)
        with usable(path):
            self._existed = path.is_dir()
            if self._existed and any(entry.name != _LOST_AND_FOUND for entry in path.iterdir()):
                raise InvalidArgument(f"{path} is not empty; {purpose}")
            path.mkdir(parents=True, exist_ok=True, mode=mode)

    def clear(self) -> None:
        """Remove everything in the folder, and the folder itself if this object created it."""
        self.close()
        with suppress(OSError):
            for entry in self.path.iterdir():
                if entry.name != _LOST_AND_FOUND:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            if not self._existed:
                self.path.rmdir()


def sync_directory(path: Path) -> None:
    """Sync a folder, so that creations, renames and removals in it survive a crash. Raises
    ``OSError``."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
