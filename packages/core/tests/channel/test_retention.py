"""Events that leave a channel because of their age or number."""

from __future__ import annotations

from typing import Any

import pytest

from packages.core.tests.plays import play_of
from penstock_core.channel.retention import COARSE_US, NEVER_US, Ages, make_room
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.definitions import Edit
from penstock_core.messages.subscribers import AddSubscriber
from penstock_core.vocabulary.definitions import Definition
from penstock_testing.play import Play, delivered, events, publish, span


@pytest.mark.spec("T1")
def test_an_expired_event_is_never_delivered() -> None:
    play = play_of(ttl=1_000, events=2)
    play.wait(600)
    play.do(publish(1))
    play.wait(400)

    assert delivered(play.do(AddSubscriber(1, "s", 0, credit=9))) == {1: [2]}
    assert play.channel.state.counters.expired == 2


@pytest.mark.spec("T1")
def test_an_event_stays_until_its_time_has_passed() -> None:
    play = play_of(ttl=1_000, events=1)
    play.wait(999)
    play.sweep()
    assert len(play.channel.state.stored) == 1
    play.wait(1)

    assert play.channel.needs_sweep(play.now_us)


@pytest.mark.spec("T1")
def test_time_goes_on_over_a_restart() -> None:
    play = play_of(ttl=1_000, events=1)
    play.wait(600)
    play.restart_from_snapshot()
    play.wait(400)
    play.sweep()

    assert not play.channel.state.stored


@pytest.mark.spec("T2")
@pytest.mark.parametrize(
    ("type_", "event_ttl", "honoured"),
    [("mixed", False, True), ("persistent", False, False), ("persistent", True, True)],
)
def test_an_events_own_ttl_replaces_the_channels(
    type_: str, event_ttl: bool, honoured: bool
) -> None:
    play = play_of(type=type_, ttl=100, event_ttl=event_ttl)
    play.do(publish(3, ttls=((10, (Span(0, 1),)), (500, (Span(2, 3),)))))
    remaining = []
    for ms in (10, 90, 400):
        play.wait(ms)
        play.sweep()
        remaining.append(list(play.channel.state.stored))

    assert remaining == ([[1, 2], [2], []] if honoured else [[0, 1, 2], [], []])


@pytest.mark.spec("T2")
def test_an_own_ttl_of_nothing_is_none() -> None:
    play = play_of(type="mixed", ttl=100)
    play.do(publish(1, ttls=((0, (Span(0, 1),)),)))
    play.wait(100)
    play.sweep()

    assert not play.channel.state.stored


@pytest.mark.spec("C3")
def test_a_new_ttl_applies_at_once() -> None:
    play = play_of(events=1)
    play.wait(5_000)
    play.do(Edit(Definition(type="persistent", ttl=4_000)))

    assert not play.channel.state.stored


@pytest.mark.spec("T3")
def test_the_oldest_make_room() -> None:
    stored = IdSet([Span(1, 4), Span(6, 9)])
    fresh = IdSet([Span(9, 12)])

    assert make_room(0, stored, fresh) == ()
    assert make_room(9, stored, fresh) == ()
    assert make_room(5, stored, fresh) == (Span(1, 4), Span(6, 7))
    assert make_room(2, stored, fresh) == (Span(1, 4), Span(6, 9), Span(9, 10))


@pytest.mark.spec("E6")
def test_a_time_leads_to_an_id_at_or_before_it() -> None:
    ages = Ages()
    for i in range(5):
        ages.add_published(Span(10 * i, 10 * i + 10), i * COARSE_US, 0)

    assert ages.first_at(2 * COARSE_US, 50) <= 20
    assert ages.first_at(-1, 50) == 0
    assert Ages().first_at(7, 50) == 50
    assert ages.oldest_us(25) == 2 * COARSE_US
    assert Ages().oldest_us(3) is None


def test_publishes_close_together_share_an_age() -> None:
    ages = Ages()
    for i in range(1_000):
        ages.add_published(span(i), i, 0)

    assert len(ages.state()[0]) == 1


@pytest.mark.parametrize("attributes", [{"capacity": 2}, {"type": "transient"}])
def test_a_channel_that_only_ever_evicts_or_relays_remembers_no_ages(
    attributes: dict[str, Any],
) -> None:
    play = play_of(**attributes)
    for _ in range(50):
        play.wait(1_000)
        play.do(publish(1))

    assert len(play.channel.state.ages.state()[0]) <= 3


@pytest.mark.spec("T2")
def test_events_that_end_close_together_end_with_the_first_of_them() -> None:
    ages, stored = Ages(), IdSet([Span(0, 1_000)])
    for i in range(1_000):  # a second, of TTLs of an hour
        ages.own_ttl(i * 1_000, ((3_600_000, (span(i),)),))

    ends = [ends_us for ends_us, _ in ages.state()[1]]
    assert len(ends) <= 2
    assert 3_600_000_000 * 0.999 <= ends[0] <= 3_600_000_000
    assert ages.expired(0, 1_000, stored, now_us=ends[-1]) == stored


@pytest.mark.spec("X4")
def test_what_waits_for_its_time_ends_exactly_then() -> None:
    ages, stored = Ages(), IdSet([Span(0, 2)])
    ages.own_ttl(77, ((3_600_000, (span(0),)),), exact=True)
    ages.own_ttl(78, ((3_600_000, (span(1),)),), exact=True)

    assert not ages.expired(0, 2, stored, now_us=3_600_000_076)
    assert list(ages.expired(0, 2, stored, now_us=3_600_000_077)) == [0]
    assert list(ages.expired(0, 2, stored, now_us=3_600_000_078)) == [0, 1]


