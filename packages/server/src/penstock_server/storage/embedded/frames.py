"""Journal format 1 in bytes, and how files are read back, intact or damaged.

A file has a header, then blocks, each padded to 8 bytes, then zeros up to the reserved size. All
numbers are little-endian::

    file   magic 8 | format u64 | journal id u64 | first seq u64 | previous u64 | check u64
    block  magic 8 | seq u64 | payload length u64 | synced u64 | previous u64 | checksum u64
           | check u64 | payload | padding

``checksum`` is xxh3_64 over the payload, seeded by xxh3_64 over the five fields before
``checksum``. So it covers the payload and these fields and, through ``previous`` (the checksum of
the block before), chains the blocks. ``check`` is xxh3_64 over the header alone, seeded by the
journal id. So a block with a damaged payload still shows where the next one starts, and published
bytes that look like a block are not mistaken for one. ``synced`` is the newest sequence known to be
on disk when the block was written: a bad block at or below it is damage, a bad block above it is
the tail of a power cut.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from xxhash import xxh3_64, xxh3_64_intdigest

from penstock_core.vocabulary.ports import Buffer

FORMAT = 1
"""Format of the journal's files."""
DIRECTORY_FORMAT = 2
"""Format of the data directory; since 2, scattered ids in facts and snapshots are packed."""

_FILE = struct.Struct("<8sQQQQQ")
_BLOCK = struct.Struct("<8sQQQQQQ")
_FILE_MAGIC = b"PNSTKJRN"
_JOIN_BELOW = 32 << 10
"""A block with fewer bytes than this is joined to one buffer, because the copy costs less than a
vectored write."""
_BLOCK_MAGIC = b"\xf1PNSTBLK"

FILE_HEADER_SIZE = _FILE.size
BLOCK_HEADER_SIZE = _BLOCK.size


class FileHeader(NamedTuple):
    """The header of a journal file."""

    identity: int
    first: int
    previous: int
    """Checksum of the block before ``first``; 0 for the first block, or if it is unknown."""


class BlockHeader(NamedTuple):
    """The header of a block."""

    seq: int
    length: int
    synced: int
    previous: int
    checksum: int


class JournalRange(NamedTuple):
    """A range of bytes in a journal file: one block, or unreadable bytes that replace one or more
    blocks."""

    seq: int
    span: int
    """Number of sequences in the range; 1 for a readable block."""
    start: int
    end: int
    header: BlockHeader | None
    reason: str
    """The reason why the range cannot be read; empty for an intact block."""


class Scan(NamedTuple):
    """The content of one file, in order."""

    pieces: list[JournalRange]
    end: int
    """Offset of the end of the last range."""
    trailing: int
    """Number of bytes from ``end`` to the last byte that is not zero."""
    synced: int
    """The highest value of the field ``synced`` in the intact block headers."""


BLOCK_BYTES_BESIDE = BLOCK_HEADER_SIZE + 8
"""Largest number of bytes that a block has in addition to its payload: the header and the
padding."""


def padded(length: int) -> int:
    """Return the bytes of a block with a payload of ``length``, including header and padding."""
    return BLOCK_HEADER_SIZE + (length + 7 & ~7)


def file_header(header: FileHeader) -> bytes:
    fields = _FILE.pack(_FILE_MAGIC, FORMAT, header.identity, header.first, header.previous, 0)
    return fields[:-8] + xxh3_64_intdigest(fields[:-8]).to_bytes(8, "little")


def read_file_header(data: Buffer) -> FileHeader | None:
    """Return the header of a journal file; None if it is damaged."""
    if len(data) < FILE_HEADER_SIZE:
        return None
    magic, number, identity, first, previous, check = _FILE.unpack_from(data)
    if magic != _FILE_MAGIC or number != FORMAT:
        return None
    if check != xxh3_64_intdigest(memoryview(data)[: FILE_HEADER_SIZE - 8]):
        return None
    return FileHeader(identity, first, previous)


