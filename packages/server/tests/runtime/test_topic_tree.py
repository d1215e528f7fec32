"""Which topic names a filter takes, found by level."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.vocabulary.topics import topic_matches
from penstock_server.runtime.reading.stretches import NEAR, stretches_of
from penstock_server.runtime.subscriptions.topic_tree import TopicTree
from tests.thorough import examples

WORDS = st.sampled_from(["a", "b", "", "$x"])
NAMES = st.lists(WORDS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.tuples(
    st.lists(st.one_of(WORDS, st.just("+")), min_size=1, max_size=4).map("/".join).filter(bool),
    st.sampled_from(["", "/#", "#"]),
).map(lambda parts: "#" if parts[1] == "#" else "".join(parts))


@pytest.mark.spec("F6")
@settings(max_examples=examples(200))
@given(st.lists(NAMES, max_size=20), FILTERS)
def test_a_filter_finds_all_matching_names(names: list[str], text: str) -> None:
    tree = TopicTree(names)

    matches = list(tree.find(text))

    assert sorted(matches) == sorted(name for name in set(names) if topic_matches(text, name))


@pytest.mark.parametrize(
    ("text", "match_count", "steps"),
    [
        ("site/7/3/temp", 1, 4),
        ("site/7/+/temp", 10, 22),
        ("site/7/3/#", 2, 6),
        ("site/7/#", 20, 33),
        ("else/+/#", 0, 0),
    ],
)
def test_a_search_visits_matching_branches_only(text: str, match_count: int, steps: int) -> None:
    kinds = ("temp", "state")
    tree = TopicTree(
        f"site/{n}/{m}/{kind}" for n in range(500) for m in range(10) for kind in kinds
    )

    assert len(list(tree.find(text))) == match_count
    assert tree.steps == steps
    assert len(tree) == 10_000


def test_events_with_near_ids_are_read_together() -> None:
    event_ids = [5, 6, 6 + NEAR, 500, 501, 502]

    stretches = [event_ids[first:end] for first, end in stretches_of(event_ids)]

    assert stretches == [[5, 6], [6 + NEAR], [500, 501, 502]]
    assert list(stretches_of([])) == []
