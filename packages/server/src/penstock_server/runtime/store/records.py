"""The format of a journal block: facts of any channel, and the bodies that they refer to.

Layout of a block::

    u32 length of the header | header (msgpack) | padding to 8 | bodies, each padded to 8

A snapshot has the same layout: it is the shortest list of facts that leads to the same state.
The bodies of a very large block may be in a blob. Its first fact is then
:class:`~penstock_core.messages.segments.BodiesApart`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from penstock_core.messages.unions import LoggedFact
from penstock_core.vocabulary.errors import Damaged, NewerFormat
from penstock_core.vocabulary.formats import FORMAT
from penstock_core.vocabulary.ports import Buffer, PageSlot

_LENGTH = struct.Struct("<I")
_ALIGNMENT = 8
_PADDING = [bytes(n) for n in range(_ALIGNMENT)]


class BodyRef(Struct, frozen=True, array_like=True, gc=False):
    """A reference from a fact to the bytes of its events."""

    schema: int
    """Number of the schema; 0 if the body is not a batch of events."""
    size: int
    """Bytes of the body."""
    rows: int
    publisher: str = ""
    """The publisher, ``user@host`` (SEM E3)."""
    place: PageSlot | None = None
    """Slot of the bytes in the channel's pages; None if the bytes are in this block."""


class FactRecord(Struct, frozen=True, array_like=True, gc=False):
    """A fact as it is stored, with references to its bodies."""

    channel: int
    """Id of the channel; 0 for a fact about the realm itself."""
    fact: LoggedFact
    bodies: tuple[BodyRef, ...] = ()


class GroupHeader(Struct, frozen=True, array_like=True):
    """The header of a block: the time and the facts of a group."""

    at_us: int
    records: tuple[FactRecord, ...]


SINCE: dict[type[Struct], int] = {}
"""The format (``penstock_core.vocabulary.formats.FORMAT``) that introduced a fact; all others exist
since the first format. A fact is refused until all nodes of the cluster know it
(``penstock_server.runtime.store.newer_facts``)."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[GroupHeader] = msgspec.msgpack.Decoder(GroupHeader)


def encode_block(
    at_us: int, records: Sequence[FactRecord], bodies: Sequence[Buffer], format: int = FORMAT
) -> list[Buffer]:
    """Return the buffers of a block. ``bodies`` are the bodies of all records, in order. Every
    version that knows ``format`` can read the block."""
    # Facts that older nodes do not know have already been refused; a block with one would stop
    # them.
    if format < FORMAT:
        newer = [record.fact for record in records if SINCE.get(type(record.fact), 1) > format]
        assert not newer, f"nodes that know format {format} do not know {newer[0]}"
    header = _encoder.encode(GroupHeader(at_us, tuple(records)))
    start = _LENGTH.pack(len(header)) + header
    return [start + _PADDING[-len(start) % _ALIGNMENT], *padded(bodies)]


def padded(bodies: Sequence[Buffer]) -> list[Buffer]:
    """Return the buffers to write after a header: each body, padded to the alignment."""
    chunks: list[Buffer] = []
    for body in bodies:
        chunks.append(body)
        if padding := _PADDING[-len(body) % _ALIGNMENT]:
            chunks.append(padding)
    return chunks


def decode_block(block: memoryview) -> tuple[GroupHeader, Iterator[memoryview]]:
    """Return header and bodies. Raises ``Damaged`` if the bytes are not a block, and
    ``NewerFormat`` if it has a fact that this version does not know."""
    length = 0
    try:
        (length,) = _LENGTH.unpack_from(block)
        header = _decoder.decode(block[4 : 4 + length])
    except (struct.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if unknown := _unknown_fact(block[4 : 4 + length]):
            raise NewerFormat(
                f"the fact {unknown} has a form that this version of Penstock does not know; a "
                f"newer version wrote it: run that version or a later one"
            ) from error
        raise Damaged(f"a block cannot be decoded: {error}") from error
    return header, bodies_in(block, header, 4 + length)


def _unknown_fact(header: memoryview) -> str:
    """Return the name of the first unknown fact in an otherwise valid header; empty if the header
    is invalid. The checksum of the block was right, so a newer version wrote the unknown fact."""
    try:
        _, records, *_ = msgspec.msgpack.decode(header)
        for _, fact, *_ in records:
            if not isinstance(fact, list) or not isinstance(fact[0], str):
                return ""
            try:
                msgspec.convert(fact, LoggedFact)
            except msgspec.ValidationError:
                return fact[0]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    except (TypeError, ValueError, LookupError):  # the header has another form
        return ""
    return ""


def bodies_in(block: memoryview, header: GroupHeader, at: int) -> Iterator[memoryview]:
    """Yield the bodies of a block's records, which begin at offset ``at`` of ``block``. Raises
    ``Damaged`` if a body exceeds the block."""
    offset = at + -at % _ALIGNMENT
    for record in header.records:
        for ref in record.bodies:
            if ref.place is not None:
                continue
            if offset + ref.size > len(block):
                raise Damaged(f"a block of {len(block)} bytes ends inside a body")
            yield block[offset : offset + ref.size]
            offset += ref.size + -ref.size % _ALIGNMENT
