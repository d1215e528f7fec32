"""The causes of removed ids are exact, and their memory is bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.channel.removal_causes import FORGOTTEN, NEVER, PIECES_MAX, Departures, as_kept
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.causes import Cause

GIVEN = Span(5, 300)

Step = tuple[Cause, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from([Cause.EXPIRED, Cause.PURGED, Cause.CONSUMED]),
        st.integers(5, 299),
        st.integers(1, 60),
    ),
    max_size=12,
)


@given(steps, st.integers(0, 310), st.integers(0, 310))
def test_each_missing_id_has_the_cause_it_left_by(steps: list[Step], first: int, end: int) -> None:
    departures = Departures(GIVEN.first)
    stored = IdSet([Span(GIVEN.first, 290)])  # nothing was stored under the last ten
    causes: dict[int, str] = dict.fromkeys(range(290, GIVEN.end), NEVER)
    for cause, start, size in steps:
        removed = stored.remove(Span(start, start + size))
        departures.record(removed, cause)
        causes |= dict.fromkeys(removed, cause.value)

    again = Departures()
    kept = as_kept(departures.kept(GIVEN.end, stored))
    again.restore(departures.known_from, kept, GIVEN.end, stored=stored)
    for record in (departures, again):
        ids_by_cause = record.missing(Span(first, end), GIVEN, stored)
        assert {event_id: cause for cause, ids in ids_by_cause.items() for event_id in ids} == {
            event_id: cause for event_id, cause in causes.items() if first <= event_id < end
        }


keyed_steps = st.lists(
    st.tuples(
        st.sampled_from(["passed over", "restart", "replaced", "expired", "purged", "came"]),
        st.integers(1, 40),
        st.integers(0, 300),
    ),
    max_size=30,
)


@given(keyed_steps, st.integers(0, 310), st.integers(0, 310))
def test_with_publish_keys_each_missing_id_has_the_cause_it_left_by(
    steps: list[tuple[str, int, int]], first: int, end: int
) -> None:
    departures = Departures(GIVEN.first, keyed=True)
    stored, causes, next_id = IdSet(), dict[int, str](), GIVEN.first
    for what, size, start in steps:
        span = Span(start, start + size)
        if what == "came":
            stored.add(Span(next_id, next_id + size))
            next_id += size
        elif what == "passed over":
            departures.record_unstored((next_id, next_id + size))
            causes |= dict.fromkeys(range(next_id, next_id + size), NEVER)
            next_id += size
        elif what == "restart":
            kept = as_kept(departures.kept(next_id, stored))
            known_from, departures = departures.known_from, Departures(keyed=True)
            departures.restore(known_from, kept, next_id, stored=stored)
        else:
            removed = stored.remove(span)
            departures.record_late(removed, Cause(what), removed)
            causes |= dict.fromkeys(removed, what)

    ids_by_cause = departures.missing(Span(first, end), Span(GIVEN.first, next_id), stored)
    assert {event_id: cause for cause, ids in ids_by_cause.items() for event_id in ids} == {
        event_id: cause for event_id, cause in causes.items() if first <= event_id < end
    }


def test_what_was_in_memory_when_the_realm_ended_can_still_be_told_of() -> None:
    departures = Departures(keyed=True)
    departures.record_unstored((0, 9))
    departures.record_late(IdSet([Span(0, 3)]), Cause.REPLACED, IdSet())
    departures.record_late(IdSet([Span(2, 5)]), Cause.PURGED, IdSet())
    departures.forget_unstored(IdSet([Span(8, 9)]))

    causes = departures.missing(Span(0, 10), Span(0, 10), IdSet([Span(8, 10)]))
    assert {cause: ids.spans for cause, ids in causes.items()} == {
        "replaced": (Span(0, 3),),
        "purged": (Span(3, 5),),
        NEVER: (Span(5, 8),),
    }


@pytest.mark.slow
def test_replacements_take_no_room_and_none_is_forgotten() -> None:
    departures, stored = Departures(keyed=True), IdSet()
    end = PIECES_MAX * 1_024 * 4
    for first in range(0, end, 1_024):
        departures.record(IdSet([Span(first, first + 1_000)]), Cause.REPLACED)
        stored.add(Span(first + 1_000, first + 1_024))

    assert departures.known_from == 0
    causes = departures.missing(Span(0, end), Span(0, end), stored)
    assert {cause: len(ids) for cause, ids in causes.items()} == {"replaced": end // 1_024 * 1_000}


def test_an_id_has_left_once() -> None:
    departures = Departures()
    departures.record(IdSet([Span(0, 10)]), Cause.PURGED)
    departures.record_late(IdSet([Span(5, 15)]), Cause.EXPIRED, IdSet([Span(10, 15)]))

    causes = departures.missing(Span(0, 20), Span(0, 20), IdSet([Span(15, 20)]))

    assert {cause: ids.spans for cause, ids in causes.items()} == {
        "purged": (Span(0, 10),),
        "expired": (Span(10, 15),),
    }


@pytest.mark.slow
def test_events_that_leave_in_turn_take_no_room() -> None:
    departures = Departures()
    for first in range(0, 1_000_000, 10):
        departures.record(IdSet([Span(first, first + 10)]), Cause.EXPIRED)

    assert departures.kept(1_000_000, IdSet())["expired"].pieces == 1


def test_what_left_long_ago_is_forgotten_when_there_are_too_many_ranges() -> None:
    departures = Departures()
    end = PIECES_MAX * 1_024 * 2
    for first in range(0, end, 1_024):
        departures.record(IdSet([Span(first, first + 7)]), Cause.CONSUMED)
        departures.record(IdSet([Span(first + 7, first + 1_024)]), Cause.EXPIRED)

    assert sum(ids.pieces for ids in departures.kept(end, IdSet()).values()) <= PIECES_MAX
    ids_by_cause = departures.missing(Span(0, end), Span(0, end), IdSet())
    assert set(ids_by_cause) == {FORGOTTEN, "consumed", "expired"}
    assert ids_by_cause[FORGOTTEN].spans == (Span(0, departures.known_from),)
    assert departures.known_from < end
    last = departures.missing(Span(end - 1_024, end), Span(0, end), IdSet())
    assert last["consumed"].spans == (Span(end - 1_024, end - 1_017),)
