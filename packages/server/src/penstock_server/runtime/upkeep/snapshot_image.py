"""Encodes a snapshot off the loop."""

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
    """Return the bytes of a snapshot. A thread builds the records piece by piece: Python's global
    lock can keep the event loop from running during a piece, but not for the whole snapshot."""
    while (complete := await offload(partial(_next_piece, records))) is None:
        pass
    return await offload(partial(_encoded, at_us, complete, bodies, format))


def _next_piece(records: Records) -> list[FactRecord] | None:
    """Build the next piece; return all records after the last piece, else None."""
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
    with uncollected():
        return with_checksum(encode_block(at_us, records, bodies, format=format))


def with_checksum(chunks: list[Buffer]) -> list[Buffer]:
    """Return the bytes of a snapshot, preceded by their checksum."""
    checksum = xxh3_64()
    for chunk in chunks:
        checksum.update(chunk)
    return [checksum.intdigest().to_bytes(8, "little"), *chunks]
