"""Blobs in PostgreSQL, for clusters without an object store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from xxhash import xxh3_64

from penstock_cluster.storage.postgres.journal import signed
from penstock_cluster.storage.postgres.servers import CONFIRM, Servers
from penstock_core.vocabulary.errors import (
    Conflict,
    Damaged,
    NameDoesNotExist,
)
from penstock_core.vocabulary.ports import BlobInfo, Buffer
from penstock_server.storage.blob_names import check_blob_name, end_of_range
from penstock_server.storage.fixed_blobs import FixedBlobs

PART_BYTES: Final = 4 << 20
"""Bytes of one part; a part is a row."""

HEAD: Final = "SELECT size, checksum FROM penstock_blob WHERE store = $1 AND name = $2"
ADD: Final = """
INSERT INTO penstock_blob VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING RETURNING size
"""
PARTS: Final = """
SELECT body FROM penstock_blob_part
WHERE store = $1 AND name = $2 AND part BETWEEN $3 AND $4 ORDER BY part
"""
LIST: Final = """
SELECT name, size FROM penstock_blob WHERE store = $1 AND starts_with(name, $2) ORDER BY name
"""
DELETE: Final = """
WITH gone AS (DELETE FROM penstock_blob_part WHERE store = $1 AND name = $2)
DELETE FROM penstock_blob WHERE store = $1 AND name = $2
"""


class PostgresBlobs(FixedBlobs):
    """The :class:`~penstock_core.vocabulary.ports.Blobs` of one shard. The commit that has all
    parts of a blob creates it."""

    _fixed_because = "blobs on PostgreSQL do not grow"

    def __init__(self, servers: Servers, store: str) -> None:
        self._servers = servers
        self._store = store

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        """Store a blob under a new name (:meth:`penstock_core.vocabulary.ports.Blobs.put`)."""
        check_blob_name(name)
        size, digest = 0, xxh3_64()
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            digest.update(view)
            size += len(view)
        head = size, signed(digest.intdigest())
        if not await self._servers.ask(
            lambda c: self._put(c, name, head, chunks=chunks), size=size
        ):
            stored = await self._servers.ask(lambda c: c.fetchrow(HEAD, self._store, name))
            if stored is not None and tuple(stored) != head:
                raise Conflict(f"{name} exists with other bytes")

    async def _put(
        self, connection: Any, name: str, head: tuple[int, int], chunks: Sequence[Buffer]
    ) -> bool:
        """Store a blob in one transaction. Return False if a blob of this name exists."""
        async with connection.transaction():
            if await connection.fetchval(ADD, self._store, name, *head) is None:
                # The row may be visible before a standby has it; this commit also waits for that.
                await connection.execute(CONFIRM)
                return False
            rows = (
                (self._store, name, number, part) for number, part in enumerate(parts_of(chunks))
            )
            await connection.copy_records_to_table("penstock_blob_part", records=rows)
            return True

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        """Return the bytes of a blob, or ``length`` bytes from ``offset`` on
        (:meth:`penstock_core.vocabulary.ports.Blobs.get`). The range has to lie inside the blob.
        Raises ``Damaged`` if the bytes of a whole blob differ from those stored."""
        check_blob_name(name)
        head = await self._servers.ask(lambda c: c.fetchrow(HEAD, self._store, name))
        if head is None:
            raise NameDoesNotExist(f"blob {name} does not exist")
        size = head["size"]
        end = end_of_range(name, size, offset, length=length)
        if offset == end:
            return memoryview(b"")
        first, last = offset // PART_BYTES, (end - 1) // PART_BYTES
        rows = await self._servers.ask(
            lambda c: c.fetch(PARTS, self._store, name, first, last), size=end - offset
        )
        data = memoryview(b"".join([row["body"] for row in rows]))
        if len(data) < end - first * PART_BYTES:
            await self._check_exists(name)
            raise Damaged(f"{name}: a part of it is missing in penstock_blob_part")
        if (offset, end) == (0, size) and signed(xxh3_64(data).intdigest()) != head["checksum"]:
            raise Damaged(f"{name}: its checksum does not match")
        return data[offset - first * PART_BYTES : end - first * PART_BYTES]

    async def _check_exists(self, name: str) -> None:
        """Raise ``NameDoesNotExist`` if the blob was removed between two reads."""
        if await self._servers.ask(lambda c: c.fetchrow(HEAD, self._store, name)) is None:
            raise NameDoesNotExist(f"blob {name} does not exist")

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        """Return the blobs whose names begin with ``prefix``, ordered by name
        (:meth:`penstock_core.vocabulary.ports.Blobs.list`)."""
        rows = await self._servers.ask(lambda c: c.fetch(LIST, self._store, prefix))
        return [BlobInfo(row["name"], row["size"]) for row in rows]

    async def delete(self, name: str) -> None:
        """Remove a blob. A missing blob is not an error."""
        check_blob_name(name)
        await self._servers.ask(lambda c: c.execute(DELETE, self._store, name))


def parts_of(chunks: Sequence[Buffer]) -> Iterator[bytes]:
    """Yield the bytes of all chunks in parts of ``PART_BYTES``, the last one shorter."""
    buffer = bytearray()
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        while view:
            count = PART_BYTES - len(buffer)
            buffer += view[:count]
            view = view[count:]
            if len(buffer) == PART_BYTES:
                yield bytes(buffer)
                buffer.clear()
    if buffer:
        yield bytes(buffer)
