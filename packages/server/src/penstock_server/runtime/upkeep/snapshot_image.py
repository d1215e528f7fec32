"""Encodes a snapshot in a thread, so that the event loop is not blocked."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial

from xxhash import xxh3_64

from penstock_core.garbage import uncollected
from penstock_core.vocabulary.ports import Buffer, Offload
from penstock_server.runtime.store.records import FactRecord, encode_block

Records = Generator[None, None, list[FactRecord]]
"""Builds the records of a snapshot, one piece for each step; the result is the list of records."""


async def encode_snapshot(
    offload: Offload, at_us: int, records: Records, bodies: Sequence[Buffer], format: int
) -> list[Buffer]:
    """Return the bytes of a snapshot. A thread builds the records in many short pieces, because
    Python's global lock may stop the event loop during a piece."""
    while (complete := await offload(partial(_next_piece, records))) is None:
        pass
    return await offload(partial(_encoded, at_us, complete, bodies, format))


def _next_piece(records: Records) -> list[FactRecord] | None:
    """Build the next piece. Return None, or all records after the last piece."""
    with uncollected():
        try:
            next(records)
        except StopIteration as end:
            complete: list[FactRecord] = end.value
            return complete
    return None


def _encoded(
    at_us: int, records: list[FactRecord], bodies: Sequence[Buffer], format: int
) -> list[Buffer]:
    """Return the bytes of a block with these records, preceded by its checksum."""
    with uncollected():
        return with_checksum(encode_block(at_us, records, bodies, format=format))


def with_checksum(chunks: list[Buffer]) -> list[Buffer]:
    """Return the bytes of a snapshot, preceded by their checksum."""
    checksum = xxh3_64()
    for chunk in chunks:
        checksum.update(chunk)
    return [checksum.intdigest().to_bytes(8, "little"), *chunks]
