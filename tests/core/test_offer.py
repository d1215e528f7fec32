"""What is sent when, and to whom."""

from __future__ import annotations

import pytest

from penstock.core.messages import Attach, Detach, Subscribe
from penstock.testing.play import delivered, publish

from .plays import durable_play, play_of


@pytest.mark.parametrize("durable", [False, True])
def test_a_session_that_cannot_take_more_gets_nothing_and_costs_nobody(durable: bool) -> None:
    play = durable_play("shared")
    for subscription, session in ((1, "slow"), (2, "quick")):
        if durable:
            play.do(Attach("d", subscription, session, 5))
        else:
            play.do(Subscribe(subscription, session, 0, credit=9))
    play.channel.stall("slow", stalled=True)
    assert delivered(play.do(publish(3))) == {2: [0, 1, 2]}
    play.channel.stall("slow", stalled=False)

    assert delivered(play.offers()) == ({} if durable else {1: [0, 1, 2]})


def test_nothing_is_offered_twice() -> None:
    play = play_of(events=2)
    assert play.do(Subscribe(1, "s", 0, credit=9))

    assert not play.channel.has_offers
    assert list(play.channel.offer()) == []


@pytest.mark.spec("D17")
def test_a_durable_remembers_when_it_was_last_read() -> None:
    play = durable_play("shared")
    play.wait(5)
    play.do(Attach("d", 1, "s", 5))
    durable = play.channel.state.durables["d"]

    assert durable.read_us == play.now_us
    assert [seat.session for seat in durable.seats] == ["s"]
    play.do(Detach(1))
    assert durable.seats == []
