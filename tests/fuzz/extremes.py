"""Well-formed native requests with extreme values: every field of every message, one at a time and
several together.

The messages are made from the types that the protocol decodes into, so new fields are included
automatically. Ordinary values refer to objects that :func:`furniture` creates: channel 1 with
events, a shared durable that holds some of them, a queue, an open transaction.
"""

from __future__ import annotations

import atexit
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from penstock_core.api.channels import CreateChannel, DescribeChannel
from penstock_core.api.durables import CreateDurable, ListDurables
from penstock_core.api.joins import Redrive
from penstock_core.api.publishing import PublishEvents, StageEvents
from penstock_core.api.realm import DescribeRealm
from penstock_core.api.subscriptions import Attach, Settle, Subscribe
from penstock_core.api.transactions import BeginTransaction
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.ipc import batch_bytes, schema_bytes
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, frame
from penstock_core.wire.native.tags import TAGS
from tests.fuzz import columns_extremes
from tests.fuzz.connections import Served
from tests.fuzz.values import usual_of, values_of

ROUNDS: Final = 12
"""Rounds with several extreme values at a time, for each message."""
LATER: Final = 21
"""Number of the request that is answered once those before it are done."""
PLAIN_BYTES_MAX: Final = 8 << 20
"""Batches up to this size are not compressed."""
EXAMPLES_A_REALM: Final = 8
"""A small number, because a request may delete the objects of the next ones."""


class Extremes(Served):
    """A realm with the objects that the requests refer to."""

    async def restart(self) -> None:
        await super().restart()
        for conversation_ in setup_conversations():
            await self.converse(conversation_)


def kinds() -> dict[str, inspect.StructType]:
    """Return every message that a client may send, by name."""
    union = inspect.type_info(wire.from_clients.knowing(*TAGS).type)
    assert isinstance(union, inspect.UnionType)
    types = [
        message_type for message_type in union.types if isinstance(message_type, inspect.StructType)
    ]
    return {message_type.cls.__name__: message_type for message_type in types}


def messages(name: str, seed: int = 0) -> Iterator[bytes]:
    """Yield headers of one kind of message: each field extreme by itself, then several at a
    time."""
    kind = kinds()[name]
    usual = [usual_of(field) for field in kind.fields]
    for index, field in enumerate(kind.fields):
        if field.name == "request":
            continue
        for value in values_of(field.type):
            yield _encoded(kind, [*usual[:index], value, *usual[index + 1 :]])
    chance = random.Random(f"{name} {seed}")
    for _ in range(ROUNDS):
        values = [
            usual_value
            if field.name == "request" or chance.random() < 0.4
            else chance.choice(list(values_of(field.type)))
            for usual_value, field in zip(usual, kind.fields, strict=True)
        ]
        yield _encoded(kind, values)


def _encoded(kind: inspect.StructType, values: Sequence[Any]) -> bytes:
    return msgspec.msgpack.encode([kind.tag, *values])


# --- conversations ---------------------------------------------------------------------


@lru_cache
def schema_and_batch() -> tuple[bytes, bytes]:
    batch = body_of([Event(b"%d" % n, properties={"n": n}) for n in range(10)])
    return schema_bytes(batch.schema), bytes(batch_bytes(batch))


def _frames(*messages: tuple[wire.Message, bytes]) -> bytes:
    return b"".join(
        part for message, body in messages for part in frame(wire.encode(message), body)
    )


def _hello(session: str) -> bytes:
    return PREFACE + _frames((wire.Hello("fuzz", session), b""))


