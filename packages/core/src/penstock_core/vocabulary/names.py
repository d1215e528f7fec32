"""Rules for the names of channels, queues and durables (SEM C2, D1), and how a name is written
where not every character is allowed.

The one rule of escaping: each byte of a name's UTF-8 that is no ASCII letter or digit and none of
``- _ .`` is written as ``%`` and its two hexadecimal digits. In names of files and folders ``~``
stands in place of ``%`` (:func:`file_part`).
"""

from __future__ import annotations

import re
import unicodedata
from hashlib import sha256
from typing import Final, Literal
from urllib.parse import quote

from penstock_core.bounds import GIVEN_NAME_CHARACTERS_MAX, NAME_CHARACTERS_MAX
from penstock_core.vocabulary.errors import InvalidName

NAME_LENGTH_MAX = NAME_CHARACTERS_MAX
"""Characters of a channel, queue or durable name."""
FILE_PART_MAX: Final = 235
"""Characters of a name in the name of a file or folder: most file systems take 255."""

_PLAIN: Final = re.compile(r"(?!/)(?:(?:^|/)[A-Za-z0-9_#-][A-Za-z0-9_#.-]*)+")
_WILD_ALONE: Final = frozenset({"*", ">", "?"})
_ESCAPES: Final = {sign: re.compile(rf"(?:{sign}[0-9A-Fa-f]{{2}})+") for sign in "%~"}
_KINDS: Final = {
    "Cc": "a control character",
    "Cf": "an invisible formatting character",
    "Cs": "half of a surrogate pair, which is not text",
    "Co": "a character for private use",
    "Cn": "a character unknown to this version",
    "Zl": "a line separator",
    "Zp": "a paragraph separator",
    "Zs": "a space other than the usual one",
}
_HASH_DIGITS: Final = 16


def destination_name(given: object) -> str:
    """The canonical form of a channel or queue name. Raises ``InvalidName``.

    Its text is normalised (NFC); a backslash, ``::`` and ``//`` read as ``/``, and a ``/`` at
    either end is dropped.
    """
    if not isinstance(given, str):
        raise InvalidName(f"a name is a string, not {type(given).__name__}")
    if len(given) <= NAME_LENGTH_MAX and _PLAIN.fullmatch(given):
        return given
    name = _normal(given).replace("\\", "/").replace("::", "/")
    name = re.sub(r"/{2,}", "/", name).strip("/")
    if not name:
        raise InvalidName(f"{given[:40]!r} is empty; give at least one character besides '/'")
    _check_length(name)
    _check_characters(name)
    for part in name.split("/"):
        _check_part(name, part)
    return name


def durable_name(given: object) -> str:
    """A durable's name: of the characters of a channel's, but ``/``, ``\\`` and ``:`` are
    characters as any other. Raises ``InvalidName``."""
    if not isinstance(given, str) or not given:
        raise InvalidName("a durable's name is a string of at least one character")
    name = _normal(given)
    _check_length(name)
    _check_characters(name)
    _check_part(name, name)
    return name


def escaped(name: str) -> str:
    """A name as one part of a URL, a list or a pattern."""
    return quote(name, safe="").replace("~", "%7E")


def unescaped(text: str, sign: Literal["%", "~"] = "%") -> str:
    """Undo :func:`escaped`, or with ``~`` :func:`file_part`, unless that has cut the name. A
    ``sign`` without two hexadecimal digits stands for itself.

    Raises ``InvalidName`` for bytes that are no UTF-8.
    """

    def said(found: re.Match[str]) -> str:
        return bytes.fromhex(found[0].replace(sign, "")).decode()

    try:
        return _ESCAPES[sign].sub(said, text)
    except UnicodeDecodeError as error:
        raise InvalidName(
            f"{text[:80]!r}: the escapes with {sign} are not UTF-8: {error}"
        ) from None


def file_part(name: str) -> str:
    """A name as one part of the path of a file: as :func:`escaped`, with ``~`` for ``%``, which
    programs that take paths for URLs would unescape. A ``.`` at its start is escaped, too. What is
    longer than 235 characters is cut and ends in ``~~`` and a hash of the whole.
    """
    part = escaped(name).replace("%", "~")
    if part.startswith("."):
        part = f"~2E{part[1:]}"
    if len(part) <= FILE_PART_MAX:
        return part
    whole = sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{_cut(part, FILE_PART_MAX - _HASH_DIGITS - 2)}~~{whole}"


def _cut(part: str, length: int) -> str:
    """Cut a name, but not inside an escape."""
    last = part.rfind("~", length - 2, length)
    return part[: last if last >= 0 else length]


def _normal(given: str) -> str:
    if len(given) > GIVEN_NAME_CHARACTERS_MAX:
        raise InvalidName(
            f"{given[:40]!r}… has {len(given)} characters; a name may have at most "
            f"{NAME_LENGTH_MAX}"
        )
    return unicodedata.normalize("NFC", given)


def _check_length(name: str) -> None:
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidName(
            f"{name[:40]!r}… has {len(name)} characters; at most {NAME_LENGTH_MAX} are allowed"
        )


def _check_characters(name: str) -> None:
    if name.isprintable():
        return
    for place, character in enumerate(name, 1):
        if not character.isprintable():
            kind = _KINDS[unicodedata.category(character)]
            called = unicodedata.name(character, "")
            which = f"U+{ord(character):04X}{f' ({called})' if called else ''}"
            raise InvalidName(
                f"{name!r}: character {place}, {which}, is {kind}; a name may have letters, "
                f"digits, printable signs and spaces"
            )


def _check_part(name: str, part: str) -> None:
    if part in (".", ".."):
        raise InvalidName(f"{name!r}: a part of a name cannot be {part!r}, as in paths of files")
    if part in _WILD_ALONE:
        raise InvalidName(f"{name!r}: {part!r} alone is a wildcard, so it cannot be part of a name")
    if part != part.strip(" "):
        raise InvalidName(f"{name!r}: {part!r} begins or ends with a space; leave it out")
