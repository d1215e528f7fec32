"""What a data directory says of itself, without opening or changing it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from penstock.core.vocabulary.errors import Damaged, StorageFailed
from penstock.storage.disk import RealDisk
from penstock.storage.embedded.frames import DIRECTORY_FORMAT
from penstock.storage.embedded.records import RecordFiles

_FORMAT_KEY = "format"


class Look(Struct, frozen=True, kw_only=True):
    """A data directory from outside."""

    is_realm: bool
    """Whether a realm has written it."""
    others: tuple[str, ...] = ()
    """What is in it that a realm has not written, where it is none of a realm."""
    format: int | None = None
    """The format that was written; None: it cannot be told."""
    format_max: int = DIRECTORY_FORMAT
    """The newest format this version reads."""
    holder: str = ""
    """Who has it open now; empty: nobody."""


def look_at(directory: Path) -> Look:
    """Look at a directory that may be a realm's. Raises ``StorageFailed``: it cannot be read."""
    try:
        names = sorted(entry.name for entry in os.scandir(directory))
        if "registry" not in names:
            return Look(
                is_realm=False, others=tuple(name for name in names if name != "lost+found")
            )
        return Look(is_realm=True, format=_format(directory), holder=_holder(directory / "LOCK"))
    except OSError as error:
        raise StorageFailed(f"the data directory {directory} cannot be read: {error}") from error


def _format(directory: Path) -> int | None:
    try:
        record = RecordFiles(RealDisk(), str(directory / "registry")).load(_FORMAT_KEY)
        return None if record is None else msgspec.json.decode(record.value)["format"]
    except (Damaged, msgspec.DecodeError, KeyError, TypeError):
        return None


def _holder(lock: Path) -> str:
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
