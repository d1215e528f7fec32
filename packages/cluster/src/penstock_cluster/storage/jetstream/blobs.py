"""Blobs on a replicated stream, for three machines without an object store.

A blob consists of chunks, each under a separate subject, and a head that names them. The head is
written last and completes the blob: chunks without a head are the remains of an interrupted writer.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct
from xxhash import xxh3_64_intdigest

from penstock_cluster.storage.jetstream.asking import Unanswered
from penstock_cluster.storage.jetstream.connection import (
    UNDER_WAY_MAX,
    JetStreamRefusal,
    NatsConnection,
    together,
)
from penstock_cluster.storage.jetstream.room import REGISTER_RESERVE_BYTES, EngineRoom
from penstock_cluster.storage.jetstream.stream import REPLICATED, WRONG_SEQUENCE, NatsStream, pauses
from penstock_core.vocabulary.errors import (
    Conflict,
    Damaged,
    NameDoesNotExist,
)
from penstock_core.vocabulary.ports import BlobInfo, Buffer, Clock
from penstock_server.storage.blob_names import check_blob_name, end_of_range
from penstock_server.storage.fixed_blobs import FixedBlobs

CHUNK_BYTES: Final = 512 << 10
"""Bytes of a chunk; the last one of a blob may be shorter."""
_SENT_AT_ONCE: Final = 8
"""Maximum number of chunks that are written or read concurrently."""
_CHECKSUM: Final = struct.Struct("<Q")
_ABANDONED_AFTER_US: Final = 3_600_000_000
"""Age in microseconds of chunks without a head after which their writer has certainly stopped."""


class BlobHead(Struct, frozen=True):
    """The head of a blob: its size, its checksum, and the subjects of its chunks."""

    size: int
    checksum: int
    """xxh3_64 of the whole blob."""
    where: str
    """Random token in the subjects of the blob's chunks; empty after the blob was deleted."""
    chunk_bytes: int

    @property
    def chunks(self) -> int:
        return max(1, -(-self.size // self.chunk_bytes)) if self.where else 0


_DELETED: Final = BlobHead(0, 0, "", chunk_bytes=CHUNK_BYTES)


class StreamBlobs(FixedBlobs):
    """The :class:`~penstock_core.vocabulary.ports.Blobs` in one stream."""

    _fixed_because = "blobs on the engine do not grow"

    def __init__(
        self,
        connection: NatsConnection,
        name: str,
        clock: Clock,
        chunk_bytes: int = CHUNK_BYTES,
        room: EngineRoom | None = None,
    ) -> None:
        self.stream: Final = NatsStream(connection, name)
        self._clock = clock
        self._chunk_bytes = chunk_bytes
        self._room = room or EngineRoom()

    @property
    def settings(self) -> Mapping[str, object]:
        """Settings for creating the stream."""
        return {
            **REPLICATED,
            "subjects": [f"{self.stream.name}.head.*", f"{self.stream.name}.chunk.>"],
            "max_msgs_per_subject": 1,
            "allow_rollup_hdrs": False,
        }

    async def open(self) -> StreamBlobs:
        """Create the stream, or verify an existing one, and remove the remains of interrupted
        writers."""
        await self.stream.make(self.settings)
        await self._remove_abandoned()
        return self

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        """Store a blob under a new name (:meth:`penstock_core.vocabulary.ports.Blobs.put`). Raises
        ``StorageFailed`` if the engine has no room."""
        check_blob_name(name)
        data = b"".join(chunks)
        head, revision = await self._head(name)
        # Each writer has its own chunks, so that two writers of one blob do not mix them.
        where = secrets.token_hex(16)
        new = BlobHead(len(data), xxh3_64_intdigest(data), where, chunk_bytes=self._chunk_bytes)
        if head is None:
            self._room.check(len(data), REGISTER_RESERVE_BYTES)
            await self._write_chunks(where, data)
            head = await self._write_head(name, new, revision)
            # Another writer has completed the blob first, with other chunks.
            if head.where != where:
                await self._remove_chunks(where)
        if (head.size, head.checksum) != (new.size, new.checksum):
            raise Conflict(f"{name} exists with other bytes")

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        """Return the bytes of a blob, or ``length`` bytes from ``offset`` on
        (:meth:`penstock_core.vocabulary.ports.Blobs.get`). Reads only the chunks of the range,
        which has to lie inside the blob."""
        check_blob_name(name)
        head, _ = await self._head(name)
        if head is None:
            raise NameDoesNotExist(f"blob {name} does not exist")
        end = end_of_range(name, head.size, offset, length=length)
        first = offset // head.chunk_bytes
        numbers = range(first, min(head.chunks, end // head.chunk_bytes + 1))
        try:
            data = await self.stream.on_each_copy(lambda: self._read_chunks(head.where, numbers))
        except Damaged as error:
            # Chunks of a blob that was deleted during the read are also missing.
            if (await self._head(name))[0] != head:
                raise NameDoesNotExist(f"blob {name} has just been deleted") from error
            raise
        begin = first * head.chunk_bytes
        return memoryview(data)[offset - begin : end - begin]

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        """Return the blobs whose names begin with ``prefix``, ordered by name
        (:meth:`penstock_core.vocabulary.ports.Blobs.list`)."""
        return [
            BlobInfo(name, head.size)
            for name, head in await self._heads()
            if name.startswith(prefix)
        ]

    async def delete(self, name: str) -> None:
        """Remove a blob. A missing blob is not an error."""
        check_blob_name(name)
        head, revision = await self._head(name)
        if head is None:
            return
        # The head first: a blob whose chunks are being removed must not be found.
        stored = await self._write_head(name, _DELETED, revision)
        if stored == _DELETED:
            await self._remove_chunks(head.where)

    def _head_subject(self, name: str) -> str:
        # In hexadecimal digits, because a name may contain characters that subjects do not allow.
        return f"{self.stream.name}.head.{name.encode().hex()}"

    def _chunk_subject(self, where: str, number: int | str) -> str:
        return f"{self.stream.name}.chunk.{where}.{number}"

    async def _head(self, name: str) -> tuple[BlobHead | None, int]:
        """Return the head of a blob (None without one) and its sequence in the stream; the sequence
        of a deleted head is also returned, because the next head replaces it."""
        message = await self.stream.newest(self._head_subject(name))
        if message is None:
            return None, 0
        head = msgspec.json.decode(message.data, type=BlobHead)
        return (head if head.where else None), message.seq

    async def _heads(self) -> Sequence[tuple[str, BlobHead]]:
        """Return all names with their heads, in order."""
        start = len(self._head_subject(""))
        subjects = await self.stream.subjects(f"{self.stream.name}.head.*")
        names = sorted(bytes.fromhex(subject[start:]).decode() for subject in subjects)
        heads_by_name = []
        for start_index in range(0, len(names), UNDER_WAY_MAX):
            batch = names[start_index : start_index + UNDER_WAY_MAX]
            heads = await together(self._head(name) for name in batch)
            heads_by_name += [
                (name, head)
                for name, (head, _) in zip(batch, heads, strict=True)
                if head is not None
            ]
        return heads_by_name

    async def _write_head(self, name: str, head: BlobHead, revision: int) -> BlobHead:
        """Store a head after the one at ``revision``. Returns the head that is stored in the
        end."""
        subject, data = self._head_subject(name), msgspec.json.encode(head)
        for pause in pauses():
            expected = {"Nats-Expected-Last-Subject-Sequence": f"{revision}"}
            try:
                revision = await self.stream.publish(subject, data, expected)
            except Unanswered:
                pass  # the next attempt shows whether this one was stored
            except JetStreamRefusal as refusal:
                if refusal.number in WRONG_SEQUENCE:
                    current, current_revision = await self._head(name)
                    if current is not None and (
                        current.where == head.where or current_revision != revision
                    ):
                        return current
                    if current is None and not head.where:
                        return _DELETED
                    revision = current_revision
            else:
                if not head.where:
                    # Its chunks are removed next, and slower writers have been stopped.
                    await self.stream.purge(subject=subject, below=revision + 1)
                return head
            await self.stream.pause(pause)
        raise AssertionError("pauses never end")

    async def _write_chunks(self, where: str, data: bytes) -> None:
        """Store the data of a blob in chunks; an empty blob has one empty chunk."""
        numbers = range(max(1, -(-len(data) // self._chunk_bytes)))
        for start in range(0, len(numbers), _SENT_AT_ONCE):
            await together(
                self._write_chunk(where, number, data)
                for number in numbers[start : start + _SENT_AT_ONCE]
            )

    async def _write_chunk(self, where: str, number: int, data: bytes) -> None:
        """Store one chunk, with its checksum, and repeat the write until it is acknowledged."""
        start = number * self._chunk_bytes
        chunk = memoryview(data)[start : start + self._chunk_bytes]
        # The number is the seed, so that a chunk in the place of another one fails its checksum.
        raw = b"".join((_CHECKSUM.pack(xxh3_64_intdigest(chunk, seed=number)), chunk))
        self._room.note_sent(len(raw))
        for pause in pauses():
            try:
                # A repeated write is harmless: a subject keeps its newest message.
                await self.stream.publish(self._chunk_subject(where, number), raw, {})
            except (Unanswered, JetStreamRefusal):
                await self.stream.pause(pause)
            else:
                return

    async def _read_chunks(self, where: str, numbers: range) -> bytes:
        chunks = []
        for start in range(0, len(numbers), _SENT_AT_ONCE):
            batch = numbers[start : start + _SENT_AT_ONCE]
            chunks += await together(self._read_chunk(where, number) for number in batch)
        return b"".join(chunks)

    async def _read_chunk(self, where: str, number: int) -> bytes:
        """Return the data of one chunk. Raises ``Damaged`` if it is missing or fails its
        checksum."""
        message = await self.stream.newest(self._chunk_subject(where, number))
        if message is None:
            raise Damaged(f"chunk {number} of {where} is missing")
        data = message.data[_CHECKSUM.size :]
        if message.data[: _CHECKSUM.size] != _CHECKSUM.pack(xxh3_64_intdigest(data, seed=number)):
            raise Damaged(f"chunk {number} of {where} fails its checksum")
        return data

    async def _remove_chunks(self, where: str) -> None:
        await self.stream.purge(subject=self._chunk_subject(where, "*"))

    async def _remove_abandoned(self) -> None:
        """Remove old chunks that belong to no head: their writer was interrupted."""
        firsts = await self.stream.subjects(self._chunk_subject("*", 0))
        chunk_subjects = {subject.split(".")[-2] for subject in firsts}
        # Read after the chunks: a blob that has a head by now is complete.
        referenced_subjects = {head.where for _, head in await self._heads()}
        for where in sorted(chunk_subjects - referenced_subjects):
            message = await self.stream.newest(self._chunk_subject(where, 0))
            if message is None:
                continue
            age_us = self._clock.now_us() - datetime.fromisoformat(message.time).timestamp() * 1e6
            if age_us > _ABANDONED_AFTER_US:
                await self._remove_chunks(where)
