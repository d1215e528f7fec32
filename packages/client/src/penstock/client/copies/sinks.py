"""Places where a capture is written: files one after another, and a manifest at the end.

Without its manifest a folder or tar is not a capture, so an interrupted one is never taken for a
complete one. The methods block: asynchronous callers run them in a thread.
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
    """Turn an ``OSError`` into ``InvalidArgument`` that names the path."""
    try:
        yield
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be used: {error.strerror or error}") from error


class Sink:
    """Writes the bytes of files, and computes the digest of each. Raises ``InvalidArgument`` if the
    disk refuses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        self._digest = xxh3_64()

    def write(self, part: Buffer) -> None:
        """Append bytes to the file that was begun last."""
        self._digest.update(part)
        self._append(part)

    def close(self) -> None:
        """Close the open file, if there is one."""
        if self._file is not None:
            self._file.close()

    def _open(self, path: Path, flag: int, mode: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flag
        # A file object: a thread that still writes after close() gets an error, and does not write
        # to another file with the same number.
        self._file = FileIO(os.open(path, flags, mode), "w")

    def _append(self, part: Buffer) -> None:
        assert self._file is not None, "a file was begun"
        view = memoryview(part).cast("B")
        with usable(self.path):
            while view:
                view = view[self._file.write(view) :]

    def _sync(self) -> None:
        """Close the open file once its bytes are on disk."""
        assert self._file is not None, "a file was begun"
        with usable(self.path), self._file:
            os.fsync(self._file.fileno())


class FolderSink(Sink):
    """A folder. Each file is on disk when it ends."""

    _flag = os.O_EXCL

    def begin(self, name: str, size: int = 0, at_us: int = 0, *, is_secret: bool = True) -> None:
        """Begin a file. The folder has no use for the size and time that a tar needs."""
        path = self.path / name
        with usable(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if is_secret else 0o750)
            self._open(path, self._flag, mode=0o600 if is_secret else 0o640)
        self._digest.reset()

    def end(self) -> str:
        """Return the file's XXH3-64 in hexadecimal once the file is on disk."""
        self._sync()
        return self._digest.hexdigest()

    def put(self, name: str, content: Buffer) -> str:
        """Write a whole file; returns its XXH3-64."""
        self.begin(name)
        self.write(content)
        return self.end()

    def publish(self, manifest: str, content: bytes) -> None:
        """Replace the manifest, once all other files can be found after a crash."""
        self.sync_directories()
        partial = f"{manifest}.partial"
        self.put(partial, content)
        with usable(self.path):
            (self.path / partial).replace(self.path / manifest)
            sync_directory(self.path)

    def sync_directories(self) -> None:
        """Have the names of all files on disk."""
        with usable(self.path):
            for folder, _, _ in os.walk(self.path):
                sync_directory(Path(folder))


class NewFolder(FolderSink):
    """A folder that was empty or missing, and is so again if filling it fails."""

    def __init__(self, path: Path, *, mode: int, purpose: str) -> None:
        """``purpose`` ends the error for a folder with content. Raises ``InvalidArgument``."""
        super().__init__(path)
        with usable(path):
            self._existed = path.is_dir()
            if self._existed and any(entry.name != _LOST_AND_FOUND for entry in path.iterdir()):
                raise InvalidArgument(f"{path} is not empty; {purpose}")
            path.mkdir(parents=True, exist_ok=True, mode=mode)

    def clear(self) -> None:
        """Remove everything that was written."""
        self.close()
        with suppress(OSError):
            for entry in self.path.iterdir():
                if entry.name != _LOST_AND_FOUND:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            if not self._existed:
                self.path.rmdir()


def sync_directory(path: Path) -> None:
    """Have creations, renames and removals in a folder on disk. Raises ``OSError``."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
