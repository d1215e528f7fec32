"""The nodes that have a store, when it is compared, copied or moved (SEM C5, N1, N5)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import DurableAttributes, DurableState
from penstock_core.vocabulary.reach import (
    NewHome,
    belongs_to_cluster,
    comparable,
    durables_of,
    is_everywhere,
    leads_out,
    on_one_node,
    portable,
    portable_attributes,
    relocated,
    with_explicit_reach,
    without_cluster,
)

WIDE, LOCAL, ALONE = (Definition(cluster_wide=wide) for wide in (True, False, None))
HERE = NewHome(is_cluster=False, clusterable=True)
CLUSTER = NewHome(is_cluster=True, clusterable=True)
pytestmark = pytest.mark.spec("C5")


def test_only_a_choice_of_nodes_shows_that_a_store_belongs_to_a_cluster() -> None:
    assert [is_everywhere(definition) for definition in (WIDE, LOCAL, ALONE)] == [
        True,
        False,
        False,
    ]
    assert [belongs_to_cluster(definition) for definition in (WIDE, LOCAL, ALONE)] == [
        True,
        True,
        False,
    ]
    assert [with_explicit_reach(definition) for definition in (WIDE, LOCAL, ALONE)] == [
        WIDE,
        LOCAL,
        LOCAL,
    ]
    assert [on_one_node(definition) for definition in (WIDE, LOCAL, ALONE)] == [LOCAL] * 3


def test_events_leave_what_every_node_keeps_only_for_what_one_does() -> None:
    stores = (WIDE, LOCAL, ALONE)

    out = [(one, store) for one in stores for store in stores if leads_out(one, store)]
    assert out == [(WIDE, LOCAL), (WIDE, ALONE)]


@pytest.mark.parametrize(
    ("definition", "to", "expected"),
    [
        (WIDE, HERE, ALONE),
        (LOCAL, HERE, LOCAL),
        (ALONE, HERE, ALONE),
        (WIDE, CLUSTER, WIDE),
        (LOCAL, CLUSTER, LOCAL),
        (ALONE, CLUSTER, WIDE),
        (ALONE, NewHome(is_cluster=True, clusterable=False), LOCAL),
    ],
)
def test_a_store_that_is_moved_is_wide_where_it_can_be(
    definition: Definition, to: NewHome, expected: Definition
) -> None:
    assert relocated(definition, definition, to) == expected


def test_a_schedule_goes_where_its_store_goes() -> None:
    schedule = Definition(kind="schedule")

    assert relocated(schedule, LOCAL, CLUSTER) == replace(schedule, cluster_wide=False)
    assert relocated(schedule, ALONE, CLUSTER) == replace(schedule, cluster_wide=True)


def test_without_a_cluster_nothing_is_wide() -> None:
    assert [without_cluster(definition) for definition in (WIDE, LOCAL, ALONE)] == [
        ALONE,
        LOCAL,
        ALONE,
    ]


@pytest.mark.spec("N1")
def test_durables_exist_where_their_store_does() -> None:
    durables = tuple(
        DurableState(name, kind, "", persistent=True, head=0, outstanding=(), redelivered=())
        for name, kind in (("d", "shared"), ("", "queue"))
    )

    wide = durables_of(WIDE, durables)
    assert [definition.cluster_wide for definition in wide] == [True, False]
    assert durables_of(LOCAL, wide) == durables_of(ALONE, wide) == durables


def test_a_wish_that_says_nothing_of_nodes_is_met_by_what_there_is() -> None:
    assert comparable(ALONE, WIDE) == WIDE
    assert comparable(LOCAL, ALONE) == ALONE
    assert comparable(WIDE, LOCAL) == WIDE, "it is another store"
    assert comparable(LOCAL, WIDE) == LOCAL


def test_only_what_is_not_usual_is_written_down() -> None:
    assert portable(WIDE, clusterable=True) == ALONE
    assert portable(LOCAL, clusterable=True) == LOCAL
    assert portable(LOCAL, clusterable=False) == ALONE
    wide = DurableAttributes(cluster_wide=True)
    assert portable_attributes(wide, WIDE) == DurableAttributes()
    assert portable_attributes(wide, LOCAL) == wide
