"""Reliable: every event is in memory only."""

from __future__ import annotations

import pytest

from penstock_core.channel_types.reliable import TYPE
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.digest import Digest


@pytest.mark.spec("C1c")
def test_what_tells_it_from_the_others() -> None:
    digest = Digest(3, 30, 10, volatile=(Span(1, 2),))

    assert TYPE.name == "reliable"
    assert TYPE.survives_restart is False
    assert TYPE.event_ttl_counts is False
    assert TYPE.volatile(digest) == (Span(0, 3),)
