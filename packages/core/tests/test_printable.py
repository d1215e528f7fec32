"""Texts from users cannot control a terminal."""

from __future__ import annotations

import pytest

from penstock_core.printable import escaped, on_one_line, plain


@pytest.mark.parametrize("text", ["", "größe 日", "a\nb", "back\\slash"])
def test_what_is_printable_stays_as_it_is(text: str) -> None:
    assert plain(text) == text


def test_what_is_not_is_escaped() -> None:
    assert plain("\x1b]0;x\x07\x9b\u202e\u2028\x7f\t\r\n.") == (
        r"\x1b]0;x\x07\x9b\u202e\u2028\x7f\t\r" + "\n."
    )
    assert plain("\ud800") == r"\ud800"  # half a character


def test_nobody_begins_a_line_of_their_own() -> None:
    assert on_one_line("a\nb\x1b") == r"a\nb\x1b"


def test_an_escape_may_be_another() -> None:
    assert escaped("a\x1bb\n", lambda sign: f"<{ord(sign)}>") == "a<27>b\n"
