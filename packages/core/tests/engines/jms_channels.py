"""JMS channels, and where their events are: stored, in memory, or gone."""

from __future__ import annotations

from collections import Counter
from typing import Any

from packages.core.tests.plays import play_of
from penstock_core.messages.publishing import Appended
from penstock_testing.play import Play


def jms(*, events: int = 0, **attributes: Any) -> Play:
    return play_of(engine="jms", events=events, **attributes)


def live(play: Play) -> list[int]:
    return list(play.channel.state.stored)


def removed_by_cause(play: Play) -> dict[str, int]:
    """Return how many events have left, by cause."""
    events_by_cause: Counter[str] = Counter()
    for removed in play.removed:
        events_by_cause[removed.cause.value] += sum(part.size for part in removed.spans)
    return dict(events_by_cause)


def conserved(play: Play) -> bool:
    counters = play.channel.state.counters
    return counters.published == len(play.channel.state.stored) + counters.departed_count


def written(play: Play) -> list[Appended]:
    return [fact for fact in play.recorded if isinstance(fact, Appended)]
