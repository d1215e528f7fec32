"""What channels and durables may be called."""

from __future__ import annotations

import pytest

from penstock.core.errors import InvalidName
from penstock.core.names import NAME_LENGTH_MAX, destination_name, durable_name

pytestmark = pytest.mark.spec("C2")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("orders", "orders"),
        ("/orders", "orders"),
        ("a/b", "a/b"),
        ("a\\b", "a/b"),
        ("a::b", "a/b"),
        ("a//b", "a/b"),
        ("//a", "a"),
        ("A-1_#/9", "A-1_#/9"),
        ("/" + "x" * NAME_LENGTH_MAX, "x" * NAME_LENGTH_MAX),
    ],
)
def test_a_name_has_one_canonical_form(given: str, name: str) -> None:
    assert destination_name(given) == name


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("", "at least one letter"),
        ("/", "at least one letter"),
        ("a b", "' '"),
        ("a.b", "'.'"),
        ("a:b", "':'"),
        ("größe", "'ö'"),
        ("a/", "a folder is not a channel"),
        ("x" * (NAME_LENGTH_MAX + 1), "236 characters; 235 may be"),
        (7, "a name is a string, not int"),
    ],
)
def test_any_other_name_is_refused_with_the_reason(given: object, reason: str) -> None:
    with pytest.raises(InvalidName) as refused:
        destination_name(given)

    assert reason in str(refused.value)


@pytest.mark.spec("D1")
def test_a_durable_may_be_called_like_an_address() -> None:
    assert durable_name("billing:eu.1@host") == "billing:eu.1@host"


@pytest.mark.parametrize("given", ["", None, "a b", "x" * 236])
def test_a_durable_has_a_name_too(given: object) -> None:
    with pytest.raises(InvalidName):
        durable_name(given)
