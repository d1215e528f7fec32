"""The window of a client that requested none (SEM D9)."""

from __future__ import annotations

from typing import Any

import pytest

from packages.core.tests.plays import durable_play, dying, play_of
from penstock_core.durable.pace import GROWN_MAX
from penstock_core.messages.delivery import Skip, Withhold
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.seats import TakeSeat
from penstock_core.messages.settlements import Ack, AckPrevious, RollBack
from penstock_testing.play import Play, publish, span


def work(play: Play, took_ms: int, rounds: int, *, seat: int = 1) -> list[int]:
    """Let the client acknowledge all its events ``rounds`` times, each time ``took_ms`` after it
    got the last of them; return how many events it has after each round."""
    sizes = []
    for _ in range(rounds):
        play.wait(took_ms)
        held = play.channel.state.seats[seat][1].in_flight
        play.do(Ack(seat, held.spans))
        sizes.append(len(play.channel.state.seats[seat][1].in_flight))
    return sizes


def shared(**attributes: Any) -> Play:
    """Return a channel with a long backlog, and a client that requested no window."""
    play = dying() if attributes else play_of()
    play.do(publish(100_000))
    play.do(AddDurable("d", "shared", **attributes))
    play.do(TakeSeat("d", 1, "s1"))
    return play


@pytest.mark.spec("D9")
@pytest.mark.parametrize("took_ms", [0, 1, 150])
def test_the_window_of_a_quick_client_grows(took_ms: int) -> None:
    play = shared()

    sizes = work(play, took_ms, 12)

    assert sizes[:5] == [20, 40, 80, 160, 320]
    assert sizes[-2:] == [GROWN_MAX, GROWN_MAX]


@pytest.mark.spec("D9")
def test_a_client_that_takes_longer_keeps_the_window_it_began_with() -> None:
    assert work(shared(), 201, 5) == [10] * 5


@pytest.mark.spec("D9")
def test_the_window_of_a_client_that_has_become_slow_shrinks_before_it_has_settled_all() -> None:
    play = shared()
    assert work(play, 0, 3) == [20, 40, 80]

    for _ in range(5):
        play.wait(801)
        first = play.channel.state.seats[1][1].in_flight.lowest
        assert first is not None
        play.do(Ack(1, (span(first),)))

    assert play.channel.state.seats[1][1].window == 10
    assert len(play.channel.state.seats[1][1].in_flight) == 75, "it settles those it has"


@pytest.mark.spec("D9")
def test_a_client_that_takes_neither_short_nor_long_keeps_the_window_it_has() -> None:
    play = shared()
    assert work(play, 0, 3) == [20, 40, 80]

    assert work(play, 500, 4) == [80] * 4


@pytest.mark.spec("D9")
def test_a_client_that_gives_something_back_begins_again() -> None:
    play = shared()
    assert work(play, 0, 3) == [20, 40, 80]

    play.do(RollBack(1, (play.channel.state.seats[1][1].in_flight.spans[0],)))
    assert play.channel.state.seats[1][1].window == 10
    assert len(play.channel.state.seats[1][1].in_flight) == 10

    assert work(play, 0, 1) == [20]


@pytest.mark.spec("D9")
def test_a_window_that_was_asked_for_stays() -> None:
    play = durable_play("shared", 10, events=1_000)

    assert work(play, 0, 5) == [10] * 5


@pytest.mark.spec("D9")
@pytest.mark.parametrize("kind", ["serial", "shared_queued"])
def test_a_window_that_says_whose_turn_it_is_or_what_comes_before_a_rollback_stays(
    kind: str,
) -> None:
    play = durable_play(kind, None, events=1_000)

    assert work(play, 0, 5) == [10] * 5


@pytest.mark.spec("D9")
@pytest.mark.parametrize("limit", [{"max_deliveries": 3}, {"ack_timeout": 60_000}])
def test_where_waiting_in_a_clients_hands_may_do_harm_the_window_stays(
    limit: dict[str, int],
) -> None:
    assert work(shared(**limit), 0, 5) == [10] * 5


@pytest.mark.spec("D9")
@pytest.mark.parametrize("kind", ["exclusive", "priority"])
def test_one_reader_begins_with_more_and_acknowledges_up_to_an_event(kind: str) -> None:
    play = durable_play(kind, None, events=100_000)
    sizes = []
    for _ in range(5):
        held = play.channel.state.seats[1][1].in_flight
        assert held.highest is not None
        play.do(AckPrevious(1, held.highest))
        sizes.append(len(held))

    assert sizes == [2_000, 4_000, GROWN_MAX, GROWN_MAX, GROWN_MAX]


@pytest.mark.spec("D9")
def test_clients_of_one_durable_have_a_pace_each() -> None:
    play = durable_play("shared", None, None, events=10_000)
    for _ in range(5):
        work(play, 0, 1)

    assert [play.channel.state.seats[seat][1].window for seat in (1, 2)] == [320, 10]


@pytest.mark.spec("D9")
def test_events_that_never_reached_the_client_are_none_that_it_has_settled() -> None:
    play = durable_play("shared", None, events=1_000)
    for _ in range(3):
        play.do(Withhold(1, (span(1, 9),), is_full=True))
        play.do(Withhold(1, (), is_full=False))
        play.do(Skip(1, (span(1, 9),)))
    play.do(Ack(1, (span(0),)))

    assert play.channel.state.seats[1][1].window == 10
