"""Nodes compare their clocks, and the formats they know, before they own anything."""

from __future__ import annotations

import pytest

from packages.cluster.tests.owning.register_stories import NAMES, Cluster, two
from penstock_cluster.owning.clocks import SECOND_US, MemberClocks, farthest_offset, median_offset


@pytest.mark.parametrize("ahead_s", [-3_600, -5.6, 5.6, 59, 3_600])
def test_a_node_with_a_wrong_clock_claims_nothing(ahead_s: float) -> None:
    cluster = Cluster(*NAMES)
    cluster.ahead_s["bob"] = ahead_s
    cluster.join(*NAMES)
    cluster.live(4, *NAMES)  # they have compared their clocks
    (owner,) = cluster.holders()
    others = [name for name in NAMES if name != owner]
    bob, fine = cluster.nodes["bob"], cluster.nodes["ann"]

    assert bob.clock_off_us == pytest.approx(-ahead_s * SECOND_US, abs=SECOND_US / 2)
    assert fine.clock_off_us == 0, "two of three agree"
    assert abs(fine.clock_apart_us) > 5 * SECOND_US, "and one does not"
    cluster.nodes[owner].give_up(0)
    cluster.live(30, *NAMES)
    (next_owner,) = cluster.holders()
    assert next_owner in {*others, owner} - {"bob"}


@pytest.mark.parametrize("ahead_s", [-4.9, 4.9])
def test_clocks_may_be_a_little_apart(ahead_s: float) -> None:
    cluster = Cluster("ann", "bob", "cem")
    cluster.ahead_s["bob"] = ahead_s
    cluster.join(*NAMES)
    cluster.live(4, *NAMES)

    assert abs(cluster.nodes["bob"].clock_off_us) < 5 * SECOND_US
    cluster.live(20, "bob")
    assert cluster.holders() == ["bob"], "the others are silent"


def test_of_two_nodes_nobody_can_tell_whose_clock_is_wrong() -> None:
    cluster, owner, other_node = two()
    cluster.ahead_s[other_node] = 3_600
    cluster.live(8, "ann", "bob")

    for name in (owner, other_node):
        assert cluster.nodes[name].clock_off_us == 0
        assert abs(cluster.nodes[name].clock_apart_us) > 3_590 * SECOND_US
    assert cluster.holders() == [owner]
    cluster.live(20, other_node)
    assert cluster.holders() == [other_node], "somebody has to serve"


def test_three_clocks_that_all_differ_leave_a_node_that_may_claim() -> None:
    cluster = Cluster(*NAMES)
    cluster.ahead_s = {"ann": -600, "cem": 600}
    cluster.join(*NAMES)
    cluster.live(4, *NAMES)
    for owner in cluster.holders():
        cluster.nodes[owner].give_up(0)

    cluster.live(30, *NAMES)

    assert cluster.holders() == ["bob"]
    assert cluster.nodes["bob"].clock_off_us == 0


def test_the_clock_of_a_node_that_is_gone_or_tells_no_time_does_not_count() -> None:
    cluster = Cluster(*NAMES)
    cluster.ahead_s = {"ann": 600, "cem": 600}
    cluster.join(*NAMES)
    cluster.live(4, *NAMES)
    assert cluster.nodes["bob"].clock_off_us > 590 * SECOND_US

    cluster.live(8, "bob")

    assert cluster.nodes["bob"].clock_off_us == cluster.nodes["bob"].clock_apart_us == 0


def test_a_record_that_is_read_late_does_not_make_a_clock_wrong() -> None:
    cluster = Cluster("ann", "bob")
    cluster.join("ann", "bob")
    cluster.live(4, "ann", "bob")

    cluster.live(20, "ann")  # bob is frozen
    cluster.turn("bob")

    assert cluster.nodes["bob"].clock_apart_us == 0


def test_a_node_claims_nothing_of_a_cluster_that_writes_a_newer_format() -> None:
    cluster = Cluster("ann")
    cluster.format = 2
    cluster.join("ann")
    cluster.live(20, "ann")
    assert cluster.holders() == []

    cluster.start("bob", format=2)
    cluster.join("bob")
    cluster.live(20, "ann", "bob")

    assert cluster.holders() == ["bob"]
    assert cluster.register.claim().format == 2


def test_a_newer_node_writes_the_format_of_its_cluster() -> None:
    cluster = Cluster()
    cluster.format = 1
    cluster.start("ann", format=2)
    cluster.start("bob", format=1)
    cluster.join("ann")
    cluster.live(20, "ann")
    assert cluster.register.claim().format == 1

    cluster.join("bob")
    cluster.live(20, "bob")

    assert cluster.holders() == ["bob"], "the older node can go on with it"


@pytest.mark.parametrize(
    ("ahead", "off"),
    [([], 0), ([9], 0), ([9, -9], 0), ([9, 7], 7), ([-9, -7], -7), ([9, 7, 0], 0), ([9, 8, 7], 7)],
)
def test_a_clock_is_off_by_what_lies_between_it_and_the_middle(ahead: list[int], off: int) -> None:
    assert median_offset(ahead) == off


def test_what_a_process_does_not_tell_is_not_compared() -> None:
    clocks = MemberClocks()

    clocks.compare(("ann", "1"), 0, 100, age_us=5)
    clocks.compare(("bob", "1"), 100, 0, age_us=5)
    clocks.compare(("cem", "1"), 100, 120, age_us=5)

    assert clocks.ahead_us([("ann", "1"), ("bob", "1"), ("cem", "1"), ("dan", "1")]) == [-15]
    assert farthest_offset([]) == 0
    assert farthest_offset([3, -15]) == -15


def test_an_owner_writes_a_newer_format_once_its_claim_says_so() -> None:
    """A node that does not know the format does not claim the shard after that claim."""
    cluster = Cluster()
    cluster.format = 1
    owner = cluster.start("ann", format=2)
    cluster.join("ann")
    cluster.live(20, "ann")
    assert (cluster.register.claim().format, owner.writes(0)) == (1, 1)

    cluster.format = 2
    (raised,) = [write for write in cluster.ask("ann") if write.key == "shard/0"]
    assert owner.writes(0) == 1, "the answer has not come"
    cluster.answer("ann", raised)

    assert (cluster.register.claim().format, owner.writes(0)) == (2, 2)
    assert cluster.register.claim().epoch == 1
    cluster.live(1, "ann")
    assert cluster.holders() == ["ann"]


def test_an_owner_that_does_not_know_the_newer_format_goes_on_with_its_own() -> None:
    cluster = Cluster()
    cluster.format = 1
    owner = cluster.start("ann", format=1)
    cluster.join("ann")
    cluster.live(20, "ann")

    cluster.format = 2
    cluster.live(5, "ann")

    assert cluster.holders() == ["ann"]
    assert (cluster.register.claim().format, owner.writes(0)) == (1, 1)
