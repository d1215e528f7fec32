"""Duration and renewal of a lease."""

from __future__ import annotations

import pytest

from penstock_cluster.owning.clocks import SECOND_US
from penstock_cluster.owning.lease import Lease
from penstock_core.vocabulary.errors import InvalidArgument


def test_a_lease_holds_from_the_start_of_its_renewal_for_a_second_less_than_its_length() -> None:
    lease = Lease(6.0)
    assert not lease.holds(0), "nothing was renewed yet"

    lease.record_renewal(10 * SECOND_US, 12 * SECOND_US)

    assert lease.holds(15 * SECOND_US - 1)
    assert not lease.holds(15 * SECOND_US)


def test_a_renewal_that_is_answered_late_does_not_shorten_a_lease() -> None:
    lease = Lease(6.0)
    lease.record_renewal(4 * SECOND_US, 5 * SECOND_US)

    lease.record_renewal(2 * SECOND_US, 6 * SECOND_US)

    assert lease.holds(9 * SECOND_US - 1)


def test_a_lease_that_has_run_out_begins_a_new_term_and_one_that_goes_on_does_not() -> None:
    lease = Lease(6.0)
    lease.record_renewal(0, 1)
    lease.record_renewal(4 * SECOND_US, 4 * SECOND_US)
    assert lease.term == 1

    # 4 s and 5 s: it was over as this was answered.
    lease.record_renewal(8 * SECOND_US, 9 * SECOND_US)

    assert lease.term == 2
    assert lease.holds(12 * SECOND_US)


@pytest.mark.parametrize("lease_s", [1.9, 61, float("nan")])
def test_a_lease_has_a_length_that_clocks_and_people_can_bear(lease_s: float) -> None:
    with pytest.raises(InvalidArgument, match="allowed are 2 to 60 seconds"):
        Lease(lease_s)