def test_what_has_ended_and_cannot_leave_yet_is_kept_together() -> None:
    ages, stored = Ages(), IdSet([Span(0, 9)])
    ages.own_ttl(0, ((10, (span(1), span(5))), (20, (span(3), span(4))), (30, (span(7),))))
    stored.remove(Span(3, 4))
    ages.gather(stored, 20_000)

    assert [list(ids) for _, ids in ages.state()[1]] == [[1, 4, 5], [7]]
    assert list(ages.expired(0, 9, stored, now_us=20_000)) == [1, 4, 5]
    assert list(ages.expired(0, 9, stored, now_us=30_000)) == [1, 4, 5, 7]
    ages.discard(stored)
    ages.gather(IdSet(), 30_000)
    assert ages.due_us(0) == NEVER_US


def test_what_was_taken_together_is_left_alone_until_more_has_ended() -> None:
    ages, stored = Ages(), IdSet([Span(0, 9)])
    ages.own_ttl(0, ((10, (span(1), span(5))), (20, (span(3),)), (30, (span(7),))))
    ages.gather(stored, 20_000)
    ((_, together), _) = ages.state()[1]
    ages.gather(stored, 25_000)

    assert ages.state()[1][0][1] is together
    ages.gather(stored, 30_000)
    assert [list(ids) for _, ids in ages.state()[1]] == [[1, 3, 5, 7]]
    assert list(together) == [1, 3, 5], "a snapshot that has it reads it as it was"


def test_what_leaves_is_not_among_what_was_taken_together() -> None:
    ages, stored = Ages(), IdSet([Span(0, 9)])
    ages.own_ttl(0, ((10, (span(1), span(5))), (20, (span(3),))))
    ages.gather(stored, 20_000)
    ((_, together),) = ages.state()[1]
    ages.discard(stored.remove(span(1)))

    assert list(ages.expired(0, 9, stored, now_us=25_000)) == [3, 5]
    assert list(together) == [1, 3, 5], "a snapshot that has it reads it as it was"
    assert not ages.own_of(IdSet([span(1)]))
    ages.own_ttl(10_000, ((10, (span(2), span(9))),))
    assert list(ages.expired(0, 10, stored, now_us=25_000)) == [2, 3, 5], (
        "nothing is stored under 9"
    )
    ages.gather(stored, 25_000)
    assert [list(ids) for _, ids in ages.state()[1]] == [[2, 3, 5]]


def test_own_ttls_are_kept_over_a_restart() -> None:
    ages, again = Ages(), Ages()
    ages.own_ttl(0, ((20, (span(3),)), (10, (span(1), span(5)))))
    again.restore(*ages.state())
    stored = IdSet([Span(0, 9)])

    assert again.state() == ages.state()
    assert again.due_us(0) == 10_000
    assert list(again.expired(0, 9, stored, now_us=10_000)) == [1, 5]
    again.forget(0, 10_000)
    assert list(again.expired(15, 9, stored, now_us=20_000)) == [3]


def test_ages_of_what_has_left_are_forgotten() -> None:
    ages = Ages()
    for i in range(5):
        ages.add_published(span(i), i * 1_000_000, 10)
    ages.own_ttl(0, ((1, (span(0),)),))
    ages.forget(3, 2_000)

    assert ages.state() == (((3, 3_000_000), (4, 4_000_000)), [])


HOUR_US = 3_600_000_000


def behind_by_an_hour(play: Play) -> None:
    """Restart with the right clock after a run whose clock was an hour ahead."""
    last_us = play.now_us
    play.now_us -= HOUR_US
    play.restart()
    play.channel.clock_set_back(last_us, play.now_us)


@pytest.mark.spec("T1")
def test_a_ttl_works_although_an_earlier_start_had_a_clock_that_was_ahead() -> None:
    play = play_of(ttl=3_000)
    play.do(publish(2))
    behind_by_an_hour(play)
    play.wait(1_000)
    play.do(publish(2))

    play.wait(2_100)
    play.sweep()
    assert events(play.channel.state.stored.spans) == [2, 3]
    play.restart()
    play.wait(1_000)
    play.sweep()
    assert not play.channel.state.stored


@pytest.mark.spec("T1", "T2")
def test_an_own_ttl_works_although_an_earlier_start_had_a_clock_that_was_ahead() -> None:
    play = play_of(type="mixed")
    play.do(publish(2, ttls=((4_000, (Span(1, 2),)),)))
    behind_by_an_hour(play)
    play.do(publish(2, ttls=((8_000, (Span(1, 2),)),)))

    play.wait(5_000)
    play.sweep()
    assert events(play.channel.state.stored.spans) == [0, 2, 3]
    play.wait(4_000)
    play.sweep()
    assert events(play.channel.state.stored.spans) == [0, 2]


@pytest.mark.spec("X4")
def test_what_is_scheduled_keeps_its_time_whatever_the_clock_was() -> None:
    play = play_of(Definition(type="mixed", kind="schedule"))
    play.do(publish(1, ttls=((7_200_000, (Span(0, 1),)),)))
    (due_us,) = play.channel.state.ages.ends_us
    behind_by_an_hour(play)
    play.do(publish(1, ttls=((20_000_000, (Span(0, 1),)),)))

    assert play.channel.state.ages.due_us(0) == due_us
