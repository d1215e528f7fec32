"""The bytes of a snapshot, made beside the loop."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial

from xxhash import xxh3_64

from penstock_core.garbage import uncollected
from penstock_core.vocabulary.ports import Buffer, Offload
from penstock_server.runtime.store.records import FactRecord, encode_block

Records = Generator[None, None, list[FactRecord]]
"""What makes the records of a snapshot, piece by piece."""


async def made_beside(
    offload: Offload, at_us: int, records: Records, bodies: Sequence[Buffer], format: int
) -> list[Buffer]:
    """The bytes; between two pieces of the records the loop has its turn, as no other thread has
    while Python works on one."""
    while (made := await offload(partial(_piece, records))) is None:
        pass
    return await offload(partial(_encoded, at_us, made, bodies, format))


def _piece(records: Records) -> list[FactRecord] | None:
    """Make the next piece; all records, once they are made."""
    with uncollected():
        try:
            next(records)
        except StopIteration as end:
            made: list[FactRecord] = end.value
            return made
    return None


def _encoded(
    at_us: int, records: list[FactRecord], bodies: Sequence[Buffer], format: int
) -> list[Buffer]:
    with uncollected():
        return summed(encode_block(at_us, records, bodies, format=format))


def summed(chunks: list[Buffer]) -> list[Buffer]:
    """A snapshot's bytes with their checksum before them."""
    checksum = xxh3_64()
    for chunk in chunks:
        checksum.update(chunk)
    return [checksum.intdigest().to_bytes(8, "little"), *chunks]
