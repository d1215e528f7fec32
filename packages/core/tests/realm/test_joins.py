"""Joins, and the outboxes of joins from a node to the cluster."""

from __future__ import annotations

import pytest

from packages.core.tests.realm.directories import at_a_node, create
from penstock_core.messages.joins import Join, JoinCreated
from penstock_core.realm.directory import Directory
from penstock_core.realm.joins import JoinTable
from penstock_core.vocabulary.errors import (
    IllegalState,
    InvalidArgument,
    NameAlreadyBound,
    NameDoesNotExist,
)


@pytest.mark.spec("L1")
def test_joins_are_found_from_both_ends_in_the_order_they_were_made() -> None:
    joins = JoinTable()
    for source, destination in ((1, 3), (1, 2), (2, 3)):
        joins.add(Join(source, destination, f"n > {destination}"))

    assert [join.destination for join in joins.copying_from(1)] == [3, 2]
    assert [join.source for join in joins.into(3)] == [1, 2]
    assert joins.find(1, 2) == Join(1, 2, "n > 2")
    assert joins.find(3, 1) is None
    assert joins.copying_from(9) == ()


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


def out(directory: Directory, source: str, target: str, selector: str = "") -> int:
    """Join a local channel to a store of the cluster; return the number of the outbox."""
    facts = directory.decide_join_out(source, target, Join(0, 0, selector))
    for fact in facts:
        directory.apply(fact)
    made = facts[-1]
    assert isinstance(made, JoinCreated)
    return made.join.destination


@pytest.mark.spec("N9")
def test_a_join_out_of_a_node_has_an_outbox_that_nobody_finds_by_its_name() -> None:
    node_directory = at_a_node()
    create(node_directory, "readings")
    outbox = out(node_directory, "readings", "/orders", selector="n > 1")

    assert node_directory.find("orders") is None
    assert node_directory.names("channel") == ["readings"]
    assert node_directory.channels[outbox].state.name == "orders"
    assert [join_out.selector for join_out in node_directory.joins.copying_from(1)] == ["n > 1"]
    assert node_directory.joins.reached_from(1) == {1, outbox}
    with pytest.raises(NameAlreadyBound, match="a join from readings to orders already exists"):
        out(node_directory, "readings", "orders")
    with pytest.raises(NameDoesNotExist):
        out(node_directory, "nothing", "orders")
    with pytest.raises(InvalidArgument, match="only the realm makes outboxes"):
        create(node_directory, "a", kind="outbox")


@pytest.mark.spec("N9")
@pytest.mark.parametrize("how", ["join", "channel"])
def test_an_outbox_ends_once_its_join_or_channel_is_deleted_and_may_be_taken_up_before(
    how: str,
) -> None:
    node_directory = at_a_node()
    create(node_directory, "readings")
    outbox = out(node_directory, "readings", "orders")
    assert node_directory.decide_end(outbox) is None

    if how == "join":
        node_directory.apply(node_directory.decide_unjoin("readings", "orders"))
        with pytest.raises(NameDoesNotExist, match="events that it copied before still wait"):
            node_directory.decide_unjoin("readings", "orders")
        assert out(node_directory, "readings", "orders", selector="n > 2") == outbox
        assert [join_out.selector for join_out in node_directory.joins.copying_from(1)] == ["n > 2"]
        node_directory.apply(node_directory.decide_unjoin("readings", "orders"))
    else:
        (deletion,) = node_directory.decide_delete("readings")
        node_directory.apply(deletion)
        create(node_directory, "readings")
        with pytest.raises(IllegalState, match="create the new join after they have left"):
            out(node_directory, "readings", "orders")
    assert node_directory.joins.copying_from(1) == ()
    ending = node_directory.decide_end(outbox)
    assert ending is not None
    for fact in ending:
        node_directory.apply(fact)
    assert outbox not in node_directory.channels
    assert list(node_directory.joins) == []
