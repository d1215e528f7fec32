"""Reads the arguments of a simple ``penstock serve`` without the command line parser.

Loading the parser takes a third of a server's start. All other arguments, such as a repeated flag,
an invalid value, ``--help`` or another command, are left to the parser, which explains errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock_server.cli.shared.server_flags import FLAGS, Flag, flags_of

DATA: Final = Flag("data", "", Path, help="")
VALUED: Final = {flag.word: flag for flag in (DATA, *FLAGS) if flag.kind is not bool}
"""Flags that take a value, by their word on the command line."""
SWITCHES: Final = {
    word: (flag.name, is_on)
    for flag in FLAGS
    if flag.kind is bool
    for word, is_on in ((flag.word, True), (f"--no-{flag.name}", False))
}
"""Words of switches, with the flag and the value that each sets."""
_COMPLETING: Final = "_PENSTOCK_COMPLETE"
"""Environment variable that is set while a shell requests completions."""


class PlainStart(NamedTuple):
    """The arguments of ``penstock serve``."""

    data: Path
    settings: Path | None
    flags: dict[str, Any]


def plain_start(arguments: Sequence[str]) -> PlainStart | None:
    """Return the arguments of a simple ``serve``; None if the parser has to read the line."""
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
    """The line needs the command line parser."""


def _read(words: Iterator[str]) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each flag. Raises ``_NotPlain``."""
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
    """Return the value of a flag of this kind. Raises ``_NotPlain`` if the text is invalid."""
    is_number = text.isascii() and text.isdigit()
    is_allowed = text in kind if isinstance(kind, tuple) else kind is not int or is_number
    if not text or text.startswith("-") or not is_allowed:
        raise _NotPlain
    return text if isinstance(kind, tuple) else kind(text)
