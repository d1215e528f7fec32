"""``penstock serve`` in plain words: read without the command line's parser.

The parser and what it loads take as long as a third of a server's start. What is not plain, such as
a flag twice, a value that cannot be, ``--help`` or another command, is left to the parser, which
says what it makes of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock_server.cli.shared.server_flags import FLAGS, Flag, flags_of

DATA: Final = Flag("data", "", Path, help="")
VALUED: Final = {flag.word: flag for flag in (DATA, *FLAGS) if flag.kind is not bool}
"""Flags with a value, by the word that comes before it."""
SWITCHES: Final = {
    word: (flag.name, is_on)
    for flag in FLAGS
    if flag.kind is bool
    for word, is_on in ((flag.word, True), (f"--no-{flag.name}", False))
}
_COMPLETING: Final = "_PENSTOCK_COMPLETE"
"""A shell asks how the line might go on."""


class PlainStart(NamedTuple):
    """What ``penstock serve`` was called with."""

    data: Path
    settings: Path | None
    flags: dict[str, Any]


def plain_start(arguments: Sequence[str]) -> PlainStart | None:
    """The arguments of a plain ``serve``; None: it is another command, or not plain."""
    if not arguments or arguments[0] != "serve" or _COMPLETING in os.environ:
        return None
    try:
        values = dict(_read(iter(arguments[1:])))
    except _NotPlain:
        return None
    if DATA.name not in values:
        return None
    flags = dict.fromkeys((flag.name for flag in FLAGS), None) | values
    return PlainStart(values[DATA.name], flags["settings"], flags_of(flags))


class _NotPlain(Exception):
    """The parser has to look at it."""


def _read(words: Iterator[str]) -> Iterator[tuple[str, Any]]:
    """Yield the names of flags with their values. Raises ``_NotPlain``."""
    names = set()
    for word in words:
        before, equals, text = word.partition("=")
        if word in SWITCHES:
            name, value = SWITCHES[word]
        elif before in VALUED:
            name = VALUED[before].name
            value = _value(VALUED[before].kind, text if equals else next(words, ""))
        else:
            raise _NotPlain
        if name in names:
            raise _NotPlain
        names.add(name)
        yield name, value


def _value(kind: type | tuple[str, ...], text: str) -> Any:
    """The value of a flag of this kind. Raises ``_NotPlain``."""
    is_number = text.isascii() and text.isdigit()
    is_allowed = text in kind if isinstance(kind, tuple) else kind is not int or is_number
    if not text or text.startswith("-") or not is_allowed:
        raise _NotPlain
    return text if isinstance(kind, tuple) else kind(text)
