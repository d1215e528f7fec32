"""Each parameter and field of each route of HTTP beyond its bounds: refused and named, and the
realm serves on."""

from __future__ import annotations

import pytest

from tests.fuzz.bounding import in_time
from tests.fuzz.http import request
from tests.fuzz.http_extremes import Case, cases, check, routes, served


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(routes()))
def test_no_value_of_a_request_over_http_is_more_than_a_refusal(name: str) -> None:
    refused = 0
    for case in cases(name):
        with in_time():
            answer = served().ask(case)
        check(case, answer)
        refused += bool(case.refused)
    assert refused or not routes()[name].path.count("{"), "nothing was beyond a bound"

    for line in ("GET realm", "GET channels", "GET queues"):
        assert served().ask(Case("afterwards", request(line))).status == 200
