"""Simple: every event is in memory only, and ids start over after a restart."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import outstanding, play_of
from penstock_core.channel_types.simple import TYPE
from penstock_core.ids.ids import Span
from penstock_core.messages.definitions import Edit
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.seats import TakeSeat
from penstock_core.messages.settlements import Ack
from penstock_core.vocabulary.digest import Digest
from penstock_testing.play import publish, span


@pytest.mark.spec("C1d")
def test_what_tells_it_from_the_others() -> None:
    digest = Digest(3, 30, 10, volatile=(Span(1, 2),))

    assert TYPE.name == "simple"
    assert TYPE.home == "heap"
    assert TYPE.survives_restart is False
    assert TYPE.ids_survive is False
    assert TYPE.clusterable is False
    assert TYPE.volatile(digest) == (Span(0, 3),)


@pytest.mark.spec("C1d", "D3")
@pytest.mark.parametrize("how", ["restart", "restart_from_snapshot", "close"])
@pytest.mark.parametrize("selector", ["", "even"])
def test_its_durables_start_over(how: str, selector: str) -> None:
    play = play_of(type="simple", start_event_id=5)
    every = {"even": (Span(0, 4),)}
    play.do(AddDurable("usual", "shared"))
    play.do(AddDurable("d", "shared", 7, selector=selector, persistent=True))
    play.do(publish(4, matched=every))
    play.do(TakeSeat("d", 1, "s"))
    play.do(Ack(1, (span(7),)))
    getattr(play, how)()
    assert set(play.channel.state.durables) == {"d"}
    play.do(publish(4, matched=every))

    assert play.answer == span(5, 8)
    assert outstanding(play) == [5, 6, 7, 8]


@pytest.mark.spec("C1d", "C3")
def test_what_was_edited_stays_edited() -> None:
    play = play_of(type="simple", events=2)
    mine = play.channel.state.definition
    play.do(Edit(type(mine)(type="simple", capacity=1)))
    play.restart()
    play.do(publish(3))

    assert list(play.channel.state.stored) == [2]
