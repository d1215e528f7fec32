"""A channel or queue as one file (SEM C7): the files of an export, one after the other.

The file is a tar of the folder that ``penstock channel export`` writes, so either can be imported
either way. The manifest comes first and the events last: an import checks each part as it comes,
and both sides hold one file of the export in memory, however large the channel is.
"""

from __future__ import annotations

import tarfile
from collections.abc import AsyncIterator
from typing import Final

from penstock_core.columns.files.exports import MANIFEST
from penstock_core.columns.files.tar_entries import BLOCK, padding
from penstock_core.vocabulary.errors import DamagedExport

MANIFEST_BYTES_MAX: Final = 64 << 20
PART_BYTES: Final = 1 << 20
"""Bytes passed to an import at a time."""
_ORDER: Final = (
    f"the tar must hold {MANIFEST}, then state.msgpack, then the events in the order of the "
    f"manifest, as an export over HTTP does"
)


class Tar:
    """Reads the files of a tar in order."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts
        self._held = bytearray()

    async def manifest(self) -> bytes:
        """The manifest's bytes. Raises ``DamagedExport`` unless the manifest comes first."""
        size = await self.begin(MANIFEST)
        if size > MANIFEST_BYTES_MAX:
            raise DamagedExport(
                f"{MANIFEST} has {size} bytes; at most {MANIFEST_BYTES_MAX} are allowed"
            )
        return b"".join([part async for part in self.content(size)])

    async def begin(self, name: str) -> int:
        """The size of the next file. Raises ``DamagedExport`` unless it is called ``name``."""
        while True:
            block = await self._take(BLOCK)
            try:
                entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except tarfile.HeaderError as error:
                raise DamagedExport(
                    f"this is not the tar file of an export: {name} was expected ({error}); "
                    f"{_ORDER}"
                ) from None
            if entry.isreg():
                break
            # Skip folders, and headers that other programs write before a file.
            async for _ in self.content(0 if entry.isdir() else entry.size):
                pass
        if entry.name.removeprefix("./") != name:
            raise DamagedExport(f"{entry.name[:200]!r} came, {name} was expected; {_ORDER}")
        return entry.size

    async def content(self, size: int) -> AsyncIterator[bytes]:
        """The bytes of the file that has begun; the caller must read all of them."""
        left = size
        while left:
            part = await self._take(min(left, PART_BYTES))
            left -= len(part)
            yield part
        await self._take(len(padding(size)))

    async def _take(self, size: int) -> bytes:
        while len(self._held) < size:
            part = await anext(self._parts, None)
            if part is None:
                raise DamagedExport(f"the tar file ends too early; {_ORDER}")
            self._held += part
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken
