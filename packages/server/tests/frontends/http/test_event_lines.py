"""Lines of NDJSON made from columns are those made event by event."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.columns.events.batch import EventBatch, stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import Span
from penstock_server.frontends.http.event_documents import columns_of
from penstock_server.frontends.http.event_lines import lines_of
from penstock_server.frontends.http.stream_forms import LinesForm
from tests.thorough import examples

TEXTS = st.text(max_size=6) | st.sampled_from(['"', "\\", '\\"', "\n", "\x00\x7f", "é\u2028", ""])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([1e16, 1e-7, -0.0, 5e-324, 1.0, 123456789.125])
    | TEXTS
)
NAMES = st.sampled_from(["a", "price", 'q"', "é"])


def stored(*events: Event, first: int = 7, published_us: int = 1_000_000) -> pa.RecordBatch:
    return stamp(body_of(events), Span(first, first + len(events)), published_us)


@st.composite
def batches(draw: st.DrawFn) -> EventBatch:
    """Events most of which have the same properties, of one type each."""
    kinds = st.sampled_from([TEXTS, st.integers(-(2**63), 2**63 - 1), st.booleans(), st.floats()])
    columns = draw(st.dictionaries(NAMES, kinds, max_size=3))
    plain = st.fixed_dictionaries({name: st.none() | kind for name, kind in columns.items()})
    properties = draw(st.sampled_from([plain, plain, st.dictionaries(NAMES, SCALARS, max_size=3)]))
    events = st.builds(
        Event,
        draw(st.sampled_from([st.binary(max_size=6), TEXTS.map(str.encode)])),
        tag=st.none() | TEXTS,
        properties=properties,
        ttl=st.sampled_from([0, 0, 1_500]),
        priority=st.sampled_from([None, None, 4, 9]),
        headers=draw(
            st.sampled_from(
                [st.just({}), st.just({}), st.dictionaries(st.just("reply_to"), TEXTS, max_size=1)]
            )
        ),
    )
    body = draw(st.lists(events, min_size=1, max_size=5))
    published_us = draw(st.sampled_from([0, 1_000_000, 1_234_567_890_123_456, 1_999_999_999_000]))
    publishers = draw(
        st.sampled_from(
            [
                (),
                (("ann@host", ()),),
                (("@127.0.0.1", ()),),
                (('a"b@c@h', ((7, 9),)), ("bob@x", ((8, 12),))),
            ]
        )
    )
    batch = stored(*body, published_us=published_us)
    first = draw(st.integers(0, len(body)))
    return EventBatch(batch.slice(first), publishers=publishers)


@settings(max_examples=examples(400), deadline=None)
@given(
    batch=batches(),
    columns=st.sampled_from(
        [
            "",
            "",
            "properties.a,properties.price",
            "properties,tag",
            "data,ttl",
            "data_base64,headers",
        ]
    ),
)
def test_lines_of_columns_are_those_of_each_event(batch: EventBatch, columns: str) -> None:
    form = LinesForm(None, columns)
    lines = lines_of(batch, columns_of(columns))

    assert lines is None or bytes(lines) == bytes(form.each_line(batch))


PLAIN: Mapping[str, Any] = {"n": 1, "price": 0.5, "sku": 'a"1', "is_new": True, "note": None}


def test_plain_events_have_lines_of_columns() -> None:
    batch = EventBatch(stored(*(Event(b"x", properties=PLAIN) for _ in range(3))))
    lines = lines_of(batch, None)

    assert lines is not None
    assert bytes(lines) == bytes(LinesForm(None, "").each_line(batch))
    assert [json.loads(line)["event_id"] for line in bytes(lines).splitlines()] == [7, 8, 9]


def test_events_with_different_properties_have_lines_of_columns() -> None:
    events = [Event(b"\xff", properties={"n": 1}), Event(properties={"m": "b"}), Event(ttl=5)]
    batch = EventBatch(stored(*events), publishers=(("ann@here", ()),))
    lines = lines_of(batch, None)

    assert lines is not None
    assert bytes(lines) == bytes(LinesForm(None, "").each_line(batch))


@pytest.mark.parametrize(
    "event",
    [
        Event(properties={"n": float("nan")}),
        Event(properties={"n": b"bytes"}),
        Event(properties={"n": {"a": 1}}),
        Event(headers={"reply_to": "b"}),
    ],
)
def test_events_with_other_values_have_lines_made_one_by_one(event: Event) -> None:
    assert lines_of(EventBatch(stored(event)), None) is None


def test_years_are_written_with_four_digits() -> None:
    times_us = np.array([-62_135_596_800_000_000, 253_402_300_799_999_999])
    batch = EventBatch(stamp(body_of([Event(), Event()]), Span(0, 2), times_us))
    lines = lines_of(batch, None)

    assert lines is not None
    assert bytes(lines) == bytes(LinesForm(None, "").each_line(batch))
