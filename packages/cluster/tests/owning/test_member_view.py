"""A node counts as alive while its counter changes; a record alone does not prove it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from penstock_cluster.owning.clocks import SECOND_US
from penstock_cluster.owning.member_view import Observer
from penstock_cluster.owning.register_records import ClaimRecord, MemberRecord, RegisterPoll
from penstock_core.vocabulary.errors import Damaged
from penstock_core.vocabulary.ports import VersionedRecord

LEASE_S = 6.0


def record(value: msgspec.Struct) -> VersionedRecord:
    return VersionedRecord(1, msgspec.json.encode(value))


def member(node: str, counter: int, *, wall_s: float = 0.0, **more: object) -> MemberRecord:
    defaults = {"address": f"{node}:9000", "version": "1.0", **more}
    wall_us = int(wall_s * SECOND_US)
    return msgspec.convert(
        {"node": node, "nonce": f"{node}!", "counter": counter, "wall_us": wall_us, **defaults},
        MemberRecord,
    )


def poll_at(at_s: float, *members: MemberRecord, owner: str = "", epoch: int = 3) -> RegisterPoll:
    """A look that takes no time, where the clock on the wall shows a thousand seconds more."""
    claim = ClaimRecord(owner, f"{owner}!", epoch, format=1, confirmed=1)
    at_us = int(at_s * SECOND_US)
    return RegisterPoll(
        {0: record(claim)},
        {member_record.node: record(member_record) for member_record in members},
        at_us,
        ended_us=at_us,
        wall_us=at_us + 1_000 * SECOND_US,
        format=1,
    )


def conditions(observer: Observer, at_s: float) -> Mapping[str, str]:
    seen = observer.seen(int(at_s * SECOND_US))
    return {member_seen.node: member_seen.condition for member_seen in seen.members}


def test_who_renews_is_there_and_the_owner_has_the_rest_of_its_lease() -> None:
    observer = Observer(LEASE_S)
    observer.apply_poll(poll_at(10, member("n1", 5), member("n2", 8), owner="n2"))
    assert not observer.is_complete(10 * SECOND_US)

    observer.apply_poll(poll_at(11, member("n1", 6), member("n2", 9), owner="n2"))

    assert observer.is_complete(11 * SECOND_US)
    assert conditions(observer, 12) == {"n1": "stands by", "n2": "owner"}
    seen = observer.seen(12 * SECOND_US)
    assert (seen.owner, seen.epoch, seen.format) == ("n2", 3, 1)
    assert seen.lease_left_s == pytest.approx(LEASE_S - 1 - 1)  # its margin, and a second ago
    assert observer.seen(99 * SECOND_US).lease_left_s == 0.0


def test_who_renews_nothing_for_a_lease_is_silent() -> None:
    observer = Observer(LEASE_S)
    for at_s in range(10, 17):
        observer.apply_poll(poll_at(at_s, member("n1", at_s), member("n2", 8), owner="n2"))
        assert observer.is_complete(at_s * SECOND_US) == (at_s == 16)

    assert observer.is_complete(16 * SECOND_US)
    assert conditions(observer, 16) == {"n1": "stands by", "n2": "silent"}
    seen = observer.seen(16 * SECOND_US)
    assert (seen.owner, seen.lease_left_s) == ("n2", None)
    assert not seen.members[1].is_alive


def test_who_is_at_no_address_need_not_be_waited_for() -> None:
    observer = Observer(LEASE_S)
    members = (member("n1", 1), member("n2", 1, leaving=True), member("n3", 1))
    observer.apply_poll(poll_at(10, *members))
    for name in list(observer.without_sign_of_life())[:2]:
        observer.record_refusal(name)
    observer.apply_poll(poll_at(11, *members[:2], member("n3", 2, leaving=True)))

    assert observer.is_complete(11 * SECOND_US)
    assert conditions(observer, 11) == {"n1": "gone", "n2": "left", "n3": "leaving"}
    assert observer.seen(0).owner == ""


def test_a_process_that_takes_a_name_over_has_to_renew_by_itself() -> None:
    observer = Observer(LEASE_S)
    observer.apply_poll(poll_at(10, member("n1", 1)))
    observer.apply_poll(poll_at(11, member("n1", 2)))
    observer.apply_poll(poll_at(12, member("n1", 1, nonce="another")))

    assert not observer.is_complete(12 * SECOND_US)
    assert conditions(observer, 12) == {"n1": "silent"}


def test_a_claim_of_a_process_before_is_not_this_ones() -> None:
    observer = Observer(LEASE_S)
    observer.apply_poll(poll_at(10, member("n1", 1, nonce="another"), owner="n1"))
    observer.apply_poll(poll_at(11, member("n1", 2, nonce="another"), owner="n1"))

    assert conditions(observer, 11) == {"n1": "stands by"}


def test_a_clock_is_compared_when_its_node_renews() -> None:
    observer = Observer(LEASE_S)
    observer.apply_poll(poll_at(10, member("n1", 1, wall_s=1_010), member("n2", 1)))
    assert observer.seen(0).members[0].clock_ahead_s is None

    observer.apply_poll(
        poll_at(11, member("n1", 2, wall_s=1_031), member("n2", 2, wall_s=1_010.5), owner="n1")
    )

    ahead = {
        member_seen.node: member_seen.clock_ahead_s for member_seen in observer.seen(0).members
    }
    assert ahead == {"n1": 20.0, "n2": 0.0}, "n2 may have renewed half a second before the look"


def test_what_is_no_record_of_a_cluster_is_named() -> None:
    observer = Observer(LEASE_S)
    wrong = RegisterPoll({}, {"n1": VersionedRecord(1, b"[]")}, 0, ended_us=0)

    with pytest.raises(Damaged, match="node/n1 in the register is not a valid record of a cluster"):
        observer.apply_poll(wrong)


def test_the_format_all_know_counts_who_is_there_or_may_be_again() -> None:
    observer = Observer(LEASE_S)
    for at_s in range(10, 17):
        members = (
            member("n1", at_s, format=3),
            member("n2", 8, format=2),
            member("n3", 8, format=1),
        )
        observer.apply_poll(poll_at(at_s, *members, owner="n1"))
    observer.record_refusal(msgspec.structs.replace(member("n3", 8), format=1))
    seen = observer.seen(17 * SECOND_US)

    assert conditions(observer, 17) == {"n1": "owner", "n2": "silent", "n3": "gone"}
    assert seen.format_all_know() == 2
    assert Observer(LEASE_S).seen(0).format_all_know() == 0
