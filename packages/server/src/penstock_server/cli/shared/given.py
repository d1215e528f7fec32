"""Parses what people type: properties, keys, durations, times, start positions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import typer

from penstock.client.reading.start_positions import StartLike
from penstock_core.columns.schema.moments import parse_moment

_INTEGER: Final = re.compile(r"[+-]?\d+")
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SECONDS: Final = re.compile(r"\d+(\.\d+)?")
_DURATION: Final = re.compile(r"(\d+)(ms|s|m|h|d)?")
_UNIT_MS: Final = {None: 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(text: str) -> int:
    """Parse a duration: ``500``, ``500ms``, ``10s``, ``5m``, ``2h``, ``1d``."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is not a duration; examples are 500ms, 10s, 5m, 2h and 1d"
        )
    return int(found[1]) * _UNIT_MS[found[2]]


_BACKOFF: Final[dict[str, Callable[[str], Any]]] = {
    "first": milliseconds,
    "factor": float,
    "most": milliseconds,
    "jitter": float,
    "seed": int,
}


def start(text: str) -> StartLike:
    """Parse where a read begins: ``earliest``, ``latest``, an event id or a time (SEM E6)."""
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
    """Parse how long rolled-back events wait: ``1s``, or ``first=1s,factor=3,most=5m,jitter=0.2``;
    empty for not at all."""
    if not text:
        return None
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals and not found:
            name, value = "first", part
        if name in found or name not in _BACKOFF:
            raise typer.BadParameter(
                f"{part!r} is no part of a backoff; an example is "
                "first=1s,factor=2,most=5m,jitter=0.2,seed=7, each once"
            )
        try:
            found[name] = _BACKOFF[name](value)
        except ValueError:
            raise typer.BadParameter(f"{value!r} is not a valid {name} of a backoff") from None
    if "first" not in found:
        raise typer.BadParameter(f"{text!r} does not say how long the first wait is: first=1s")
    return found


def delivery(text: str) -> datetime:
    """Parse when to publish: a time, or ``+30``, ``+1.5``, ``+5m`` from now, in seconds without a
    unit."""
    try:
        if not text.startswith("+"):
            return parse_moment(text)
        wait = text[1:]
        if _SECONDS.fullmatch(wait):
            return datetime.now(UTC) + timedelta(seconds=float(wait))
        return datetime.now(UTC) + timedelta(milliseconds=milliseconds(wait))
    except (ValueError, OverflowError, typer.BadParameter):
        raise typer.BadParameter(
            f"{text!r} is neither a time such as 2026-05-04T12:00:00 nor a wait such as +30 "
            "(seconds) or +5m"
        ) from None


def key(text: str) -> tuple[str, int]:
    """Parse a publish key with its depth: ``sku=1``; without one the depth is 1."""
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
    """Parse a property's value: ``EUR``, ``7``, or with its type ``string:7``."""
    kind, colon, rest = text.partition(":")
    if not colon or kind not in _TYPES:
        return _guessed(text)
    try:
        return _TYPES[kind](rest)
    except ValueError:
        raise typer.BadParameter(f"{rest!r} is not a valid {kind}") from None


def properties(given: Sequence[str]) -> dict[str, Any]:
    """Parse properties ``name=value`` or ``name:type=value``, each given once."""
    found: dict[str, Any] = {}
    for text in given:
        name, value = _property(text)
        if name in found:
            raise typer.BadParameter(f"property {name!r} is given twice")
        found[name] = value
    return found


def _property(text: str) -> tuple[str, Any]:
    left, equals, right = text.partition("=")
    name, colon, kind = left.partition(":")
    if not equals or not name:
        raise typer.BadParameter(
            f"{text!r} is not a property; give name=value or name:string=value"
        )
    if not colon:
        return name, _guessed(right)
    parse = _TYPES.get(kind)
    if parse is None:
        raise typer.BadParameter(
            f"property {name!r} has no type {kind!r}; there are {', '.join(_TYPES)}"
        )
    try:
        return name, parse(right)
    except ValueError:
        raise typer.BadParameter(f"property {name!r}: {right!r} is not a valid {kind}") from None


def _guessed(text: str) -> Any:
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
