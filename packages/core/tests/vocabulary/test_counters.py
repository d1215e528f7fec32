"""The number of events that have left, over all causes."""

from __future__ import annotations

import pytest

from penstock_core.vocabulary.counters import Counters


@pytest.mark.spec("T8")
def test_all_but_the_published_and_the_redelivered_have_left() -> None:
    counters = Counters(published=100, redelivered=50)
    for n, way in enumerate(set(Counters.__struct_fields__) - {"published", "redelivered"}):
        setattr(counters, way, 1)
        assert counters.departed_count == n + 1
