"""Digests and the runs of a mask."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.events.digest import digest, event_sizes, grouped, spans_of
from penstock_core.columns.schema.ipc import batch_bytes, batch_from
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import EventTooLarge

MIB = 1024 * 1024


def test_a_plain_batch_has_no_special_events() -> None:
    result = digest(body_of_columns([b"x" * 10, b"y" * 20]), MIB)

    assert (result.count, result.volatile, result.transient, result.ttls) == (2, (), (), ())
    assert result.size >= result.largest >= 20


@pytest.mark.spec("E1")
def test_flags_and_ttls_become_spans() -> None:
    body = body_of_columns(
        [b""] * 5,
        ttls=[10, 10, None, 20, 10],
        persistents=[False, None, False, False, True],
        transients=[None, True, False, True, True],
    )
    result = digest(body, MIB)

    assert result.volatile == (Span(0, 1), Span(2, 4))
    assert result.transient == (Span(1, 2), Span(3, 5))
    assert result.ttls == ((10, (Span(0, 2), Span(4, 5))), (20, (Span(3, 4),)))


@pytest.mark.spec("E7")
def test_an_event_that_is_too_large_is_named_with_both_sizes() -> None:
    body = body_of_columns([b"x", b"y" * 200_001, b"z"])

    assert digest(body, 200_001).largest == 200_001
    with pytest.raises(EventTooLarge, match=r"event 1 .* 200001 bytes; .* at most 200000"):
        digest(body, 200_000)


@pytest.mark.spec("E7")
def test_many_small_events_are_not_one_large_event() -> None:
    assert digest(body_of_columns([b"x" * 100] * 1000), 100).largest == 100


@pytest.mark.spec("E7")
@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("ü" * 10, 20),
        ([1, 2, 3], 24),
        ([["a", "bc"], [], None], 3),
        ({"a": "xyz", "b": [{"c": b"1"}, {"c": b"22"}]}, 6),
        (True, 1),
        (None, 0),
        ([1, "mixed"], 20),
    ],
)
def test_properties_count_at_any_depth(value: Any, size: int) -> None:
    body = body_of_columns([b"1234"], properties=[{"p": value}])

    assert event_sizes(body).tolist() == [4 + size]


@pytest.mark.spec("E7")
def test_a_slice_is_measured_by_its_own_rows() -> None:
    properties = [{"p": ["x" * n, "y"], "q": {"r": b"z" * n}} for n in range(100)]
    body = body_of_columns([b"d" * n for n in range(100)], properties=properties)
    part = body.slice(90, 3)
    sent = batch_from(batch_bytes(part), part.schema)

    assert event_sizes(part).tolist() == [3 * n + 1 for n in (90, 91, 92)]
    assert event_sizes(sent).tolist() == event_sizes(part).tolist()
    assert digest(part, MIB).size < 2_000
    assert digest(sent, MIB).size < 2_000


@given(st.lists(st.none() | st.booleans(), max_size=40), st.integers(0, 5))
def test_spans_are_the_runs_of_true(mask: list[bool | None], skip: int) -> None:
    array = pa.array(mask, pa.bool_()).slice(skip)
    result = spans_of(array)
    inside = {offset for span in result for offset in range(span.first, span.end)}

    assert inside == {offset for offset, flag in enumerate(mask[skip:]) if flag}
    assert all(one.end < two.first for one, two in pairwise(result))


def test_offsets_are_grouped_by_value() -> None:
    assert grouped(np.array([5, 5, 1, 5, 1, 1])) == (
        (1, (Span(2, 3), Span(4, 6))),
        (5, (Span(0, 2), Span(3, 4))),
    )
    assert grouped(np.array([7, 7])) == ((7, (Span(0, 2),)),)
    assert grouped(np.array([], dtype=np.int64)) == ()
