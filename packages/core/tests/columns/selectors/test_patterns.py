"""LIKE matches the same texts as a regular expression, in one pass over each text (SEM F1)."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.columns.selectors import InvalidSelector, Selector, parse, selector_of
from penstock_core.columns.selectors.patterns import (
    Automaton,
    Walk,
    parts,
    search,
    search_work,
    unlimited,
    wildcards,
)
from tests.counting import calls_during
from tests.thorough import examples

pytestmark = pytest.mark.spec("F1")

TEXTS = st.text("ab%é", max_size=12)
PATTERNS = st.text("ab%%_é", max_size=10)
ALPHABET = "ab.*$^\\[]{}()|?+-# \n\r\t\0é€𝄞\u2028"
"""Characters with a meaning in regular expressions, line ends, and characters of each size."""


def expression(pattern: str) -> re.Pattern[str]:
    pieces = {None: ".", "": ".*"}
    return re.compile("".join(pieces.get(p) or re.escape(p or "") for p in parts(pattern)), re.S)


@pytest.mark.slow
@settings(max_examples=examples(600), deadline=None)
@given(PATTERNS, st.lists(st.none() | TEXTS, max_size=6))
def test_a_pattern_agrees_with_a_regular_expression(pattern: str, texts: list[str | None]) -> None:
    wanted = [None if t is None else bool(expression(pattern).fullmatch(t)) for t in texts]

    assert search(pattern)(pa.array(texts, pa.string()), unlimited).to_pylist() == wanted


@pytest.mark.slow
@settings(max_examples=examples(600), deadline=None)
@given(st.text(ALPHABET + "%%%__!", min_size=1, max_size=12), st.data())
def test_the_automaton_finds_what_the_walk_finds(pattern: str, data: st.DataObject) -> None:
    """Each text is made from the pattern, so that about half of them match."""
    pattern_parts = parts(pattern, "!")
    filled = {None: st.sampled_from(ALPHABET), "": st.text(ALPHABET, max_size=3)}
    near = st.tuples(
        *(filled.get(part, st.just(part or "")) for part in pattern_parts),
        st.sampled_from(["", "", "\n", "a"]),
    ).map("".join)
    texts = data.draw(st.lists(st.none() | near | st.text(ALPHABET), max_size=6))
    column = pa.array([None, *texts], pa.string())[1:]

    matches = Automaton(pattern_parts).search(column, unlimited)

    assert matches.to_pylist() == Walk(pattern_parts).search(column, unlimited).to_pylist()


@pytest.mark.parametrize(
    ("pattern", "by_automaton"),
    [
        ("a%b%c", True),
        ("%a____b%____c%", True),
        ("%a_____b%", False),
        ("%a____b%____c%_d%", False),
        ("%" + "a%" * 8, False),
        ("%" + "a%" * 7, True),
        ("a%" + "é" * 127 + "%b", True),
        ("a%" + "é" * 128 + "%b", False),
    ],
)
def test_arrow_searches_for_patterns_whose_automaton_is_small(
    pattern: str, by_automaton: bool
) -> None:
    searched_by = getattr(search(pattern), "__self__", None)

    assert isinstance(searched_by, Automaton if by_automaton else Walk)


@pytest.mark.parametrize("pattern", ["%a_b%c", "a%b%c%", "a_c", "_b%", "%a_____b%"])
def test_a_constant_is_looked_at_like_a_column(pattern: str) -> None:
    column = search(pattern)(pa.array(["aabcabc"]), unlimited)

    assert search(pattern)(pa.scalar("aabcabc"), unlimited).as_py() == column[0].as_py()


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["%a" * 2_000 + "%", "%a_" * 1_000 + "%b", "_%" * 2_000 + "b"])
def test_work_grows_with_the_text_and_not_with_the_wildcards(pattern: str) -> None:
    """A regular expression would try each place many times; this search tries it once."""
    texts = ["a" * 20_000, "a" * 19_999 + "c", "ca" * 10_000 + "b"]

    calls = calls_during(lambda: search(pattern)(pa.array(texts), unlimited), "find", "startswith")

    assert 0 < calls <= 2 * len(texts) * len(pattern) + sum(map(len, texts))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["%a_b%a%", "%" + "a_" * 49 + "b%", "%" + "a" * 500 + "_b%"])
def test_a_text_that_leads_astray_at_every_place_is_not_searched_place_by_place(
    pattern: str,
) -> None:
    """A call for each place in a text of a megabyte would take seconds."""
    texts = pa.array(["b" + "a" * 100_000] * 3)
    walk = Walk(parts(pattern))

    calls = calls_during(lambda: walk.search(texts, unlimited), "find", "startswith")

    assert 0 < calls <= 3 * 33 * (2 + pattern.count("_"))
    assert walk.search(texts, unlimited).to_pylist() == [False] * 3
    assert search(pattern)(texts, unlimited).to_pylist() == [False] * 3


@pytest.mark.parametrize("end", ["aXb", "aXXb", "ab", ""])
@pytest.mark.parametrize("before", [40, 65_530, 65_536 + 31, 65_536 + 34, 200_000])
def test_a_piece_is_found_wherever_it_is(before: int, end: str) -> None:
    text = "a" * before + end + "aé"

    result = Walk(parts("%a_b%a%")).search(pa.array([text]), unlimited).to_pylist()

    assert result == [bool(expression("%a_b%a%").fullmatch(text))]


def test_work_grows_with_the_cost_of_a_search() -> None:
    assert Selector("s LIKE '%a_b%'").work == 4
    assert Selector("s LIKE '%" + "a_" * 40 + "b%'").work == 43 + 10
    assert Selector("s LIKE '%a%'").row_bytes == 0, "Arrow does it all"
    assert Selector("s LIKE '%a%b_c%'").row_bytes == 0, "and so it does here"
    walked = [Selector(f"s LIKE '{pattern}'").row_bytes for pattern in ("a_____b", "%a_____b%")]
    assert 0 < walked[0] < walked[1]
    assert Selector("n IN (1, 2, 3)").work == 1
    assert Selector(f"n IN ({', '.join(map(str, range(800)))})").work == 101
    assert Selector(f"n IN (0.5, {', '.join(map(str, range(800)))})").work == 802


def test_a_search_asks_whether_to_go_on() -> None:
    class Enough(Exception):
        pass

    def check() -> None:
        raise Enough

    with pytest.raises(Enough):
        search("%a%b%")(pa.array(["ab" * 1_000] * 2_000), check)
    with pytest.raises(Enough):  # and within one text that leads astray again and again
        search("%aaa_____b%")(pa.array(["a" * 20_000 + "b", "aaaab"]), check)


@pytest.mark.spec("F4")
def test_a_pattern_has_a_hundred_wildcards_at_most() -> None:
    assert wildcards("a%%_!%", "!") == 2
    Selector("s LIKE '" + "%a" * 100 + "'")

    with pytest.raises(InvalidSelector, match=r"column 8: expected a pattern with at most 100 w"):
        Selector("s LIKE '" + "%a" * 101 + "'")
    with pytest.raises(InvalidSelector, match="found 2000 wildcards"):
        parse("s NOT LIKE '" + "_" * 2_000 + "'")


def test_a_pattern_stored_before_the_limit_still_selects() -> None:
    stored = selector_of("s LIKE '" + "%a" * 300 + "'")
    batch = pa.RecordBatch.from_pylist([{"properties": {"s": "ba" * n}} for n in (299, 300)])

    assert stored.mask(batch).to_pylist() == [False, True]


def test_elements_that_are_compared_with_a_value_of_their_event_count_for_many() -> None:
    """The value is copied for each element, for example a text of 100 KB for each of thousands."""
    assert Selector("xs[] = 's'").work == Selector("xs[0] = s").work == 1
    assert Selector("xs[] = s").work == Selector("xs[] BETWEEN s AND 'z'").work == 257
    assert Selector("xs[].a = s OR t = s").work == 258


def test_the_last_piece_of_a_pattern_counts_if_an_automaton_tries_it_everywhere() -> None:
    long = "a" * 60
    last = f"%{long}_{long}"

    assert search_work(last) > search_work(f"{long}_{long}%") + 20
    # A Walk compares the last piece at the end of each text alone.
    assert search_work("_" * 9 + last) < search_work("_" * 9 + last + "%") - 20


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("a_c%", "abcd" * 9, "xabc"),
        ("%a_c", "xx\nabc", "abcx"),
        ("%a_c%", "x\nabc\nx", "acb"),
        ("%a%b%c%", "1a2b\n3c4", "cba"),
        ("%_%", "x", ""),
        ("_", "\n", "ab"),
        ("a%_%b", "a\nb", "ab"),
    ],
)
def test_an_open_end_of_a_pattern_matches_anything(pattern: str, matching: str, other: str) -> None:
    texts = pa.array([matching, other, None])

    assert search(pattern)(texts, lambda: None).to_pylist() == [True, False, None]
