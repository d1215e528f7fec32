"""Reads a channel or queue from a single file (SEM C7): a tar of the files of an export.

``penstock channel export`` writes the same files as a folder, so each form can be imported by the
command and over HTTP. The manifest is first and the events are last, so that an import can check
each part on arrival. Both sides have only one file of the export in memory, also for a large
channel.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from penstock_core.columns.files.exports import MANIFEST
from penstock_core.columns.files.tar_entries import BLOCK, padding
from penstock_core.vocabulary.errors import DamagedExport

MANIFEST_BYTES_MAX: Final = 64 << 20
PART_BYTES: Final = 1 << 20
"""Largest number of bytes passed to an import at once."""
_ORDER: Final = (
    f"the tar must hold {MANIFEST}, then state.msgpack, then the events in the order of the "
    f"manifest, as an export over HTTP does"
)


class Tar:
    """Reads the files of a tar in order."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts
        self._buffer = bytearray()

    async def manifest(self) -> bytes:
        """Return the manifest's bytes. Raises ``DamagedExport`` if the manifest is not the first
        file."""
        size = await self.begin(MANIFEST)
        if size > MANIFEST_BYTES_MAX:
            raise DamagedExport(
                f"{MANIFEST} has {size} bytes; at most {MANIFEST_BYTES_MAX} are allowed"
            )
        return b"".join([part async for part in self.content(size)])

    async def begin(self, name: str) -> int:
        """Return the size of the next file. Raises ``DamagedExport`` if its name is not
        ``name``."""
        import tarfile  # here, because only imports need it

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
            raise DamagedExport(
                f"the next file is {entry.name[:200]!r}, but {name} was expected; {_ORDER}"
            )
        return entry.size

    async def content(self, size: int) -> AsyncIterator[bytes]:
        """Yield the bytes of the current file; the caller must read all of them."""
        remaining = size
        while remaining:
            part = await self._take(min(remaining, PART_BYTES))
            remaining -= len(part)
            yield part
        await self._take(len(padding(size)))

    async def _take(self, size: int) -> bytes:
        """Return the next ``size`` bytes. Raises ``DamagedExport`` if the tar ends before."""
        while len(self._buffer) < size:
            part = await anext(self._parts, None)
            if part is None:
                raise DamagedExport(f"the tar file ends too early; {_ORDER}")
            self._buffer += part
        content = bytes(self._buffer[:size])
        del self._buffer[:size]
        return content
