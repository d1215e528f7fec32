"""One table of extreme values for the requests of every protocol.

:func:`values_of` yields values for a type that a decoder decodes into: those of the table and, if
the type has bounds, the values just beyond them. So new fields of any message are included
automatically. The first value of a type is ordinary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from penstock_core import bounds

INTEGERS: Final = (
    -(2**63),
    -(2**31) - 1,
    -2,
    -1,
    0,
    1,
    2,
    3,
    255,
    256,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**62,
    2**63 - 3,
    2**63 - 2,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
FLOATS: Final = (-1.0, 0.0, 1e-308, 1e308, float("inf"), -float("inf"), float("nan"))
LENGTHS: Final = tuple(
    sorted({value + 1 for name, value in vars(bounds).items() if name.endswith("CHARACTERS_MAX")})
)
"""Lengths of texts: one more than each bound on a text."""
TEXTS: Final = (
    "",
    "a",
    "orders",
    "d",
    "/",
    "..",
    "*",
    "\x00",
    "\u202e",
    "\U0001f600" * 64,
    "x" * 255,
    *("x" * length for length in LENGTHS),
    "x" * (1 << 20),
    "a LIKE '" + "%a" * 300 + "'",
    "NOT " * 500 + "a = 1",
)
BYTES: Final = (b"", b"\x00", b"\xff" * 300, b"x" * 100_000)
MANY: Final = 3_000
"""Number of items in a list without a bound."""
DEPTH: Final = 100_000


class Form(NamedTuple):
    """Values that an encoding can express but Python's types or their encoder cannot."""

    nested: msgspec.Raw
    """Lists inside lists."""
    numbers: tuple[msgspec.Raw, ...]


NATIVE: Final = Form(msgspec.Raw(b"\x91" * DEPTH + b"\xc0"), ())
JSON: Final = Form(
    msgspec.Raw(b"[" * DEPTH + b"]" * DEPTH),
    tuple(
        map(
            msgspec.Raw,
            (b"18446744073709551616", b"-9223372036854775809", b"1e999", b"9" * 400, b"NaN"),
        )
    ),
)

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
"""Ordinary values by field name, which make a request with one extreme field otherwise
plausible."""


def usual_of(field: inspect.Field) -> Any:
    is_choice = isinstance(field.type, inspect.LiteralType)
    if field.name == "kind" and not is_choice:
        return "shared"
    usual = USUAL.get(field.name)
    if usual is not None and not (isinstance(usual, int) and is_text(field.type)):
        return usual
    if field.default is not msgspec.NODEFAULT:
        return field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return next(values_of(field.type))


def is_text(kind: inspect.Type) -> bool:
    """Return whether a type accepts texts."""
    if isinstance(kind, inspect.Metadata):
        return is_text(kind.type)
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return any(isinstance(member, inspect.StrType) for member in kinds)


def values_of(kind: inspect.Type, form: Form = NATIVE) -> Iterator[Any]:
    """Yield values that the decoder of a type accepts or has to refuse."""
    match kind:
        case inspect.Metadata(type=inner):
            yield from values_of(inner, form)
        case inspect.UnionType(types):
            for member in types:
                yield from values_of(member, form)
        case inspect.BoolType():
            yield from (False, True)
        case inspect.NoneType() | inspect.AnyType():
            yield None
        case inspect.LiteralType(values):
            yield from (*values, "nonsense")
        case inspect.StructType() | inspect.DictType() | inspect.TupleType():
            yield from _composites(kind, form)
        case inspect.NamedTupleType():
            yield (0, 3)  # a span
            yield from ((first, first + 1) for first in INTEGERS if first + 1 < 2**64)
            yield from ((0, end) for end in INTEGERS)
            yield from ((5, 2), (2**63 - 1, 2**63 - 1))
        case inspect.VarTupleType() | inspect.ListType():
            yield from _lists(kind, form)
        case _:
            yield from _scalars(kind, form)
    yield form.nested


