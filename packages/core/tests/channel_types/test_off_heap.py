"""Off-heap: every event is in memory only, with a limit of memory of its own."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import play_of
from penstock_core.channel_types.off_heap import TYPE
from penstock_core.ids.ids import Span
from penstock_core.messages.publishing import Publish
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import MemoryLimit


@pytest.mark.spec("C1f")
def test_what_tells_it_from_the_others() -> None:
    digest = Digest(3, 30, 10, volatile=(Span(1, 2),))

    assert TYPE.name == "off_heap"
    assert TYPE.home == "off_heap"
    assert TYPE.survives_restart is False
    assert TYPE.ids_survive is True
    assert TYPE.event_ttl_counts is False
    assert TYPE.volatile(digest) == (Span(0, 3),)


@pytest.mark.spec("C1f", "C6")
def test_its_memory_is_limited() -> None:
    play = play_of(type="off_heap", events=1)
    with pytest.raises(MemoryLimit, match=r"100 bytes offered, 99 bytes.*off_heap channels"):
        play.do(Publish(Digest(1, 100, 100), memory_left=99))

    assert list(play.channel.state.stored) == [0]
    play.do(Publish(Digest(1, 100, 100), memory_left=100))
    assert list(play.channel.state.stored) == [0, 1]
