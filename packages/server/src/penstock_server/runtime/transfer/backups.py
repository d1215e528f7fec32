"""Backups in progress: the state of the data directory between two groups, read in parts.

A backup includes everything that was acknowledged before that moment. The realm continues to serve;
files that it removes stay readable for the backup until the backup ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from penstock_core.api.transfers import BackupBegun, CapturedFile
from penstock_core.columns.files.segments import SegmentIndex
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import IllegalState, Unavailable
from penstock_core.vocabulary.ports import BlobInfo, Blobs, Clock, Offload
from penstock_server.runtime.transfer.transfer_registry import Transfer, TransferRegistry
from penstock_server.runtime.writer.shard import Shard

READ_BYTES = 4 << 20
"""Largest number of bytes in one answer."""


_log = logger("penstock.backups")


class CapturedContent(Protocol):
    """A captured file of the data directory, whose content does not change."""

    name: str
    size: int
    stamp: int

    def read(self, offset: int, size: int) -> bytes: ...


class BackupCapture(Protocol):
    """Captures the files of a data directory in their present state."""

    def __call__(
        self, blobs: Sequence[BlobInfo], growing: Mapping[str, SegmentIndex]
    ) -> Sequence[Any]: ...

    def release(self, held: Sequence[Any]) -> None: ...


class _Backup(Transfer):
    def __init__(self, session: str, files: Sequence[CapturedContent], at_us: int) -> None:
        super().__init__(session)
        self.files = files
        self.at_us = at_us
        self.is_over = False


class Backups(TransferRegistry[_Backup]):
    """One backup at a time."""

    def __init__(
        self, shard: Shard, blobs: Blobs, clock: Clock, offload: Offload, *, realm: str, name: str
    ) -> None:
        super().__init__("backup", 1, clock, ends="ended with its connection, or was not read")
        self._shard = shard
        self._blobs = blobs
        self._offload = offload
        self._realm = realm
        self._name = name
        self._is_beginning = False
        self.newest_us = clock.now_us()
        """Capture time of the newest complete backup, or the realm's start."""
        self.capture: BackupCapture | None = None
        """Function that captures the files of the data directory; None for a realm without a data
        directory."""

    async def begin(self, session: str, version: str) -> BackupBegun:
        """Capture the data directory. Raises ``IllegalState`` for a realm in memory,
        ``Unavailable`` while another backup is under way, ``StorageFailed``."""
        capture = self.capture
        if capture is None:
            raise IllegalState(
                "this realm is in memory only, so it cannot be backed up; serve it from a data "
                "directory"
            )
        # A backup is registered after the capture. During the capture `_is_beginning` is set
        # instead.
        if len(self) or self._is_beginning:
            raise Unavailable("another backup is running; try again when it has ended")
        self._is_beginning = True
        try:
            files, at_us = await self._capture_files(capture)
        finally:
            self._is_beginning = False
        name = self.add(_Backup(session, files, at_us))
        _log.info("backup.begun", files=len(files), bytes=sum(file.size for file in files))
        return BackupBegun(
            backup=name,
            realm=self._realm,
            name=self._name,
            version=version,
            at_us=at_us,
            files=tuple(CapturedFile(file.name, file.size, file.stamp) for file in files),
        )

    async def _capture_files(self, capture: BackupCapture) -> tuple[Sequence[CapturedContent], int]:
        """Capture the files, and return them with the time of the capture.

        This runs between two groups of the writer: everything acknowledged is in the journal, and
        no file changes.
        """
        captured: list[CapturedContent] = []
        at_us = 0

        async def between() -> None:
            nonlocal at_us
            at_us = self._clock.now_us()
            stores = self._shard.state.stores.values()
            files = [file for store in stores for file in store.files if file.grows]
            growing = {file.name: file.index for file in files}
            blobs = await self._blobs.list()
            captured.extend(await self._offload(lambda: capture(blobs, growing)))

        await self._shard.exclusively(between)
        return captured, at_us

    async def read(self, session: str, name: str, file: int, offset: int) -> bytes:
        """Read bytes of a file. Raises ``IllegalState``, ``StorageFailed``."""
        backup = self.find(session, name)
        if not 0 <= file < len(backup.files):
            raise IllegalState(
                f"file {file} does not exist; the backup has files 0 to {len(backup.files) - 1}"
            )
        captured_file = backup.files[file]
        if not 0 <= offset < captured_file.size:
            raise IllegalState(
                f"{captured_file.name} has {captured_file.size} bytes, so no byte {offset}"
            )
        try:
            with self.at_work(backup):
                return await self._offload(lambda: captured_file.read(offset, READ_BYTES))
        finally:
            self._release_if_unused(backup)

    async def end(self, session: str, name: str, *, is_complete: bool) -> None:
        """End a backup and release the captured files.

        ``is_complete`` means that all files are on the client's disk. Clients that copy only sealed
        files pass False, because their copy is not a backup.
        """
        backup = self.find(session, name)
        if is_complete:
            self.newest_us = max(self.newest_us, backup.at_us)
        self._forget(name, backup)
        _log.info("backup.ended")

    def _log_expired(self, transfer: _Backup) -> None:
        _log.info("backup.expired")

    def _forget(self, name: str, transfer: _Backup) -> None:
        self.remove(name)
        transfer.is_over = True
        self._release_if_unused(transfer)

    def _release_if_unused(self, backup: _Backup) -> None:
        """Release the captured files of an ended backup once no request reads them."""
        if backup.is_over and not backup.users and self.capture is not None:
            self.capture.release(backup.files)
