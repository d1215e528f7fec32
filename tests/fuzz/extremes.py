"""Well-formed requests whose values are extreme: every field of every message, one at a time and
several together.

The messages are made from the types the protocol decodes into, so a field that is added is tried
without a word here. Where an ordinary value is needed, it names what :func:`_furnish` has made:
channel 1 with events, a shared durable that holds some of them, a queue, an open transaction.
"""

from __future__ import annotations

import atexit
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from penstock.api.channels import CreateChannel, DescribeChannel
from penstock.api.durables import CreateDurable, ListDurables
from penstock.api.joins import Redrive
from penstock.api.publishing import PublishEvents, StageEvents
from penstock.api.realm import DescribeRealm
from penstock.api.subscriptions import Attach, Settle, Subscribe
from penstock.api.transactions import BeginTransaction
from penstock.columns.events.body import body_of
from penstock.columns.events.event import Event
from penstock.columns.schema.ipc import batch_bytes, schema_bytes
from penstock.core.ids.ids import Span
from penstock.core.vocabulary.messages import Definition
from penstock.core.vocabulary.start_positions import FromEarliest
from penstock.wire.native import messages as wire
from penstock.wire.native.frames import PREFACE, frame
from tests.fuzz.connections import Served

INTEGERS: Final = (
    *(-(2**63), -(2**31) - 1, -2, -1, 0, 1, 2, 3, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53),
    *(2**62, 2**63 - 3, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 1),
)
TEXTS: Final = (
    *("", "a", "orders", "d", "/", "..", "*", "\x00", "\u202e", "\U0001f600" * 64, "x" * 255),
    *("x" * 256, "x" * 70_000, "a LIKE '" + "%a" * 300 + "'", "NOT " * 500 + "a = 1"),
)
BYTES: Final = (b"", b"\x00", b"\xff" * 300, b"x" * 100_000)
ROUNDS: Final = 12
"""Of several extreme values at a time, for each message."""
EXAMPLES_A_REALM: Final = 8
"""Few: a request may delete what the next ones are about."""


class Extremes(Served):
    """A realm with something in it, and a client that has its hands on all of it."""

    async def _restart(self) -> None:
        await super()._restart()
        for said in _furniture():
            await self.converse(said)


def kinds() -> dict[str, inspect.StructType]:
    """Every message a client may send, by name."""
    union = inspect.type_info(wire.FromClient)
    assert isinstance(union, inspect.UnionType)
    found = [each for each in union.types if isinstance(each, inspect.StructType)]
    return {each.cls.__name__: each for each in found}


def messages(name: str, seed: int = 0) -> Iterator[bytes]:
    """Headers of one kind of message: each field extreme by itself, then several at a time."""
    kind = kinds()[name]
    usual = [_usual(field) for field in kind.fields]
    for at, field in enumerate(kind.fields):
        if field.name == "request":
            continue
        for value in _extremes(field.type):
            yield _encoded(kind, [*usual[:at], value, *usual[at + 1 :]])
    chance = random.Random(f"{name} {seed}")
    for _ in range(ROUNDS):
        values = [
            before
            if field.name == "request" or chance.random() < 0.4
            else chance.choice(list(_extremes(field.type)))
            for before, field in zip(usual, kind.fields, strict=True)
        ]
        yield _encoded(kind, values)


def _encoded(kind: inspect.StructType, values: Sequence[Any]) -> bytes:
    return msgspec.msgpack.encode([kind.tag, *values])


USUAL: Final[dict[str, Any]] = {
    "request": 77,
    "channel": 1,
    "channels": (1,),
    "subscription": 2,
    "name": "orders",
    "durable": "d",
    "session": "fuzz",
    "client": "fuzz",
    "schema": 1,
    "number": 1,
    "first_id": 0,
    "end_id": 3,
    "last_id": 3,
    "source": "orders",
    "destination": "q",
    "transaction": "tx",
    "stages": ("st",),
    "parts": (),
    "leaving": (),
    "selector": "",
    "kind": "channel",
    "credit": 5,
    "count": 5,
}


def _usual(field: inspect.Field) -> Any:
    if field.name in USUAL and (
        field.name != "kind" or isinstance(field.type, inspect.LiteralType)
    ):
        return USUAL[field.name]
    if field.name == "kind":
        return "shared"
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return next(iter(_extremes(field.type, usual=True)))


def _extremes(kind: inspect.Type, *, usual: bool = False) -> Iterator[Any]:
    """Values of a type that its decoder takes or has to refuse; the first is nothing special."""
    match kind:
        case inspect.IntType():
            yield 1
            yield from INTEGERS
        case inspect.FloatType():
            yield from (1.0, -1.0, float("inf"), float("nan"), 1e308)
        case inspect.BoolType():
            yield from (False, True)
        case inspect.StrType():
            yield from ("a", *TEXTS)
        case inspect.BytesType():
            yield from BYTES
        case inspect.NoneType() | inspect.AnyType():
            yield None
        case inspect.LiteralType(values):
            yield from (*values, "nonsense")
        case inspect.UnionType(types):
            for each in types:
                yield from _extremes(each)
        case _:
            yield from _of_several(kind)


