"""A disk that runs full while a realm works, by the best method that the machine allows."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

MIB = 1 << 20
FULL_BYTES = 4 << 10
"""The largest file while a limit stands in for a full disk."""


class Disk(Protocol):
    """The disk of the data directory."""

    means: str
    """The method by which it runs full, for the report; "" if it cannot."""

    def fill(self, pid: int) -> None:
        """Leave no room for the server with this process id."""

    def free(self, pid: int) -> None:
        """Give the room back."""


class SmallFileSystem:
    """A file system in memory with a fixed size; it is filled by a file next to the data."""

    means = "a small file system (tmpfs), filled to the last byte"

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / "ballast"

    def fill(self, pid: int) -> None:
        chunk_bytes = MIB
        with self._ballast.open("ab", buffering=0) as file:
            while chunk_bytes:
                try:
                    file.write(bytes(chunk_bytes))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    chunk_bytes //= 2  # the remaining room is smaller than that

    def free(self, pid: int) -> None:
        self._ballast.unlink(missing_ok=True)


class LimitedFiles:
    """A limit on the size of the server's files, set while it runs (``RLIMIT_FSIZE``): a write
    beyond it fails as on a full disk, except for the error number."""

    means = "a limit on the size of files (RLIMIT_FSIZE), set while the server runs"

    def fill(self, pid: int) -> None:
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_BYTES, hard))

    def free(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # the next process starts without the limit
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


class NeverFull:
    """A disk that cannot run full: the fault is left out, and the report says so."""

    means = ""

    def fill(self, pid: int) -> None:
        raise AssertionError("no schedule fills it")

    def free(self, pid: int) -> None:
        raise AssertionError("it is never full")


@contextlib.contextmanager
def disk_at(folder: Path, size_mib: int, *, may_mount: bool = True) -> Iterator[Disk]:
    """Provide the best available disk, with ``folder`` on it."""
    folder.mkdir(parents=True, exist_ok=True)
    if may_mount and _mount(folder, size_mib):
        try:
            yield SmallFileSystem(folder)
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)
    elif hasattr(resource, "prlimit"):
        yield LimitedFiles()
    else:
        yield NeverFull()


def _mount(folder: Path, size_mib: int) -> bool:
    if os.geteuid() != 0:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
