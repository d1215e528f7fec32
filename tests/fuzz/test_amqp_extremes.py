"""Each field of AMQP beyond its bounds: answered with a condition, and the realm serves on."""

from __future__ import annotations

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: `make setup` says why")

from tests.fuzz.amqp_extremes import WORKING, cases, check, delivers, names, served
from tests.fuzz.bounding import in_time


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_no_value_of_a_field_of_amqp_is_more_than_an_error(name: str) -> None:
    for case in cases(name):
        with in_time():
            served().take(case.data)
        check(case, served().said)

    served().take(WORKING)
    assert delivers(served().said)
