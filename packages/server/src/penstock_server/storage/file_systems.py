"""Blobs on an Arrow file system: an object store, HDFS, or a folder.

These blobs serve for copies of files only. A realm cannot store its own files there, because an
object store does not refuse a name that two writers use at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import pyarrow as pa
from pyarrow import fs

from penstock_core.vocabulary.errors import (
    IllegalState,
    InvalidArgument,
    NameDoesNotExist,
    StorageFailed,
)
from penstock_core.vocabulary.ports import BlobInfo, Buffer, Offload
from penstock_server.storage.blob_names import check_blob_name, check_same, end_of_range

_IN_ONE_STEP: Final = ("s3", "gcs", "abfs")
"""Types of stores whose objects appear atomically when an upload is complete."""
_ASIDE: Final = ".put-"
"""Beginning of the names of files that are being written."""


class FileSystemBlobs:
    """The :class:`~penstock_core.vocabulary.ports.Blobs` in one folder, for one writer at a time.

    A blob is never visible in part: object stores show it when its upload is complete, and
    elsewhere it is written under another name and renamed. ``extend`` rewrites the whole blob.
    """

    def __init__(
        self,
        files: fs.FileSystem,
        folder: str,
        shown: str,
        *,
        offload: Offload,
        grows: bool = True,
    ) -> None:
        """Use a folder of a file system. ``shown`` is its name in error messages. ``grows`` must be
        False if several nodes write to the folder."""
        self.grows: Final = grows
        self._files = files
        self._folder = folder
        self._shown = shown
        self._offload = offload

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        """Store a blob under a new name (:meth:`penstock_core.vocabulary.ports.Blobs.put`)."""
        check_blob_name(name, of_shard=True)
        await self._offload(lambda: self._put(name, chunks))

    async def extend(self, name: str, at: int, chunks: Sequence[Buffer]) -> None:
        """Replace the bytes of a blob from offset ``at`` on
        (:meth:`penstock_core.vocabulary.ports.Blobs.extend`). A failure changes nothing. Raises
        ``IllegalState`` if the blobs do not grow."""
        check_blob_name(name, of_shard=True)
        if not self.grows:
            raise IllegalState(
                f"{self._shown}/{name} cannot be extended, because blobs of this store do not "
                f"grow; put another blob"
            )
        await self._offload(lambda: self._extend(name, at, chunks))

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        """Return the bytes of a blob, or ``length`` bytes from ``offset`` on
        (:meth:`penstock_core.vocabulary.ports.Blobs.get`). The range has to lie inside the blob."""
        check_blob_name(name, of_shard=True)
        return await self._offload(lambda: memoryview(self._get(name, offset, length)))

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        """Return the blobs whose names begin with ``prefix``, ordered by name
        (:meth:`penstock_core.vocabulary.ports.Blobs.list`)."""
        return await self._offload(lambda: self._list(prefix))

    async def delete(self, name: str) -> None:
        """Remove a blob. A missing blob is not an error."""
        check_blob_name(name, of_shard=True)
        await self._offload(lambda: self._delete(name))

    def local_path(self, name: str) -> str | None:
        """Return None, because the file system may be on another machine."""
        check_blob_name(name, of_shard=True)
        return None

    def _put(self, name: str, chunks: Sequence[Buffer]) -> None:
        with self._explain_errors(name, "written"):
            if self._size(name) is None:
                self._write(name, chunks)
                return
        # A repeated put is accepted if it has the same bytes, as in all blob stores.
        check_same(name, memoryview(self._get(name, 0, None)), chunks)

    def _extend(self, name: str, at: int, chunks: Sequence[Buffer]) -> None:
        with self._explain_errors(name, "extended"):
            size = self._size(name)
            if size is None:
                raise NameDoesNotExist(f"blob {name} does not exist at {self._shown}")
            if not 0 <= at <= size:
                raise InvalidArgument(f"{name} has {size} bytes; byte {at} is not in it")
            unchanged = (self._get(name, 0, at),) if at else ()
            self._write(name, (*unchanged, *chunks))

    def _get(self, name: str, offset: int, length: int | None) -> bytes:
        with self._explain_errors(name, "read"):
            try:
                opened = self._files.open_input_file(self._path(name))
            except FileNotFoundError:
                raise NameDoesNotExist(f"blob {name} does not exist at {self._shown}") from None
            with opened as file:
                end = end_of_range(name, file.size(), offset, length=length)
                return bytes(file.read_at(end - offset, offset)) if end > offset else b""

    def _list(self, prefix: str) -> Sequence[BlobInfo]:
        blobs = []
        with self._explain_errors(prefix, "listed"):
            # List only the folder of the prefix, so that the store reads no other names.
            inside = prefix.rpartition("/")[0]
            selector = fs.FileSelector(self._path(inside), recursive=True, allow_not_found=True)
            for info in self._files.get_file_info(selector):
                name = info.path[len(self._folder) :].lstrip("/")
                is_blob = info.type == fs.FileType.File and not info.base_name.startswith(_ASIDE)
                if is_blob and name.startswith(prefix):
                    blobs.append(BlobInfo(name, info.size))
        return sorted(blobs, key=lambda info: info.name)

    def _delete(self, name: str) -> None:
        with self._explain_errors(name, "removed"), suppress(FileNotFoundError):
            self._files.delete_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}" if name else self._folder

    def _size(self, name: str) -> int | None:
        info = self._files.get_file_info(self._path(name))
        return info.size if info.type == fs.FileType.File else None

    def _write(self, name: str, chunks: Sequence[Buffer]) -> None:
        path = self._path(name)
        if self._files.type_name in _IN_ONE_STEP:
            self._stream(path, chunks)
            return
        folder, _, last = path.rpartition("/")
        self._files.create_dir(folder, recursive=True)
        aside = f"{folder}/{_ASIDE}{last}"
        # Written under another name first, because these stores show a file while it is written.
        try:
            self._stream(aside, chunks)
            self._sync(aside)
            self._files.move(aside, path)
        except OSError:
            with suppress(OSError):
                self._files.delete_file(aside)
            raise
        self._sync(folder)

    def _stream(self, path: str, chunks: Sequence[Buffer]) -> None:
        """Write a file from chunks."""
        with self._files.open_output_stream(path) as stream:
            for chunk in chunks:
                stream.write(pa.py_buffer(chunk))

    def _sync(self, path: str) -> None:
        """Sync a local file. Other file systems store a file when it is closed."""
        if isinstance(self._files, fs.LocalFileSystem):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(file)
            finally:
                os.close(file)

    @contextmanager
    def _explain_errors(self, name: str, verb: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            reason = f"{error}".partition("\n")[0]
            raise StorageFailed(f"{self._shown}/{name} could not be {verb}: {reason}") from error
