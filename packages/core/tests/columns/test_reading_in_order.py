"""Events of a batch read one after the other are the same as those looked up by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock_core.columns.events.batch import EventBatch, stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.rows import BLOCK_ROWS

COUNT = 2 * BLOCK_ROWS + 37
"""Two whole blocks and a part of one."""


def mixed_batch() -> EventBatch:
    """Nulls, absent keys, nested values, properties that need ``more``, tags here and there."""
    events = []
    for number in range(COUNT):
        properties: dict[str, Any] = {"number": number, "nested": {"list": [number, None]}}
        if number % 3 == 0:
            properties["price"] = number / 2
        if number % 5 == 0:
            properties["null"] = None
        if number % 7 == 0:
            properties["number"] = str(number)
        tag = f"t{number}" if number % 2 else None
        events.append(Event(b"%d" % number, tag=tag, properties=properties))
    ids = np.arange(1_000, 1_000 + 2 * COUNT, 2)
    return EventBatch(stamp(body_of(events), ids, 1_700_000_000_000_000))


def seen(event: Event) -> tuple[Any, ...]:
    return event.event_id, event.data, event.tag, event.properties, event.published, event.ttl


def test_iterating_yields_the_values_of_each_row() -> None:
    batch = mixed_batch()

    read = [seen(event) for event in batch]

    assert read == [seen(batch[row]) for row in range(COUNT)]
    assert read[21][3] == {"number": "21", "nested": {"list": [21, None]}, "price": 10.5}


def test_events_kept_from_an_iteration_are_read_later_in_any_order() -> None:
    batch = mixed_batch()
    kept = list(batch)

    backwards = [seen(event) for event in reversed(kept)]

    assert backwards == [seen(batch[row]) for row in reversed(range(COUNT))]


def test_rows_may_be_skipped_by_less_and_by_more_than_a_block() -> None:
    batch = mixed_batch()

    result = [
        event.properties for row, event in enumerate(batch) if row in (3, BLOCK_ROWS + 5, COUNT - 1)
    ]
    last = [event.data for row, event in enumerate(batch) if row == COUNT - 1]

    assert result == [batch[row].properties for row in (3, BLOCK_ROWS + 5, COUNT - 1)]
    assert last == [b"%d" % (COUNT - 1)]


def test_what_one_iteration_changes_the_next_does_not_see() -> None:
    batch = mixed_batch()
    for event in batch:
        event.properties["added"] = True

    assert not any("added" in event.properties for event in batch)
