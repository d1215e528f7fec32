"""The faults are drawn from the seed alone, and often enough."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from random import Random

import pytest

from tests.faults.cluster.schedule import KINDS, Fault, faults, least_times


def first_faults(seed: int, count: int, minutes: float = 10.0) -> list[Fault]:
    return list(islice(faults(Random(seed), minutes, tuple(KINDS)), count))


def test_ten_minutes_have_at_least_the_documented_number_of_faults() -> None:
    least = least_times(10, tuple(KINDS))

    assert least["owner-killed"] >= 20
    assert least["owner-frozen"] >= 10
    assert least["server-killed"] + least["server-frozen"] >= 20
    assert least["two-servers-gone"] >= 5
    assert least["copy-damaged"] >= 3
    assert Counter(fault.what for fault in first_faults(1, sum(least.values()))) == least


def test_each_seed_draws_its_own_order() -> None:
    assert first_faults(4_711, 80) == first_faults(4_711, 80)
    assert [fault.what for fault in first_faults(1, 58)] != [
        fault.what for fault in first_faults(2, 58)
    ]


@pytest.mark.parametrize("minutes", [0.1, 1, 5])
def test_fewer_minutes_have_fewer_faults_and_one_of_each_kind_at_least(minutes: float) -> None:
    least = least_times(minutes, tuple(KINDS))

    assert {fault.what for fault in first_faults(3, sum(least.values()), minutes)} == set(KINDS)
    assert sum(least.values()) < sum(least_times(10, tuple(KINDS)).values())


def test_the_number_of_each_kind_can_be_set() -> None:
    kinds = ("postmaster-killed", "server-frozen")
    least = least_times(0, kinds, 50)
    played = Counter(
        fault.what for fault in islice(faults(Random(5), 0, kinds, times_each=50), 100)
    )

    assert least == played == {"postmaster-killed": 50, "server-frozen": 50}


def test_a_longer_run_has_only_faults_of_the_chosen_kinds() -> None:
    kinds = ("owner-killed", "server-frozen")
    more = list(islice(faults(Random(5), 1, kinds), 100))

    assert {fault.what for fault in more[sum(least_times(1, kinds).values()) :]} == set(kinds)


def test_freezes_are_shorter_and_longer_than_the_lease() -> None:
    lasting = [fault.for_s for fault in first_faults(7, 58) if fault.what == "owner-frozen"]

    assert min(lasting) < 6 < max(lasting)
