"""Spark's filters as a selector, so that events nobody asks for do not reach Spark.

Spark applies its filters again to what it gets: the selector may let too much through and must
never hold anything back. So a filter is taken only where a column of Spark holds exactly what
the selector sees, in the same type; all others are left to Spark alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import StringType, StructType

from penstock.columns.layout import LOGICAL_NAME, STAMPED
from penstock.columns.selectors.headers import HEADERS
from penstock.columns.selectors.tokens import KEYWORDS
from penstock.columns.selectors.wording import quoted

TEXT_MAX: Final = 16_384
"""A filter that makes a longer text is left to Spark."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIGNS: Final[dict[type[Filter], str]] = {
    EqualTo: "=",
    EqualNullSafe: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
}
_ABOVE: Final = {">": "<=", ">=": "<"}
_PATTERNS: Final[dict[type[Filter], tuple[str, str]]] = {
    StringStartsWith: ("", "%"),
    StringEndsWith: ("%", ""),
    StringContains: ("%", "%"),
}


class Taker:
    """Stands in for a reader's ``pushFilters``: keeps the filters, and leaves all to Spark too.

    Spark refuses a reader that has a method of its own in sessions that do not push filters
    down. What it looks at is here the method it has for all readers.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self) -> None:
        self.filters: list[Filter] = []

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self.filters = list(filters)
        return filters


def narrowed(
    selector: str, filters: Sequence[Filter], schema: StructType, stored: pa.Schema
) -> str:
    """``selector``, and what it may also leave out because of ``filters``."""
    comparable = _comparable(schema, stored)
    found = [f"({selector})"] if selector else []
    for one in filters:
        text = _text(one, comparable)
        if text is not None and len(text) <= TEXT_MAX:
            found.append(f"({text})")
    return " AND ".join(found)


def _comparable(schema: StructType, stored: pa.Schema) -> dict[str, pa.DataType]:
    """Columns that hold what a selector sees under their name, and as which type."""
    kinds: dict[str, pa.DataType] = {**STAMPED, "tag": pa.string()}
    index = stored.get_field_index("properties")
    # A name in the overflow column hides the column.
    if index >= 0 and stored.get_field_index("more") < 0:
        for field in stored.field(index).type:
            if not (field.metadata or {}).get(LOGICAL_NAME) and _is_said(field.name):
                kinds[field.name] = field.type
    read = {field.name: field.dataType for field in schema.fields}
    return {name: kind for name, kind in kinds.items() if _reads(read.get(name), kind)}


def _is_said(name: str) -> bool:
    """Whether a selector means the property of this name by it."""
    if name in HEADERS or name.startswith("JMS") or name.upper() in KEYWORDS:
        return False
    return _NAME.fullmatch(name) is not None and name not in ("data", "tag")


def _reads(wanted: Any, kind: pa.DataType) -> bool:
    """Whether Spark's column has the values as they are stored."""
    if wanted is None:
        return False
    if pa.types.is_string(kind):
        return bool(wanted == StringType())  # not one with an order of its own
    return bool(wanted.simpleString() == _SPARK_NAMES.get(str(kind)))


_SPARK_NAMES: Final = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "double": "double",
    "timestamp[us, tz=UTC]": "timestamp",
}


def _text(one: Filter, comparable: dict[str, pa.DataType]) -> str | None:
    turned = isinstance(one, Not)
    inner = one.child if isinstance(one, Not) else one
    path: Sequence[str] = getattr(inner, "attribute", ())
    if len(path) != 1 or path[0] not in comparable:
        return None
    name, kind = path[0], comparable[path[0]]
    if isinstance(inner, IsNotNull):
        return None if turned else f"{name} IS NOT NULL"
    if isinstance(inner, In):
        return _member(name, kind, inner, turned=turned)
    if type(inner) in _PATTERNS:
        return None if turned else _like(name, kind, inner)
    sign = _SIGNS.get(type(inner))
    if sign is None or (turned and type(inner) is not EqualTo):
        return None
    return _comparison(name, kind, "<>" if turned else sign, getattr(inner, "value", None))


def _comparison(name: str, kind: pa.DataType, sign: str, value: Any) -> str | None:
    literal = _literal(kind, value)
    if literal is None or (pa.types.is_boolean(kind) and sign not in ("=", "<>")):
        return None
    if pa.types.is_floating(kind) and sign in _ABOVE:
        # For Spark a NaN is above all numbers; a selector does not compare it.
        return f"NOT {name} {_ABOVE[sign]} {literal}"
    return f"{name} {sign} {literal}"


def _member(name: str, kind: pa.DataType, one: In, *, turned: bool) -> str | None:
    literals = [_literal(kind, value) for value in one.value]
    # A time is no option of a selector's list as a time.
    if not literals or None in literals or pa.types.is_timestamp(kind):
        return None
    return f"{name} {'NOT ' if turned else ''}IN ({', '.join(map(str, literals))})"


def _like(name: str, kind: pa.DataType, one: Filter) -> str | None:
    value = getattr(one, "value", None)
    if not pa.types.is_string(kind) or not isinstance(value, str):
        return None
    before, after = _PATTERNS[type(one)]
    pattern = re.sub(r"([\\%_])", r"\\\1", value)
    return f"{name} LIKE {quoted(before + pattern + after)} ESCAPE '\\'"


def _literal(kind: pa.DataType, value: Any) -> str | None:
    """None where ``value`` is not exactly one of the column's type."""
    match value:
        case bool():
            return str(value).upper() if pa.types.is_boolean(kind) else None
        case int():
            return str(value) if pa.types.is_integer(kind) else None
        case float():
            fits = pa.types.is_floating(kind) and math.isfinite(value)
            return repr(value) if fits else None
        case str():
            return quoted(value) if pa.types.is_string(kind) else None
        case datetime() if value.tzinfo is not None and pa.types.is_timestamp(kind):
            return quoted(value.astimezone(UTC).isoformat())
        case _:
            return None
