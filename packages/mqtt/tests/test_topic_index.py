"""A tree of filters finds what asking each filter finds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.vocabulary.topics import filter_fault, topic_matches
from penstock_mqtt.topic_index import TopicIndex
from tests.thorough import examples


def test_what_is_remembered_of_topics_is_bounded() -> None:
    index: TopicIndex[int] = TopicIndex(matches_max=100)
    for whose in range(10):
        index.add("#", whose)
    for number in range(50):
        assert len(index.find(f"a/{number}")) == 10
        assert len(index.find("x" * 1_000 + str(number))) == 10
        assert sum(map(len, index.cached.values())) <= 100
    assert all(len(topic) < 300 for topic in index.cached)


LEVELS = st.sampled_from(["a", "b", "", "$a"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.lists(LEVELS | st.sampled_from(["+", "#"]), min_size=1, max_size=4)
    .map("/".join)
    .filter(lambda text: not filter_fault(text))
)


@given(st.lists(FILTERS), st.lists(TOPICS), st.data())
@settings(max_examples=examples(300))
def test_whose_filters_take_a_topic(
    texts: list[str], topics: list[str], data: st.DataObject
) -> None:
    index: TopicIndex[int] = TopicIndex()
    text_by_value = dict(enumerate(texts))
    for whose, text in text_by_value.items():
        index.add(text, whose)
    for topic in topics:
        assert sorted(index.find(topic)) == [
            w for w, t in text_by_value.items() if topic_matches(t, topic)
        ]
    for whose in data.draw(st.permutations(list(text_by_value))):
        index.remove(text_by_value.pop(whose), whose)
        for topic in topics:
            matches = sorted(index.find(topic))
            assert matches == [w for w, t in text_by_value.items() if topic_matches(t, topic)]

    assert index.is_empty, "nothing is left of what was removed"
