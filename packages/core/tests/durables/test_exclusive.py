"""Exclusive durables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from packages.core.tests.plays import durable_play, outstanding, play_of
from penstock_core.ids.ids import IdSet
from penstock_core.messages.delivery import HoldEvents, Skip, StallSession
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.retention import PurgeEvents
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, AckPrevious, RollBack
from penstock_core.vocabulary.errors import DurableInUse, InvalidArgument
from penstock_testing.play import Play, delivered, publish, redelivered, span


@pytest.mark.spec("D14")
def test_a_second_client_is_refused_until_the_first_ends() -> None:
    play = durable_play("exclusive", None)
    with pytest.raises(DurableInUse, match="held by session s1"):
        play.do(TakeSeat("d", 2, "s2"))
    play.do(Detach(1))
    play.do(TakeSeat("d", 2, "s2"))

    assert delivered(play.do(publish(1))) == {2: [0]}


@pytest.mark.spec("D15")
@pytest.mark.parametrize(
    "command", [Ack(1, (span(2),)), AckPrevious(1, 2), Ack(1, (span(2), span(0)))]
)
def test_an_ack_covers_all_lower_ids(command: Ack | AckPrevious) -> None:
    play = durable_play("exclusive", None, events=5)
    play.do(command)

    assert outstanding(play) == [3, 4]


@pytest.mark.spec("T9")
def test_an_ack_of_an_event_that_is_gone_still_covers_all_lower_ids() -> None:
    play = durable_play("exclusive", None, events=5)
    play.do(PurgeEvents((span(2),)))
    play.do(Ack(1, (span(2),)))

    assert outstanding(play) == [3, 4]


@pytest.mark.spec("D15")
@pytest.mark.parametrize("command", [Ack(1, (span(90),)), AckPrevious(1, 90)])
def test_an_ack_covers_nothing_that_was_not_delivered(command: Ack | AckPrevious) -> None:
    play = durable_play("exclusive", None, events=2)
    play.channel.attend(StallSession("s1", stalled=True), play.now_us)
    play.do(publish(2))
    play.do(command)

    assert outstanding(play) == [2, 3]


def test_a_rolled_back_event_waits_for_the_next_attach_uncounted() -> None:
    play = durable_play("exclusive", None, events=3)
    assert not delivered(play.do(RollBack(1, (span(0, 1),))))
    play.do(Detach(1))
    effects = play.do(TakeSeat("d", 2, "s2"))

    assert delivered(effects) == {2: [0, 1, 2]}
    assert redelivered(effects) == {}


@pytest.mark.spec("D6")
def test_an_ack_covers_nothing_that_was_rolled_back() -> None:
    play = durable_play("exclusive", None, events=5)
    play.do(Ack(1, (span(0),)))
    play.do(RollBack(1, (span(1),)))
    play.do(Ack(1, (span(4),)))
    assert outstanding(play) == [1]
    play.do(Detach(1))
    effects = play.do(TakeSeat("d", 2, "s2"))

    assert delivered(effects) == {2: [1]}
    assert redelivered(effects) == {}
    play.do(Ack(2, (span(1),)))
    assert outstanding(play) == []


@pytest.mark.spec("D6")
def test_delivered_again_it_is_covered_like_any_other() -> None:
    play = durable_play("exclusive", None, events=3)
    play.do(RollBack(1, (span(0),)))
    play.do(Detach(1))
    play.do(TakeSeat("d", 2, "s2"))
    play.do(Ack(2, (span(2),)))

    assert outstanding(play) == []


@pytest.mark.spec("D4")
@pytest.mark.parametrize("again", [Play.restart, Play.restart_from_snapshot, Play.close])
def test_a_selector_that_skips_what_was_rolled_back_does_not_settle_it(
    again: Callable[[Play], None],
) -> None:
    """Nor does the selector of a client that attaches after a restart. A client settles the events
    that its own selector skips, except those that another client has rolled back."""
    play = durable_play("exclusive", None, events=3)
    play.do(RollBack(1, (span(0),)))
    again(play)
    play.do(TakeSeat("d", 2, "s2"))
    play.channel.attend(Skip(2, (span(0, 1),)), play.now_us)
    play.do(Ack(2, (span(2),)))
    assert outstanding(play) == [0]
    again(play)

    assert delivered(play.do(TakeSeat("d", 3, "s3"))) == {3: [0]}
    play.do(Ack(3, (span(0),)))
    assert outstanding(play) == []


@pytest.mark.spec("D4")
@pytest.mark.parametrize("again", [Play.restart, Play.restart_from_snapshot])
def test_what_was_rolled_back_and_lived_in_memory_only_is_gone_after_a_restart(
    again: Callable[[Play], None],
) -> None:
    play = durable_play("exclusive", None, type="mixed")
    play.do(publish(3, volatile=(span(0),)))
    play.do(RollBack(1, (span(0, 1),)))
    again(play)

    assert play.channel.state.durables["d"].rolled_back == IdSet((span(1),))
    assert delivered(play.do(TakeSeat("d", 2, "s2"))) == {2: [1, 2]}


@pytest.mark.spec("T9")
def test_what_was_rolled_back_and_is_gone_is_forgotten() -> None:
    play = durable_play("exclusive", None, events=3)
    play.do(RollBack(1, (span(0, 1),)))
    play.do(PurgeEvents((span(0),)))

    assert play.channel.state.durables["d"].rolled_back == IdSet((span(1),))


def test_a_client_that_holds_it_whole_settles_what_another_has_given_back() -> None:
    """The client reads the events elsewhere and acknowledges up to an id; events that it rolled
    back itself are redelivered first."""
    play = durable_play("exclusive", None, events=4)
    play.do(RollBack(1, (span(0),)))
    play.do(Detach(1))
    play.do(TakeSeat("d", 2, "s2", sole=True))
    play.do(HoldEvents(2, span(0, 3)))
    play.do(RollBack(2, (span(2),)))
    play.do(AckPrevious(2, 3))

    assert outstanding(play) == [2]


@pytest.mark.spec("D13")
def test_what_a_lost_client_held_comes_first_and_uncounted() -> None:
    play = durable_play("exclusive", None, events=2)
    play.do(Detach(1))
    play.do(publish(1))
    effects = play.do(TakeSeat("d", 2, "s2"))

    assert delivered(effects) == {2: [0, 1, 2]}
    assert redelivered(effects) == {}


def test_what_one_subscriptions_selector_left_out_is_there_for_the_next() -> None:
    play = durable_play("exclusive", None, events=3)
    play.channel.attend(Skip(1, (span(1),)), play.now_us)
    assert not delivered(play.do(publish(0 + 1))).get(1, [])[1:]
    play.do(Detach(1))

    assert delivered(play.do(TakeSeat("d", 2, "s2"))) == {2: [0, 1, 2, 3]}


@pytest.mark.spec("D9")
def test_it_takes_no_window() -> None:
    play = durable_play("exclusive")

    with pytest.raises(InvalidArgument, match="does not take a window"):
        play.do(TakeSeat("d", 1, "s", window=5))


@pytest.mark.spec("D3")
def test_it_keeps_no_selector() -> None:
    with pytest.raises(InvalidArgument, match="does not keep a selector"):
        play_of().do(AddDurable("d", "exclusive", 0, selector="price > 3"))
