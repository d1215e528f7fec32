"""MATCHES: topic filters on columns of texts (SEM F6)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.columns.selectors import Selector
from penstock_core.columns.selectors.expressions import Compare, Comparison, Reference, Text
from penstock_core.columns.selectors.parser import parse
from penstock_core.columns.selectors.patterns import unlimited
from penstock_core.columns.selectors.topic_search import topic_search
from penstock_core.vocabulary.errors import InvalidSelector
from penstock_core.vocabulary.topics import filter_fault, topic_matches
from tests.thorough import examples

LEVELS = st.text("ab$.é+#\n\\\\[", max_size=2)
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join)
FILTERS = st.lists(LEVELS | st.just("+") | st.just("#"), min_size=1, max_size=4).map("/".join)


@given(FILTERS.filter(lambda text: not filter_fault(text)), st.lists(TOPICS | st.none()))
@settings(max_examples=examples(400))
@pytest.mark.spec("F6")
def test_a_column_is_searched_as_each_topic_is_looked_at(
    text: str, topics: list[str | None]
) -> None:
    result = topic_search(text)(pa.array(topics, pa.string()), unlimited)

    assert result.to_pylist() == [t if t is None else topic_matches(text, t) for t in topics]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("topic MATCHES 'a/#/b'", "# must be the last level"),
        ("topic MATCHES 'a+'", "+ must be all of its level"),
        ("topic MATCHES ''", "at least one character"),
        ("topic MATCHES 5", "a topic filter in single quotes after 'MATCHES'"),
        ("topic MATCHES name", "a topic filter in single quotes"),
        ("topic MATCHES '" + "+/" * 101 + "a'", "at most 100 '+'"),
        ("topic MATCHES '" + "a" * 4_097 + "'", "at most 4096 characters"),
    ],
)
@pytest.mark.spec("F6")
def test_what_is_no_filter_is_refused_with_its_place(text: str, expected: str) -> None:
    with pytest.raises(InvalidSelector) as caught:
        Selector(text)

    assert expected in str(caught.value)
    assert "line 1, column" in str(caught.value)


@pytest.mark.spec("F6")
def test_a_property_may_have_the_name_of_the_operator() -> None:
    result = parse("matches = 'a'")

    assert result == Compare(Comparison.EQUAL, Reference(("matches",)), Text("a"))
    assert Selector("matches MATCHES 'a/b'").text == "matches MATCHES 'a/b'"
    assert Selector("a = 1 and matches").text == "a = 1 AND matches"


@pytest.mark.spec("F6")
def test_a_filter_with_many_wildcards_counts_as_more_work() -> None:
    assert Selector("t MATCHES 'a/b'").work == 1
    assert Selector("t MATCHES 'a/+/+/#'").work == 7
