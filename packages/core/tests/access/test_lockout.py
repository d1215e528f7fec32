"""A client that guesses passwords too often has to wait; other clients do not."""

from __future__ import annotations

import pytest

from penstock_core.access.lockout import (
    HOST_FACTOR,
    KNOWN_MAX,
    Locked,
    Lockout,
    LockoutRules,
    network_of,
)
from penstock_core.access.rights import NAME_LENGTH_MAX

S = 1_000_000
MANY = [f"user{number}" for number in range(3 * HOST_FACTOR)]
FAR, OTHER, HERE = "10.0.0.5", "10.0.0.6", "127.0.0.1"


def lockout() -> Lockout:
    return Lockout(LockoutRules(failures=3, window_s=60, lock_s=10, lock_s_max=30))


def fail(lockout: Lockout, user: str, host: str, now_s: float = 0, times: int = 3) -> list[Locked]:
    begun = []
    for _ in range(times):
        begun += lockout.failed(user, host, int(now_s * S))
    return begun


@pytest.mark.spec("A4")
def test_a_user_is_locked_after_so_many_failures_from_anywhere() -> None:
    subject = lockout()
    begun: list[Locked] = []
    for number in range(3):
        assert subject.wait_s("alice", OTHER, 0) == 0
        begun += fail(subject, "alice", f"10.0.1.{number}", times=1)

    assert begun == [Locked("user", "alice", 10.0)]
    assert subject.wait_s("alice", OTHER, 4 * S) == 6.0
    assert subject.wait_s("bob", OTHER, 0) == 0
    assert subject.wait_s("alice", OTHER, 10 * S) == 0


@pytest.mark.spec("A4")
def test_a_host_is_locked_whomever_it_claims_to_be() -> None:
    subject = lockout()

    begun = [lock for user in MANY for lock in fail(subject, user, FAR, times=1)]

    assert begun == [Locked("host", FAR, 10.0)]
    assert subject.wait_s("somebody", FAR, 0) == 10.0
    assert subject.wait_s(MANY[0], OTHER, 0) == 0


def test_each_lock_is_twice_as_long_up_to_the_most() -> None:
    subject = lockout()
    lasted, now_s = [], 0.0
    for _ in range(4):
        [locked] = fail(subject, "alice", HERE, now_s=now_s)
        lasted.append(locked.seconds)
        now_s += locked.seconds

    assert lasted == [10.0, 20.0, 30.0, 30.0]
    [after_a_while] = fail(subject, "alice", HERE, now_s=now_s + 61)
    assert after_a_while.seconds == 10.0


def test_failures_during_a_lock_do_not_prolong_it() -> None:
    subject = lockout()
    fail(subject, "alice", FAR)

    assert fail(subject, "alice", FAR, now_s=5, times=20) == []
    assert subject.wait_s("alice", FAR, 5 * S) == 5.0


def test_failures_far_apart_do_not_lock() -> None:
    subject = lockout()

    assert fail(subject, "alice", FAR, now_s=0, times=2) == []
    assert fail(subject, "alice", FAR, now_s=61, times=2) == []


@pytest.mark.spec("A4")
def test_the_administrator_of_this_machine_is_kept_out_by_nobody_elsewhere() -> None:
    subject = lockout()
    for number in range(20):
        fail(subject, "admin", f"10.0.2.{number}")
    for number in range(20):
        fail(subject, f"user{number}", HERE)

    assert subject.wait_s("admin", FAR, 0) > 0
    assert subject.wait_s("admin", HERE, 0) == 0
    assert subject.wait_s("admin", "::1", 0) == 0
    assert subject.wait_s("admin", f"::ffff:{HERE}", 0) == 0


def test_who_was_here_before_is_kept_out_by_nobody_elsewhere() -> None:
    subject = lockout()
    subject.reset_failures("alice", FAR)
    fail(subject, "alice", OTHER)

    assert subject.wait_s("alice", OTHER, 0) == 10.0
    assert subject.wait_s("alice", FAR, 0) == 0
    fail(subject, "alice", FAR)
    assert subject.wait_s("alice", FAR, 0) == 10.0


