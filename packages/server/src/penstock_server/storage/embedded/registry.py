"""The registry of the embedded store, with one small file for each key. A file is replaced
atomically."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

from penstock_core.vocabulary.errors import Conflict, Damaged, StorageFailed
from penstock_core.vocabulary.ports import Change, Offload, VersionedRecord
from penstock_server.storage.disk import Disk
from penstock_server.storage.embedded.journal import RECORD_KEY
from penstock_server.storage.embedded.quarantine import QuarantineFolder
from penstock_server.storage.embedded.records import RecordFiles, Unsettled, record_name
from penstock_server.storage.watching import Watches


class FileRegistry:
    """The :class:`~penstock_core.vocabulary.ports.Registry` in ``<root>/registry``.

    All records are read and checked at start-up. A damaged record is copied to quarantine, and
    ``get`` and ``cas`` of its key raise ``Damaged``; other keys are not affected.
    """

    def __init__(self, root: str, *, disk: Disk, offload: Offload) -> None:
        self._offload = offload
        self._files = RecordFiles(disk, f"{root}/registry")
        self._records: dict[str, VersionedRecord] = {}
        self._damaged: dict[str, str] = {}
        self._watches = Watches()
        self._writing = threading.Lock()
        """Lock held during each change, because a cancelled change may still run in its thread."""
        self._failed = ""
        """The reason for refusing changes; empty until a sync has failed."""
        self._files.remove_leftovers()
        for key in self._files.all_keys():
            self._read(key, QuarantineFolder(disk, root))

    async def get(self, key: str) -> VersionedRecord | None:
        """Return the record under ``key``. Raises ``Damaged`` if its file fails its checksum."""
        self._check_whole(key)
        return self._records.get(key)

    async def cas(self, key: str, expected: int, value: bytes) -> int:
        """Set ``key`` if its version is ``expected``; return the new version
        (:meth:`penstock_core.vocabulary.ports.Registry.cas`).

        A full disk raises ``StorageFailed`` and changes nothing. After a failed directory sync,
        every further change is refused.
        """
        record_name(key)
        self._check_whole(key)
        if key == RECORD_KEY:
            raise Conflict(f"{RECORD_KEY!r} is the journal's own record")
        record = await self._offload(lambda: self._change(key, expected, value))
        self._watches.note(key, record)
        return record.version

    async def delete(self, key: str, expected: int) -> None:
        """Remove ``key`` if its version is ``expected``
        (:meth:`penstock_core.vocabulary.ports.Registry.delete`). Fails as ``cas`` does."""
        record_name(key)
        self._check_whole(key)
        if key == RECORD_KEY:
            raise Conflict(f"{RECORD_KEY!r} is the journal's own record")
        if await self._offload(lambda: self._remove(key, expected)):
            self._watches.note(key, None)

    async def list(self, prefix: str = "") -> Sequence[str]:
        """Return the keys that start with ``prefix``, sorted, including those of damaged
        records."""
        keys = self._records.keys() | self._damaged.keys()
        return sorted(key for key in keys if key.startswith(prefix))

    def watch(self, prefix: str = "") -> AsyncIterator[Change]:
        """Yield changes made through this registry. A slow watcher may miss intermediate
        records."""
        return self._watches.add(prefix)

    def _read(self, key: str, quarantine: QuarantineFolder) -> None:
        """Load a record at the start. A damaged one is copied to quarantine."""
        if key == RECORD_KEY:
            return  # the journal reads and repairs its own record
        try:
            record = self._files.load(key)
        except Damaged as error:
            quarantine.keep(f"registry-{record_name(key)[:200]}.record", self._files.raw(key))
            self._damaged[key] = str(error)
        else:
            assert record is not None, "the file of this key was just listed"
            self._records[key] = record

    def _change(self, key: str, expected: int, value: bytes) -> VersionedRecord:
        """Store a new version of a record, and return it. Raises ``Conflict``,
        ``StorageFailed``."""
        with self._writing:
            version = self._check_version(key, expected)
            record = VersionedRecord(version + 1, bytes(value))
            with self._explain_errors(key, "written"):
                self._files.store(key, record)
            self._records[key] = record
            return record

    def _remove(self, key: str, expected: int) -> bool:
        """Remove a record; return False if it does not exist. Raises ``Conflict``,
        ``StorageFailed``."""
        with self._writing:
            if not self._check_version(key, expected):
                return False
            with self._explain_errors(key, "removed"):
                self._files.remove(key)
            del self._records[key]
            return True

    def _check_version(self, key: str, expected: int) -> int:
        """Return the version of a key; 0 if it does not exist. Raises ``Conflict`` if another
        version is expected, and ``StorageFailed`` if an earlier change failed."""
        if self._failed:
            raise StorageFailed(f"the registry accepts no more changes: {self._failed}")
        record = self._records.get(key)
        version = record.version if record is not None else 0
        if version != expected:
            raise Conflict(
                f"registry key {key!r} has version {version}, but {expected} was expected"
            )
        return version

    @contextmanager
    def _explain_errors(self, key: str, verb: str) -> Iterator[None]:
        """Raise ``StorageFailed`` for errors of writing or removing the record of a key."""
        try:
            yield
        # It is unknown whether the change is on disk, so a later one must not build on it.
        except Unsettled as error:
            self._failed = f"{self._files.where(key)} could not be synced: {error}"
            raise StorageFailed(self._failed) from error
        except OSError as error:
            where = self._files.where(key)
            raise StorageFailed(f"{where} could not be {verb}: {error}") from error

    def _check_whole(self, key: str) -> None:
        if key in self._damaged:
            raise Damaged(self._damaged[key])
