"""Hypothesis strategies for the values of events."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)

NAMES = st.one_of(
    st.sampled_from(["a", "b", "a.b", "c[0]", "a::string", "a::int", "x\\y", "ü"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4),
)

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    INT64,
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.binary(max_size=5),
    st.datetimes(timezones=st.just(UTC)),
    st.datetimes(),
)

VALUES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "a.b", "k"]), inner, max_size=3),
    ),
    max_leaves=8,
)

PROPERTIES = st.dictionaries(NAMES, VALUES, max_size=5)


def typed(value: Any) -> Any:
    """Return the value together with its types, so that 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return {key: typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    if isinstance(value, datetime):
        return ("datetime", value.tzinfo is not None, value)
    return (type(value).__name__, value)
