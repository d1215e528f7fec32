"""The nesting of a JSON text is counted before a parser recurses over it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.nesting import NESTING_MAX, check_json_nesting, json_nesting


def levels(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(levels, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(levels, value), default=0)
    return 0


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("depth", [NESTING_MAX + 1, 100_000])
def test_what_is_nested_deeper_than_the_bound_is_refused(
    opened: str, closed: str, depth: int
) -> None:
    text = (opened * depth + "0" + closed * depth).encode()

    with pytest.raises(InvalidArgument, match="the payload is nested too deep; at most 100"):
        check_json_nesting(text, "the payload")


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_what_is_nested_as_deep_as_the_bound_is_taken(opened: str, closed: str) -> None:
    text = (opened * NESTING_MAX + "0" + closed * NESTING_MAX).encode()

    check_json_nesting(text)

    assert json_nesting(text) == NESTING_MAX


def test_many_brackets_beside_one_another_are_not_nested() -> None:
    check_json_nesting(json.dumps([[1, {"a": []}]] * 10_000).encode())


def test_brackets_in_strings_do_not_count() -> None:
    check_json_nesting(json.dumps(['\\"' + "[" * 1_000, "{" * 1_000 + '"\\']).encode())


def test_a_text_that_is_never_closed_is_nested_all_the_same() -> None:
    with pytest.raises(InvalidArgument):
        check_json_nesting(b'{"a":' * 100_000)


nested = st.recursive(
    st.text(alphabet='[]{}"\\n,:a') | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='[{"\\'), inner),
    max_leaves=400,
)


@given(nested, st.integers(0, 130))
def test_the_levels_are_those_of_the_value(value: Any, more: int) -> None:
    for _ in range(more):
        value = [value, []]
    wide = [value, *[[]] * 200]  # more brackets than levels are allowed

    depth = json_nesting(json.dumps(wide).encode())

    assert depth == levels(wide) if levels(wide) <= NESTING_MAX else depth > NESTING_MAX
