"""States of a merge channel, compared with a simple model that merges row by row (SEM K2, K4)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.columns.merge.states import States, deltas_of
from penstock_core.columns.schema.rows import Rows
from penstock_core.ids.ids import IdSet, Span
from tests.thorough import examples

from .strategies import PROPERTIES, VALUES, typed

KEY = "key"


class Change(NamedTuple):
    """One event on its way to the channel."""

    key: str | int | None
    properties: dict[str, Any]
    is_delta: bool
    tag: str | None = None
    data: bytes = b""

    @property
    def event(self) -> Event:
        key_property = {} if self.key is None else {KEY: self.key}
        properties = {**self.properties, **key_property}
        return Event(self.data, tag=self.tag, properties=properties, is_delta=self.is_delta)


class Model:
    """A model of the merged states that processes one event at a time."""

    def __init__(self) -> None:
        self.newest: dict[Any, int] = {}
        self.events: dict[int, tuple[dict[str, Any], str | None, bytes]] = {}

    def publish(self, event_id: int, change: Change) -> None:
        properties, tag, data = dict(change.event.properties), change.tag, change.data
        if change.key is not None:
            previous = self.newest.pop(change.key, None)
            former = None if previous is None else self.events.pop(previous)
            if former is not None and change.is_delta:
                properties = {**former[0], **properties}
                tag, data = tag or former[1], data or former[2]
            self.newest[change.key] = event_id
        self.events[event_id] = (properties, tag, data)

    def seen(self) -> dict[int, Any]:
        return {n: (typed(kept[0]), *kept[1:]) for n, kept in self.events.items()}


def seen(states: States, spans: list[Span]) -> dict[int, Any]:
    result: dict[int, Any] = {}
    for chunk in states.read(spans):
        rows = Rows(chunk.batch)
        assert not deltas_of(chunk.batch).any()
        for row, event_id in enumerate(chunk.ids.tolist()):
            properties = typed(rows.properties(row))
            result[event_id] = (properties, rows.value("tag", row), rows.data(row))
    return result


def publish(states: States, batches: list[list[Change]], first: int) -> int:
    """Publish several bodies; return the next id."""
    for changes in batches:
        body = body_of([change.event for change in changes])
        rows = stamp(body, Span(first, first + len(changes)), 0)
        slots = states.slots_of(rows)
        merged, wanted = states.merged(rows, slots, ~deltas_of(rows))
        states.append(merged, slots[wanted], np.zeros(len(wanted), dtype=np.int32))
        states.tidy()
        first += len(changes)
    return first


NAMES = st.sampled_from(["a", "b", "a.b", "c[0]", "x"])
CHANGES = st.builds(
    Change,
    key=st.sampled_from(["one", "two", 3, None]),
    properties=st.one_of(st.dictionaries(NAMES, VALUES, max_size=3), PROPERTIES).map(
        lambda values: {name: value for name, value in values.items() if name != KEY}
    ),
    is_delta=st.booleans(),
    tag=st.sampled_from([None, None, "t"]),
    data=st.sampled_from([b"", b"", b"d"]),
).filter(lambda change: change.key is not None or not change.is_delta)


@pytest.mark.slow
@pytest.mark.spec("K2")
@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.lists(CHANGES, min_size=1, max_size=6), min_size=1, max_size=6))
def test_merged_states_equal_a_model_that_merges_event_by_event(
    batches: list[list[Change]],
) -> None:
    states, model = States(KEY), Model()
    end = publish(states, batches, 0)
    for event_id, change in enumerate(change for changes in batches for change in changes):
        model.publish(event_id, change)

    assert seen(states, list(IdSet.from_ids(sorted(model.events)).spans)) == model.seen()
    states.compact(IdSet.from_ids(sorted(model.events)))
    assert seen(states, [Span(0, end)]) == model.seen()
