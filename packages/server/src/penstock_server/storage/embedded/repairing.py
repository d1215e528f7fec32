"""Repairs of a data directory before or after it is opened."""

from __future__ import annotations

from penstock_core.vocabulary.errors import Damaged, DataDirectoryInUse, InvalidArgument
from penstock_core.vocabulary.ports import VersionedRecord
from penstock_server.storage.disk import Disk, LockHeld
from penstock_server.storage.embedded.frames import DIRECTORY_FORMAT
from penstock_server.storage.embedded.quarantine import QuarantineFolder
from penstock_server.storage.embedded.records import RecordFiles, record_name
from penstock_server.storage.embedded.recovery import identity_in

_FORMAT_KEY = "format"


def check_exists(disk: Disk, root: str) -> None:
    """Raise ``InvalidArgument`` unless ``root`` is a data directory."""
    try:
        names = {entry.name for entry in disk.list(root)}
    except OSError as error:
        raise InvalidArgument(f"{root} cannot be read: {error.strerror}") from None
    if not {"registry", "journal"} <= names:
        raise InvalidArgument(
            f"{root} is not a Penstock data directory: it has no registry/ and journal/"
        )


def check_records(disk: Disk, root: str) -> dict[str, str]:
    """Return a description of the damage for each file of a registry record; empty for intact
    files."""
    records = RecordFiles(disk, f"{root}/registry")
    damage = {}
    for key in records.all_keys():
        file = f"registry/{record_name(key)}"
        try:
            records.load(key)
        except Damaged as error:
            damage[file] = str(error).removeprefix(f"{records.where(key)}: ")
        else:
            damage[file] = ""
    return damage


def mend_format(disk: Disk, root: str, holder: str) -> str:
    """Rewrite a missing or damaged format record, if the journal shows the format.

    Return the path of the damaged record's copy in quarantine; empty if the record is intact, and a
    text without a path if it was missing. Raises ``DataDirectoryInUse``, and ``Damaged`` if the
    format cannot be determined.
    """
    records = RecordFiles(disk, f"{root}/registry")
    try:
        lock = disk.lock(f"{root}/LOCK", holder)
    except LockHeld as error:
        raise DataDirectoryInUse(
            f"the data directory {root} is in use by {error}; stop that process first"
        ) from None
    try:
        return _mend_format(disk, root, records)
    finally:
        disk.close(lock)


def _mend_format(disk: Disk, root: str, records: RecordFiles) -> str:
    """Rewrite the format record as :func:`mend_format` says, with the lock held."""
    try:
        if records.load(_FORMAT_KEY) is not None:
            return ""
        copy_path = "no copy: the record was missing"
    except Damaged:
        damaged = records.raw(_FORMAT_KEY)
        copy_path = QuarantineFolder(disk, root).keep("registry-format.record", damaged)
    # A file of the journal also has a format: an intact one shows that this version can read it.
    if identity_in(disk, f"{root}/journal") is None:
        raise Damaged(
            f"{root}: no intact journal file shows the format; restore registry/ from a copy"
        )
    records.store(_FORMAT_KEY, VersionedRecord(1, b'{"format": %d}' % DIRECTORY_FORMAT))
    return copy_path


def remove_damaged_records(disk: Disk, root: str) -> list[str]:
    """Remove registry records that fail their checksum, and return their keys.

    They were copied to quarantine when the directory was opened.
    """
    records = RecordFiles(disk, f"{root}/registry")
    removed = []
    for key in records.all_keys():
        try:
            records.load(key)
        except Damaged:
            name = f"registry-{record_name(key)[:200]}.record"
            QuarantineFolder(disk, root).keep(name, records.raw(key))
            disk.unlink(records.where(key))
            removed.append(key)
    if removed:
        disk.sync_directory(f"{root}/registry")
    return removed


def in_quarantine(disk: Disk, root: str) -> list[str]:
    """Return the names of the files in quarantine."""
    try:
        return [entry.name for entry in disk.list(f"{root}/quarantine")]
    except FileNotFoundError:
        return []
