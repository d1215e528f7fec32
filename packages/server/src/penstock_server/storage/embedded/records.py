"""Stores small records as files with a version, a checksum and a value. A file is replaced
atomically. All calls block. The registry uses them in a thread, and the journal for its own record.
"""

from __future__ import annotations

import struct
from urllib.parse import quote, unquote

from xxhash import xxh3_64_intdigest

from penstock_core.vocabulary.errors import Damaged, InvalidArgument
from penstock_core.vocabulary.ports import VersionedRecord
from penstock_server.storage.disk import Disk, read_all, write_all

_HEAD = struct.Struct("<8sQQQ")
_MAGIC = b"PNSTKREC"
_TEMPORARY = ".new-"
KEY_LENGTH_MAX = 240
"""Largest number of characters of a key after percent-encoding, which writes ``/`` as ``%2F``."""


def encode_record(record: VersionedRecord) -> bytes:
    # Without the checksum, which covers the other fields and the value.
    fields = _HEAD.pack(_MAGIC, record.version, len(record.value), 0)[:-8]
    return fields + xxh3_64_intdigest(fields + record.value).to_bytes(8, "little") + record.value


def decode_record(stored: bytes, where: str) -> VersionedRecord:
    """Decode a record. Raises ``Damaged``, which names the file ``where``, if the record is
    incomplete or damaged."""
    if len(stored) < _HEAD.size:
        raise Damaged(f"{where}: {len(stored)} bytes are too few for a record")
    magic, version, length, checksum = _HEAD.unpack_from(stored)
    value = stored[_HEAD.size :]
    if magic != _MAGIC or length != len(value):
        raise Damaged(f"{where}: the record is incomplete")
    if checksum != xxh3_64_intdigest(stored[: _HEAD.size - 8] + value):
        raise Damaged(f"{where}: the record fails its checksum")
    return VersionedRecord(version, value)


def record_name(key: str) -> str:
    """Return the file name for ``key``. Raises ``InvalidArgument`` if it is empty or too long."""
    name = quote(key, safe="")
    # A leading dot marks temporary files, which are not keys.
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if not key or len(name) > KEY_LENGTH_MAX:
        raise InvalidArgument(
            f"registry key {key[:40]!r}: 1 to {KEY_LENGTH_MAX} characters when percent-encoded, "
            f"not {len(name)}"
        )
    return name


class RecordFiles:
    """A directory with one file per key. Only the realm's user may read the files, because some of
    them have password verifiers."""

    __slots__ = ("_disk", "_path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    def all_keys(self) -> list[str]:
        """Return every key that has a file, sorted."""
        return sorted(
            unquote(entry.name)
            for entry in self._disk.list(self._path)
            if not entry.is_directory and not entry.name.startswith(".")
        )

    def remove_leftovers(self) -> None:
        """Delete temporary files of writes that a crash interrupted."""
        for entry in self._disk.list(self._path):
            if entry.name.startswith(_TEMPORARY):
                self._disk.unlink(f"{self._path}/{entry.name}")

    def raw(self, key: str) -> bytes:
        """Return the unchecked bytes of the file. Raises ``FileNotFoundError`` if it does not
        exist."""
        return read_all(self._disk, self.where(key))

    def load(self, key: str) -> VersionedRecord | None:
        """Return the record; None if it does not exist. Raises ``Damaged``."""
        try:
            stored = self.raw(key)
        except FileNotFoundError:
            return None
        return decode_record(stored, self.where(key))

    def store(self, key: str, record: VersionedRecord) -> None:
        """Replace the record. The change is on disk on return.

        Raises ``OSError`` if nothing was changed, and :class:`Unsettled` if the file was renamed
        but not synced: a crash may then leave either the old or the new record.
        """
        name = record_name(key)
        temporary = f"{self._path}/{_TEMPORARY}{name}"
        write_all(self._disk, temporary, [encode_record(record)], private=True)
        try:
            self._disk.rename(temporary, f"{self._path}/{name}", replace=True)
        except OSError:
            self._disk.unlink(temporary)
            raise
        try:
            self._disk.sync_directory(self._path)
        except OSError as error:
            raise Unsettled(str(error)) from error

    def remove(self, key: str) -> None:
        """Remove the record. The removal is on disk on return. Raises ``OSError`` if nothing was
        changed, and :class:`Unsettled` if a crash may bring the record back."""
        self._disk.unlink(self.where(key))
        try:
            self._disk.sync_directory(self._path)
        except OSError as error:
            raise Unsettled(str(error)) from error

    def where(self, key: str) -> str:
        return f"{self._path}/{record_name(key)}"


class Unsettled(OSError):
    """Raised if the sync of a directory failed. Whether the change is on disk is unknown until the
    next start."""
