"""Topic names and filters, as MQTT has them (4.7)."""

from __future__ import annotations

import pytest

from penstock_core.vocabulary.topics import (
    LEVELS_MAX,
    filter_fault,
    fixed_part,
    has_wildcards,
    name_fault,
    topic_matches,
)


@pytest.mark.parametrize(
    ("text", "name", "takes"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("#", "a/b", True),
        ("#", "/", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/x", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/x", True),
        ("ACCOUNTS", "Accounts", False),
        ("a", "a/b", False),
    ],
)
@pytest.mark.spec("F6")
def test_a_filter_takes_the_names_that_the_standard_says(text: str, name: str, takes: bool) -> None:
    assert not filter_fault(text)
    assert not name_fault(name)
    assert topic_matches(text, name) == takes


@pytest.mark.parametrize("text", ["", "a#", "#/a", "a/#/b", "+a", "a+/b", "a\0", "x" * 65_536])
def test_what_is_no_filter_is_told(text: str) -> None:
    assert filter_fault(text)


@pytest.mark.parametrize("name", ["", "a/+", "#", "a\0", "x" * 65_536])
def test_what_is_no_name_is_told(name: str) -> None:
    assert name_fault(name)


@pytest.mark.parametrize(
    ("text", "part"),
    [("a/b", "a/b"), ("a/+/b", "a/"), ("a/#", "a"), ("#", ""), ("+/#", ""), ("a/+/#", "a/")],
)
def test_what_names_begin_with_is_known(text: str, part: str) -> None:
    assert fixed_part(text) == part
    assert has_wildcards(text) == (text != part)


def test_a_topic_has_a_bounded_number_of_levels() -> None:
    most, more = "/".join("a" * LEVELS_MAX), "/".join("a" * (LEVELS_MAX + 1))

    assert (name_fault(most), filter_fault(most)) == ("", "")
    assert "at most 200 levels" in name_fault(more)
    assert "at most 200 levels" in filter_fault(more)
