"""The columns of plain messages, and single plain messages as events without Arrow.

Most clients send one message at a time. Its event is encoded from a template and read from its
bytes, so that Arrow parses it only if a selector, a native reader or a segment needs the columns.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from penstock_core.columns.events.single_event import SingleEventCodec, trusted_codec_of
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.topic_templates import TOPIC
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.store.tail_batch import TailBatch

TOPICS: Final = pa.struct([(TOPIC, pa.string())])
CLIENTS: Final = pa.struct([("application_id", pa.string())])
SCHEMA: Final = pa.schema([("data", pa.binary()), ("properties", TOPICS), ("headers", CLIENTS)])
SCHEMA_OF_BOTH: Final = SCHEMA.append(pa.field("persistent", pa.bool_()))
"""The schema if only some of the messages persist."""

_VOLATILE: Final = (Span(0, 1),)
"""Offsets of the volatile events in a batch of one event of QoS 0."""


class PlainEvent(NamedTuple):
    """A plain message as it is stored."""

    payload: bytes
    topic: str
    client_id: str
    persists: bool = True


@cache
def _codec_of_persistent() -> SingleEventCodec:
    """Return the codec of messages of QoS 1. It is built for the first message, because building it
    takes a millisecond of a server's start."""
    return _codec_of(SCHEMA)


@cache
def _codec_of_both() -> SingleEventCodec:
    """Return the codec of messages of QoS 0, built as that of QoS 1."""
    return _codec_of(SCHEMA_OF_BOTH)


def _codec_of(schema: pa.Schema) -> SingleEventCodec:
    codec = trusted_codec_of(schema)
    assert codec is not None, "the columns of plain messages have templates"
    return codec


def _codec(*, persists: bool) -> SingleEventCodec:
    return _codec_of_persistent() if persists else _codec_of_both()


def body_of_single(message: PlainEvent) -> Body | None:
    """Return the body of one message, with the bytes that Arrow would write; None if the message is
    too large for a template."""
    codec = _codec(persists=message.persists)
    values = message[:3] if message.persists else message
    encoded = codec.encode_with_digest(values)
    if encoded is None:
        return None
    message_bytes, digest = encoded
    if not message.persists:
        digest = replace(digest, volatile=_VOLATILE)
    return Body(
        message_bytes,
        None,
        codec.schema_message,
        known_digest=digest,
        names=codec.names,
        codec=codec,
    )


def single_event_of(tail_batch: TailBatch) -> PlainEvent | None:
    """Return the event of a published batch, read from its bytes; None unless the batch is one
    plain message in the form of a template. Checks all bytes, because other clients may publish
    batches of the same schema."""
    if tail_batch.end - tail_batch.first != 1:
        return None
    for persists in (True, False):
        codec = _codec(persists=persists)
        if tail_batch.schema.equals(codec.schema, check_metadata=True):
            values = codec.values_of(bytes(tail_batch.body))
            return None if values is None else PlainEvent(*values)
    return None
