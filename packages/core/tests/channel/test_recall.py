"""Strict order: events that were sent after a rolled-back event are recalled (SEM D11)."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import outstanding, play_of
from penstock_core.messages.delivery import ConfirmRecall, SetDemand
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.retention import PurgeEvents
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, AckPrevious, RollBack
from penstock_core.vocabulary.effects import Effect, Recall
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument
from penstock_testing.play import Play, delivered, events, publish, redelivered, span


def strict_play(*windows: int | None, stored: int = 0, pull: bool = False) -> Play:
    """Return a channel with a serial durable ``d`` in strict order, a seat for each window, and
    ``stored`` events."""
    play = play_of()
    play.do(AddDurable("d", "serial", strict_order=True))
    for seat, window in enumerate(windows, start=1):
        play.do(TakeSeat("d", seat, f"s{seat}", window=window, pull=pull))
    if stored:
        play.do(publish(stored))
    return play


def recalled(effects: list[Effect]) -> dict[int, list[int]]:
    """Return the recalled ids by subscription."""
    return {e.subscription: events(e.spans) for e in effects if isinstance(e, Recall)}


@pytest.mark.spec("D10", "D11")
def test_with_window_one_nothing_is_ever_recalled() -> None:
    play = strict_play(1, stored=3)
    effects = play.do(RollBack(1, (span(0),)))

    assert (recalled(effects), delivered(effects)) == ({}, {1: [0]})


@pytest.mark.spec("D11")
@pytest.mark.parametrize("window", [3, 10])
def test_a_rolled_back_event_comes_before_every_later_one(window: int) -> None:
    play = strict_play(window, stored=12)
    effects = play.do(RollBack(1, (span(1),)))

    assert recalled(effects) == {1: list(range(2, window))}
    assert delivered(effects) == {}, "the client does not know yet"
    again = play.do(ConfirmRecall(1))
    assert delivered(again) == {1: list(range(1, window))}
    assert redelivered(again) == {1: 1}, "what was recalled was not delivered"


@pytest.mark.spec("D11")
def test_an_ack_of_a_recalled_event_says_so() -> None:
    play = strict_play(3, stored=3)
    play.do(RollBack(1, (span(0),)))
    for settles in (Ack(1, (span(2),)), Ack(1, (span(0, 2),)), AckPrevious(1, 2)):
        with pytest.raises(IllegalState, match=r"event [12] of durable d was recalled"):
            play.do(settles)

    assert outstanding(play) == [0, 1, 2]


@pytest.mark.spec("D11")
def test_rolling_back_a_recalled_event_changes_nothing() -> None:
    play = strict_play(3, stored=3)
    play.do(RollBack(1, (span(0),)))
    play.do(RollBack(1, (span(2),)))
    again = play.do(ConfirmRecall(1))

    assert delivered(again) == {1: [0, 1, 2]}
    assert redelivered(again) == {0: 1}


@pytest.mark.spec("D11")
def test_each_recall_is_confirmed_by_itself() -> None:
    play = strict_play(5, stored=5)
    first = play.do(RollBack(1, (span(3),)))
    second = play.do(RollBack(1, (span(1),)))

    assert (recalled(first), recalled(second)) == ({1: [4]}, {1: [2]})
    assert delivered(play.do(ConfirmRecall(1))) == {}
    with pytest.raises(IllegalState, match="event 2 of durable d was recalled"):
        play.do(Ack(1, (span(2),)))
    assert delivered(play.do(ConfirmRecall(1))) == {1: [1, 2, 3, 4]}


@pytest.mark.spec("D11")
def test_several_events_rolled_back_at_once_are_all_counted() -> None:
    play = strict_play(10, stored=6)
    effects = play.do(RollBack(1, (span(1), span(4))))
    again = play.do(ConfirmRecall(1))

    assert recalled(effects) == {1: [2, 3, 5]}
    assert delivered(again) == {1: [1, 2, 3, 4, 5]}
    assert redelivered(again) == {1: 1, 4: 1}


@pytest.mark.spec("D11")
def test_what_is_settled_is_not_recalled() -> None:
    play = strict_play(4, stored=4)
    play.do(Ack(1, (span(2),)))

    assert recalled(play.do(RollBack(1, (span(0),)))) == {1: [1, 3]}
    assert delivered(play.do(ConfirmRecall(1))) == {1: [0, 1, 3]}


@pytest.mark.spec("D11", "D12")
def test_the_next_client_has_its_turn_and_the_order_stays() -> None:
    play = strict_play(3, 3, stored=5)
    effects = play.do(RollBack(1, (span(0),)))

    assert recalled(effects) == {1: [1, 2]}
    assert delivered(effects) == {2: [0, 1, 2]}
    with pytest.raises(IllegalState, match="event 1 of durable d was recalled"):
        play.do(Ack(1, (span(1),)))
    play.do(ConfirmRecall(1))
    assert delivered(play.do(Ack(2, (span(0, 2),)))) == {1: [3, 4]}


@pytest.mark.spec("D11", "D12")
def test_while_its_holder_has_an_earlier_event_nobody_else_is_served() -> None:
    play = strict_play(3, 3, stored=5)

    assert delivered(play.do(RollBack(1, (span(1),)))) == {}
    assert delivered(play.do(ConfirmRecall(1))) == {1: [1, 2]}


@pytest.mark.spec("D11", "D13")
def test_a_client_that_leaves_recalls_nothing_and_the_next_gets_all_in_order() -> None:
    play = strict_play(4, 4, stored=6)
    play.do(RollBack(1, (span(2),)))
    effects = play.do(Detach(1))

    assert recalled(effects) == {}
    assert delivered(effects) == {2: [0, 1, 2, 3]}
    assert redelivered(effects) == {0: 1, 1: 1, 2: 1}


@pytest.mark.spec("D11")
def test_a_recalled_event_that_is_purged_is_acknowledged_without_error() -> None:
    play = strict_play(3, stored=3)
    play.do(RollBack(1, (span(0),)))
    play.do(PurgeEvents((span(2),)))
    play.do(Ack(1, (span(2),)))

    assert outstanding(play) == [0, 1]


@pytest.mark.spec("D11", "D5")
def test_fetched_events_are_recalled_too() -> None:
    play = strict_play(1, pull=True)
    play.do(publish(5))
    play.do(SetDemand(1, 4))

    assert recalled(play.do(RollBack(1, (span(1),)))) == {1: [2, 3]}
    assert delivered(play.do(SetDemand(1, 2))) == {}, "not before the client knows"
    assert delivered(play.do(ConfirmRecall(1))) == {1: [1, 2]}


@pytest.mark.spec("D11", "D4")
@pytest.mark.parametrize("how", ["cut", "snapshot"])
def test_strict_order_and_counts_survive_a_restart(how: str) -> None:
    play = strict_play(3, stored=4)
    play.do(RollBack(1, (span(0),)))
    if how == "cut":
        play.restart()
    else:
        play.restart_from_snapshot()
    again = play.do(TakeSeat("d", 9, "s9", window=3))

    assert delivered(again) == {9: [0, 1, 2]}
    assert redelivered(again) == {0: 1}
    assert recalled(play.do(RollBack(9, (span(1),)))) == {9: [2]}


@pytest.mark.spec("D11")
@pytest.mark.parametrize("kind", ["shared", "exclusive", "priority", "shared_queued"])
def test_only_a_serial_durable_orders_strictly(kind: str) -> None:
    with pytest.raises(InvalidArgument, match=f"type {kind} cannot have strict_order"):
        play_of().do(AddDurable("d", kind, strict_order=True))


def test_a_confirmation_of_nothing_is_nothing() -> None:
    play = strict_play(2, stored=3)

    assert play.do(ConfirmRecall(1)) == []
    assert play.do(ConfirmRecall(7)) == []
