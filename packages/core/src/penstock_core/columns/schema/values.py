"""Python values of properties: the supported types, and their exact Arrow types (SEM E2)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock_core.columns.schema.layout import PROPERTY_TYPES, check_property_name, key_path
from penstock_core.columns.schema.shapes import (
    LEAVES,
    NAIVE,
    NULL,
    ListShape,
    Shape,
    ShapeBuilder,
    StructShape,
    united,
)
from penstock_core.columns.schema.shapes import UTC as AWARE
from penstock_core.vocabulary.errors import InvalidEvent
from penstock_core.vocabulary.nesting import NESTING_MAX

NATIVE: Final[dict[type, str]] = {
    bool: "bool",
    int: "int64",
    float: "double",
    str: "string",
    bytes: "binary",
}
"""Python types whose values Arrow accepts unchanged, with their leaf types."""

# Leaf types of NumPy scalars; they keep the width of a number.
_NUMPY: Final[dict[type, str]] = {
    np.bool_: "bool",
    np.int8: "int8",
    np.int16: "int16",
    np.int32: "int32",
    np.int64: "int64",
    np.float32: "float",
    np.float64: "double",
    np.str_: "string",
    np.bytes_: "binary",
}

_HINTS: Final = {
    "date": "use a datetime",
    "Decimal": "use a string, or a float if rounding is fine",
    "tuple": "use a list",
    "set": "use a list",
    "frozenset": "use a list",
    "ndarray": "use list(array)",
    "timedelta": "use a number",
    "UUID": "use str(value) or value.bytes",
    "datetime64": "use value.astype(object), a datetime",
}

_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


class NotAProperty(Exception):
    """Raised for a value that no property can have. Each level of nesting adds a step to ``path``
    while the error propagates."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.trail: list[str | int] = []
        """Names of properties and indexes of lists that lead to the value, innermost first."""

    @property
    def path(self) -> str:
        """The path of the value inside the properties, as in the column ``nulls``."""
        path = ""
        for step in reversed(self.trail):
            path = key_path(path, step) if isinstance(step, str) else f"{path}[{step}]"
        return path


def leaf_of(value: Any) -> tuple[str, Any]:
    """Return the leaf type of a single value, and the plain Python value that Arrow stores for it.

    Raises :class:`NotAProperty`.
    """
    leaf = NATIVE.get(type(value))
    if leaf is None:
        return _foreign_leaf(value)
    if leaf == "int64":
        _check_int64(value)
    elif leaf == "string":
        _check_text(value)
    return leaf, value


def _check_int64(value: int) -> None:
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise NotAProperty(f"{value} does not fit int64; send it as a string")


def _check_text(value: str) -> None:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise NotAProperty(f"{error}; send it as bytes") from None


def _foreign_leaf(value: Any) -> tuple[str, Any]:
    """Return the leaf type and plain value of NumPy, Arrow and subclass values. Raises
    :class:`NotAProperty`."""
    if value is None:
        return NULL, None
    leaf = _NUMPY.get(type(value))
    if leaf is not None:
        return leaf, value.item()
    if isinstance(value, datetime):
        return _timestamp_leaf(value)
    if isinstance(value, pa.Scalar):
        return _scalar_leaf(value)
    # Last, because exact types are found faster in the dictionaries.
    for kind, convert in _SUBCLASSED.items():
        if isinstance(value, kind):
            return leaf_of(convert(value))
    name = type(value).__name__
    hint = _HINTS.get(name)
    raise NotAProperty(f"{name} is not supported{'; ' + hint if hint else ''}")


_SUBCLASSED: Final[dict[type, Callable[[Any], Any]]] = {
    int: int,
    float: float,
    # Not `str(value)`: a subclass, such as an enum, may return another text than the one it holds.
    str: lambda value: str.__str__(value),
    bytes: bytes,
    bytearray: bytes,
    memoryview: bytes,
}
"""Converters to the type as which a value of a subclass, such as IntEnum, is stored."""


