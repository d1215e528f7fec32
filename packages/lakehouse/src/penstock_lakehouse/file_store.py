"""Stores the files of tables: Parquet files made from events, and the metadata of snapshots.

The files can be made again from the events. They are therefore not synced to disk, and the realm
removes those of its previous run when it starts.
"""

from __future__ import annotations

import os
import secrets
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from penstock_core.vocabulary.errors import LimitReached, NameDoesNotExist, StorageFailed
from penstock_core.vocabulary.ports import Buffer, Offload

BUCKET: Final = "penstock-tables"
"""The bucket of all files, as clients of the object gate name it."""


def uri_of(name: str) -> str:
    """Return the URI of a file or folder of the store for clients."""
    return f"s3://{BUCKET}/{name}"


class StoredFile(Struct, eq=False):
    """A file of a table, on disk or in memory."""

    name: str
    """The file's key in the bucket: parts separated by ``/``."""
    size: int
    """Size in bytes."""
    users: int = 0
    """Number of holds on the file. A file without users may be removed to make room."""
    is_dropped: bool = False
    """Whether the file is removed once it has no users."""
    content: bytes | None = None
    """The file's bytes if the realm has no data directory; None if the file is on disk."""


class FileHold:
    """Protects a set of files from removal until it is released."""

    def __init__(self, files: dict[str, StoredFile]) -> None:
        """``files`` are all files of the store by name, the least recently used first."""
        self._all = files
        self._held: list[StoredFile] = []

    def add(self, file: StoredFile) -> None:
        """Hold a file until :meth:`release`."""
        file.users += 1
        self._held.append(file)
        # Moves the file to the end of the order, which decides the file to be removed first.
        self._all[file.name] = self._all.pop(file.name)

    def release(self) -> None:
        """End the hold on all files."""
        for file in self._held:
            file.users -= 1
        self._held.clear()


class SealedHold(Struct, eq=False):
    """The files of one answer, and the time until which they are held."""

    files: FileHold
    until_us: int
    """Microseconds since 1970."""


class SealedHolds:
    """The holds of all users: one for each table, because an archiver needs no file of an earlier
    answer when it sends its next request."""

    def __init__(self, per_user_max: int) -> None:
        self._per_user_max = per_user_max
        self._holds: dict[str, dict[str, SealedHold]] = {}
        """Holds by user and UUID of the table, the least recently requested first."""

    def replace(self, user: str, table_uuid: str, hold: SealedHold) -> None:
        """Set a user's hold on files of a table, and release the one before. If the user has the
        maximum number, the hold that was not requested for longest is released."""
        holds = self._holds.setdefault(user, {})
        if (earlier := holds.pop(table_uuid, None)) is not None:
            earlier.files.release()
        elif len(holds) >= self._per_user_max:
            holds.pop(next(iter(holds))).files.release()
        holds[table_uuid] = hold

    def expire(self, now_us: int) -> None:
        """Release the holds whose time is over."""
        for user, holds in list(self._holds.items()):
            for table_uuid, hold in list(holds.items()):
                if hold.until_us <= now_us:
                    holds.pop(table_uuid).files.release()
            if not holds:
                del self._holds[user]


