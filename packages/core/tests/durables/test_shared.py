"""Shared durables."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import durable_play, outstanding
from penstock_core.messages.delivery import Skip
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, RollBack
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument
from penstock_testing.play import delivered, publish, redelivered, span


@pytest.mark.spec("D8")
def test_two_clients_of_window_one_take_turns() -> None:
    play = durable_play("shared", 1, 1)
    got: dict[int, list[int]] = {1: [], 2: []}
    effects = play.do(publish(10))
    while new := delivered(effects):
        effects = []
        for seat, ids in new.items():
            got[seat] += ids
            for event_id in ids:
                effects += play.do(Ack(seat, (span(event_id),)))

    assert got == {1: [0, 2, 4, 6, 8], 2: [1, 3, 5, 7, 9]}


@pytest.mark.spec("D8")
def test_ten_events_are_shared_one_by_one_with_the_default_window() -> None:
    play = durable_play("shared", None, None)
    effects = play.do(publish(10))

    assert delivered(effects) == {1: [0, 2, 4, 6, 8], 2: [1, 3, 5, 7, 9]}
    assert len(effects) == 2, "one delivery for each client"


@pytest.mark.spec("D8")
def test_the_next_turn_is_that_of_the_client_behind_the_last_one_served() -> None:
    play = durable_play("shared", None, None, None)

    assert delivered(play.do(publish(8))) == {1: [0, 3, 6], 2: [1, 4, 7], 3: [2, 5]}
    assert delivered(play.do(publish(4))) == {3: [8, 11], 1: [9], 2: [10]}


@pytest.mark.spec("D8")
def test_a_client_with_less_room_is_passed_over_when_it_is_full() -> None:
    play = durable_play("shared", 2, 9)

    assert delivered(play.do(publish(8))) == {1: [0, 2], 2: [1, 3, 4, 5, 6, 7]}


@pytest.mark.spec("D8")
@pytest.mark.parametrize("windows", [(11, 11), (None, 11), (50, 50)])
def test_with_a_window_of_more_than_ten_a_share_is_a_run_of_ids(
    windows: tuple[int | None, ...],
) -> None:
    play = durable_play("shared", *windows)

    assert delivered(play.do(publish(10))) == {1: [0, 1, 2, 3, 4], 2: [5, 6, 7, 8, 9]}


@pytest.mark.spec("D8")
def test_a_client_whose_window_is_full_is_skipped() -> None:
    play = durable_play("shared", 1, 3)
    play.do(publish(1))

    assert delivered(play.do(publish(3))) == {2: [1, 2, 3]}


@pytest.mark.spec("D9")
def test_a_window_is_the_most_a_client_holds_and_clients_differ() -> None:
    play = durable_play("shared", 2, 5)
    effects = play.do(publish(20))

    assert {seat: len(ids) for seat, ids in delivered(effects).items()} == {1: 2, 2: 5}
    assert len(delivered(play.do(Ack(1, (span(0),))))[1]) == 1


@pytest.mark.spec("D9")
def test_the_window_is_ten_unless_told() -> None:
    play = durable_play("shared", None)

    assert len(delivered(play.do(publish(30)))[1]) == 10


@pytest.mark.spec("D9")
@pytest.mark.parametrize("window", [0, -1, 1_000_001])
def test_a_window_out_of_bounds_is_refused(window: int) -> None:
    play = durable_play("shared")

    with pytest.raises(InvalidArgument, match=f"window is {window}; allowed are 1 to"):
        play.do(TakeSeat("d", 1, "s", window=window))


@pytest.mark.spec("E9")
def test_a_rolled_back_event_returns_at_once_with_its_count() -> None:
    play = durable_play("shared", 2, events=3)
    for count in (1, 2, 3):
        effects = play.do(RollBack(1, (span(0),)))

        assert delivered(effects) == {1: [0]}
        assert redelivered(effects) == {0: count}


@pytest.mark.spec("E9")
def test_an_event_named_twice_is_rolled_back_once() -> None:
    play = durable_play("shared", 2, events=1)

    assert redelivered(play.do(RollBack(1, (span(0), span(0))))) == {0: 1}
    assert play.channel.state.counters.redelivered == 1


@pytest.mark.spec("D13")
def test_what_a_lost_client_held_comes_first_in_order_and_counted() -> None:
    play = durable_play("shared", 3)
    play.do(publish(6))
    play.do(Detach(1))
    effects = play.do(TakeSeat("d", 2, "s2", window=5))

    assert delivered(effects) == {2: [0, 1, 2, 3, 4]}
    assert redelivered(effects) == {0: 1, 1: 1, 2: 1}


@pytest.mark.spec("D13", "E9")
def test_what_was_granted_and_never_sent_is_not_counted() -> None:
    play = durable_play("shared", 3, events=2)
    play.channel.attend(Skip(1, (span(0, 1),)), play.now_us)
    play.do(Detach(1))
    effects = play.do(TakeSeat("d", 2, "s2", window=5))

    assert delivered(effects) == {2: [0, 1]}
    assert redelivered(effects) == {}


@pytest.mark.spec("D15")
def test_only_the_receiver_may_settle() -> None:
    play = durable_play("shared", 1, 1, events=2)

    with pytest.raises(IllegalState, match="only the subscription that holds it may settle it"):
        play.do(Ack(2, (span(0),)))
    assert outstanding(play) == [0, 1]


@pytest.mark.spec("D15")
def test_acks_are_single() -> None:
    play = durable_play("shared", 5, events=5)
    play.do(Ack(1, (span(3), span(1))))

    assert outstanding(play) == [0, 2, 4]
