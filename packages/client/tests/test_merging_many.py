"""Merge channels with more keys than are remembered for nothing (SEM K2-K4)."""

from __future__ import annotations

import pyarrow as pa
import pytest

import penstock
from penstock.client.sync.sync import Session
from penstock_core.columns.merge.states import SLOTS_KEPT_MIN

KEYS = SLOTS_KEPT_MIN + 1_000
LEFT = 10


@pytest.mark.spec("K2", "K3", "K4", "T9")
@pytest.mark.parametrize("kind", ["persistent", "reliable", "off_heap", "paged"])
def test_keys_that_left_are_forgotten_and_the_others_kept(
    session: Session, kind: penstock.ChannelType
) -> None:
    rates = session.channels.create("rates", engine="merge", keys={"n": 1}, type=kind)
    rates.publish_table(pa.table({"n": range(KEYS), "a": [1.0] * KEYS, "b": [2.0] * KEYS}))
    with rates.subscribe(start="earliest", timeout=5, merged=True) as reading:
        seen: list[penstock.Event] = []

        def take(count: int) -> list[penstock.Event]:
            while len(seen) < count:
                batch = reading.next_batch()
                assert batch is not None
                seen.extend(batch)
            return seen[count - 1 :]

        take(KEYS)
        rates.purge(selector=f"n < {KEYS - LEFT}")
        rates.update(KEYS - 1, a=5.0)
        (still_there,) = take(KEYS + 1)
        rates.update(0, a=6.0)
        (came_back,) = take(KEYS + 2)
        rates.update(KEYS, a=7.0)
        (is_new,) = take(KEYS + 3)
    events_by_number = {event.properties["n"]: event.properties for event in rates.browse()}

    assert still_there.properties == {"n": KEYS - 1, "a": 5.0, "b": 2.0}
    assert came_back.properties == {"n": 0, "a": 6.0}
    assert is_new.properties == {"n": KEYS, "a": 7.0}
    assert len(events_by_number) == LEFT + 2
    assert events_by_number[KEYS - 1] == {"n": KEYS - 1, "a": 5.0, "b": 2.0}
    assert events_by_number[KEYS - 2] == {"n": KEYS - 2, "a": 1.0, "b": 2.0}


@pytest.mark.spec("K2", "K3")
def test_many_deltas_of_different_fields_travel_packed_and_arrive(session: Session) -> None:
    rates = session.channels.create("rates", engine="merge", keys={"n": 1}, type="persistent")
    names = [f"field_{index}" for index in range(20)]
    rates.publish_table(pa.table({"n": range(500), **{name: [0.0] * 500 for name in names}}))
    with rates.subscribe(start="earliest", timeout=5) as reading:
        reading.next_batch()
        events = [
            penstock.Event(properties={"n": n, names[n % 20]: n / 7}, is_delta=True)
            for n in range(500)
        ]
        rates.publish_many(events)
        batch = reading.next_batch()

    assert batch is not None
    assert [(e.is_delta, e.properties) for e in batch] == [(True, e.properties) for e in events]
    state_by_number = {event.properties["n"]: event.properties for event in rates.browse()}
    assert state_by_number[33] == {"n": 33, **dict.fromkeys(names, 0.0), names[13]: 33 / 7}
