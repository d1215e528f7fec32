"""The folder a table is in: every step that changes something on the disk goes through here.

Tests cut the power at each of them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, BinaryIO

from penstock.core.vocabulary.errors import InvalidArgument, Unavailable


class Folder:
    """A folder on a local or mounted disk. What a method has done is still so after a crash."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def create(self, name: str) -> BinaryIO:
        """A new file to be written; close it with :meth:`finish`."""
        target = self.path / name
        self.make(target.parent)
        return open(target, "xb")

    def finish(self, file: BinaryIO) -> int:
        """The file is whole: put it on the disk. Gives its size."""
        with file:
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def publish(self, name: str, new_name: str) -> bool:
        """Give a finished file the name it is looked for under, unless one has it already."""
        target = self.path / new_name
        try:
            os.link(self.path / name, target)
        except FileExistsError:
            return False
        except PermissionError as error:  # what some mounted disks say to a hard link
            raise Unavailable(
                f"{self.path}: this disk does not support hard links ({error}), which a plain "
                f"Parquet table needs; use another disk"
                ", or use a Delta table"
            ) from error
        self.settle(target.parent)
        return True

    def move(self, name: str, new_name: str) -> None:
        """Rename a file, if it is there; one of the new name is replaced."""
        target = self.path / new_name
        self.make(target.parent)
        try:
            os.replace(self.path / name, target)
        except FileNotFoundError:
            return
        self.settle(target.parent)

    def make(self, folder: Path) -> None:
        """A folder and those it is in, as far as they are missing."""
        if folder.is_dir():
            return
        self.make(folder.parent)
        folder.mkdir(exist_ok=True)
        self.settle(folder.parent)

    def age_s(self, name: str) -> float:
        """Seconds since a file was written or moved."""
        try:
            return time.time_ns() / 1e9 - (self.path / name).stat().st_ctime
        except FileNotFoundError:
            return 0.0

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self.path / name).unlink(missing_ok=True)

    def settle(self, folder: Path) -> None:
        """Put the names in a folder on the disk."""
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def names(self, folder: str) -> list[str]:
        """What is in a folder, sorted; nothing where there is none."""
        try:
            return sorted(os.listdir(self.path / folder))
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes | None:
        """The content of a file; None where there is none."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def has(self, name: str) -> bool:
        return (self.path / name).exists()


def local_path(uri: str) -> Path:
    """The folder a path or a ``file://`` URI means. Raises ``InvalidArgument`` for others."""
    if "://" not in uri:
        return Path(uri).absolute()
    scheme, _, rest = uri.partition("://")
    if scheme != "file" or not rest.startswith("/"):
        raise InvalidArgument(
            f"{uri!r}: a plain Parquet table is a folder on a local or mounted disk; on an object "
            "store, use a Delta table"
        )
    return Path(rest)


def is_local(uri: str) -> bool:
    """Whether ``uri`` is a folder on a disk of this machine."""
    return "://" not in uri or uri.startswith("file:///")


def filesystem_of(uri: str) -> tuple[Any, str]:
    """The Arrow file system for ``uri``, and the path there. Raises ``InvalidArgument``."""
    from pyarrow import ArrowException, fs

    if is_local(uri):
        return fs.LocalFileSystem(), str(local_path(uri))
    try:
        found: tuple[Any, str] = fs.FileSystem.from_uri(uri)
    except (ArrowException, ValueError, OSError) as error:
        raise InvalidArgument(f"{uri!r} cannot hold a table: {error}") from error
    return found
