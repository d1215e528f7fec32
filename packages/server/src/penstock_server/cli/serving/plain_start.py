"""``penstock serve`` in plain words: read without the command line's parser.

The parser and what it loads take as long as a third of a server's start. What is not plain, such as
a flag twice, a value that cannot be, ``--help`` or another command, is left to the parser, which
says what it makes of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

Kind = Literal["text", "number", "level", "format"]

DATA: Final = "--data"
SETTINGS: Final = "--settings"
VALUED: Final[dict[str, tuple[str, Kind]]] = {
    "--host": ("listen.host", "text"),
    "--port": ("listen.port", "number"),
    "--amqp-port": ("listen.amqp_port", "number"),
    "--mqtt-port": ("listen.mqtt_port", "number"),
    "--http-port": ("http.port", "number"),
    "--cluster": ("cluster.engine", "text"),
    "--node": ("cluster.node", "text"),
    "--advertise": ("cluster.advertise", "text"),
    "--local-port": ("cluster.local_port", "number"),
    "--local-http-port": ("cluster.local_http_port", "number"),
    "--log-level": ("log.level", "level"),
    "--log-format": ("log.format", "format"),
}
"""Flags with a value, and the settings that they are."""
SWITCHES: Final = {"--http": ("http.enabled", True), "--no-http": ("http.enabled", False)}
CHOICES: Final[dict[Kind, tuple[str, ...]]] = {
    "level": ("debug", "info", "warning", "error"),
    "format": ("auto", "text", "json"),
}
_COMPLETING: Final = "_PENSTOCK_COMPLETE"
"""A shell asks how the line might go on."""


class PlainStart(NamedTuple):
    """What ``penstock serve`` was called with."""

    data: Path
    settings: Path | None
    flags: dict[str, Any]


def plain_start(arguments: Sequence[str]) -> PlainStart | None:
    """What a plain ``serve`` says; None: it is something else, or not plain."""
    if not arguments or arguments[0] != "serve" or _COMPLETING in os.environ:
        return None
    try:
        given = dict(_read(iter(arguments[1:])))
    except _NotPlain:
        return None
    data, settings = given.pop(DATA, None), given.pop(SETTINGS, None)
    if data is None:
        return None
    flags: dict[str, Any] = {path: given.get(path) for path in PATHS}
    return PlainStart(Path(data), None if settings is None else Path(settings), flags)


PATHS: Final = (*(path for path, _ in VALUED.values()), "http.enabled")
"""All settings that have a flag."""


class _NotPlain(Exception):
    """The parser has to look at it."""


def _read(words: Iterator[str]) -> Iterator[tuple[str, Any]]:
    seen = set()
    for word in words:
        flag, equals, value = word.partition("=")
        if word in SWITCHES:
            path, wanted = SWITCHES[word]
        else:
            path, wanted = _valued(flag, value if equals else next(words, ""))
        if path in seen:
            raise _NotPlain
        seen.add(path)
        yield path, wanted


def _valued(flag: str, value: str) -> tuple[str, Any]:
    if not value or value.startswith("-"):
        raise _NotPlain
    if flag in (DATA, SETTINGS):
        return flag, value
    if flag not in VALUED:
        raise _NotPlain
    path, kind = VALUED[flag]
    if kind == "text":
        return path, value
    if kind == "number":
        if not (value.isascii() and value.isdigit()):
            raise _NotPlain
        return path, int(value)
    if value not in CHOICES[kind]:
        raise _NotPlain
    return path, value
