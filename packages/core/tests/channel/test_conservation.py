"""The counters of published events: every event is live or has left by exactly one cause."""

from __future__ import annotations

import pytest

from penstock_core.channel.conservation import MEANINGS, conservation, terms
from penstock_core.vocabulary.counters import Counters


@pytest.mark.spec("T8")
def test_the_terms_are_the_counters_and_what_is_here() -> None:
    counters = Counters(published=10, consumed=3, dead=2, redelivered=9)

    events_by_term = {term.name: term.events for term in terms(counters, live=4, overdue=1)}

    assert list(events_by_term) == list(MEANINGS)
    assert (
        events_by_term["live"],
        events_by_term["overdue"],
        events_by_term["consumed"],
        events_by_term["dead"],
    ) == (4, 1, 3, 2)
    assert "redelivered" not in events_by_term


@pytest.mark.spec("T8")
def test_the_sum_says_whether_it_holds() -> None:
    counters = Counters(published=10, consumed=3, dead=2)

    terms_by_name = conservation(counters, live=4, overdue=1)

    assert (terms_by_name["published"], terms_by_name["sum"], terms_by_name["holds"]) == (
        10,
        10,
        True,
    )
    assert not conservation(counters, live=3, overdue=1)["holds"]


def test_every_counter_of_what_left_is_a_term() -> None:
    counted = set(Counters.__struct_fields__) - {"published", "redelivered"}

    assert counted == set(MEANINGS) - {"live", "overdue"}
