"""Values of a key have slots: equal ones the same, whatever column they came in."""

from __future__ import annotations

import numpy as np

from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.keys.key_values import NO_SLOT, Values


def slots(values: Values, *given: object) -> list[int]:
    rows = [{"k": value} for value in given]
    found: list[int] = values.slots_of(body_of_columns([b""] * len(rows), properties=rows)).tolist()
    return found


def test_slots_are_given_in_the_order_values_are_met() -> None:
    values = Values("k")

    assert slots(values, "a", "b", "a", None) == [0, 1, 0, NO_SLOT]
    assert slots(values, 1, True, 1.0, "b", [1]) == [2, 3, 2, 1, NO_SLOT]
    assert len(values) == 4


def test_a_batch_without_the_property_has_no_slots() -> None:
    values = Values("k")

    assert values.slots_of(body_of_columns([b"x", b"y"])).tolist() == [NO_SLOT, NO_SLOT]
    assert values.slots_of(body_of_columns([b"x"], properties=[{"other": 1}])).tolist() == [NO_SLOT]


def test_what_is_kept_moves_up_and_new_values_follow() -> None:
    values = Values("k")
    for value in ("a", 1, "b", 2):
        slots(values, value)
    values.keep(np.array([False, True, True, False]))

    assert len(values) == 2
    assert [slots(values, value) for value in (1, "b", "a", 2)] == [[0], [1], [2], [3]]


def test_the_slot_of_a_value_is_found_and_none_is_made() -> None:
    values = Values("k")
    slots(values, "a", 1, True)

    assert [values.slot_of(each) for each in ("a", 1.0, True)] == [0, 1, 2]
    assert {values.slot_of(each) for each in ("b", 2, None, [1], float("nan"))} == {NO_SLOT}
    assert len(values) == 3
