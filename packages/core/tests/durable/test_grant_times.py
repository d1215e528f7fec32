"""The times at which a client received the events that it holds (SEM D23)."""

from __future__ import annotations

import pytest

from penstock_core.durable.grant_times import RESOLUTION_US, GrantTimes
from penstock_core.ids.ids import IdSet, Span

LATER_US = 10 * RESOLUTION_US


def ids(*event_ids: int) -> IdSet:
    return IdSet.from_ids(event_ids)


def grant(times: GrantTimes, in_flight: IdSet, span: Span, at_us: int) -> None:
    in_flight.add(span)
    times.record((span,), at_us, in_flight)


def times_of(times: GrantTimes, events: IdSet) -> dict[int, int | None]:
    return {i: at_us for at_us, part in times.times_of(events) for i in part}


@pytest.mark.spec("D23")
def test_grants_close_together_share_the_earlier_time() -> None:
    times, held = GrantTimes(), IdSet()
    grant(times, held, Span(0, 2), 1)
    grant(times, held, Span(2, 3), RESOLUTION_US)
    grant(times, held, Span(5, 6), LATER_US)

    assert times_of(times, held) == {0: 1, 1: 1, 2: 1, 5: LATER_US}


@pytest.mark.spec("D23")
def test_the_last_grant_of_an_event_counts() -> None:
    times, held = GrantTimes(), IdSet()
    grant(times, held, Span(0, 4), 1)
    grant(times, held, Span(1, 2), LATER_US)
    grant(times, held, Span(1, 3), 2 * LATER_US)
    grant(times, held, Span(3, 4), 2 * LATER_US + 1)

    assert times_of(times, held) == {0: 1, 1: 2 * LATER_US, 2: 2 * LATER_US, 3: 2 * LATER_US}


@pytest.mark.spec("D23")
def test_an_event_whose_grant_was_not_recorded_has_no_time() -> None:
    times, held = GrantTimes(), IdSet()
    times.record((), 1, held)
    grant(times, held, Span(4, 5), 1)

    assert times_of(times, ids(2, 4, 9)) == {2: None, 4: 1, 9: None}


@pytest.mark.spec("D23")
def test_memory_grows_with_the_events_in_flight_only() -> None:
    times, held = GrantTimes(), IdSet()
    grant(times, held, Span(0, 1), 1)
    for event_id in range(1, 1_000):
        grant(times, held, Span(event_id, event_id + 1), event_id * LATER_US)
        held.remove(Span(event_id, event_id + 1))
        grant(times, held, Span(0, 1), event_id * LATER_US + RESOLUTION_US)

    assert len(times._entries) + len(times._again) < 150
    assert times_of(times, held) == {0: 999 * LATER_US + RESOLUTION_US}
