"""Each parameter and field of each HTTP route beyond its bounds is refused by name, and the realm
continues to serve."""

from __future__ import annotations

import pytest

from tests.fuzz.bounding import in_time
from tests.fuzz.http import request
from tests.fuzz.http_extremes import Case, cases, check, routes, served


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(routes()))
def test_extreme_values_of_http_requests_are_refused(name: str) -> None:
    refused = 0
    for case in cases(name):
        with in_time():
            answer = served().exchange(case)
        check(case, answer)
        refused += bool(case.refused)
    assert refused or not routes()[name].path.count("{"), "nothing was beyond a bound"

    for line in ("GET realm", "GET channels", "GET queues"):
        assert served().exchange(Case("afterwards", request(line))).status == 200
