"""Slots of key values: equal values have one slot, whatever column they are in."""

from __future__ import annotations

import numpy as np

from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.keys.key_values import NO_SLOT, Values


def slots(values: Values, *key_values: object) -> list[int]:
    rows = [{"k": value} for value in key_values]
    result: list[int] = values.slots_of(
        body_of_columns([b""] * len(rows), properties=rows)
    ).tolist()
    return result


def test_slots_are_assigned_in_the_order_of_first_occurrence() -> None:
    values = Values("k")

    assert slots(values, "a", "b", "a", None) == [0, 1, 0, NO_SLOT]
    assert slots(values, 1, True, 1.0, "b", [1]) == [2, 3, 2, 1, NO_SLOT]
    assert len(values) == 4


def test_a_batch_without_the_property_has_no_slots() -> None:
    values = Values("k")

    assert values.slots_of(body_of_columns([b"x", b"y"])).tolist() == [NO_SLOT, NO_SLOT]
    assert values.slots_of(body_of_columns([b"x"], properties=[{"other": 1}])).tolist() == [NO_SLOT]


def test_kept_values_are_renumbered_and_new_values_follow() -> None:
    values = Values("k")
    for value in ("a", 1, "b", 2):
        slots(values, value)
    values.keep(np.array([False, True, True, False]))

    assert len(values) == 2
    assert [slots(values, value) for value in (1, "b", "a", 2)] == [[0], [1], [2], [3]]


def test_looking_up_a_slot_assigns_none() -> None:
    values = Values("k")
    slots(values, "a", 1, True)

    assert [values.slot_of(value) for value in ("a", 1.0, True)] == [0, 1, 2]
    assert {values.slot_of(value) for value in ("b", 2, None, [1], float("nan"))} == {NO_SLOT}
    assert len(values) == 3


def test_values_of_refused_events_are_dropped() -> None:
    values = Values("k")
    slots(values, "a", 7, "b" * 100)
    mark, size = values.mark(), values.nbytes

    slots(values, "new", 0, "c" * 100, True, "a")
    slots(values, "x", "y")
    assert values.nbytes > size
    values.drop_since(mark)

    assert len(values) == 3
    assert values.nbytes == size
    # The bytes of zero are those of an empty cell of the cache.
    assert slots(values, 0) == [3]
    assert slots(values, "y", "new", "a") == [4, 5, 0]


def test_the_size_grows_with_new_values_and_shrinks_with_dropped_ones() -> None:
    values = Values("k")
    slots(values, "a" * 1_000)
    size = values.nbytes
    assert 1_000 < size < 1_400

    slots(values, "a" * 1_000)
    assert values.nbytes == size
    slots(values, "b" * 5_000)
    assert values.nbytes - size > 5_000
    values.keep(np.array([True, False]))
    assert values.nbytes == size
    values.clear()
    assert values.nbytes == 0
    assert slots(values, "z") == [0]


def test_caches_are_kept_until_values_are_renumbered() -> None:
    values = Values("k")
    slots(values, "a", "b")
    values.derived["purpose"] = "computed"

    mark = values.mark()
    slots(values, "c")
    values.drop_since(mark)
    assert values.derived == {"purpose": "computed"}
    values.keep(np.array([True, False]))
    assert values.derived == {}
