"""The files of a cluster that can be read while its engine has no quorum: files in the shared
place, if one is configured, and cached files on the node's disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from penstock_cluster.storage.checked_blobs import CheckedBlobs
from penstock_core.vocabulary.errors import (
    IllegalState,
    NameDoesNotExist,
    PenstockError,
    StorageFailed,
    Unavailable,
)
from penstock_core.vocabulary.ports import BlobInfo, Blobs, Buffer, Offload
from penstock_server.storage.blob_names import check_blob_name, end_of_range

T = TypeVar("T")

ANSWER_S: Final = 20.0
"""Seconds within which the shared place has to answer."""


class HistoryBlobs(CheckedBlobs):
    """The :class:`~penstock_core.vocabulary.ports.Blobs` of a reader. Nothing is written or
    removed, neither in the shared place nor on the node's disk."""

    _fixed_because = "these files are only read"

    def __init__(self, cache: Blobs, shared: Blobs | None, *, offload: Offload) -> None:
        """``shared`` is the file store outside of the engine; None if the files are on the engine,
        so that only the ``cache`` can be read."""
        super().__init__(cache, offload)
        self._shared = shared
        self.on_failure: Callable[[PenstockError], None] = lambda failure: None
        """Called with the failure of a read, before the reader gets it."""

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        """Return the bytes of a blob, or ``length`` bytes from ``offset`` on
        (:meth:`penstock_core.vocabulary.ports.Blobs.get`). Raises ``Unavailable`` if the shared
        place does not answer."""
        check_blob_name(name)
        try:
            data = await self._read(name)
        except PenstockError as failure:
            self.on_failure(failure)
            raise
        return data[offset : end_of_range(name, len(data), offset, length=length)]

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        """Return the readable files. Raises ``Unavailable``."""
        infos = {info.name: info for info in await self._cache.list(prefix)}
        if self._shared is not None:
            infos |= {info.name: info for info in await _answer_in_time(self._shared.list(prefix))}
        return sorted(infos.values(), key=lambda info: info.name)

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        """Raise ``IllegalState``."""
        raise IllegalState(f"{name} cannot be written: these files are only read")

    async def delete(self, name: str) -> None:
        """Do nothing: only the owner decides which files are obsolete."""

    async def _read(self, name: str) -> memoryview:
        """Return a whole file with the expected bytes, from the cache or from the shared place.
        Raises ``NameDoesNotExist``, ``StorageFailed``, ``Unavailable``."""
        try:
            data = await self._cache.get(name)
            if name in self._checked or await self._find_mismatch(name, data) is None:
                self._checked.add(name)
                return data
        # The shared place may have a file that the cache lacks or cannot read.
        except (NameDoesNotExist, StorageFailed):
            pass
        if self._shared is None:
            raise NameDoesNotExist(f"{name} is on the engine, and not on the disk of this node")
        data = await _answer_in_time(self._shared.get(name))
        if await self._find_mismatch(name, data) is not None:
            raise StorageFailed(f"{name} has other bytes than were sealed under this name")
        return data


async def _answer_in_time(pending: Awaitable[T]) -> T:
    """Return the answer of the shared file store. Raises ``Unavailable`` if it takes longer than
    ``ANSWER_S`` seconds."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await pending
    except TimeoutError:
        raise Unavailable(f"the shared file store has not answered for {ANSWER_S:.0f} s") from None
