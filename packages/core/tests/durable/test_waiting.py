"""Delayed events, as a set and a heap."""

from __future__ import annotations

from random import Random

from penstock_core.durable.waiting import Waiting
from penstock_core.ids.ids import IdSet, Span
from penstock_testing.play import span


def ids(*wanted: int) -> IdSet:
    return IdSet.from_ids(wanted)


def test_what_is_due_is_taken_out_by_time() -> None:
    waiting = Waiting()
    waiting.add(ids(1, 2), 50)
    waiting.add(ids(7), 30)

    assert (waiting.next_us, waiting.lowest, len(waiting)) == (30, 1, 3)
    assert not waiting.take_due(29)
    assert waiting.take_due(30) == ids(7)
    assert waiting.next_us == 50
    assert waiting.take_due(99) == ids(1, 2)
    assert (bool(waiting), waiting.next_us) == (False, 0)


def test_what_is_settled_waits_no_more_and_sets_no_alarm() -> None:
    waiting = Waiting()
    waiting.add(ids(1, 2), 50)
    waiting.add(ids(7), 30)

    assert waiting.discard(ids(7, 8)) == ids(7)
    assert waiting.next_us == 50
    assert not waiting.take_due(30)
    assert waiting.discard(IdSet((span(0, 9),))) == ids(1, 2)
    assert waiting.next_us == 0


def test_a_new_time_takes_the_place_of_the_old_one() -> None:
    waiting = Waiting()
    waiting.add(ids(1, 2), 50)
    waiting.add(ids(2), 80)

    assert waiting.by_time() == [(50, ids(1)), (80, ids(2))]
    assert waiting.take_due(50) == ids(1)
    assert waiting.take_due(80) == ids(2)


def test_an_event_that_was_settled_and_comes_back_waits_for_its_new_time() -> None:
    waiting = Waiting()
    waiting.add(ids(1, 2), 50)
    waiting.discard(ids(2))
    waiting.add(ids(2), 80)

    assert waiting.by_time() == [(50, ids(1)), (80, ids(2))]
    assert waiting.take_due(50) == ids(1)
    assert waiting.next_us == 80
    assert waiting.take_due(80) == ids(2)


def test_each_event_waits_until_the_end_of_its_last_delay() -> None:
    for seed in range(200):
        chance = Random(seed)
        waiting = Waiting()
        expected: dict[int, int] = {}
        for _ in range(20):
            chosen = set(chance.choices(range(3), k=2))
            us = chance.randint(1, 9)
            step = chance.choice(("add", "discard", "take"))
            if step == "add":
                waiting.add(ids(*sorted(chosen)), us)
                expected |= dict.fromkeys(chosen, us)
            elif step == "discard":
                waited = ids(*sorted(chosen & expected.keys()))
                assert waiting.discard(ids(*sorted(chosen))) == waited, seed
                expected = {n: until for n, until in expected.items() if n not in chosen}
            else:
                due = sorted(n for n, until in expected.items() if until <= us)
                assert waiting.take_due(us) == ids(*due), seed
                expected = {n: until for n, until in expected.items() if until > us}
            assert waiting.by_time() == [
                (end_us, ids(*sorted(n for n, until in expected.items() if until == end_us)))
                for end_us in sorted({*expected.values()})
            ], seed
            assert waiting.next_us == min(expected.values(), default=0), seed
            for n in range(3):
                until_us = expected.get(n)
                expected_times = [] if until_us is None else [(until_us, ids(n))]
                assert waiting.by_time(ids(n)) == expected_times, seed


def test_it_is_kept_and_restored_without_what_is_lost() -> None:
    waiting = Waiting()
    waiting.add(ids(1, 2), 50)
    waiting.add(ids(7), 30)
    scattered = IdSet(Span(i, i + 1) for i in range(100, 900, 2))
    waiting.add(scattered, 90)
    state = waiting.state(ids(7, 1))

    assert [until_us for until_us, _ in state] == [50, 90]
    assert isinstance(state[1][1], bytes), "scattered ids are kept packed"
    again = Waiting.restored(state)
    assert again.by_time() == [(50, ids(2)), (90, scattered)]
    assert again.by_time(ids(2, 100)) == [(50, ids(2)), (90, ids(100))]


def test_entries_whose_events_were_settled_are_dropped() -> None:
    """An event that fails a million times must not leave a million entries."""
    waiting = Waiting()
    for at_us in range(5_000):
        waiting.add(ids(at_us), 1_000_000 + at_us)
        waiting.discard(ids(at_us))

    assert len(waiting._heap) < 2_500


def test_the_delays_of_a_few_events_are_found_among_many() -> None:
    waiting = Waiting()
    for n in range(5_000):
        waiting.add(ids(3 * n, 3 * n + 1), 10_000 - n)
    waiting.add(IdSet((span(20_000, 30_000),)), 77)
    page = ids(3_001, 3_003, 3_005)

    assert waiting.by_time(page) == [(10_000 - 1_001, ids(3_003)), (10_000 - 1_000, ids(3_001))]
    visited = list(waiting._ranges_around(page))
    assert [visited_span for visited_span, _ in visited] == [
        span(3_000, 3_001),
        span(3_003, 3_004),
        span(3_006, 3_007),
    ]
    assert waiting.by_time(ids(25_000)) == [(77, ids(25_000))]


def test_delays_that_a_clock_has_shortened_are_found_by_id() -> None:
    waiting = Waiting()
    waiting.add(ids(1, 2), 50)
    waiting.add(ids(7), 30)
    waiting.come_earlier(40)

    assert waiting.by_time(ids(1, 7)) == [(1, ids(7)), (10, ids(1))]
    assert waiting.take_due(1) == ids(7)