def _timestamp_leaf(value: datetime) -> tuple[str, datetime]:
    """Return the leaf type of a time and the time in UTC, or unchanged without a zone. Raises
    :class:`NotAProperty`."""
    # A Timestamp of pandas is a datetime with an additional number of nanoseconds.
    if getattr(value, "nanosecond", 0):
        raise NotAProperty("the timestamp has nanoseconds; round it to microseconds")
    # A tzinfo object may have no offset. The time then counts as one without a zone.
    if value.utcoffset() is None:
        return NAIVE, value.replace(tzinfo=None)
    try:
        return AWARE, value.astimezone(UTC)
    except OverflowError:
        raise NotAProperty(f"{value} is outside the years 1 to 9999 in UTC") from None


def _scalar_leaf(value: pa.Scalar) -> tuple[str, Any]:
    """Return the leaf type and the value of an Arrow scalar. Raises ``NotAProperty``."""
    leaf = str(value.type)
    if leaf not in LEAVES:
        raise NotAProperty(f"Arrow {leaf} scalar is not supported; cast it")
    return leaf, value.as_py()


def inspect(value: Any) -> tuple[Shape | None, Any]:
    """Return the shape of a value and its plain form.

    The shape is None if columns cannot hold the value, such as a list of mixed types. Raises
    :class:`NotAProperty` for a value that is not supported at all.
    """
    if isinstance(value, dict):
        return _survey_dict(value)
    if isinstance(value, list):
        return _survey_list(value)
    return leaf_of(value)


def _survey_dict(value: dict[Any, Any]) -> tuple[Shape | None, dict[str, Any]]:
    """Return the shape of a dictionary (None if columns cannot hold it) and its plain form."""
    growth: ShapeBuilder | None = ShapeBuilder()
    plain: dict[str, Any] = {}
    for key, inner in value.items():
        try:
            check_property_name(key)
            shape, plain[key] = inspect(inner)
        except NotAProperty as error:
            error.trail.append(key)
            raise
        except InvalidEvent as error:
            raise NotAProperty(str(error)) from None
        # Without a shape for the dictionary, its other values still have to be checked.
        if shape is None:
            growth = None
        elif growth is not None:
            growth.place(key, shape)
    return (None if growth is None else growth.shape), plain


def _survey_list(value: list[Any]) -> tuple[Shape | None, list[Any]]:
    """Return the shape of a list (None if columns cannot hold it) and its plain form."""
    union: Shape | None = NULL
    plain: list[Any] = []
    for index, inner in enumerate(value):
        try:
            shape, element = inspect(inner)
        except NotAProperty as error:
            error.trail.append(index)
            raise
        plain.append(element)
        if union is not None:
            union = None if shape is None else united(union, shape)
    return (None if union is None else ListShape(union)), plain


def levels_of(value: Any) -> int:
    """Return the depth of nested lists and dictionaries, counted up to ``NESTING_MAX`` + 1."""
    levels = 0
    level_values = [value]
    while level_values and levels <= NESTING_MAX:
        nested = [container for container in level_values if isinstance(container, dict | list)]
        if nested:
            levels += 1
        level_values = [
            inner
            for container in nested
            for inner in (container.values() if isinstance(container, dict) else container)
        ]
    return levels


def is_struct(shape: Shape) -> bool:
    """Whether the shape is a dictionary, or a list of dictionaries at any depth of lists."""
    while isinstance(shape, ListShape):
        shape = shape.element
    return isinstance(shape, StructShape)


def refusal(error: NotAProperty, event: int, name: object) -> InvalidEvent:
    """Return the error for the publisher, with the event, the path of the value, the reason of
    ``error`` and the allowed types."""
    if isinstance(name, str):
        error.trail.append(name)
    return InvalidEvent(
        f"event {event}, property {error.path or name!r}: {error.reason} "
        f"(a property is {PROPERTY_TYPES})"
    )
