"""What channels, queues and durables may be called (SEM C2, D1)."""

from __future__ import annotations

import re

from penstock.core.errors import InvalidName

NAME_LENGTH_MAX = 235
"""Characters of a channel or queue name."""

_ALLOWED = re.compile(r"[A-Za-z0-9/\-_#]+")


def destination_name(given: object) -> str:
    """The canonical form of a channel or queue name. Raises ``InvalidName``.

    A backslash, ``::`` and ``//`` read as ``/``; one leading ``/`` is dropped.
    """
    if not isinstance(given, str):
        raise InvalidName(f"a name is a string, not {type(given).__name__}")
    name = re.sub(r"/{2,}", "/", given.replace("\\", "/").replace("::", "/")).removeprefix("/")
    if not name:
        raise InvalidName(f"{given!r} names nothing: give at least one letter or digit")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidName(f"{name[:40]!r}… has {len(name)} characters; {NAME_LENGTH_MAX} may be")
    _check_characters(name)
    if name.endswith("/"):
        raise InvalidName(f"{given!r} ends with '/': a folder is not a channel")
    return name


def durable_name(given: object) -> str:
    """A durable's name: as a channel's, with ``: . @`` besides. Raises ``InvalidName``."""
    if not isinstance(given, str) or not given:
        raise InvalidName("a durable's name is a string of at least one character")
    if len(given) > NAME_LENGTH_MAX:
        raise InvalidName(f"{given[:40]!r}… has {len(given)} characters; {NAME_LENGTH_MAX} may be")
    _check_characters(given, also=":.@")
    return given


def _check_characters(name: str, also: str = "") -> None:
    for character in name:
        if not _ALLOWED.fullmatch(character) and character not in also:
            raise InvalidName(
                f"{name!r} has {character!r}; letters, digits and "
                f"{' '.join('/-_#' + also)} may be in a name"
            )