def setup_conversations() -> list[bytes]:
    """Return conversations that create the objects of the requests: each is a separate client, to
    be played in order."""
    schema, body = schema_and_batch()
    exchanges: list[list[tuple[wire.Message, bytes]]] = [
        [(wire.Asked(1, CreateChannel("orders", Definition(keys={"n": 20}))), b"")],
        [(wire.Asked(1, CreateChannel("q", Definition(kind="queue"))), b"")],
        [(wire.Asked(1, CreateDurable(ChannelId(1), "d", "shared", start=FromEarliest())), b"")],
        [
            (wire.Schema(1), schema),
            (
                wire.Asked(1, PublishEvents(ChannelId(1), "p", 1, schema=1, sizes=(len(body),))),
                body,
            ),
        ],
        [
            (wire.Schema(1), schema),
            (
                wire.Asked(1, PublishEvents(ChannelId(2), "p", 2, schema=1, sizes=(len(body),))),
                body,
            ),
        ],
    ]
    return [_hello(f"furniture {n}") + _frames(*exchange) for n, exchange in enumerate(exchanges)]


def conversation(header: bytes, body: bytes = b"") -> bytes:
    """Return a conversation of a client that holds events of a durable, reads a channel, sends this
    header and body, and continues to work with the objects."""
    schema, batch = schema_and_batch()
    after: list[tuple[wire.Message, bytes]] = [
        (
            wire.Asked(
                10 + channel,
                PublishEvents(ChannelId(channel), f"p{channel}", 1, schema=1, sizes=(len(batch),)),
            ),
            batch,
        )
        for channel in (1, 2, 3)
    ]
    after += [
        (wire.Asked(20, DescribeChannel("orders")), b""),
        (wire.Asked(LATER, DescribeRealm()), b""),
        (wire.Asked(22, ListDurables(ChannelId(1))), b""),
        (wire.Asked(23, Settle(2, (Span(0, 1),))), b""),
        (wire.Asked(24, Redrive("q", "orders")), b""),
    ]
    return (
        _hello("s")
        + _frames(
            (wire.Schema(1), schema),
            (wire.Asked(1, Attach(ChannelId(1), 2, "d", window=5)), b""),
            (wire.Asked(2, Subscribe(ChannelId(1), 3, FromEarliest(), credit=2)), b""),
            (wire.Asked(3, BeginTransaction("tx", (ChannelId(1),))), b""),
            (wire.Asked(4, StageEvents(ChannelId(1), "st", 1, sizes=(len(batch),))), batch),
        )
        + b"".join(frame(header, body))
        + _frames(*after)
    )


@lru_cache
def publishes() -> Sequence[tuple[str, bytes]]:
    """Clients that publish and stage extreme columns, with their dictionaries as separate
    messages, and look at what became of them."""
    conversations = []
    for what, batch in columns_extremes.batches():
        codec = "zstd" if batch.nbytes > PLAIN_BYTES_MAX else None
        schema, bodies = columns_extremes.messages_of(batch, codec)
        sizes, body = tuple(map(len, bodies)), b"".join(bodies)
        messages_: list[tuple[wire.Message, bytes]] = [(wire.Schema(1), schema)]
        for channel in (1, 2):
            message = PublishEvents(ChannelId(channel), f"p{channel}", 1, schema=1, sizes=sizes)
            messages_.append((wire.Asked(10 + channel, message), body))
        messages_.append(
            (wire.Asked(13, StageEvents(ChannelId(1), "columns", 1, sizes=sizes)), body)
        )
        messages_.append(
            (wire.Asked(14, Subscribe(ChannelId(1), 3, FromEarliest(), credit=100)), b"")
        )
        messages_.append((wire.Asked(LATER, DescribeChannel("orders")), b""))
        conversations.append((f"publish: {what}", _hello("columns") + _frames(*messages_)))
    return tuple(conversations)


@lru_cache
def served() -> Extremes:
    server = Extremes(EXAMPLES_A_REALM)
    atexit.register(server.close)
    return server


def headers() -> list[bytes]:
    """Return some headers of each kind, for further changes."""
    return [header for name in kinds() for header in [*messages(name)][::25]]


def serve(data: bytes) -> None:
    """Send one header, as :func:`messages` makes them, without a body and with a batch as body."""
    served().handle(conversation(data))
    served().handle(conversation(data, schema_and_batch()[1]))