def _of_several(kind: inspect.Type) -> Iterator[Any]:
    match kind:
        case inspect.StructType():
            yield from _structs(kind)
        case inspect.NamedTupleType():
            yield (0, 3)  # a span
            yield from ((first, first + 1) for first in INTEGERS if first + 1 < 2**64)
            yield from ((0, end) for end in INTEGERS)
            yield from ((5, 2), (2**63 - 1, 2**63 - 1))
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            each = list(_extremes(item))
            yield (each[0],)
            yield ()
            yield from ((one,) for one in each)
            yield tuple(each[:1] * 3_000)
        case inspect.TupleType(item_types=items):
            parts = [list(_extremes(one)) for one in items]
            yield tuple(part[0] for part in parts)
            for at, part in enumerate(parts):
                for value in part:
                    yield tuple(value if i == at else p[0] for i, p in enumerate(parts))
        case inspect.DictType():
            keys, values = list(_extremes(kind.key_type)), list(_extremes(kind.value_type))
            yield {}
            yield from ({key: values[0]} for key in keys)
            yield from ({keys[0]: value} for value in values)
            yield {f"k{i}": values[0] for i in range(3_000)}
        case _:
            raise AssertionError(f"no extreme values are known of {kind}")


def _structs(kind: inspect.StructType) -> Iterator[Any]:
    usual = {field.encode_name: _usual(field) for field in kind.fields}
    tag = {} if kind.tag is None else {kind.tag_field: kind.tag}

    def made(values: dict[str, Any]) -> Any:
        if kind.array_like:
            return [*tag.values(), *values.values()]
        return {**tag, **values}

    yield made(usual)
    for field in kind.fields:
        for value in _extremes(field.type):
            yield made({**usual, field.encode_name: value})


# --- asking ------------------------------------------------------------------------------


@lru_cache
def _batch() -> tuple[bytes, bytes]:
    batch = body_of([Event(b"%d" % n, properties={"n": n}) for n in range(10)])
    return schema_bytes(batch.schema), bytes(batch_bytes(batch))


def _frames(*messages: tuple[wire.Message, bytes]) -> bytes:
    return b"".join(
        part for message, body in messages for part in frame(wire.encode(message), body)
    )


def _hello(session: str) -> bytes:
    return PREFACE + _frames((wire.Hello("fuzz", session), b""))


def _furniture() -> list[bytes]:
    """What there is for the requests to speak of: each by a client of its own, one after the
    other."""
    schema, body = _batch()
    said: list[list[tuple[wire.Message, bytes]]] = [
        [(wire.Asked(1, CreateChannel("orders", Definition(keys={"n": 20}))), b"")],
        [(wire.Asked(1, CreateChannel("q", Definition(kind="queue"))), b"")],
        [(wire.Asked(1, CreateDurable(1, "d", "shared", FromEarliest())), b"")],
        [
            (wire.Schema(1), schema),
            (wire.Asked(1, PublishEvents(1, "p", 1, 1, (len(body),))), body),
        ],
        [
            (wire.Schema(1), schema),
            (wire.Asked(1, PublishEvents(2, "p", 2, 1, (len(body),))), body),
        ],
    ]
    return [_hello(f"furniture {n}") + _frames(*each) for n, each in enumerate(said)]


def conversation(header: bytes, body: bytes = b"") -> bytes:
    """A client that holds events of a durable, reads a channel, says this, and goes on working
    with whatever it has made."""
    schema, batch = _batch()
    after: list[tuple[wire.Message, bytes]] = [
        (
            wire.Asked(10 + channel, PublishEvents(channel, f"p{channel}", 1, 1, (len(batch),))),
            batch,
        )
        for channel in (1, 2, 3)
    ]
    after += [
        (wire.Asked(20, DescribeChannel("orders")), b""),
        (wire.Asked(21, DescribeRealm()), b""),
        (wire.Asked(22, ListDurables(1)), b""),
        (wire.Asked(23, Settle(2, (Span(0, 1),))), b""),
        (wire.Asked(24, Redrive("q", "orders")), b""),
    ]
    return (
        _hello("s")
        + _frames(
            (wire.Schema(1), schema),
            (wire.Asked(1, Attach(1, 2, "d", 5)), b""),
            (wire.Asked(2, Subscribe(1, 3, FromEarliest(), 2)), b""),
            (wire.Asked(3, BeginTransaction("tx", (1,))), b""),
            (wire.Asked(4, StageEvents(1, "st", 1, (len(batch),))), batch),
        )
        + b"".join(frame(header, body))
        + _frames(*after)
    )


@lru_cache
def served() -> Extremes:
    made = Extremes(EXAMPLES_A_REALM)
    atexit.register(made.close)
    return made


def headers() -> list[bytes]:
    """Some of each kind, to be changed further."""
    return [header for name in kinds() for header in [*messages(name)][::25]]


def serve(data: bytes) -> None:
    """One header, as :func:`messages` makes them, without a body and with a batch as its body."""
    served().take(conversation(data))
    served().take(conversation(data, _batch()[1]))
