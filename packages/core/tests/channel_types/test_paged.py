"""Paged: every event is stored in page files, with a limit of their own."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import play_of
from penstock_core.channel_types.paged import TYPE
from penstock_core.ids.ids import Span
from penstock_core.messages.publishing import Publish
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import MemoryLimit


@pytest.mark.spec("C1g")
def test_what_tells_it_from_the_others() -> None:
    digest = Digest(3, 30, 10, volatile=(Span(1, 2),))

    assert TYPE.name == "paged"
    assert TYPE.home == "pages"
    assert TYPE.survives_restart is True
    assert TYPE.ids_survive is True
    assert TYPE.event_ttl_counts is False
    assert TYPE.volatile(digest) == ()


@pytest.mark.spec("C1g", "C6")
def test_its_files_are_limited_too() -> None:
    play = play_of(type="paged")

    with pytest.raises(MemoryLimit, match="limit for paged channels"):
        play.do(Publish(Digest(1, 100, 100), memory_left=99))
