"""Parses command line values: properties, keys, durations, times, start positions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import typer

from penstock.client.reading.start_positions import StartLike
from penstock_core.columns.events.durations import duration_ms, round_ms
from penstock_core.columns.schema.moments import parse_moment

_INTEGER: Final = re.compile(r"[+-]?\d+")
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SECONDS: Final = re.compile(r"\d+(\.\d+)?")
_MILLISECONDS: Final = re.compile(r"\d{1,19}")


def milliseconds(text: str) -> int:
    """Parse a duration: ``500ms``, ``10s``, ``5m``, ``1.5h``, ``1d``; a number without a unit is in
    milliseconds."""
    ms = int(text) if _MILLISECONDS.fullmatch(text) else duration_ms(text)
    if not ms >= 0:  # also true for NaN
        raise typer.BadParameter(
            f"{text!r} is not a duration; examples are 500ms, 10s, 5m, 2h and 1d"
        )
    return round_ms(ms)


_BACKOFF: Final[dict[str, Callable[[str], Any]]] = {
    "first": milliseconds,
    "factor": float,
    "most": milliseconds,
    "jitter": float,
    "seed": int,
}


def start(text: str) -> StartLike:
    """Parse the start of a read: ``earliest``, ``latest``, an event id or a time (SEM E6)."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isdecimal():
        return int(text)
    try:
        return parse_moment(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a start position; give earliest, latest, an event id such as 42, or "
            f"a time such as 2026-05-04T12:00:00"
        ) from None


def backoff(text: str) -> dict[str, Any] | None:
    """Parse a backoff: ``1s`` or ``first=1s,factor=3,most=5m,jitter=0.2``; None if empty."""
    if not text:
        return None
    fields: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals and not fields:
            name, value = "first", part
        if name in fields or name not in _BACKOFF:
            raise typer.BadParameter(
                f"{part!r} is not valid in a backoff; use each field at most once, as in "
                "first=1s,factor=2,most=5m,jitter=0.2,seed=7"
            )
        try:
            fields[name] = _BACKOFF[name](value)
        except ValueError:
            raise typer.BadParameter(f"{value!r} is not a valid {name} of a backoff") from None
    if "first" not in fields:
        raise typer.BadParameter(
            f"{text!r} lacks the length of the first wait; add it, as in first=1s"
        )
    return fields


def delivery(text: str) -> datetime:
    """Parse a delivery time: an absolute time, or a wait from now such as ``+30``, ``+1.5`` or
    ``+5m``; a number without a unit is in seconds."""
    try:
        if not text.startswith("+"):
            return parse_moment(text)
        delay = text[1:]
        if _SECONDS.fullmatch(delay):
            return datetime.now(UTC) + timedelta(seconds=float(delay))
        return datetime.now(UTC) + timedelta(milliseconds=milliseconds(delay))
    except (ValueError, OverflowError, typer.BadParameter):
        raise typer.BadParameter(
            f"{text!r} is neither a time such as 2026-05-04T12:00:00 nor a wait such as +30 "
            "(seconds) or +5m"
        ) from None


def key(text: str) -> tuple[str, int]:
    """Parse a publish key with its depth, as in ``sku=1``; the depth defaults to 1."""
    name, equals, depth = text.rpartition("=")
    if not equals and text:
        return text, 1
    if not name or not depth.isdecimal():
        raise typer.BadParameter(
            f"{text!r} is not a publish key; give name=depth, e.g. sku=1 for the newest event of "
            f"each sku"
        )
    return name, int(depth)


def value(text: str) -> Any:
    """Parse the value of a property: ``EUR``, ``7``, or with its type ``string:7``."""
    kind, colon, rest = text.partition(":")
    if not colon or kind not in _TYPES:
        return _inferred(text)
    try:
        return _TYPES[kind](rest)
    except ValueError:
        raise typer.BadParameter(f"{rest!r} is not a valid {kind}") from None


def properties(texts: Sequence[str]) -> dict[str, Any]:
    """Parse properties ``name=value`` or ``name:type=value``, each name once."""
    values: dict[str, Any] = {}
    for text in texts:
        name, value = _property(text)
        if name in values:
            raise typer.BadParameter(f"property {name!r} is given twice")
        values[name] = value
    return values


def _property(text: str) -> tuple[str, Any]:
    """Parse a property, ``name=value`` or ``name:type=value``. Raises ``BadParameter``."""
    typed_name, equals, value_text = text.partition("=")
    name, colon, kind = typed_name.partition(":")
    if not equals or not name:
        raise typer.BadParameter(
            f"{text!r} is not a property; give name=value or name:string=value"
        )
    if not colon:
        return name, _inferred(value_text)
    parse = _TYPES.get(kind)
    if parse is None:
        raise typer.BadParameter(
            f"property {name!r}: {kind!r} is not a type; the types are {', '.join(_TYPES)}"
        )
    try:
        return name, parse(value_text)
    except ValueError:
        raise typer.BadParameter(
            f"property {name!r}: {value_text!r} is not a valid {kind}"
        ) from None


def _inferred(text: str) -> Any:
    """Return the value that a text without a type means: a bool, int, float or string."""
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    return text


def _bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _null(text: str) -> None:
    if text:
        raise ValueError(text)


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(text) from error


_TYPES: Final[dict[str, Callable[[str], Any]]] = {
    "string": str,
    "int": int,
    "float": float,
    "bool": _bool,
    "time": parse_moment,
    "json": _json,
    "null": _null,
}