class FileStore:
    """The files of all tables of a realm. Their total size is limited; unused files make room."""

    def __init__(self, folder: Path | None, bytes_max: int, offload: Offload) -> None:
        """``folder`` contains only these files; None means that they are kept in memory."""
        self._folder = folder
        self._folder_text = "" if folder is None else str(folder.absolute())
        self._bytes_max = bytes_max
        self._offload = offload
        self._files: dict[str, StoredFile] = {}
        """Files by name, the least recently used first."""
        self._run = secrets.token_hex(4)
        self._last_number = 0
        self.bytes = 0
        """Total size of all files, in bytes."""

    def next_suffix(self) -> str:
        """Return a suffix that makes the name of a new file unique.

        No other store returns an equal suffix: a program may still have the path of a file that an
        earlier process or another node has made, and must not find different rows there.
        """
        self._last_number += 1
        return f"{self._run}-{self._last_number}"

    def get(self, name: str) -> StoredFile | None:
        """Return the file with this name; None if it was removed."""
        return self._files.get(name)

    async def put(self, name: str, content: Buffer) -> StoredFile:
        """Store a file under a new name.

        Raises ``LimitReached`` if the file does not fit and all other files are in use, and
        ``StorageFailed`` if it cannot be written, for example because the disk is full.
        """
        size = memoryview(content).nbytes
        await self._make_room(size)
        file = StoredFile(name, size)
        # The file is counted before the write, so that files written at the same time keep the
        # limit together.
        self._files[name] = file
        self.bytes += size
        try:
            if self._folder is None:
                file.content = bytes(content)
            else:
                await self._offload(partial(_write, self._path(self._folder, name), content))
        except OSError as error:
            self._forget(file)
            raise StorageFailed(
                f"the file {name} of a table cannot be written ({error.strerror}); its events are "
                f"not affected: free space in the data directory and load the table again"
            ) from error
        except BaseException:
            self._forget(file)
            raise
        return file

    def hold(self) -> FileHold:
        """Return a new hold without files."""
        return FileHold(self._files)

    async def read(self, file: StoredFile, offset: int, length: int) -> bytes:
        """Return ``length`` bytes of a file from ``offset``, fewer at its end.

        Raises ``NameDoesNotExist`` if the file was removed.
        """
        if file.content is not None:
            return file.content[offset : offset + length]
        if self._folder is None or self._files.get(file.name) is not file:
            raise _not_found(file.name)
        path = self._path(self._folder, file.name)
        try:
            data: bytes = await self._offload(partial(_read, path, offset, length))
        except FileNotFoundError:
            raise _not_found(file.name) from None
        return data

    def path_of(self, file: StoredFile) -> str:
        """Return the absolute path of a file; empty if it is in memory."""
        return "" if self._folder is None else f"{self._folder_text}/{file.name}"

    async def remove(self, file: StoredFile) -> None:
        """Remove a file. A file in use is only marked; ``remove_dropped`` removes it after its last
        user has released it."""
        if self._files.get(file.name) is not file:
            return
        if file.users:
            file.is_dropped = True
            return
        self._forget(file)
        if self._folder is not None:
            await self._offload(partial(_unlink, self._path(self._folder, file.name)))

    async def remove_dropped(self) -> None:
        """Remove the files that are marked as dropped and no longer in use."""
        for file in [file for file in self._files.values() if file.is_dropped and not file.users]:
            await self.remove(file)

    async def _make_room(self, size: int) -> None:
        """Remove unused files, the least recently used first, until ``size`` bytes are free.

        Raises ``LimitReached`` if the files in use leave too little room.
        """
        if self.bytes + size <= self._bytes_max:
            return
        unused = [file for file in self._files.values() if not file.users]
        while self.bytes + size > self._bytes_max:
            if not unused:
                raise LimitReached(
                    f"the files of tables may have {self._bytes_max} bytes (tables.cache_bytes), "
                    f"and {self.bytes} are in use by snapshots; {size} more are needed: try again "
                    f"when snapshots have ended, or raise the limit"
                )
            await self.remove(unused.pop(0))

    def _forget(self, file: StoredFile) -> None:
        del self._files[file.name]
        self.bytes -= file.size

    def _path(self, folder: Path, name: str) -> Path:
        return folder.joinpath(*name.split("/"))


def _not_found(name: str) -> NameDoesNotExist:
    return NameDoesNotExist(
        f"the file {name} is no longer there: its snapshot has ended; load the table again"
    )


def _write(path: Path, content: Any) -> None:
    """Write a new file.

    The group of the realm's user may read the file, as it may read the stored events, because
    executors of Spark may run as another user."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except BaseException:
        # A partly written file would occupy space that the limit does not count.
        _unlink(path)
        raise


def _read(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), length, offset)


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)
