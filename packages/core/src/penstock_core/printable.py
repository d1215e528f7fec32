"""Texts that others have chosen: whether bytes are text, and how a terminal shows it safely."""

from __future__ import annotations

from collections.abc import Callable


def plain(text: str) -> str:
    """``text`` with escapes for what is no printable character, apart from the ends of lines."""
    return escaped(text, _escape)


def on_one_line(text: str) -> str:
    """Likewise, with escapes for the ends of lines, too: nobody begins a line of their own."""
    return plain(text).replace("\n", r"\n")


def escaped(text: str, escape: Callable[[str], str]) -> str:
    """``text`` with what ``escape`` makes of each character that is not printable, and no end of a
    line."""
    if text.isprintable() or text.replace("\n", "").isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else escape(sign) for sign in text)


def _escape(sign: str) -> str:
    return sign.encode("unicode_escape").decode()


def is_utf8(data: bytes) -> bool:
    """Whether bytes are text in UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
