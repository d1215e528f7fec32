"""Safe output of texts from outside: checking for UTF-8, and escaping for terminals."""

from __future__ import annotations

from collections.abc import Callable


def plain(text: str) -> str:
    """Return ``text`` with escapes for characters that are not printable, except ends of lines."""
    return escaped(text, _escape)


def on_one_line(text: str) -> str:
    """Return ``text`` with escapes also for ends of lines, so that it cannot forge a line of
    output."""
    return plain(text).replace("\n", r"\n")


def escaped(text: str, escape: Callable[[str], str]) -> str:
    """Return ``text`` with the result of ``escape`` for each character that is neither printable
    nor an end of a line."""
    # Most texts are printable, and these checks are many times faster than the loop below.
    if text.isprintable() or text.replace("\n", "").isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else escape(sign) for sign in text)


def _escape(sign: str) -> str:
    return sign.encode("unicode_escape").decode()


def is_utf8(data: bytes) -> bool:
    """Whether bytes are UTF-8."""
    if data.isascii():
        return True  # without a copy of the data
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
