"""Mixed, the default type: each event decides whether it is persistent."""

from __future__ import annotations

import pytest

from penstock_core.channel_types.mixed import TYPE
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.digest import Digest


@pytest.mark.spec("C1b")
def test_what_tells_it_from_the_others() -> None:
    digest = Digest(3, 30, 10, volatile=(Span(1, 2),))

    assert TYPE.name == "mixed"
    assert TYPE.survives_restart is True
    assert TYPE.event_ttl_counts is True
    assert TYPE.volatile(digest) == (Span(1, 2),)
