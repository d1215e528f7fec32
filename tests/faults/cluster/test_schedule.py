"""What goes wrong is drawn from the seed alone, and often enough."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from random import Random

import pytest

from tests.faults.cluster.schedule import KINDS, Fault, faults, least_times


def drawn(seed: int, count: int, minutes: float = 10.0) -> list[Fault]:
    return list(islice(faults(Random(seed), minutes, tuple(KINDS)), count))


def test_ten_minutes_have_all_the_faults_that_were_promised() -> None:
    least = least_times(10, tuple(KINDS))

    assert least["owner-killed"] >= 20
    assert least["owner-frozen"] >= 10
    assert least["server-killed"] + least["server-frozen"] >= 20
    assert least["two-servers-gone"] >= 5
    assert least["copy-damaged"] >= 3
    assert Counter(fault.what for fault in drawn(1, sum(least.values()))) == least


def test_the_same_seed_draws_the_same_and_another_one_another_order() -> None:
    assert drawn(4_711, 80) == drawn(4_711, 80)
    assert [each.what for each in drawn(1, 58)] != [each.what for each in drawn(2, 58)]


@pytest.mark.parametrize("minutes", [0.1, 1, 5])
def test_fewer_minutes_have_fewer_faults_and_one_of_each_kind_at_least(minutes: float) -> None:
    least = least_times(minutes, tuple(KINDS))

    assert {fault.what for fault in drawn(3, sum(least.values()), minutes)} == set(KINDS)
    assert sum(least.values()) < sum(least_times(10, tuple(KINDS)).values())


def test_so_many_of_each_kind_are_played_where_that_is_asked_for() -> None:
    kinds = ("postmaster-killed", "server-frozen")
    least = least_times(0, kinds, 50)
    played = Counter(each.what for each in islice(faults(Random(5), 0, kinds, times_each=50), 100))

    assert least == played == {"postmaster-killed": 50, "server-frozen": 50}


def test_a_longer_run_goes_on_with_faults_of_the_kinds_that_were_asked_for() -> None:
    kinds = ("owner-killed", "server-frozen")
    more = list(islice(faults(Random(5), 1, kinds), 100))

    assert {fault.what for fault in more[sum(least_times(1, kinds).values()) :]} == set(kinds)


def test_freezes_are_shorter_and_longer_than_the_lease() -> None:
    lasting = [each.for_s for each in drawn(7, 58) if each.what == "owner-frozen"]

    assert min(lasting) < 6 < max(lasting)
