"""Ownership of a realm when settings differ: stories of three nodes at one register."""

from __future__ import annotations

import msgspec
import pytest

from packages.cluster.tests.owning.register_stories import LEASE_S, Cluster
from penstock_cluster.owning.agreement import differing, disagreement
from penstock_cluster.owning.clocks import SECOND_US
from penstock_cluster.owning.register_records import ClaimRecord, MemberRecord

USERS = {"access.mode": "mandatory", "cluster.lease_s": "6.0"}
NOBODY = {"access.mode": "off", "cluster.lease_s": "6.0"}


def served(*names: str) -> Cluster:
    """Nodes that ask for users, the first of which owns the realm."""
    cluster = Cluster()
    cluster.settings = USERS
    for name in names:
        cluster.start(name)
        cluster.live(1, *cluster.nodes)
    cluster.live(LEASE_S, *names)
    assert cluster.holders() == [names[0]]
    return cluster


def test_only_what_both_know_is_compared() -> None:
    newer = {**USERS, "access.invented_later": "yes"}

    assert differing(USERS, newer) == []
    assert differing(USERS, {}) == []
    assert differing(USERS, NOBODY) == ["access.mode"]


@pytest.mark.spec("N3")
def test_a_node_with_other_settings_does_not_follow_the_owner_even_when_it_is_alone() -> None:
    cluster = served("ann", "bob")
    other_node = cluster.start("cem", settings=NOBODY)
    cluster.live(LEASE_S, "ann", "bob", "cem")

    cluster.live(5 * LEASE_S, "cem")

    assert cluster.holders() == []
    assert other_node.disagreement(0) == (
        "settings differ: access.mode is 'off' at cem, and was 'mandatory' where the realm was "
        "served last. Give cem the settings of the others and start it again; to change them, "
        "restart one node after the other"
    )


def test_nodes_do_not_wait_for_one_with_other_settings() -> None:
    cluster = served("ann", "bob")
    cluster.start("cem", settings=NOBODY)
    cluster.live(LEASE_S, "ann", "bob", "cem")
    cluster.nodes["ann"].leave()
    cluster.nodes["ann"].give_up(0)

    cluster.live(LEASE_S / 4, "ann", "bob", "cem")

    assert cluster.holders() == ["bob"]


def test_settings_are_changed_by_starting_one_node_after_the_other() -> None:
    cluster = served("ann", "bob", "cem")
    for name in ("bob", "cem"):
        cluster.nodes[name].leave()
        cluster.live(1, name)
        cluster.start(name, "again", settings=NOBODY)
        cluster.live(LEASE_S, "ann", "bob", "cem")
        assert cluster.holders() == ["ann"], "what the realm is served with goes on"

    cluster.nodes["ann"].leave()
    cluster.nodes["ann"].give_up(0)
    cluster.live(LEASE_S, "ann", "bob", "cem")

    assert cluster.holders() in (["bob"], ["cem"]), "a majority has the new settings"
    claim = cluster.register.claim()
    assert claim.settings == NOBODY


def test_an_owner_that_is_started_again_unchanged_owns_again() -> None:
    cluster = served("ann", "bob")
    del cluster.nodes["bob"]
    cluster.start("ann", "again")

    cluster.live(3 * LEASE_S, "ann")

    assert cluster.holders() == ["ann"]


def test_a_node_alone_may_change_its_settings() -> None:
    cluster = served("ann")
    cluster.start("ann", "again", settings=NOBODY)

    cluster.live(3 * LEASE_S, "ann")

    assert cluster.holders() == ["ann"]


def test_nodes_that_people_have_removed_do_not_count() -> None:
    claim = ClaimRecord("ann", "first", 1, format=1, confirmed=1, settings=USERS)
    ann, bob, cem = (MemberRecord(name, "first", settings=USERS) for name in ("ann", "bob", "cem"))
    changed = msgspec.structs.replace(cem, settings=NOBODY)
    removed = [msgspec.structs.replace(user, removed=True) for user in (ann, bob)]

    assert disagreement(changed, claim, [ann, bob, changed])
    assert disagreement(changed, claim, [ann, removed[1], changed]), "one of two is no majority"
    assert disagreement(changed, claim, [*removed, changed]) == ""


@pytest.mark.spec("N3")
def test_an_owner_is_not_followed_before_its_own_lease_is_over_however_short_that_of_others() -> (
    None
):
    cluster = Cluster()
    owner = cluster.start("ann", lease_s=30)
    cluster.live(1, "ann")
    cluster.start("bob", lease_s=2)
    cluster.live(1, "ann", "bob")
    assert cluster.holders() == ["ann"]

    cluster.live(20, "bob")

    assert cluster.holders() == ["ann"]
    assert owner.holds(0, cluster.now_us)
    cluster.live(15, "bob")
    assert cluster.register.claim().owner == "bob"
    assert not owner.holds(0, cluster.now_us)
    assert cluster.now_us < 1_000 * SECOND_US + 40 * SECOND_US
