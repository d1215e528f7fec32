"""Rules for the names of channels, queues and durables (SEM C2, D1), and the escaped form of names
where not every character is allowed.

Each byte of a name's UTF-8 that is not an ASCII letter or digit or one of ``- _ .`` is written as
``%`` and two hexadecimal digits. In names of files and folders ``~`` replaces ``%``
(:func:`file_part`).
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
"""Maximum number of characters of a channel, queue or durable name."""
FILE_PART_MAX: Final = 235
"""Maximum number of characters of a name in a file or folder name; most file systems allow 255."""

_PLAIN: Final = re.compile(r"(?!/)(?:(?:^|/)[A-Za-z0-9_#-][A-Za-z0-9_#.-]*)+")
"""Names that are in canonical form already, as most names are."""
_WILD_ALONE: Final = frozenset({"*", ">", "?"})
"""Parts of names that are wildcards in other products."""
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
    """Return the canonical form of a channel or queue name. Raises ``InvalidName``.

    The text is normalised (NFC), a backslash, ``::`` and ``//`` become ``/``, and a ``/`` at either
    end is dropped.
    """
    if not isinstance(given, str):
        raise InvalidName(f"a name is a string, not {type(given).__name__}")
    if len(given) <= NAME_LENGTH_MAX and _PLAIN.fullmatch(given):
        return given
    name = _normal(given).replace("\\", "/").replace("::", "/")
    name = re.sub(r"/{2,}", "/", name).strip("/")
    if not name:
        raise InvalidName(f"{given[:40]!r} is empty; give at least one character other than '/'")
    _check_length(name)
    _check_characters(name)
    for part in name.split("/"):
        _check_part(name, part)
    return name


def durable_name(given: object) -> str:
    """Return the canonical form of a durable's name. The same characters as in channel names are
    allowed, without a special meaning of ``/``, ``\\`` and ``:``. Raises ``InvalidName``."""
    if not isinstance(given, str) or not given:
        raise InvalidName("a durable's name is a string of at least one character")
    name = _normal(given)
    _check_length(name)
    _check_characters(name)
    _check_part(name, name)
    return name


def escaped(name: str) -> str:
    """Return a name escaped for use as one part of a URL, a list or a pattern."""
    return quote(name, safe="").replace("~", "%7E")


def unescaped(text: str, sign: Literal["%", "~"] = "%") -> str:
    """Undo :func:`escaped`, or :func:`file_part` with ``~`` if it has not cut the name. A ``sign``
    without two hexadecimal digits after it stays unchanged.

    Raises ``InvalidName`` for bytes that are not UTF-8.
    """

    # The escapes of a character with several bytes are decoded together.
    def decode(match: re.Match[str]) -> str:
        return bytes.fromhex(match[0].replace(sign, "")).decode()

    try:
        return _ESCAPES[sign].sub(decode, text)
    except UnicodeDecodeError as error:
        raise InvalidName(
            f"{text[:80]!r}: the escapes with {sign} are not UTF-8: {error}"
        ) from None


def file_part(name: str) -> str:
    """Return a name escaped for use as one part of a file path.

    The name is escaped as by :func:`escaped`, with ``~`` for ``%``, because programs that treat
    paths as URLs would unescape ``%``. A ``.`` at the start is also escaped. A result longer than
    235 characters is cut and ends in ``~~`` and a hash of the name.
    """
    part = escaped(name).replace("%", "~")
    # `.` and `..` are folders, and programs hide other files whose names start with a dot.
    if part.startswith("."):
        part = f"~2E{part[1:]}"
    if len(part) <= FILE_PART_MAX:
        return part
    digest = sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{_cut(part, FILE_PART_MAX - _HASH_DIGITS - 2)}~~{digest}"


def _cut(part: str, length: int) -> str:
    """Cut an escaped name, but not inside an escape."""
    # An escape has three characters, so a divided one begins in the last two.
    last = part.rfind("~", length - 2, length)
    return part[: last if last >= 0 else length]


def _normal(given: str) -> str:
    """Return a name in the Unicode form NFC. Raises ``InvalidName`` if it is far too long."""
    # Before the normalization, whose time would grow with a text of any length.
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
    """Raise ``InvalidName`` for the first character that is not printable."""
    if name.isprintable():
        return
    for place, character in enumerate(name, 1):
        if not character.isprintable():
            kind = _KINDS[unicodedata.category(character)]
            unicode_name = unicodedata.name(character, "")
            description = f"U+{ord(character):04X}{f' ({unicode_name})' if unicode_name else ''}"
            raise InvalidName(
                f"{name!r}: character {place}, {description}, is {kind}; a name may have letters, "
                f"digits, printable signs and spaces"
            )


def _check_part(name: str, part: str) -> None:
    if part in (".", ".."):
        raise InvalidName(f"{name!r}: a part of a name cannot be {part!r}, as in paths of files")
    if part in _WILD_ALONE:
        raise InvalidName(f"{name!r}: {part!r} alone is a wildcard, so it cannot be part of a name")
    if part != part.strip(" "):
        raise InvalidName(f"{name!r}: {part!r} begins or ends with a space; leave it out")
