"""Events that a client gives back untried."""

from __future__ import annotations

import pytest

from penstock.core.errors import IllegalState
from penstock.core.ids import Span
from penstock.core.messages import Attach, Demand, Detach
from penstock.core.releasing import Release
from penstock.testing.play import delivered, publish, redelivered
from tests.core.plays import durable_play


@pytest.mark.spec("E9")
@pytest.mark.parametrize("kind", ["shared", "serial"])
def test_what_is_released_comes_again_and_is_not_counted(kind: str) -> None:
    play = durable_play(kind)
    play.do(Attach("d", 1, "s1", 2))
    play.do(publish(2))

    effects = play.do(Release(1, (Span(0, 1),)))

    assert delivered(effects) == {1: [0]}
    assert redelivered(effects) == {}


def test_what_is_released_goes_to_another_client() -> None:
    play = durable_play("shared")
    play.do(Attach("d", 1, "s1", pull=True))
    play.do(publish(1))
    play.do(Demand(1, 1))
    play.do(Attach("d", 2, "s2"))

    effects = play.do(Release(1, (Span(0, 1),)))

    assert delivered(effects) == {2: [0]}


@pytest.mark.spec("D15")
def test_only_what_a_client_holds_can_be_released() -> None:
    play = durable_play("shared")
    play.do(Attach("d", 1, "s1", 1))
    play.do(publish(1))
    play.do(Attach("d", 2, "s2", 1))

    with pytest.raises(IllegalState, match="was not delivered to this subscription"):
        play.do(Release(2, (Span(0, 1),)))


def test_what_an_exclusive_client_releases_waits_for_the_next_one() -> None:
    play = durable_play("exclusive")
    play.do(Attach("d", 1, "s1"))
    play.do(publish(2))

    assert delivered(play.do(Release(1, (Span(1, 2),)))) == {}

    play.do(Detach(1))
    assert delivered(play.do(Attach("d", 2, "s2"))) == {2: [0, 1]}
