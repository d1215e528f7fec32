"""The blobs of the embedded store: files in the data directory, mapped for reading."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Final

from penstock_core.vocabulary.errors import (
    InvalidArgument,
    NameDoesNotExist,
    StorageFailed,
)
from penstock_core.vocabulary.ports import BlobInfo, Buffer, Offload
from penstock_server.storage.blob_names import BLOB_ROOTS, check_blob_name, check_same, end_of_range
from penstock_server.storage.disk import Disk, make_directories, write_all

_TEMPORARY = ".put-"


class FileBlobs:
    """The :class:`~penstock_core.vocabulary.ports.Blobs` in ``<root>/segments`` and
    ``<root>/snapshots``.

    Every ``get`` maps the file again. A view stays valid after its blob was deleted or extended.
    """

    grows: Final = True

    def __init__(self, root: str, *, disk: Disk, offload: Offload) -> None:
        self._root = root
        self._disk = disk
        self._offload = offload
        self._sizes: dict[str, int] = {}
        self._names: list[str] = []
        self._numbers = count(1)
        for part in BLOB_ROOTS:
            self._find(part)
        self._names.sort()

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        """Store a blob under a new name (:meth:`penstock_core.vocabulary.ports.Blobs.put`)."""
        check_blob_name(name)
        await self._offload(lambda: self._put(name, chunks))
        self._note(name, sum(memoryview(chunk).nbytes for chunk in chunks))

    async def extend(self, name: str, at: int, chunks: Sequence[Buffer]) -> None:
        """Replace the bytes of a blob from offset ``at`` on
        (:meth:`penstock_core.vocabulary.ports.Blobs.extend`).

        If the write fails, the old content is restored as far as the disk allows.
        """
        check_blob_name(name)
        size = self._sizes.get(name)
        if size is None:
            raise NameDoesNotExist(f"blob {name} does not exist")
        if not 0 <= at <= size:
            raise InvalidArgument(f"{name} has {size} bytes; byte {at} is not in it")
        await self._offload(lambda: self._extend(name, at, chunks))
        if name in self._sizes:  # otherwise the blob was deleted during the write
            self._sizes[name] = at + sum(memoryview(chunk).nbytes for chunk in chunks)

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        """Return the bytes of a blob, or ``length`` bytes from ``offset`` on
        (:meth:`penstock_core.vocabulary.ports.Blobs.get`). The range has to lie inside the blob."""
        check_blob_name(name)
        if name not in self._sizes:
            raise NameDoesNotExist(f"blob {name} does not exist")
        content = self._open(name)
        return content[offset : end_of_range(name, len(content), offset, length=length)]

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        """Return the blobs whose names begin with ``prefix``, ordered by name
        (:meth:`penstock_core.vocabulary.ports.Blobs.list`)."""
        blobs = []
        for name in self._names[bisect_left(self._names, prefix) :]:
            if not name.startswith(prefix):
                break
            blobs.append(BlobInfo(name, self._sizes[name]))
        return blobs

    async def delete(self, name: str) -> None:
        """Remove a blob and sync the removal, so that its name may be used again."""
        check_blob_name(name)
        if self._sizes.pop(name, None) is None:
            return
        del self._names[bisect_left(self._names, name)]
        await self._offload(lambda: self._delete(name))

    def local_path(self, name: str) -> str | None:
        """Return the path of the blob for other processes on this machine."""
        check_blob_name(name)
        return self._disk.local_path(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _find(self, directory: str) -> None:
        """Record the name and size of each blob below a directory, and delete temporary files
        there."""
        try:
            entries = self._disk.list(self._path(directory))
        except FileNotFoundError:
            return
        for entry in entries:
            name = f"{directory}/{entry.name}"
            if entry.is_directory:
                self._find(name)
            elif entry.name.startswith(_TEMPORARY):
                self._disk.unlink(self._path(name))
            else:
                self._sizes[name] = entry.size
                self._names.append(name)

    def _note(self, name: str, size: int) -> None:
        """Record that a blob is stored."""
        if name not in self._sizes:
            insort(self._names, name)
        self._sizes[name] = size

    def _put(self, name: str, chunks: Sequence[Buffer]) -> None:
        directory = self._path(name).rpartition("/")[0]
        temporary = f"{directory}/{_TEMPORARY}{next(self._numbers)}"
        try:
            if name in self._sizes:
                check_same(name, self._open(name), chunks)
                return
            make_directories(self._disk, directory, self._root)
            # Written and synced under another name first, so that after a crash a blob is either
            # complete or missing.
            write_all(self._disk, temporary, chunks)
            self._publish(name, temporary, chunks)
            self._disk.sync_directory(directory)
        except OSError as error:
            raise StorageFailed(f"{self._path(name)} could not be written: {error}") from error

    def _publish(self, name: str, temporary: str, chunks: Sequence[Buffer]) -> None:
        """Give a complete file the name of its blob."""
        try:
            self._disk.rename(temporary, self._path(name), replace=False)
        # An earlier call may have stored the blob, and was cancelled before it recorded the name.
        except FileExistsError:
            self._disk.unlink(temporary)
            check_same(name, self._open(name), chunks)
        except OSError:
            self._disk.unlink(temporary)
            raise

    def _delete(self, name: str) -> None:
        path = self._path(name)
        try:
            self._disk.unlink(path)
            self._disk.sync_directory(path.rpartition("/")[0])
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageFailed(f"{path} could not be removed: {error}") from error

    def _extend(self, name: str, at: int, chunks: Sequence[Buffer]) -> None:
        path = self._path(name)
        try:
            file = self._disk.open(path)
            try:
                self._replace(file, at, chunks)
            finally:
                self._disk.close(file)
        except FileNotFoundError:
            raise NameDoesNotExist(f"blob {name} does not exist") from None
        except OSError as error:
            raise StorageFailed(f"{path} could not be extended: {error}") from error

    def _replace(self, file: int, at: int, chunks: Sequence[Buffer]) -> None:
        """Replace the bytes of a file from ``at`` on; restore them if that fails."""
        size = self._disk.size(file)
        end = at + sum(memoryview(chunk).nbytes for chunk in chunks)
        before = self._disk.pread(file, size - at, at)
        try:
            self._disk.pwrite(file, chunks, at)
            if end < size:
                self._disk.truncate(file, end)
            self._disk.datasync(file)
        except OSError:
            with suppress(OSError):
                self._disk.truncate(file, at)  # frees the space of the write: the disk may be full
                self._disk.pwrite(file, [before], at)
                self._disk.datasync(file)
            raise

    def _open(self, name: str) -> memoryview:
        path = self._path(name)
        try:
            file = self._disk.open(path)
            try:
                return self._disk.map(file)
            finally:
                self._disk.close(file)
        except FileNotFoundError:
            raise NameDoesNotExist(f"blob {name} does not exist") from None
        except OSError as error:
            raise StorageFailed(f"{path} could not be read: {error}") from error
