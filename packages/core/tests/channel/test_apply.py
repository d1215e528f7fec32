"""Applying a fact never fails, even if the durable or event that it names does not exist any
more."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import durable_play, outstanding
from penstock_core.channel.apply import COUNTED_AS
from penstock_core.ids.ids import Span
from penstock_core.messages.durables import DurableDeleted
from penstock_core.messages.publishing import Appended
from penstock_core.messages.retention import Removed
from penstock_core.messages.settlements import Acked, RolledBack
from penstock_core.messages.unions import StoredFact
from penstock_core.vocabulary.causes import Cause

GONE = (Span(90, 95),)


@pytest.mark.parametrize(
    "fact",
    [
        Acked("x", GONE),
        RolledBack("x", GONE),
        DurableDeleted("x"),
        Acked("d", GONE),
        Removed(GONE, Cause.PURGED),
    ],
    ids=lambda fact: f"{type(fact).__name__} {fact}",
)
def test_a_fact_about_what_is_gone_is_harmless(fact: StoredFact) -> None:
    play = durable_play("shared", events=3)
    play.channel.apply(fact)

    assert outstanding(play) == [0, 1, 2]
    assert play.channel.state.counters.departed_count == 0


def test_events_matched_for_a_durable_that_is_gone_are_stored() -> None:
    play = durable_play("shared", events=1)
    play.channel.apply(Appended(Span(1, 3), play.now_us, 10, matched={"x": (Span(1, 2),)}))

    assert list(play.channel.state.stored) == [0, 1, 2]


def test_each_cause_has_its_counter() -> None:
    stored = [cause for cause in Cause if cause is not Cause.RELAYED]
    play = durable_play("shared", events=len(stored))
    for event_id, cause in enumerate(stored):
        play.channel.apply(Removed((Span(event_id, event_id + 1),), cause))

    counters = play.channel.state.counters
    names = [COUNTED_AS.get(cause, cause.value) for cause in stored]
    assert [getattr(counters, name) for name in names] == [names.count(name) for name in names]
    assert counters.departed_count == counters.published == len(stored)
