"""Lists the names in a selector, and conditions that can never match on a channel (SEM F1).

An unknown name is not an error, and neither is a comparison of types that do not compare: both
simply match nothing. The check reports them to the author of the selector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.schema.layout import LOGICAL_NAME
from penstock_core.columns.selectors.compiler import microseconds
from penstock_core.columns.selectors.expressions import (
    Arithmetic,
    Between,
    Compare,
    Comparison,
    DataLength,
    DataText,
    Distance,
    Expression,
    Float,
    In,
    Integer,
    Like,
    Matches,
    Negative,
    Now,
    Reference,
    Step,
    Text,
    walk,
)
from penstock_core.columns.selectors.headers import HEADERS
from penstock_core.columns.selectors.wording import canonical, path

_OF_HEADERS: Final[dict[str, str]] = {
    "event_id": "int64",
    "published": "timestamp",
    "JMSPriority": "int64",
    "JMSTimestamp": "int64",
}
"""Types of headers that are not text."""


class Family(Enum):
    """A group of types whose values compare with each other."""

    TRUTH = "true or false"
    NUMBER = "a number"
    TEXT = "text"
    TIME = "a time"
    OTHER = "a value that does not compare"


class Name(Struct, frozen=True):
    """A name in a selector."""

    name: str
    kind: str
    """``header`` or ``property``."""
    types: tuple[str, ...] | None = None
    """Types stored on the channel, empty if no event has the name; None if not looked up."""


class Checked(Struct, frozen=True):
    """The result of checking a selector against a channel."""

    names: tuple[Name, ...]
    remarks: tuple[str, ...]
    """Sentences about conditions that never match on the channel."""


def checked(expression: Expression, stored: pa.Schema | None = None) -> Checked:
    """Check ``expression``. With ``stored``, a channel's columns, also report conditions that never
    match."""
    names = tuple(_names(expression, stored))
    if stored is None:
        return Checked(names, ())
    # A name without a column may be a property in the column `more`, which has no schema.
    remarks = [
        f"no event on this channel has had {name.name}: its value is unknown in all of them"
        for name in names
        if name.types == () and not _has_overflow(stored)
    ]
    return Checked(names, (*remarks, *_never_matching(expression, stored)))


def _names(expression: Expression, stored: pa.Schema | None) -> Iterator[Name]:
    """Yield the names in an expression, each once, with their stored types."""
    references: dict[tuple[Step, ...], None] = {}
    for node in walk(expression):
        if isinstance(node, Reference):
            references[node.steps] = None
        elif isinstance(node, Distance):
            references |= {("latitude",): None, ("longitude",): None}
    for steps in references:
        kind = "header" if steps[0] in HEADERS else "property"
        yield Name(path(steps), kind, None if stored is None else _type_names(steps, stored))


def _type_names(steps: tuple[Step, ...], stored: pa.Schema) -> tuple[str, ...]:
    name = str(steps[0])
    if name in HEADERS:
        return (_OF_HEADERS.get(name, "string"),)
    return tuple(_short(kind) for kind in _types(steps, stored))


def _short(kind: pa.DataType) -> str:
    """Return the name of a type without its parameters."""
    if pa.types.is_struct(kind):
        return "dictionary"
    if pa.types.is_list(kind):
        return f"list of {_short(kind.value_type)}"
    return _FLOATS.get(str(kind), str(kind).partition("[")[0])


_FLOATS: Final = {"float": "float32", "double": "float64"}


def _types(steps: Sequence[Step], stored: pa.Schema) -> list[pa.DataType]:
    """Return the types that a property has on the channel, without the null type."""
    index = stored.get_field_index("properties")
    kinds = [] if index < 0 else [stored.field(index).type]
    for step in steps:
        kinds = [inner_kind for kind in kinds for inner_kind in _inner_types(kind, step)]
    return [kind for kind in kinds if not pa.types.is_null(kind)]


def _inner_types(kind: pa.DataType, step: Step) -> Iterator[pa.DataType]:
    """Yield the types of the values that one step of a reference leads to."""
    if not isinstance(step, str):
        if pa.types.is_list(kind):
            yield kind.value_type
        return
    if pa.types.is_map(kind):
        yield kind.item_type
        return
    for field in kind if pa.types.is_struct(kind) else ():
        logical_name = (field.metadata or {}).get(LOGICAL_NAME, field.name.encode())
        if logical_name == step.encode():
            yield field.type


def _has_overflow(stored: pa.Schema) -> bool:
    return bool(stored.get_field_index("more") >= 0)


# --- conditions that never match ----------------------------------------------------------


def _never_matching(expression: Expression, stored: pa.Schema) -> Iterator[str]:
    """Yield a remark for each predicate that never matches on the channel."""
    for node in walk(expression):
        reason = _reason(node, stored)
        if reason:
            yield f"{canonical(node)} never matches on this channel: {reason}"


def _reason(node: Expression, stored: pa.Schema) -> str:
    """Return the reason why a predicate never matches; empty if it may match."""
    match node:
        case Compare(operator, left, right):
            return _unlike(left, right, stored, operator=operator)
        case Between(operand, low, high):
            return _unlike(operand, low, stored, operator=Comparison.AT_LEAST) or _unlike(
                operand, high, stored, operator=Comparison.AT_MOST
            )
        case In(operand, options):
            reasons = [
                _unlike(operand, option, stored, operator=Comparison.EQUAL) for option in options
            ]
            # IN matches if any option compares, so each of them needs a reason.
            return reasons[0] if all(reasons) else ""
        case Like(operand) | Matches(operand):
            families = _families(operand, stored)
            if families and Family.TEXT not in families:
                word = _WORDS[type(node)]
                return f"{canonical(operand)} is {_listed(families)}, and {word} is for text"
            return ""
        case _:
            return ""


_WORDS: Final[dict[type, str]] = {Like: "LIKE", Matches: "MATCHES"}


def _unlike(left: Expression, right: Expression, stored: pa.Schema, operator: Comparison) -> str:
    """Return the reason why two values never compare; empty if they may compare."""
    left_families, right_families = _families(left, stored), _families(right, stored)
    if not left_families or not right_families:
        return ""  # a type is unknown; missing names are reported separately
    if any(
        _compare(left_family, right_family, operator)
        or _is_moment(left_family, right)
        or _is_moment(right_family, left)
        for left_family in left_families
        for right_family in right_families
    ):
        return ""
    if left_families == right_families == {Family.TRUTH}:
        return "true and false compare with = and <> only"
    return (
        f"{canonical(left)} is {_listed(left_families)}, and "
        f"{canonical(right)} is {_listed(right_families)}"
    )


def _compare(left: Family, right: Family, operator: Comparison) -> bool:
    """Whether values of two families compare with an operator."""
    if Family.OTHER in (left, right):
        return False
    if left is right:
        return left is not Family.TRUTH or operator in (Comparison.EQUAL, Comparison.UNEQUAL)
    return {left, right} == {Family.TIME, Family.NUMBER}


def _is_moment(family: Family, operand: Expression) -> bool:
    """Whether ``family`` is times, and ``operand`` is text that is a valid time, so that the two
    compare."""
    return (
        family is Family.TIME
        and isinstance(operand, Text)
        and microseconds(operand.value) is not None
    )


def _listed(families: set[Family]) -> str:
    """Return the names of type families, joined by "or"."""
    return " or ".join(sorted(family.value for family in families))


def _families(node: Expression, stored: pa.Schema) -> set[Family]:
    """Return the families a value may belong to; empty if its type is unknown."""
    match node:
        case Reference(steps):
            return _of_reference(steps, stored)
        case Text() | DataText():
            return {Family.TEXT}
        case Integer() | Float() | Arithmetic() | Negative() | Now() | DataLength() | Distance():
            return {Family.NUMBER}
        case _:
            return {Family.TRUTH}


def _of_reference(steps: tuple[Step, ...], stored: pa.Schema) -> set[Family]:
    """Return the families of a name's values; empty if they are unknown."""
    name = str(steps[0])
    if name in HEADERS:
        if len(steps) > 1:
            return set()
        kind = _OF_HEADERS.get(name)
        return {_HEADER_FAMILIES.get(kind or "", Family.TEXT)}
    # In the column `more` the property may have any type.
    if _has_overflow(stored):
        return set()
    return {_family(kind) for kind in _types(steps, stored)}


_HEADER_FAMILIES: Final = {"int64": Family.NUMBER, "timestamp": Family.TIME}


def _family(kind: pa.DataType) -> Family:
    """Return the family of an Arrow type."""
    for family, test in _TESTS:
        if test(kind):
            return family
    return Family.OTHER


_TESTS: Final = (
    (Family.TRUTH, pa.types.is_boolean),
    (Family.NUMBER, pa.types.is_signed_integer),
    (Family.NUMBER, pa.types.is_floating),
    (Family.TEXT, pa.types.is_string),
    (Family.TIME, pa.types.is_timestamp),
)
