"""The embedded store: a data directory on a local disk.

::

    LOCK          held while a realm has the directory open
    registry/     one file per record; ``format`` has the format of the directory
    journal/      <first sequence>.log
    segments/     <channel>/<first id>-<last id>.arrow
    snapshots/
    pages/        <channel number>/<page number>.page
    quarantine/   copies of bytes that failed their checksum
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from penstock_core.vocabulary.errors import (
    Damaged,
    DataDirectoryInUse,
    InvalidArgument,
    NewerFormat,
    StorageFailed,
)
from penstock_core.vocabulary.ports import Clock, Offload, VersionedRecord
from penstock_server.storage.audit_file import NAMES as AUDIT_LOGS
from penstock_server.storage.disk import DirectoryEntry, Disk, LockHeld, make_directories
from penstock_server.storage.embedded.blobs import FileBlobs
from penstock_server.storage.embedded.frames import DIRECTORY_FORMAT
from penstock_server.storage.embedded.journal import FileJournal, JournalLimits
from penstock_server.storage.embedded.pages import FilePages, PageLimits
from penstock_server.storage.embedded.records import RecordFiles
from penstock_server.storage.embedded.registry import FileRegistry

__all__ = [
    "NODE_FILE",
    "Embedded",
    "FileBlobs",
    "FileJournal",
    "FilePages",
    "FileRegistry",
    "JournalLimits",
    "PageLimits",
    "open_embedded",
]

_DIRECTORIES = ("registry", "journal", "segments", "snapshots", "pages")
_EVENTS = ("journal", "segments", "snapshots", "pages")
_OURS = {"LOCK", *AUDIT_LOGS.values(), "quarantine", *_DIRECTORIES}
_IGNORED = {"lost+found"}
_FORMAT_KEY = "format"
NODE_FILE = "node.json"
"""Name of the file that marks the data directory of a cluster node, which has no events."""


class Embedded(NamedTuple):
    """An open data directory. Closing the journal unlocks the directory, so close it last."""

    journal: FileJournal
    blobs: FileBlobs
    registry: FileRegistry
    pages: FilePages


class _LockedJournal(FileJournal):
    """The journal of a data directory. Closing it also unlocks the directory."""

    _lock: int | None = None

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            if self._lock is not None:
                self._disk.close(self._lock)
                self._lock = None


def open_embedded(
    root: str,
    *,
    disk: Disk,
    offload: Offload,
    clock: Clock,
    identity: Callable[[], int],
    holder: str,
    limits: JournalLimits | None = None,
    page_limits: PageLimits | None = None,
) -> Embedded:
    """Open the data directory ``root`` (absolute), or create it if it is empty or missing.

    ``holder`` describes this realm in the error that a second realm gets (``pid 4711``).
    ``identity`` returns 64 random bits for a new journal. All files are read and checked
    (SEM S1), which may take a while: call this off the event loop. Raises
    ``DataDirectoryInUse``, ``NewerFormat`` (without changing anything), ``InvalidArgument`` for a
    directory with other content, ``Damaged`` if its format cannot be determined, and
    ``StorageFailed``.
    """
    root = root.rstrip("/")
    if not root.startswith("/"):
        raise InvalidArgument(f"the data directory {root!r} must be an absolute path")
    try:
        # Checked before the lock, so that no LOCK file is created in another program's directory.
        _is_new_directory(disk, root)
        lock = _take_lock(disk, root, holder)
    except OSError as error:
        raise StorageFailed(f"the data directory {root} cannot be opened: {error}") from error
    try:
        pages = FilePages(root, disk=disk, offload=offload, clock=clock, limits=page_limits)
        return _open_locked(
            root,
            disk,
            offload,
            clock=clock,
            identity=identity,
            limits=limits,
            lock=lock,
            pages=pages,
        )
    except OSError as error:
        disk.close(lock)
        raise StorageFailed(f"the data directory {root} cannot be read: {error}") from error
    except BaseException:
        disk.close(lock)
        raise


def _open_locked(
    root: str,
    disk: Disk,
    offload: Offload,
    clock: Clock,
    identity: Callable[[], int],
    limits: JournalLimits | None,
    lock: int,
    pages: FilePages,
) -> Embedded:
    # Checked again with the lock held, because another process may have created or upgraded the
    # realm after the first check.
    is_new = _is_new_directory(disk, root)
    for directory in _DIRECTORIES:
        make_directories(disk, f"{root}/{directory}", root, private=directory == "registry")
    records = RecordFiles(disk, f"{root}/registry")
    records.remove_leftovers()
    if is_new:
        records.store(_FORMAT_KEY, _format_record(1))
    else:
        _upgrade(root, records)
    journal = _LockedJournal(
        root, disk=disk, offload=offload, clock=clock, identity=identity, limits=limits
    )
    # From here on the journal owns the lock, and releases it when it is closed.
    journal._lock = lock
    registry = FileRegistry(root, disk=disk, offload=offload)
    return Embedded(journal, FileBlobs(root, disk=disk, offload=offload), registry, pages=pages)


def _take_lock(disk: Disk, root: str, holder: str) -> int:
    # Find the nearest existing folder. The folders below it are created and synced.
    parent = root
    while _entries(disk, parent) is None:
        parent = parent.rpartition("/")[0]
    if parent != root:
        make_directories(disk, root, parent)
    try:
        return disk.lock(f"{root}/LOCK", holder)
    except LockHeld as error:
        raise DataDirectoryInUse(
            f"the data directory {root} is in use by {error}; stop that process, or use another "
            f"directory for this realm"
        ) from None


def _is_new_directory(disk: Disk, root: str) -> bool:
    """Return whether the directory is missing or empty. Raises ``InvalidArgument`` if it is another
    program's directory or that of a cluster node, ``NewerFormat`` if this version cannot read its
    format, and ``Damaged`` if the format record is missing or damaged."""
    entries = _entries(disk, root)
    names = {entry.name for entry in entries or ()} - _IGNORED
    if not names:
        return True
    record = None
    if "registry" in names:
        record = RecordFiles(disk, f"{root}/registry").load(_FORMAT_KEY)
    if record is not None:
        _format_in(root, record.value)
        return False
    if NODE_FILE in names:
        raise InvalidArgument(
            f"{root} belongs to a node of a cluster, and has no events; start it with --cluster "
            f"URL, or use another directory for the realm"
        )
    if not names <= _OURS:
        strange = ", ".join(sorted(names - _OURS)[:5])
        raise InvalidArgument(
            f"{root} is not a Penstock data directory and not empty (it has {strange}); use an "
            "empty directory or one that does not exist yet"
        )
    if any(_entries(disk, f"{root}/{name}") for name in _EVENTS):
        raise Damaged(
            f"{root}: the registry record {_FORMAT_KEY!r} is missing; restore registry/ from a copy"
        )
    return True  # the remains of an interrupted first start


def _format_in(root: str, value: bytes) -> int:
    """Return the format in a record. Raises ``NewerFormat`` if this version cannot read it, and
    ``Damaged`` if the record has no format."""
    try:
        number = msgspec.json.decode(value, type=dict[str, int])["format"]
    except (msgspec.DecodeError, KeyError, RecursionError) as error:
        raise Damaged(f"{root}: the format record reads {value!r}: {error}") from error
    if number > DIRECTORY_FORMAT:
        raise NewerFormat(
            f"{root} has format {number}, but this version reads formats up to {DIRECTORY_FORMAT}; "
            "run the newer version that wrote it. Nothing was changed"
        )
    return number


def _upgrade(root: str, records: RecordFiles) -> None:
    """Write this version's format to the directory, so that older versions refuse to open it."""
    record = records.load(_FORMAT_KEY)
    if record is not None and _format_in(root, record.value) < DIRECTORY_FORMAT:
        records.store(_FORMAT_KEY, _format_record(record.version + 1))


def _format_record(version: int) -> VersionedRecord:
    return VersionedRecord(version, b'{"format": %d}' % DIRECTORY_FORMAT)


def _entries(disk: Disk, path: str) -> list[DirectoryEntry] | None:
    """Return the entries of a directory; None if it does not exist."""
    try:
        return disk.list(path or "/")
    except FileNotFoundError:
        return None
