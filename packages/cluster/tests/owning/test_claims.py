"""Ownership of a shard: stories of a few nodes at one register, in virtual time."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packages.cluster.tests.owning.register_stories import LEASE_S, NAMES, Cluster, Register, two
from penstock_cluster.owning.claims import Claims
from penstock_cluster.owning.clocks import SECOND_US
from penstock_cluster.owning.lease import Lease
from penstock_cluster.owning.register_records import (
    SHARDS,
    MemberRecord,
    RegisterPoll,
    RegisterWrite,
)
from penstock_core.vocabulary.ports import VersionedRecord
from tests.thorough import examples


def test_a_shard_without_an_owner_is_claimed_by_the_node_that_is_preferred() -> None:
    cluster = Cluster(*NAMES, shards=64)
    cluster.join(*NAMES)

    cluster.live(LEASE_S, *NAMES)

    owners = [cluster.holders(shard) for shard in range(64)]
    assert all(len(names) == 1 for names in owners)
    assert {name for (name,) in owners} == set(NAMES), "each has its part"


def test_a_shard_moves_only_when_its_own_node_goes() -> None:
    cluster = Cluster(*NAMES, shards=32)
    cluster.join(*NAMES)
    cluster.live(LEASE_S, *NAMES)
    before = [cluster.holders(shard) for shard in range(32)]

    cluster.live(3 * LEASE_S, "ann", "bob")

    after = [cluster.register.claim(shard).owner for shard in range(32)]
    for shard, (owner,) in enumerate(before):
        assert after[shard] == owner if owner != "cem" else after[shard] in ("ann", "bob")


def test_an_owner_that_renews_keeps_its_shard_and_its_epoch() -> None:
    cluster, owner, _ = two()

    cluster.live(60, "ann", "bob")

    assert cluster.holders() == [owner]
    assert cluster.register.claim().epoch == 1


def test_the_counter_is_raised_three_times_in_a_lease() -> None:
    cluster, owner, _ = two()
    before = cluster.nodes[owner].me.counter

    cluster.live(LEASE_S * 10, "ann", "bob")

    assert cluster.nodes[owner].me.counter == before + 30


def test_a_silent_owner_loses_its_shard_after_its_lease_and_the_epoch_grows() -> None:
    cluster, owner, other_node = two()

    cluster.live(LEASE_S - 1, other_node)
    assert cluster.register.claim().owner == owner, "the lease has not passed yet"
    cluster.live(4, other_node)

    assert cluster.holders() == [other_node]
    assert cluster.register.claim().epoch == 2


def test_the_lease_of_a_silent_owner_is_over_before_anybody_claims() -> None:
    cluster, owner, other_node = two()

    while cluster.register.claim().owner == owner:
        cluster.live(0.5, other_node)
        assert len(cluster.holders()) <= 1


def test_an_owner_that_wakes_finds_that_it_owns_nothing() -> None:
    cluster, owner, other_node = two()
    cluster.live(2 * LEASE_S, other_node)

    cluster.turn(owner)

    assert cluster.nodes[owner].owned == {}
    assert cluster.holders() == [other_node]


def test_an_owner_whose_address_refuses_is_followed_at_once() -> None:
    cluster, owner, other_node = two()
    stopped = cluster.nodes.pop(owner)
    cluster.live(3, other_node)
    assert [member.node for member in cluster.nodes[other_node].late_owners()] == [owner]

    cluster.nodes[other_node].record_refusal(owner, stopped.me.nonce, cluster.now_us)
    cluster.turn(other_node)

    assert cluster.holders() == [other_node]


def test_nobody_asks_at_the_address_of_an_owner_that_renews() -> None:
    cluster, _, other_node = two()

    cluster.live(30, "ann", "bob")

    assert [*cluster.nodes[other_node].late_owners()] == []


def test_a_shard_that_is_given_up_is_taken_without_waiting_for_a_lease() -> None:
    cluster, owner, other_node = two()
    cluster.nodes[owner].leave()
    cluster.turn(owner, other_node)

    cluster.nodes[owner].give_up(0)
    cluster.turn(owner, other_node)

    assert cluster.holders() == [other_node]
    assert cluster.register.claim().epoch == 2


def test_a_node_that_has_given_up_a_shard_lets_others_have_it_first() -> None:
    cluster, owner, other_node = two()
    cluster.nodes[owner].give_up(0)

    cluster.live(LEASE_S / 2, owner)
    assert cluster.holders() == []
    cluster.live(LEASE_S, owner, other_node)

    assert cluster.holders() == [other_node]


def test_a_node_that_is_alone_takes_a_shard_again_that_it_has_given_up() -> None:
    cluster, owner, _ = two()
    cluster.nodes[owner].give_up(0)

    cluster.live(2 * LEASE_S, owner)

    assert cluster.holders() == [owner]
    assert cluster.register.claim().epoch == 2


def test_a_node_that_leaves_claims_nothing() -> None:
    cluster = Cluster("ann")
    cluster.nodes["ann"].leave()

    cluster.live(5 * LEASE_S, "ann")

    assert cluster.register.claims() == {}


def test_a_node_of_an_older_format_does_not_claim() -> None:
    cluster = Cluster()
    cluster.start("ann", format=2)
    cluster.live(LEASE_S, "ann")
    cluster.start("bob", format=1)

    cluster.live(5 * LEASE_S, "bob")
    assert cluster.register.claim().owner == "ann"
    cluster.start("cem", format=2)
    cluster.live(LEASE_S + 1, "bob", "cem")

    assert cluster.holders() == ["cem"], "and nobody waits for the one that cannot"


def test_a_renewal_whose_answer_is_lost_is_known_by_the_next_look() -> None:
    cluster = Cluster("ann")
    node = cluster.nodes["ann"]
    (write,) = cluster.ask("ann")
    cluster.register.write(write)
    began_us = cluster.now_us

    cluster.now_us += SECOND_US
    assert node.due(cluster.now_us) == [], "what is asked is not asked twice"
    cluster.read_register("ann")

    assert node.lease.until_us == began_us + (LEASE_S - 1) * SECOND_US


def test_a_claim_whose_answer_is_lost_is_known_by_the_next_look() -> None:
    cluster = Cluster("ann")
    cluster.join("ann")
    node = cluster.nodes["ann"]
    (write,) = cluster.ask("ann")
    cluster.register.write(write)

    cluster.now_us += SECOND_US
    assert not node.holds(0, cluster.now_us)
    cluster.read_register("ann")

    assert node.holds(0, cluster.now_us)


def test_of_two_claims_on_one_version_the_first_is_done() -> None:
    cluster = Cluster("ann", "bob")
    cluster.join("ann", "bob")
    cluster.now_us += LEASE_S * SECOND_US // 2
    mine = [write for write in cluster.ask("ann") if write.key == f"{SHARDS}0"]
    theirs = [write for write in cluster.ask("bob") if write.key == f"{SHARDS}0"]

    assert cluster.register.write(mine[0]) == 1
    assert cluster.register.write(theirs[0]) is None
    cluster.read_register("ann")
    cluster.read_register("bob")

    assert cluster.nodes["ann"].owned.keys() == {0}
    assert cluster.nodes["bob"].owned == {}


def test_a_process_that_takes_a_name_waits_for_the_lease_of_the_one_before() -> None:
    cluster = Cluster("ann")
    cluster.live(LEASE_S, "ann")
    older = cluster.nodes["ann"]
    cluster.start("ann", "second")

    cluster.turn("ann")

    assert not cluster.nodes["ann"].holds(0, cluster.now_us)
    cluster.live(LEASE_S + 1, "ann")
    assert cluster.nodes["ann"].holds(0, cluster.now_us)
    assert not older.holds(0, cluster.now_us)


def test_a_renewal_that_was_written_over_counts_though_nobody_has_seen_it() -> None:
    cluster, owner, other_node = two()
    cluster.read_register(other_node)
    older = cluster.nodes[owner]
    cluster.now_us += 2 * LEASE_S * SECOND_US
    cluster.turn(owner)
    assert older.holds(0, cluster.now_us)
    cluster.start(owner, "second")
    assert cluster.ask(owner) == [], "the first may be there"
    cluster.now_us += LEASE_S // 2 * SECOND_US
    (joining,) = cluster.ask(owner)
    cluster.answer(owner, joining)

    cluster.turn(other_node)

    assert cluster.holders() == []
    assert older.holds(0, cluster.now_us)


def test_a_process_whose_name_was_taken_owns_nothing_and_writes_nothing() -> None:
    cluster = Cluster("ann")
    cluster.live(LEASE_S, "ann")
    older = cluster.nodes["ann"]
    cluster.start("ann", "second")
    cluster.live(LEASE_S, "ann")  # the first is frozen meanwhile

    cluster.nodes["older"] = older
    cluster.live(LEASE_S, "older")

    assert older.is_replaced
    assert older.owned == {}


def test_a_process_does_not_join_while_another_renews_under_its_name() -> None:
    cluster = Cluster("ann")
    cluster.live(LEASE_S, "ann")
    older = cluster.nodes["older"] = cluster.nodes["ann"]
    newcomer = cluster.start("ann", "second")

    cluster.live(LEASE_S, "older", "ann")

    assert newcomer.rival is not None
    assert newcomer.rival.nonce == "first"
    assert not newcomer.owned
    assert not older.is_replaced
    assert older.holds(0, cluster.now_us)


def test_a_write_of_a_killed_process_that_is_done_late_does_not_keep_its_successor_away() -> None:
    cluster = Cluster("ann")
    cluster.live(LEASE_S, "ann")
    cluster.now_us += 3 * SECOND_US
    (late,) = cluster.ask("ann")
    newcomer = cluster.start("ann", "second")
    cluster.turn("ann")

    cluster.register.write(late)
    cluster.live(2 * LEASE_S, "ann")

    assert newcomer.rival is None
    assert newcomer.holds(0, cluster.now_us)


def test_a_process_that_follows_one_of_its_name_waits_for_the_lease_from_its_last_renewal() -> None:
    cluster = Cluster("ann")
    cluster.live(LEASE_S, "ann")
    cluster.start("ann", "second")
    began_us = cluster.now_us

    while cluster.holders() != ["ann"]:
        cluster.live(0.5, "ann")

    assert cluster.now_us - began_us < 1.7 * LEASE_S * SECOND_US


def test_a_lease_that_has_run_out_holds_again_only_after_the_claim_was_written_anew() -> None:
    """Another node may have seen the end of the lease, and be about to claim."""
    cluster, owner, other_node = two()
    cluster.now_us += SECOND_US
    cluster.read_register(other_node)
    cluster.now_us += 2 * LEASE_S * SECOND_US
    (renewal,) = cluster.ask(other_node)
    cluster.answer(other_node, renewal)
    (late,) = cluster.ask(other_node)
    assert late.key == f"{SHARDS}0", "the other has seen the end, and its claim is on its way"

    (renewal,) = cluster.ask(owner)
    cluster.answer(owner, renewal)
    assert not cluster.nodes[owner].holds(0, cluster.now_us)
    (confirmation,) = cluster.ask(owner)
    cluster.answer(owner, confirmation)

    assert cluster.nodes[owner].holds(0, cluster.now_us)
    assert not cluster.answer(other_node, late)
    assert cluster.register.claim().epoch == 1, "it was claimed once"


def test_how_long_a_counter_stood_still_is_told_by_looks_and_not_by_the_time_since() -> None:
    """A node that was frozen has seen nothing meanwhile."""
    cluster, owner, other_node = two()
    cluster.live(1, owner, other_node)
    cluster.read_register(other_node)
    for _ in range(5):  # frozen: the owner goes on
        cluster.live(2, owner)

    (renewal,) = cluster.nodes[other_node].due(cluster.now_us)
    cluster.answer(other_node, renewal)

    assert cluster.nodes[other_node].due(cluster.now_us) == []


class World:
    """Nodes whose clocks run a little fast or slow, at a register whose answers come when they
    come; some are frozen, killed and started again."""

    RATES = (0.93, 1.0, 1.07)
    """Six seconds of the fastest are longer than five of the slowest."""

    def __init__(self) -> None:
        self.real_us = 0
        self.register = Register()
        self.nodes: list[Claims] = []
        self.rates: list[float] = []
        self.looking: dict[int, tuple[dict[int, VersionedRecord], int]] = {}
        self.due_writes: list[tuple[int, RegisterWrite]] = []
        self.answers: list[tuple[int, RegisterWrite, int]] = []
        self.starts = 0
        for name in NAMES:
            self.start(name)

    def start(self, name: str) -> None:
        self.starts += 1
        me = MemberRecord(name, f"{self.starts}", address="there")
        self.rates.append(self.RATES[self.starts % 3])
        self.nodes.append(Claims(me, [0], Lease(LEASE_S)))

    def time_of(self, n: int) -> int:
        return int(self.real_us * self.rates[n]) + 1_000_000_000 * n

    def holders(self) -> list[int]:
        return [n for n, node in enumerate(self.nodes) if node.holds(0, self.time_of(n))]

    def step(self, n: int, what: str) -> None:
        n %= len(self.nodes)
        getattr(self, what)(n)

    def begin(self, n: int) -> None:
        self.looking[n] = self.register.claims(), self.time_of(n)

    def end(self, n: int) -> None:
        if n in self.looking:
            claims, began_us = self.looking.pop(n)
            poll = RegisterPoll(claims, self.register.members(), began_us, ended_us=self.time_of(n))
            self.nodes[n].apply_poll(poll)

    def ask(self, n: int) -> None:
        self.due_writes += [(n, write) for write in self.nodes[n].due(self.time_of(n))]

    def arrive(self, n: int) -> None:
        for write in [due_write for due_write in self.due_writes if due_write[0] == n]:
            self.due_writes.remove(write)
            version = self.register.write(write[1])
            if version is not None:
                self.answers.append((n, write[1], version))

    def answer(self, n: int) -> None:
        for answer in [node_answer for node_answer in self.answers if node_answer[0] == n]:
            self.answers.remove(answer)
            self.nodes[n].wrote(answer[1], answer[2], self.time_of(n))

    def lose(self, n: int) -> None:
        self.answers = [answer for answer in self.answers if answer[0] != n]

    def turn(self, n: int) -> None:
        for what in STEPS * 2:
            self.step(n, what)

    def restart(self, n: int) -> None:
        """The older process is frozen, or goes on beside the new one."""
        if len(self.nodes) < 6:
            self.start(self.nodes[n].me.node)

    def give_up(self, n: int) -> None:
        self.nodes[n].give_up(0)


STEPS = ("begin", "end", "ask", "arrive", "answer")
WORK = [*("turn",) * 12, *STEPS * 3, "lose", "restart", "give_up"]
SECONDS = (0,) * 6 + (0.3,) * 6 + (1, 2, 5.5, 7)


@pytest.mark.slow
@given(st.integers(0, 1 << 32))
@settings(max_examples=examples(300), deadline=None)
def test_no_two_nodes_hold_one_shard_at_once(seed: int) -> None:
    world, random = World(), Random(seed)
    for _ in range(300):
        world.step(random.choice(range(len(world.nodes))), random.choice(WORK))
        assert len(world.holders()) <= 1, world.holders()
        world.real_us += int(random.choice(SECONDS) * SECOND_US)
        assert len(world.holders()) <= 1, world.holders()
    assert world.register.claim().epoch > 1, "somebody has taken over"