def _scalars(kind: inspect.Type, form: Form) -> Iterator[Any]:
    match kind:
        case inspect.IntType(ge=least, le=most):
            yield 1
            yield from INTEGERS
            if least is not None and least > -(2**63):
                yield least - 1
            if most is not None and most < 2**64 - 1:
                yield most + 1
            yield from form.numbers
        case inspect.FloatType():
            yield from (1.0, *FLOATS, *form.numbers)
        case inspect.StrType(max_length=most):
            yield from ("a", *TEXTS)
            if most is not None:
                yield "x" * (most + 1)
        case inspect.BytesType():
            yield from BYTES
        case inspect.DateTimeType():
            yield from ("2026-05-04T12:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:60+24:00")
        case _:
            raise AssertionError(f"no extreme values are known of {kind}")


def _lists(kind: inspect.VarTupleType | inspect.ListType, form: Form) -> Iterator[Any]:
    items = list(values_of(kind.item_type, form))
    yield (items[0],)
    yield ()
    yield from ((item,) for item in items)
    yield tuple(items[:1] * (MANY if kind.max_length is None else kind.max_length + 1))


def _composites(
    kind: inspect.StructType | inspect.DictType | inspect.TupleType, form: Form
) -> Iterator[Any]:
    match kind:
        case inspect.StructType():
            yield from (value for _, value in structs_of(kind, form))
        case inspect.DictType():
            keys = list(values_of(kind.key_type, form))
            values = list(values_of(kind.value_type, form))
            yield {}
            yield from ({key: values[0]} for key in keys if not isinstance(key, msgspec.Raw))
            yield from ({"k": value} for value in values)
            yield {f"k{i}": values[0] for i in range(MANY)}
        case inspect.TupleType(item_types=items):
            parts = [list(values_of(one, form)) for one in items]
            yield tuple(part[0] for part in parts)
            for position, part in enumerate(parts):
                for value in part:
                    yield tuple(value if i == position else p[0] for i, p in enumerate(parts))


def structs_of(kind: inspect.StructType, form: Form = NATIVE) -> Iterator[tuple[str, Any]]:
    """Yield an ordinary struct, then structs with one extreme field; each with the name of that
    field."""
    usual = {field.encode_name: usual_of(field) for field in kind.fields}
    tag = {} if kind.tag is None else {kind.tag_field: kind.tag}

    def encoded(values: dict[str, Any]) -> Any:
        if kind.array_like:
            return [*tag.values(), *values.values()]
        return {**tag, **values}

    yield "", encoded(usual)
    for field in kind.fields:
        for value in values_of(field.type, form):
            yield field.encode_name, encoded({**usual, field.encode_name: value})


def unbounded(kind: inspect.Type) -> Sequence[str]:
    """Return the unbounded parts of a type, by field; most types have none."""
    match kind:
        case inspect.Metadata(type=inner):
            return unbounded(inner)
        case inspect.UnionType(types=inner) | inspect.TupleType(item_types=inner):
            return [part for member in inner for part in unbounded(member)]
        case inspect.StructType():
            return [
                f"{field.encode_name}: {part}"
                for field in kind.fields
                for part in unbounded(field.type)
            ]
        case inspect.VarTupleType() | inspect.ListType():
            return [*_without_length(kind), *unbounded(kind.item_type)]
        case inspect.DictType():
            inside = (*unbounded(kind.key_type), *unbounded(kind.value_type))
            return [*_without_length(kind), *inside]
        case inspect.StrType() | inspect.BytesType():
            return _without_length(kind)
        case inspect.IntType(ge=least, le=most) | inspect.FloatType(ge=least, le=most):
            return ["a number"] if least is None or most is None else []
        case inspect.AnyType():
            return ["anything"]
        case _:
            return []


def _without_length(kind: Any) -> list[str]:
    return [] if kind.max_length is not None else [type(kind).__name__.removesuffix("Type")]
