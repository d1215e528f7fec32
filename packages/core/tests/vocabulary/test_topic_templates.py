"""Topic templates: the topics that they match and build, and which of two is more specific."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.topic_templates import (
    TEMPLATE_CHARACTERS_MAX,
    TEMPLATES_KEPT_MAX,
    TEMPLATES_MAX,
    covers,
    may_meet,
    selector_of,
    specificity,
    template_of,
    templates_of,
)
from penstock_core.vocabulary.topics import topic_matches
from tests.thorough import examples

LEVELS = st.lists(st.sampled_from(("a", "b", "")), min_size=1, max_size=3)
TOPICS = LEVELS.map("/".join).filter(bool)
FILTERS = st.tuples(
    st.lists(st.sampled_from(("a", "b", "", "+")), min_size=1, max_size=3), st.booleans()
).map(lambda parts: "/".join((*parts[0], *(("#",) if parts[1] else ()))))
EVERY = sorted(
    {"/".join(levels) for levels in [(a,) for a in "ab"]}
    | {"/".join((a, b)) for a in ("a", "b", "") for b in ("a", "b", "")}
    | {"/".join((a, b, c)) for a in ("a", "b", "") for b in ("a", "b", "") for c in ("a", "b", "")}
)


@pytest.mark.spec("M12")
def test_a_template_reads_levels_and_writes_them() -> None:
    template = template_of("plant/{site}/{line}/temp")

    assert template.filter == "plant/+/+/temp"
    assert template.levels_of("plant/ulm/3/temp") == {"site": "ulm", "line": "3"}
    assert template.levels_of("plant/ulm/temp") is None
    assert template.topic_of({"site": "ulm", "line": "3", "x": 1}) == "plant/ulm/3/temp"
    for wrong in ({"site": "ulm"}, {"site": "ulm", "line": 3}, {"site": "a/b", "line": "3"}):
        assert template.topic_of(wrong) is None
    assert template.topic_of({"site": "+", "line": "3"}) is None
    assert template_of("a/+/{b}").topic_of({"b": "x"}) is None
    assert template_of("{b}/#").topic_of({"b": "x"}) is None
    assert template_of("{b}").topic_of({"b": ""}) is None


@pytest.mark.spec("M12")
def test_a_channel_has_some_templates_of_different_filters() -> None:
    assert [template.filter for template in templates_of(["a", "b/{c}"])] == ["a", "b/+"]
    with pytest.raises(InvalidArgument, match="are the same filter"):
        templates_of(["b/{c}", "b/{d}"])
    with pytest.raises(InvalidArgument, match=f"at most {TEMPLATES_MAX} topics"):
        templates_of([f"a{number}" for number in range(TEMPLATES_MAX + 1)])


@pytest.mark.spec("M12")
def test_a_template_is_no_longer_than_a_name_and_few_are_remembered() -> None:
    assert templates_of(["a" * TEMPLATE_CHARACTERS_MAX])
    with pytest.raises(InvalidArgument, match="has 256 characters; a topic of a channel has at mo"):
        templates_of(["a" * (TEMPLATE_CHARACTERS_MAX + 1)])

    assert template_of.cache_info().maxsize == TEMPLATES_KEPT_MAX


@pytest.mark.spec("M12")
@given(st.lists(FILTERS, min_size=2, max_size=4, unique=True), TOPICS)
@settings(max_examples=examples(200))
def test_of_filters_that_take_a_topic_one_is_the_most_specific(
    filters: list[str], topic: str
) -> None:
    taking = [text for text in filters if topic_matches(text, topic)]

    ranks = sorted(map(specificity, taking))
    assert len(set(ranks)) == len(ranks)


@pytest.mark.spec("M12")
@given(FILTERS, FILTERS)
@settings(max_examples=examples(200))
def test_filters_meet_where_there_is_a_topic_and_cover_where_there_is_none_left(
    one: str, other: str
) -> None:
    ours = {topic for topic in EVERY if topic_matches(one, topic)}
    theirs = {topic for topic in EVERY if topic_matches(other, topic)}

    if ours & theirs:
        assert may_meet(one, other)
    if covers(one, other):
        assert theirs <= ours
    if not may_meet(one, other):
        assert not ours & theirs


@pytest.mark.spec("M12")
def test_a_selector_asks_for_the_topic_or_for_the_levels() -> None:
    templates = (template_of("plant/{site}/{line}"), template_of("x/+"), template_of("y/z"))

    assert selector_of("plant/ulm/+", templates) == (
        "(topic MATCHES 'plant/ulm/+') OR (topic IS NULL AND site = 'ulm' AND line IS NOT NULL)"
    )
    assert selector_of("plant/#", templates) == (
        "(topic MATCHES 'plant/#') OR (topic IS NULL AND site IS NOT NULL AND line IS NOT NULL)"
    )
    assert selector_of("y/z", templates) == "(topic = 'y/z') OR (topic IS NULL)"
    assert selector_of("o'clock", ()) == "topic = 'o''clock'"
    assert covers("a/#", "a/+")
    assert not covers("a/+", "a/#")
    assert not covers("#", "$SYS/x")
