"""Large blocks: their bodies are stored in a blob, because the log of a storage engine suits small
blocks only.

A commit of staged batches may have gigabytes. The blob is written first; then the log gets the
facts, the first of which names the blob. The blob is removed after the journal was cut after the
block. Until then this owner and all later ones find the events in the blob or in segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from xxhash import xxh3_64, xxh3_64_intdigest

from penstock_core.messages.segments import BodiesApart
from penstock_core.vocabulary.errors import Damaged
from penstock_core.vocabulary.ports import Blobs, Buffer, Offload
from penstock_server.runtime.store.file_names import BLOCKS, FileNames, block_of_bodies
from penstock_server.runtime.store.records import (
    FactRecord,
    GroupHeader,
    bodies_in,
    decode_block,
    padded,
)

BLOCK_BYTES_MAX: Final = 64 << 20
"""Bytes of bodies above which a block keeps them in a blob."""


class LargeBlocks:
    """Stores the bodies of large blocks in blobs, for one owner."""

    def __init__(
        self, blobs: Blobs, names: FileNames, offload: Offload, bytes_max: int = BLOCK_BYTES_MAX
    ) -> None:
        self._blobs = blobs
        self._names = names
        self._offload = offload
        self._bytes_max = bytes_max

    async def move_bodies_out(
        self, sequence: int, records: list[FactRecord], bodies: list[Buffer]
    ) -> tuple[list[FactRecord], list[Buffer]]:
        """Store the bodies of the block ``sequence`` in a blob if they are too large for the log.
        Return the records and bodies to write to the log. Raises ``StorageFailed``."""
        size = sum([memoryview(body).nbytes for body in bodies])
        if size <= self._bytes_max:
            return records, bodies
        chunks = padded(bodies)
        size, checksum = await self._offload(lambda: _checksum(chunks))
        name = self._names.bodies(sequence)
        # Before the append: a stored fact must never name a blob that is missing.
        await self._blobs.put(name, chunks)
        return [FactRecord(0, BodiesApart(name, size, checksum)), *records], []

    async def forget(self, through: int) -> None:
        """Remove the blobs of blocks up to ``through``, because these blocks are no longer in the
        journal."""
        for info in await self._blobs.list(BLOCKS):
            if block_of_bodies(info.name) <= through and self._names.may_remove(info.name):
                await self._blobs.delete(info.name)


async def decode_whole(block: memoryview, blobs: Blobs) -> tuple[GroupHeader, Iterator[memoryview]]:
    """Return the header and bodies of a block, from the block or its blob. Raises ``Damaged``,
    ``NewerFormat``, and ``NameDoesNotExist`` if the blob was removed after a cut of the journal."""
    header, bodies = decode_block(block)
    first = header.records[0].fact if header.records else None
    if not isinstance(first, BodiesApart):
        return header, bodies
    data = await blobs.get(first.name)
    if (len(data), xxh3_64_intdigest(data)) != (first.size, first.checksum):
        raise Damaged(f"{first.name} (the bodies of a block) fails its checksum")
    return header, bodies_in(data, header, 0)


def _checksum(chunks: Sequence[Buffer]) -> tuple[int, int]:
    """Return the total bytes of ``chunks`` and the XXH3 checksum of all of them together."""
    size, checksum = 0, xxh3_64()
    for chunk in chunks:
        checksum.update(chunk)
        size += memoryview(chunk).nbytes
    return size, checksum.intdigest()
