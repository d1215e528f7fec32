"""Allowed names of channels and durables, and their escaped forms."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.vocabulary.errors import InvalidName
from penstock_core.vocabulary.names import (
    FILE_PART_MAX,
    NAME_LENGTH_MAX,
    destination_name,
    durable_name,
    escaped,
    file_part,
    unescaped,
)
from tests.named import NAMES, texts
from tests.thorough import examples

pytestmark = pytest.mark.spec("C2")


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("orders", "orders"),
        ("/orders", "orders"),
        ("orders/", "orders"),
        ("a/b", "a/b"),
        ("a\\b", "a/b"),
        ("a::b", "a/b"),
        ("a:::b", "a/:b"),
        ("a//b", "a/b"),
        ("//a//", "a"),
        ("A-1_#/9", "A-1_#/9"),
        ("orders.new", "orders.new"),
        ("com.acme.Orders", "com.acme.Orders"),
        ("VirtualTopic.X", "VirtualTopic.X"),
        ("two words", "two words"),
        ("gro\u0308\u00dfe", "größe"),
        ("日/本", "日/本"),
        ("$a:b@c+d", "$a:b@c+d"),
        ("a*/>b/what?", "a*/>b/what?"),
        (".hidden", ".hidden"),
        ("/" + "x" * NAME_LENGTH_MAX, "x" * NAME_LENGTH_MAX),
        ("e\u0301" * NAME_LENGTH_MAX, "é" * NAME_LENGTH_MAX),
    ],
)
def test_a_name_has_one_canonical_form(spelling: str, name: str) -> None:
    assert destination_name(spelling) == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "at least one character other than '/'"),
        ("/", "at least one character other than '/'"),
        ("a\nb", r"'a\nb': character 2, U+000A, is a control character"),
        ("a\x9bb", "character 2, U+009B, is a control character"),
        ("a/\u202eb", "character 3, U+202E (RIGHT-TO-LEFT OVERRIDE), is an invisible formatting"),
        ("a\u200db", "U+200D (ZERO WIDTH JOINER), is an invisible formatting character"),
        ("a\ud800", "U+D800, is half of a surrogate pair"),
        ("a\xa0b", "U+00A0 (NO-BREAK SPACE), is a space other than the usual one"),
        ("a\u2028b", "is a line separator"),
        ("a\ue000", "is a character for private use"),
        ("a\uffff", "is a character unknown to this version"),
        ("a/../b", "a part of a name cannot be '..'"),
        ("./a", "a part of a name cannot be '.'"),
        ("orders/*", "'*' alone is a wildcard"),
        (">", "'>' alone is a wildcard"),
        ("a/?/b", "'?' alone is a wildcard"),
        (" a", "' a' begins or ends with a space"),
        ("a /b", "'a ' begins or ends with a space"),
        ("x" * (NAME_LENGTH_MAX + 1), "256 characters; at most 255 are allowed"),
        ("x" * 1_000_000, "has 1000000 characters; a name may have at most 255"),
        (7, "a name is a string, not int"),
    ],
)
def test_any_other_name_is_refused_with_place_and_reason(name: object, reason: str) -> None:
    with pytest.raises(InvalidName) as refused:
        destination_name(name)

    assert reason in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.slow
@given(texts())
@settings(max_examples=examples(400))
def test_whatever_is_accepted_is_a_name_that_stays_itself(text: str) -> None:
    try:
        name = destination_name(text)
    except InvalidName:
        return

    assert destination_name(name) == name
    assert 1 <= len(name) <= NAME_LENGTH_MAX
    assert unicodedata.is_normalized("NFC", name)
    assert name.isprintable()
    assert all(part not in ("", ".", "..", "*", ">", "?") for part in name.split("/"))


@pytest.mark.slow
@given(NAMES)
@settings(max_examples=examples(400))
def test_what_is_escaped_is_one_plain_part_and_comes_back(name: str) -> None:
    part = file_part(name)

    assert unescaped(escaped(name)) == name
    assert escaped(name).isascii()
    assert not set(escaped(name)) & set("/,*? ~\\:\"'")
    assert len(part) <= FILE_PART_MAX
    assert not set(part) & set("/%,*? \\:\"'#")
    assert not part.startswith(".")
    if "~~" not in part:
        assert unescaped(part, "~") == name


@pytest.mark.slow
@given(st.sets(NAMES, min_size=2, max_size=5))
@settings(max_examples=examples(100))
def test_two_names_never_share_a_file(names: set[str]) -> None:
    assert len({file_part(name) for name in names}) == len(names)


def test_a_long_name_is_cut_for_a_file_between_two_escapes() -> None:
    names = ["日" * NAME_LENGTH_MAX, "日" * (NAME_LENGTH_MAX - 1) + "本"]
    parts = [file_part(name) for name in names]

    assert parts[0] != parts[1]
    for part in parts:
        shown, _, digits = part.partition("~~")
        assert len(part) <= FILE_PART_MAX
        assert len(digits) == 16
        assert set(unescaped(shown, "~")) == {"日"}


def test_a_sign_that_begins_no_escape_stands_for_itself() -> None:
    assert unescaped("100%") == "100%"
    assert unescaped("a%2Cb%") == "a,b%"
    with pytest.raises(InvalidName, match=r"'%FF': the escapes with % are not UTF-8"):
        unescaped("%FF")


@pytest.mark.spec("D1")
@pytest.mark.parametrize(
    "name", ["billing:eu.1@host", "two words", "a//b", "größe", "日", "x" * NAME_LENGTH_MAX]
)
def test_a_durable_may_be_called_like_an_address(name: str) -> None:
    assert durable_name(name) == name


@pytest.mark.parametrize("name", ["", None, "a\tb", " a", ".", "..", "\u202ea", "x" * 256])
def test_a_durable_has_a_name_too(name: object) -> None:
    with pytest.raises(InvalidName):
        durable_name(name)
