"""Mistakes with events that wait for their time, that are in hand for too long, or are rejected
(SEM D18, D19, T11)."""

from __future__ import annotations

import pytest

from penstock_core.channel import apply, decide, holding, timeouts
from penstock_core.channel.channel import ChannelMachine
from penstock_core.channel.state import ChannelState
from penstock_core.durable.durable import Durable
from penstock_core.durable.waiting import Waiting
from penstock_core.ids.ids import IdSet, Spans
from penstock_core.messages.settlements import Acked, Buried, Postponed
from penstock_core.messages.unions import StoredFact
from penstock_core.vocabulary.causes import Cause


def forgotten_wait(patch: pytest.MonkeyPatch) -> None:
    """A restart does not know any more that an event waits."""
    whole = ChannelMachine.recorded

    def recorded(channel: ChannelMachine, fact: StoredFact) -> StoredFact | None:
        return None if isinstance(fact, Postponed) else whole(channel, fact)

    patch.setattr(ChannelMachine, "recorded", recorded)
    patch.setattr(Waiting, "state", lambda *_: ())


def short_wait(patch: pytest.MonkeyPatch) -> None:
    """An event comes again a little before its time."""
    whole = ChannelState.wake

    def wake(state: ChannelState, now_us: int) -> None:
        whole(state, now_us + 50_000)

    patch.setattr(ChannelState, "wake", wake)


def endless_wait(patch: pytest.MonkeyPatch) -> None:
    """One of many events that wait is lost sight of."""
    lose_a_wait(patch, among=4)


def lose_a_wait(patch: pytest.MonkeyPatch, among: int) -> None:
    """One of events that wait until as many different times is lost sight of."""
    whole = Waiting.add

    def add(waiting: Waiting, ids: IdSet, until_us: int) -> None:
        whole(waiting, ids, until_us)
        if len(waiting._heap) >= among:
            waiting._heap.pop()

    patch.setattr(Waiting, "add", add)


def passed_by(patch: pytest.MonkeyPatch) -> None:
    """A serial durable goes on behind an event that waits."""
    patch.setattr(Waiting, "held_up", lambda _, below, parked: below)


def lost_to_time(patch: pytest.MonkeyPatch) -> None:
    """What was not acknowledged in time counts as acknowledged."""

    def timed_out(state: ChannelState, *_: object, **__: object) -> list[StoredFact]:
        now_us = state.wakes_us
        return [
            Acked(durable.name, ids.spans) for durable, ids in timeouts.held_too_long(state, now_us)
        ]

    patch.setattr(decide, "_timed_out", timed_out)


def endless_time(patch: pytest.MonkeyPatch) -> None:
    """Clients may take as long as they like."""
    patch.setattr(decide, "held_too_long", lambda *_: [])


def late_and_taken(patch: pytest.MonkeyPatch) -> None:
    """A late acknowledgement counts for the delivery that follows."""
    whole = apply._rolled_back

    def rolled_back(state: ChannelState, name: str, spans: Spans, *, late: bool = False) -> None:
        whole(state, name, spans)

    patch.setattr(apply, "_rolled_back", rolled_back)


def buried_nowhere(patch: pytest.MonkeyPatch) -> None:
    """What is rejected counts as acknowledged, and no copy of it is kept."""

    def buried(_: ChannelState, durable: Durable, ids: IdSet, cause: Cause) -> list[StoredFact]:
        return [Acked(durable.name, ids.spans)]

    patch.setattr(holding, "buried", buried)


def forgotten_rejection(patch: pytest.MonkeyPatch) -> None:
    """A restart does not know any more that one of several durables has rejected an event."""
    whole = ChannelMachine.recorded

    def recorded(channel: ChannelMachine, fact: StoredFact) -> StoredFact | None:
        return None if isinstance(fact, Buried) else whole(channel, fact)

    patch.setattr(ChannelMachine, "recorded", recorded)


REJECTED = {
    "buried nowhere": ("what is rejected counts as acknowledged", buried_nowhere),
    "forgotten rejection": ("a restart forgets what was rejected", forgotten_rejection),
}
"""Each with what it is called in the table of mistakes; the scene ``breathing`` is to notice."""
