"""Each field of AMQP beyond its bounds is answered with an error condition, and the realm continues
to serve."""

from __future__ import annotations

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: `make setup` says why")

from tests.fuzz.amqp_extremes import WORKING, cases, check, delivers, names, served
from tests.fuzz.bounding import in_time


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_extreme_values_of_amqp_fields_are_answered_with_errors(name: str) -> None:
    for case in cases(name):
        with in_time():
            served().handle(case.data)
        check(case, served().answer)

    served().handle(WORKING)
    assert delivers(served().answer)