def frame(
    chunks: Sequence[Buffer], identity: int, *, seq: int, synced: int, previous: int
) -> tuple[list[Buffer], BlockHeader]:
    """Return the chunks to write for one block, and its header."""
    length = 0
    for chunk in chunks:
        length += memoryview(chunk).nbytes
    # The first five fields are those before the checksum.
    covered = _BLOCK.pack(_BLOCK_MAGIC, seq, length, synced, previous, 0, 0)[:40]
    if length < _JOIN_BELOW:
        chunks = (b"".join(chunks),)
    hasher = xxh3_64(seed=xxh3_64_intdigest(covered))
    for chunk in chunks:
        hasher.update(chunk)
    checksum = hasher.intdigest()
    checked = covered + checksum.to_bytes(8, "little")
    check = xxh3_64_intdigest(checked, seed=identity)
    head = checked + check.to_bytes(8, "little")
    header = BlockHeader(seq, length, synced, previous=previous, checksum=checksum)
    if length < _JOIN_BELOW:
        return [b"".join((head, *chunks, bytes(-length % 8)))], header
    return [head, *chunks, bytes(-length % 8)], header


def read_block_header(data: Buffer, at: int, identity: int) -> BlockHeader | None:
    """Return the block header at ``at``; None if these bytes are not a header of this journal."""
    if at + BLOCK_HEADER_SIZE > len(data):
        return None
    magic, seq, length, synced, previous, checksum, check = _BLOCK.unpack_from(data, at)
    if magic != _BLOCK_MAGIC:
        return None
    if check != xxh3_64_intdigest(memoryview(data)[at : at + 48], seed=identity):
        return None
    return BlockHeader(seq, length, synced, previous=previous, checksum=checksum)


def is_whole(data: memoryview, at: int, header: BlockHeader) -> bool:
    """Whether the block at ``at`` is complete and its checksum is right."""
    body = at + BLOCK_HEADER_SIZE
    if body + header.length > len(data):
        return False
    seed = xxh3_64_intdigest(data[at : at + 40])
    return xxh3_64_intdigest(data[body : body + header.length], seed=seed) == header.checksum


def scan(data: bytes, identity: int, first: int) -> Scan:
    """Read all blocks in the bytes of a file; ``first`` is the sequence it should start with."""
    view = memoryview(data)
    pieces: list[JournalRange] = []
    position, expected, synced = FILE_HEADER_SIZE, first, 0
    while (located := _next_header(data, position, identity, expected=expected)) is not None:
        start, header = located
        # Bytes before the header, or a gap in the sequence, stand for damaged or missing blocks.
        if start > position and header.seq > expected:
            count = header.seq - expected
            pieces.append(
                JournalRange(
                    expected,
                    count,
                    position,
                    end=start,
                    header=None,
                    reason="the block header is damaged",
                )
            )
        elif header.seq > expected:
            count = header.seq - expected
            pieces.append(
                JournalRange(expected, count, position, end=position, header=None, reason="missing")
            )
        # A torn block may claim more bytes than the file has.
        end = min(start + padded(header.length), len(data))
        reason = "" if is_whole(view, start, header) else "the payload fails its checksum"
        pieces.append(JournalRange(header.seq, 1, start, end=end, header=header, reason=reason))
        synced = max(synced, header.synced)
        position, expected = end, header.seq + 1
    return Scan(pieces, position, _significant(view[position:]), synced=synced)


def _next_header(
    data: bytes, start: int, identity: int, expected: int
) -> tuple[int, BlockHeader] | None:
    """Return the first header from ``start`` on with a sequence of ``expected`` or more, and its
    offset."""
    position = start
    while position >= 0:
        header = read_block_header(data, position, identity)
        if header is not None and header.seq >= expected:
            return position, header
        position = data.find(_BLOCK_MAGIC, position + 1)
    return None


def _significant(trailing: memoryview) -> int:
    """Return the length of ``trailing`` without the zeros at its end."""
    # Usually `trailing` is reserved space of many megabytes, all zeros. This is checked without a
    # copy.
    if not trailing.nbytes or not np.frombuffer(trailing, dtype=np.uint8).any():
        return 0
    return len(bytes(trailing).rstrip(b"\0"))
