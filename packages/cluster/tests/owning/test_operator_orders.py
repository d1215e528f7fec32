"""Orders of an operator are executed by the nodes that they name, and by no other node."""

from __future__ import annotations

import pytest

from packages.cluster.tests.owning.register_stories import LEASE_S, NAMES, Cluster, two
from penstock_cluster.owning.operator_orders import MoveOrder, Orders

FIRST = "first"
"""The nonce of the two processes of some stories."""


def three() -> tuple[Cluster, str, list[str]]:
    """A cluster of three nodes, its owner, and the others; each node is its nonce, too."""
    cluster = Cluster()
    for name in NAMES:
        cluster.start(name, name)
    cluster.join(*NAMES)
    cluster.live(4, *NAMES)
    (owner,) = cluster.holders()
    return cluster, owner, [name for name in NAMES if name != owner]


def to_hand_over(cluster: Cluster, name: str) -> list[int]:
    return list(cluster.nodes[name].to_hand_over(cluster.now_us))


def hand_over(cluster: Cluster, name: str) -> None:
    """Do the same as the shell when its realm is closed."""
    for shard in to_hand_over(cluster, name):
        cluster.nodes[name].give_up(shard)
    cluster.turn(name)


def test_a_drained_owner_hands_over_and_another_claims_at_once() -> None:
    cluster, owner, others = three()
    cluster.orders = Orders().with_drained((owner, owner))
    cluster.turn(*NAMES)
    assert to_hand_over(cluster, owner) == [0]

    hand_over(cluster, owner)
    cluster.turn(*others)

    (following,) = cluster.holders()
    assert following in others
    assert cluster.register.claim().epoch == 2


def test_a_drained_node_claims_nothing_even_when_it_is_alone() -> None:
    cluster, owner, other_node = two()
    cluster.orders = Orders().with_drained((other_node, FIRST))

    cluster.live(5 * LEASE_S, other_node)

    assert cluster.register.claim().owner == owner


def test_who_is_drained_and_alone_keeps_what_it_has() -> None:
    cluster, owner, other_node = two()
    cluster.orders = Orders().with_drained((owner, FIRST))
    cluster.nodes.pop(other_node)

    cluster.live(5 * LEASE_S, owner)

    assert to_hand_over(cluster, owner) == []
    assert cluster.holders() == [owner]


def test_nothing_is_handed_over_where_all_others_are_drained_too() -> None:
    cluster, owner, others = three()
    orders = Orders()
    for name in NAMES:
        orders = orders.with_drained((name, name))
    cluster.orders = orders

    cluster.live(LEASE_S, *NAMES)

    assert to_hand_over(cluster, owner) == []
    assert len(others) == 2


def test_a_node_that_is_started_anew_is_not_drained_any_more() -> None:
    cluster, owner, other_node = two()
    cluster.orders = Orders().with_drained((other_node, FIRST))
    cluster.start(other_node, "second")

    cluster.live(3 * LEASE_S, other_node)

    assert cluster.holders() == [other_node]
    assert cluster.register.claim().owner != owner


def test_a_node_that_takes_part_again_may_be_the_next() -> None:
    cluster, owner, other_node = two()
    cluster.orders = Orders().with_drained((other_node, FIRST))
    cluster.live(1, owner, other_node)

    cluster.orders = cluster.orders.without_drained(other_node)
    cluster.live(3 * LEASE_S, other_node)

    assert cluster.holders() == [other_node]


@pytest.mark.parametrize("at", [0, 1])
def test_the_realm_moves_to_the_node_that_is_named(at: int) -> None:
    cluster, owner, others = three()
    cluster.orders = Orders().with_move(0, MoveOrder(others[at], others[at], 1))
    cluster.turn(*NAMES)
    assert to_hand_over(cluster, owner) == [0]

    hand_over(cluster, owner)
    cluster.turn(others[1 - at], others[at])

    assert cluster.holders() == [others[at]], "the other one waits"


def test_an_order_to_move_ends_with_the_claim_that_follows() -> None:
    cluster, owner, others = three()
    cluster.orders = Orders().with_move(0, MoveOrder(others[0], others[0], 1))
    cluster.turn(*NAMES)
    hand_over(cluster, owner)
    cluster.turn(*others)

    cluster.live(LEASE_S, *NAMES)

    assert to_hand_over(cluster, others[0]) == []
    assert cluster.holders() == [others[0]]


def test_a_move_to_a_process_that_is_gone_is_not_done() -> None:
    cluster, owner, others = three()
    cluster.orders = Orders().with_move(0, MoveOrder(others[0], "another start", 1))

    cluster.live(LEASE_S, *NAMES)

    assert to_hand_over(cluster, owner) == []


def test_whoever_was_named_and_dies_is_followed_by_another() -> None:
    cluster, owner, others = three()
    cluster.orders = Orders().with_move(0, MoveOrder(others[0], others[0], 1))
    cluster.turn(*NAMES)
    hand_over(cluster, owner)
    cluster.nodes.pop(others[0])

    cluster.live(2 * LEASE_S, owner, others[1])

    assert cluster.holders() == [others[1]]


def test_by_force_an_owner_that_renews_is_followed_without_its_help() -> None:
    cluster, owner, other_node = two()
    cluster.orders = Orders().with_move(0, MoveOrder(other_node, FIRST, 1, by_force=True))
    cluster.turn(owner, other_node)
    assert cluster.holders() == [], "the owner says nothing any more"
    assert cluster.register.claim().epoch == 1, "it has had time to see the order"
    assert to_hand_over(cluster, owner) == []

    cluster.live(1.5, owner, other_node)

    assert cluster.holders() == [other_node]
    assert cluster.register.claim().epoch == 2


def test_by_force_a_silent_owner_is_followed_before_its_lease_is_over() -> None:
    cluster, _, other_node = two()
    cluster.orders = Orders().with_move(0, MoveOrder(other_node, FIRST, 1, by_force=True))

    cluster.live(2, other_node)

    assert cluster.register.claim().owner == other_node


def test_an_owner_goes_on_when_whoever_was_to_have_it_by_force_is_gone() -> None:
    cluster, owner, other_node = two()
    cluster.orders = Orders().with_move(0, MoveOrder(other_node, FIRST, 1, by_force=True))
    cluster.nodes.pop(other_node)
    cluster.turn(owner)
    assert cluster.holders() == []

    cluster.live(2 * LEASE_S, owner)

    assert cluster.holders() == [owner]
