"""Why ids have no event any more, exactly, in bounded room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.departures import FORGOTTEN, NEVER, PIECES_MAX, Departures, as_kept
from penstock.core.ids import IdSet, Span
from penstock.core.messages import Cause

GIVEN = Span(5, 300)

steps = st.lists(
    st.tuples(
        st.sampled_from([Cause.EXPIRED, Cause.PURGED, Cause.CONSUMED]),
        st.integers(5, 299),
        st.integers(1, 60),
    ),
    max_size=12,
)


@given(steps, st.integers(0, 310), st.integers(0, 310))
def test_each_missing_id_has_the_cause_it_left_by(
    left: list[tuple[Cause, int, int]], first: int, end: int
) -> None:
    departures = Departures(GIVEN.first)
    stored = IdSet([Span(GIVEN.first, 290)])  # nothing was stored under the last ten
    causes: dict[int, str] = dict.fromkeys(range(290, GIVEN.end), NEVER)
    for cause, start, size in left:
        gone = stored.remove(Span(start, start + size))
        departures.left(gone, cause)
        causes |= dict.fromkeys(gone, cause.value)

    again = Departures()
    again.restore(departures.known_from, as_kept(departures.kept()))
    for asked in (departures, again):
        found = asked.missing(Span(first, end), GIVEN, stored)
        assert {event_id: cause for cause, ids in found.items() for event_id in ids} == {
            event_id: cause for event_id, cause in causes.items() if first <= event_id < end
        }


def test_an_id_has_left_once() -> None:
    departures = Departures()
    departures.left(IdSet([Span(0, 10)]), Cause.PURGED)
    departures.left_late(IdSet([Span(5, 15)]), Cause.EXPIRED)

    found = departures.missing(Span(0, 20), Span(0, 20), IdSet([Span(15, 20)]))

    assert {cause: ids.spans for cause, ids in found.items()} == {
        "purged": (Span(0, 10),),
        "expired": (Span(10, 15),),
    }


def test_events_that_leave_in_turn_take_no_room() -> None:
    departures = Departures()
    for first in range(0, 1_000_000, 10):
        departures.left(IdSet([Span(first, first + 10)]), Cause.EXPIRED)

    assert departures.kept()["expired"].pieces == 1


def test_what_left_long_ago_is_forgotten_when_there_are_too_many_ranges() -> None:
    departures = Departures()
    end = PIECES_MAX * 1_024 * 2
    for first in range(0, end, 1_024):
        departures.left(IdSet([Span(first, first + 7)]), Cause.CONSUMED)
        departures.left(IdSet([Span(first + 7, first + 1_024)]), Cause.EXPIRED)

    assert sum(ids.pieces for ids in departures.kept().values()) <= PIECES_MAX
    found = departures.missing(Span(0, end), Span(0, end), IdSet())
    assert set(found) == {FORGOTTEN, "consumed", "expired"}
    assert found[FORGOTTEN].spans == (Span(0, departures.known_from),)
    assert departures.known_from < end
    last = departures.missing(Span(end - 1_024, end), Span(0, end), IdSet())
    assert last["consumed"].spans == (Span(end - 1_024, end - 1_017),)
