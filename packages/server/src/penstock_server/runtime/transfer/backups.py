"""Backups in progress: the data directory as it was between two groups, read in parts.

Everything acknowledged before that moment is included. The realm continues meanwhile; files that it
removes stay readable for the backup until that ends.
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
"""Most bytes of one answer."""


_log = logger("penstock.backups")


class Held(Protocol):
    """A file of the data directory that stays as it was."""

    name: str
    size: int
    stamp: int

    def read(self, offset: int, size: int) -> bytes: ...


class BackupCapture(Protocol):
    """Holds the files of a data directory as they are now."""

    def __call__(
        self, blobs: Sequence[BlobInfo], growing: Mapping[str, SegmentIndex]
    ) -> Sequence[Any]: ...

    def release(self, held: Sequence[Any]) -> None: ...


class _Backup(Transfer):
    def __init__(self, session: str, files: Sequence[Held], at_us: int) -> None:
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
        """When the newest complete backup was captured; the realm's start, if there is none since.
        """
        self.capture: BackupCapture | None = None
        """Captures the data directory; None: there is none."""

    async def begin(self, session: str, version: str) -> BackupBegun:
        """Capture the data directory. Raises ``IllegalState`` for a realm in memory,
        ``Unavailable`` while another backup is under way, ``StorageFailed``."""
        capture = self.capture
        if capture is None:
            raise IllegalState("this realm is kept in memory only: there is nothing to back up")
        if len(self) or self._is_beginning:
            raise Unavailable("another backup is running; try again when it has ended")
        self._is_beginning = True
        try:
            files, at_us = await self._captured(capture)
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

    async def _captured(self, capture: BackupCapture) -> tuple[Sequence[Held], int]:
        """Between two groups: what is acknowledged is in the journal, and nothing is added."""
        found: list[Held] = []
        at_us = 0

        async def between() -> None:
            nonlocal at_us
            at_us = self._clock.now_us()
            stores = self._shard.state.stores.values()
            files = [file for store in stores for file in store.files if file.grows]
            growing = {file.name: file.index for file in files}
            blobs = await self._blobs.list()
            found.extend(await self._offload(lambda: capture(blobs, growing)))

        await self._shard.exclusively(between)
        return found, at_us

    async def read(self, session: str, name: str, file: int, offset: int) -> bytes:
        """Read bytes of a file. Raises ``IllegalState``, ``StorageFailed``."""
        backup = self.known(session, name)
        if not 0 <= file < len(backup.files):
            raise IllegalState(f"there is no file {file}; the backup has {len(backup.files)}")
        held = backup.files[file]
        if not 0 <= offset < held.size:
            raise IllegalState(f"{held.name} has no byte {offset}")
        try:
            with self.at_work(backup):
                return await self._offload(lambda: held.read(offset, READ_BYTES))
        finally:
            self._let_go(backup)

    async def end(self, session: str, name: str, *, is_complete: bool) -> None:
        """End a backup and release what was captured. ``is_complete``: it is on the client's disk,
        and has everything. Copies of sealed files end here, too, and are no backups."""
        ended = self.known(session, name)
        if is_complete:
            self.newest_us = max(self.newest_us, ended.at_us)
        self._forget(name, ended)
        _log.info("backup.ended")

    def _log_expired(self, transfer: _Backup) -> None:
        _log.info("backup.expired")

    def _forget(self, name: str, transfer: _Backup) -> None:
        self.remove(name)
        transfer.is_over = True
        self._let_go(transfer)

    def _let_go(self, backup: _Backup) -> None:
        """Release what was captured, once nobody reads it."""
        if backup.is_over and not backup.users and self.capture is not None:
            self.capture.release(backup.files)
