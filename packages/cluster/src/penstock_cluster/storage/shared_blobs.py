"""Blobs that nodes share: :class:`PrefixedBlobs` is the part of one shard in a store of several
shards, and :class:`CachedBlobs` keeps recently read copies on the disk of a node.

The cache lies over the part: ``CachedBlobs(PrefixedBlobs(blobs, "shard-7/"), FileBlobs(folder))``.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final
from weakref import WeakValueDictionary

from penstock_cluster.storage.checked_blobs import CheckedBlobs
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import (
    Conflict,
    InvalidArgument,
    NameDoesNotExist,
    StorageFailed,
)
from penstock_core.vocabulary.ports import BlobInfo, Blobs, Buffer, CopyCounts, Offload
from penstock_server.storage.blob_names import check_blob_name, end_of_range

_PREFIX: Final = re.compile(r"shard-[0-9]+/")
_CACHED: Final = "segments/"
"""Prefix of cached files. Snapshots are not cached after a read: each is read once, by the next
owner."""
_SNAPSHOTS: Final = "snapshots/"
"""Prefix of snapshots. The node also caches the two newest snapshots that it has written, so that
it can serve its cached history while the remote store does not answer (SEM N10)."""

_log = logger("penstock.storage")


class PrefixedBlobs:
    """The :class:`~penstock_core.vocabulary.ports.Blobs` of one shard, in a store of several."""

    def __init__(self, blobs: Blobs, prefix: str) -> None:
        """``prefix`` is ``shard-<number>/``. Raises ``InvalidArgument`` for any other."""
        if not _PREFIX.fullmatch(prefix):
            raise InvalidArgument(f"the prefix {prefix!r} is not of the form 'shard-7/'")
        self._blobs = blobs
        self._prefix = prefix

    @property
    def grows(self) -> bool:
        return self._blobs.grows

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        """Store a blob under a new name (:meth:`penstock_core.vocabulary.ports.Blobs.put`)."""
        await self._blobs.put(self._full_name(name), chunks)

    async def extend(self, name: str, at: int, chunks: Sequence[Buffer]) -> None:
        """Replace the bytes of a blob from offset ``at`` on
        (:meth:`penstock_core.vocabulary.ports.Blobs.extend`)."""
        await self._blobs.extend(self._full_name(name), at, chunks)

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        """Return the bytes of a blob, or ``length`` bytes from ``offset`` on
        (:meth:`penstock_core.vocabulary.ports.Blobs.get`)."""
        return await self._blobs.get(self._full_name(name), offset, length)

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        """Return the shard's blobs whose name starts with ``prefix``, ordered by name."""
        infos = await self._blobs.list(f"{self._prefix}{prefix}")
        return [BlobInfo(info.name.removeprefix(self._prefix), info.size) for info in infos]

    async def delete(self, name: str) -> None:
        """Remove a blob. A missing blob is not an error."""
        await self._blobs.delete(self._full_name(name))

    def local_path(self, name: str) -> str | None:
        """Return the path of the blob for other processes on this machine, or None."""
        return self._blobs.local_path(self._full_name(name))

    def _full_name(self, name: str) -> str:
        check_blob_name(name)
        return f"{self._prefix}{name}"


