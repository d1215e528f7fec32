"""Which joins there are."""

from __future__ import annotations

import pytest

from penstock.core.realm.joins import Join, JoinTable


@pytest.mark.spec("L1")
def test_joins_are_found_from_both_ends_in_the_order_they_were_made() -> None:
    joins = JoinTable()
    for source, destination in ((1, 3), (1, 2), (2, 3)):
        joins.add(Join(source, destination, f"n > {destination}"))

    assert [join.destination for join in joins.of(1)] == [3, 2]
    assert [join.source for join in joins.into(3)] == [1, 2]
    assert joins.find(1, 2) == Join(1, 2, "n > 2")
    assert joins.find(3, 1) is None
    assert joins.of(9) == ()


@pytest.mark.spec("L1")
def test_a_join_made_again_has_its_new_selector() -> None:
    joins = JoinTable()
    joins.add(Join(1, 2, "old"))
    joins.add(Join(1, 2, "new", archive=True))

    assert list(joins) == [Join(1, 2, "new", archive=True)]


@pytest.mark.spec("L1")
def test_removing_one_leaves_the_others_and_twice_is_once() -> None:
    joins = JoinTable()
    joins.add(Join(1, 2))
    joins.add(Join(1, 3))
    for _ in range(2):
        joins.remove(1, 2)
    assert list(joins) == [Join(1, 3)]
    for _ in range(2):
        joins.forget(1)

    assert list(joins) == []
