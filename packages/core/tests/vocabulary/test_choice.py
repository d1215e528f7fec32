"""Names and patterns, and the channels that they match."""

from __future__ import annotations

import pytest

from penstock_core.vocabulary.choice import Choice, choice_of, fits, short_choice_of
from penstock_core.vocabulary.errors import InvalidName, LimitReached


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("orders/*", ["orders/eu", "orders/"], ["orders", "orders/eu/west", "old/orders/eu"]),
        ("orders/**", ["orders/eu", "orders/eu/west"], ["orders", "order/eu"]),
        ("**", ["a", "a/b/c"], []),
        ("*", ["a"], ["a/b"]),
        ("day-?", ["day-1"], ["day-", "day-10", "day-/"]),
        ("*/delays", ["flights/delays"], ["flights/old/delays", "delays"]),
        ("a#*", ["a#1"], ["ab1"]),
        ("a%2A*", ["a*", "a*b"], ["a", "ab"]),
        ("gro\u0308\u00dfe/*", ["größe/a"], ["grosse/a"]),
    ],
)
def test_a_pattern_takes_names(pattern: str, fitting: list[str], others: list[str]) -> None:
    assert [name for name in fitting + others if fits(name, pattern)] == fitting


def test_a_list_is_sorted_and_canonical() -> None:
    choice = choice_of("trades, /orders::eu ,orders\\us,orders/*,trades")

    assert choice == Choice(("orders/eu", "orders/us", "trades"), ("orders/*",))
    assert choice.text == "orders/eu, orders/us, trades, orders/*"
    assert not choice.is_one
    assert choice.select(["orders/asia", "orders/eu", "other"]) == [
        "orders/asia",
        "orders/eu",
        "orders/us",
        "trades",
    ]


def test_one_name_is_one_channel_and_a_pattern_never_is() -> None:
    assert choice_of("orders").is_one
    assert not choice_of("orders*").is_one
    assert choice_of("orders*").select([]) == []


@pytest.mark.spec("C2")
def test_a_name_with_a_sign_of_lists_is_written_escaped() -> None:
    choice = choice_of("a%2Cb, 100%25, what%3F, two words, 日*")

    assert choice.names == ("100%", "a,b", "two words", "what?")
    assert choice.patterns == ("日*",)
    assert choice_of(choice.text) == choice
    assert choice_of("a%2A").is_one
    assert choice_of("a%2A").takes("a*")
    assert not choice_of("a%2A").takes("ab")


@pytest.mark.parametrize("text", ["a\tb", "orders/..", "or\nders*", "%FF"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        choice_of(text)


@pytest.mark.spec("D21")
@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("*a*b*", ["ab", "xaxbx"], ["ba", "a/b", "x/ab"]),
        ("**a**b**c", ["a/b/c", "abc", "aabbcc"], ["abcd", "acb"]),
        ("?*?*?", ["abc", "abcd"], ["ab", "a/b"]),
        ("*/*/**", ["a/b/", "a/b/c/d", "//"], ["a/b", "a"]),
        ("%2A*%2A**%2A?", ["***a", "*x*y/z*a"], ["***", "aaaa"]),
    ],
)
def test_many_wildcards_mean_what_few_do(
    pattern: str, fitting: list[str], others: list[str]
) -> None:
    assert [name for name in fitting + others if fits(name, pattern)] == fitting


@pytest.mark.spec("D21")
def test_a_pattern_that_could_go_many_ways_does_not_try_them_one_by_one() -> None:
    assert not fits("a" * 255, "**a" * 60 + "**b")
    assert fits("a" * 255, "**a" * 60 + "**")


def test_what_a_realm_looks_at_each_time_is_short() -> None:
    assert short_choice_of(",".join(f"a{n}*" for n in range(64))).patterns
    with pytest.raises(LimitReached, match="65 names and patterns"):
        short_choice_of(",".join(f"a{n}*" for n in range(65)))
    with pytest.raises(InvalidName, match="256 characters"):
        choice_of("?" * 256)
