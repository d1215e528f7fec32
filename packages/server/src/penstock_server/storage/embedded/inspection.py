"""Inspects a data directory without opening or changing it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from penstock_core.vocabulary.errors import Damaged, StorageFailed
from penstock_server.storage.disk import RealDisk
from penstock_server.storage.embedded.frames import DIRECTORY_FORMAT
from penstock_server.storage.embedded.records import RecordFiles

_FORMAT_KEY = "format"


class DirectoryInspection(Struct, frozen=True, kw_only=True):
    """The properties of a directory that may be a data directory."""

    is_realm: bool
    """Whether the directory is a data directory written by a realm."""
    foreign_files: tuple[str, ...] = ()
    """Names of files in the directory, if it is not a data directory."""
    format: int | None = None
    """The format of the directory; None if it cannot be determined."""
    format_max: int = DIRECTORY_FORMAT
    """The newest format that this version reads."""
    holder: str = ""
    """Description of the process that has the directory open; empty if no process has."""


def inspect_directory(directory: Path) -> DirectoryInspection:
    """Inspect a directory. Raises ``StorageFailed`` if it cannot be read."""
    try:
        names = sorted(entry.name for entry in os.scandir(directory))
        if "registry" not in names:
            return DirectoryInspection(
                is_realm=False, foreign_files=tuple(name for name in names if name != "lost+found")
            )
        return DirectoryInspection(
            is_realm=True, format=_format(directory), holder=_holder(directory / "LOCK")
        )
    except OSError as error:
        raise StorageFailed(f"the data directory {directory} cannot be read: {error}") from error


def _format(directory: Path) -> int | None:
    try:
        record = RecordFiles(RealDisk(), str(directory / "registry")).load(_FORMAT_KEY)
        return None if record is None else msgspec.json.decode(record.value)["format"]
    except (Damaged, msgspec.DecodeError, KeyError, TypeError, RecursionError):
        return None


def _holder(lock: Path) -> str:
    """Return the description of the process that has locked a file, which it has written into the
    file; empty if the file is missing or not locked."""
    try:
        file = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(file, 200, 0).decode("utf-8", "replace").strip() or "an unnamed process"
    finally:
        os.close(file)
    return ""