def test_a_right_password_is_a_new_beginning_for_its_user_and_not_for_the_host() -> None:
    subject = lockout()
    for user in MANY[:-2]:
        fail(subject, user, FAR, times=1)
    fail(subject, "alice", FAR, times=1)
    subject.reset_failures("alice", FAR)

    begun = fail(subject, "alice", FAR, times=2)

    assert begun == [Locked("host", FAR, 10.0)]
    assert subject.wait_s("alice", OTHER, 0) == 0


@pytest.mark.spec("A4")
def test_a_host_that_many_share_takes_many_more_failures_than_a_user() -> None:
    subject = Lockout(LockoutRules())
    guessed = fail(subject, "bob", FAR, times=200)

    assert guessed == [Locked("user", "bob", 30.0)], "what comes during a lock does not count"
    assert subject.wait_s("alice", FAR, 0) == 0

    begun = [lock for n in range(200) for lock in fail(subject, f"user{n}", FAR, now_s=60, times=1)]
    assert begun == [Locked("host", FAR, 30.0)]
    assert subject.wait_s("alice", FAR, 60 * S) == 30.0


def test_it_can_be_turned_off() -> None:
    subject = Lockout(LockoutRules(failures=0))

    assert fail(subject, "alice", FAR, times=1_000) == []
    assert subject.wait_s("alice", FAR, 0) == 0
    assert len(subject) == 0


@pytest.mark.slow
def test_memory_is_bounded() -> None:
    subject = lockout()
    for number in range(3 * KNOWN_MAX):
        subject.failed(f"user{number}", HERE, 0)
        subject.reset_failures(f"user{number}", FAR)

    assert len(subject) == 2 * KNOWN_MAX


@pytest.mark.spec("A4")
def test_who_is_known_at_a_host_is_not_locked_by_a_neighbour_there() -> None:
    subject = lockout()
    subject.reset_failures("alice", FAR)
    for user in MANY:
        fail(subject, user, FAR, times=1)

    assert subject.wait_s("eve", FAR, 0) == 10.0
    assert subject.wait_s("alice", FAR, 0) == 0


@pytest.mark.spec("A4")
def test_an_ipv6_host_is_its_network() -> None:
    subject = lockout()
    for number in range(len(MANY)):
        fail(subject, f"user{number}", f"2001:db8:1:2::{number:x}", times=1)

    assert subject.wait_s("somebody", "2001:db8:1:2:ffff::9", 0) == 10.0
    assert subject.wait_s("somebody", "2001:db8:1:3::1", 0) == 0
    assert network_of("::ffff:10.0.0.5") == network_of("10.0.0.5") == "10.0.0.5"
    assert network_of("::1") == "::1"
    assert network_of("fe80::1%eth0") == "fe80::/64"


@pytest.mark.slow
@pytest.mark.spec("A4")
def test_a_count_near_its_limit_is_not_pushed_out_by_made_up_names() -> None:
    subject = lockout()
    fail(subject, "alice", FAR, times=2)
    for number in range(2 * KNOWN_MAX):
        subject.failed(
            f"made-up-{number}", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0
        )

    assert len(subject) <= KNOWN_MAX
    assert fail(subject, "alice", OTHER, times=1) == [Locked("user", "alice", 10.0)]


@pytest.mark.spec("A4")
def test_names_too_long_for_a_user_share_a_count() -> None:
    subject = lockout()
    for number in range(3):
        fail(subject, "x" * (65_536 + number), f"10.0.2.{number}", times=1)

    assert subject.wait_s("y" * 70_000, OTHER, 0) == 10.0
    assert subject.wait_s("x" * NAME_LENGTH_MAX, OTHER, 0) == 0
    assert len(subject) == 4, "three hosts, and one count of the names"