class CachedBlobs(CheckedBlobs):
    """The :class:`~penstock_core.vocabulary.ports.Blobs` of a remote store, with recently read
    segments on the disk of this node, where they are mapped.

    A segment is fetched once and completely; a segment larger than the cache is read in ranges.
    Fetched files are compared with the realm's checksums, and so are cached files of an earlier
    run: files with other bytes are fetched again. A cache that is lost or cannot be written only
    costs time.
    """

    _fixed_because = "nodes keep copies of it"

    def __init__(self, remote: Blobs, cache: Blobs, bytes_max: int, *, offload: Offload) -> None:
        """``cache`` belongs to this node and this store alone; it gets at most ``bytes_max``."""
        if bytes_max < 0:
            raise InvalidArgument(f"the cache has {bytes_max} bytes; it must have at least 0")
        super().__init__(cache, offload)
        self._remote = remote
        self._bytes_max = bytes_max
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """Bytes of each file in the cache, the most recently read one last."""
        self.copies = CopyCounts()
        self._is_loaded = False
        """Whether `_sizes` has the files of earlier runs."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        """Store a blob under a new name (:meth:`penstock_core.vocabulary.ports.Blobs.put`). The
        cache also gets a copy."""
        check_blob_name(name)
        await self._remote.put(name, chunks)
        if name.startswith(_CACHED):
            async with self._lock(name):
                # A file of an earlier run may have other bytes.
                if name in await self._loaded_sizes() and name not in self._checked:
                    await self._drop(name)
                if name not in self._sizes:
                    await self._store(name, chunks)
        elif name.startswith(_SNAPSHOTS):
            await self._store_snapshot(name, chunks)

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        """Return the bytes of a blob, or ``length`` bytes from ``offset`` on
        (:meth:`penstock_core.vocabulary.ports.Blobs.get`)."""
        check_blob_name(name)
        if not name.startswith(_CACHED):
            return await self._remote.get(name, offset, length)
        async with self._lock(name):
            if name in await self._loaded_sizes() and not await self._has_right_bytes(name):
                await self._drop(name)
            is_cached = name in self._sizes
            self.copies.hits += is_cached
            self.copies.misses += not is_cached
            if not is_cached:
                if await self._size(name) > self._bytes_max:
                    return await self._remote.get(name, offset, length)
                data = await self._remote.get(name)
                if not (await self._is_expected(name, data) and await self._store(name, [data])):
                    return data[offset : end_of_range(name, len(data), offset, length=length)]
            self._sizes.move_to_end(name)
            try:
                return await self._cache.get(name, offset, length)
            except (NameDoesNotExist, StorageFailed) as error:
                _log.warning("cache.unreadable", name=name, reason=str(error))
                await self._drop(name)
                return await self._remote.get(name, offset, length)

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        """Return the blobs whose names begin with ``prefix``, ordered by name
        (:meth:`penstock_core.vocabulary.ports.Blobs.list`)."""
        return await self._remote.list(prefix)

    async def delete(self, name: str) -> None:
        """Remove a blob, remotely and from the cache. A missing blob is not an error."""
        check_blob_name(name)
        async with self._lock(name):
            await self._remote.delete(name)
            if name in await self._loaded_sizes():
                await self._drop(name)

    def _lock(self, name: str) -> asyncio.Lock:
        """Return the lock of one file, which prevents a second fetch of it."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def _loaded_sizes(self) -> OrderedDict[str, int]:
        """Return the cached files; at first those of an earlier run."""
        if not self._is_loaded:
            self._is_loaded = True
            for info in await self._cache.list(_CACHED):
                self._sizes[info.name] = info.size
                self.copies.bytes += info.size
            await self._make_room(0)
        return self._sizes

    async def _has_right_bytes(self, name: str) -> bool:
        """Return whether the cached file was fetched in this run or has the realm's checksum."""
        if name in self._checked:
            return True
        if self._expected_sum(name) is None:
            return False
        try:
            data = await self._cache.get(name)
        except (NameDoesNotExist, StorageFailed):
            return False
        if not await self._is_expected(name, data):
            return False
        self._checked.add(name)
        return True

    async def _is_expected(self, name: str, data: memoryview) -> bool:
        """Return whether the bytes match the realm's checksum; log a mismatch."""
        expected = await self._find_mismatch(name, data)
        if expected is not None:
            _log.warning("cache.other_bytes", name=name, size=len(data), wanted=expected.size)
        return expected is None

    async def _size(self, name: str) -> int:
        """Return the size of a file. Raises ``NameDoesNotExist``."""
        if (expected := self._expected_sum(name)) is not None:
            return expected.size
        for info in await self._remote.list(name):
            if info.name == name:
                return info.size
        raise NameDoesNotExist(f"blob {name} does not exist")

    async def _store(self, name: str, chunks: Sequence[Buffer]) -> bool:
        """Store a file in the cache. Returns whether the cache has it afterwards."""
        size = sum(memoryview(chunk).nbytes for chunk in chunks)
        if size > self._bytes_max:
            return False
        await self._make_room(size)
        # The bytes count before the write, so that files written at the same time leave room for
        # them.
        self._sizes[name] = size
        self.copies.bytes += size
        try:
            await self._cache.put(name, chunks)
        except (Conflict, StorageFailed) as error:
            _log.warning("cache.not_written", name=name, reason=str(error))
            await self._drop(name)
            return False
        if name not in self._sizes:  # already evicted by other files
            await self._drop(name)
            return False
        self._checked.add(name)
        return True

    async def _store_snapshot(self, name: str, chunks: Sequence[Buffer]) -> None:
        """Keep a snapshot, and the newest of the others. It does not count as a segment."""
        if sum(memoryview(chunk).nbytes for chunk in chunks) > self._bytes_max:
            return
        try:
            others = [info.name for info in await self._cache.list(_SNAPSHOTS)]
            await self._cache.put(name, chunks)
            for obsolete in sorted({*others} - {name})[:-1]:
                await self._cache.delete(obsolete)
        except (Conflict, StorageFailed) as error:
            _log.warning("cache.not_written", name=name, reason=str(error))

    async def _make_room(self, size: int) -> None:
        """Drop the least recently read files until ``size`` more bytes fit."""
        while self._sizes and self.copies.bytes + size > self._bytes_max:
            await self._drop(next(iter(self._sizes)))

    async def _drop(self, name: str) -> None:
        """Remove a file from the cache."""
        self.copies.bytes -= self._sizes.pop(name, 0)
        self._checked.discard(name)
        try:
            await self._cache.delete(name)
        except StorageFailed as error:
            _log.warning("cache.not_written", name=name, reason=str(error))
