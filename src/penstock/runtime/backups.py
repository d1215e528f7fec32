"""Backups under way: the data directory as it stood between two groups, read in parts.

Everything acknowledged before that moment is in it. The realm goes on meanwhile; what leaves it
stays readable for the backup until that ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import structlog

from penstock.core.errors import IllegalState, Unavailable
from penstock.core.ports import BlobInfo, Blobs, Clock, Offload
from penstock.runtime.shard import Shard
from penstock.wire.native.backups import BackupBegun, CapturedFile

READ_BYTES = 4 << 20
"""Most bytes of one answer."""
IDLE_US = 300 * 1_000_000
"""A backup nobody reads from any more is forgotten after this."""


_log = structlog.get_logger("penstock.backups")


class Held(Protocol):
    """A file of the data directory that stays as it was."""

    name: str
    size: int
    stamp: int

    def read(self, offset: int, size: int) -> bytes: ...


class Capture(Protocol):
    """Holds the files of a data directory as they are now."""

    def __call__(self, blobs: Sequence[BlobInfo], growing: frozenset[str]) -> Sequence[Any]: ...

    def release(self, held: Sequence[Any]) -> None: ...


class _Backup:
    """The one under way, of one session."""

    def __init__(self, name: str, session: str, files: Sequence[Held], now_us: int) -> None:
        self.name = name
        self.session = session
        self.files = files
        self.used_us = now_us
        self.readers = 0
        self.is_over = False


class Backups:
    """One backup at a time; it belongs to a session and ends with its connection."""

    def __init__(
        self, shard: Shard, blobs: Blobs, clock: Clock, offload: Offload, *, realm: str, name: str
    ) -> None:
        self._shard = shard
        self._blobs = blobs
        self._clock = clock
        self._offload = offload
        self._realm = realm
        self._name = name
        self._current: _Backup | None = None
        self._is_beginning = False
        self._next = 1
        self.capture: Capture | None = None
        """None: there is no data directory."""

    async def begin(self, session: str, version: str) -> BackupBegun:
        """Capture the data directory. Raises ``IllegalState`` for a realm in memory,
        ``Unavailable`` while another backup is under way, ``StorageFailed``."""
        capture = self.capture
        if capture is None:
            raise IllegalState("this realm lives in memory: there is nothing to back up")
        if self._current is not None or self._is_beginning:
            raise Unavailable("a backup is under way already; try again when it has ended")
        self._is_beginning = True
        try:
            files, at_us = await self._captured(capture)
        finally:
            self._is_beginning = False
        name = f"backup-{self._next}"
        self._next += 1
        self._current = _Backup(name, session, files, self._clock.now_us())
        _log.info("backup.begun", files=len(files), bytes=sum(file.size for file in files))
        return BackupBegun(
            backup=name,
            realm=self._realm,
            name=self._name,
            version=version,
            at_us=at_us,
            files=tuple(CapturedFile(file.name, file.size, file.stamp) for file in files),
        )

    async def _captured(self, capture: Capture) -> tuple[Sequence[Held], int]:
        """Between two groups: what is acknowledged is in the journal, and nothing is added."""
        found: list[Held] = []
        at_us = 0

        async def between() -> None:
            nonlocal at_us
            at_us = self._clock.now_us()
            stores = self._shard.state.stores.values()
            growing = frozenset(file.name for store in stores for file in store.files if file.grows)
            blobs = await self._blobs.list()
            found.extend(await self._offload(lambda: capture(blobs, growing)))

        await self._shard.exclusively(between)
        return found, at_us

    async def read(self, session: str, name: str, file: int, offset: int) -> bytes:
        """Some bytes of a file. Raises ``IllegalState``, ``StorageFailed``."""
        backup = self._known(session, name)
        if not 0 <= file < len(backup.files):
            raise IllegalState(f"there is no file {file}; the backup has {len(backup.files)}")
        held = backup.files[file]
        if not 0 <= offset < held.size:
            raise IllegalState(f"{held.name} has no byte {offset}")
        backup.readers += 1
        try:
            content: bytes = await self._offload(lambda: held.read(offset, READ_BYTES))
            return content
        finally:
            backup.readers -= 1
            backup.used_us = self._clock.now_us()
            self._let_go(backup)

    async def end(self, session: str, name: str) -> None:
        """Let go of what was captured."""
        self._forget(self._known(session, name))
        _log.info("backup.ended")

    def leave(self, session: str) -> None:
        """The session's connection has ended, and its backup with it."""
        if self._current is not None and self._current.session == session:
            self._forget(self._current)

    def expire(self) -> None:
        """Forget a backup nobody has read from for long."""
        current = self._current
        if current is None or current.readers:
            return
        if current.used_us < self._clock.now_us() - IDLE_US:
            _log.info("backup.expired")
            self._forget(current)

    def _forget(self, backup: _Backup) -> None:
        self._current = None
        backup.is_over = True
        self._let_go(backup)

    def _let_go(self, backup: _Backup) -> None:
        """Once nobody reads any more."""
        if backup.is_over and not backup.readers and self.capture is not None:
            self.capture.release(backup.files)

    def _known(self, session: str, name: str) -> _Backup:
        backup = self._current
        if backup is None or backup.session != session or backup.name != name:
            raise IllegalState(
                f"{name} is not under way: it has ended with its connection, or nobody read from "
                f"it for {IDLE_US // 1_000_000} s; begin again"
            )
        return backup
