"""Mistakes with events that wait for their time, that are held for too long, or that are rejected
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
    """Forget at a restart that an event waits."""
    original = ChannelMachine.recorded

    def recorded(channel: ChannelMachine, fact: StoredFact) -> StoredFact | None:
        return None if isinstance(fact, Postponed) else original(channel, fact)

    patch.setattr(ChannelMachine, "recorded", recorded)
    patch.setattr(Waiting, "state", lambda *_: ())


def short_wait(patch: pytest.MonkeyPatch) -> None:
    """Deliver a waiting event a little before its time."""
    original = ChannelState.wake

    def wake(state: ChannelState, now_us: int) -> None:
        original(state, now_us + 50_000)

    patch.setattr(ChannelState, "wake", wake)


def endless_wait(patch: pytest.MonkeyPatch) -> None:
    """Lose one of many waiting events."""
    lose_a_wait(patch, among=4)


def lose_a_wait(patch: pytest.MonkeyPatch, among: int) -> None:
    """Lose one of the waiting events once ``among`` different times are waited for."""
    original = Waiting.add

    def add(waiting: Waiting, ids: IdSet, until_us: int) -> None:
        original(waiting, ids, until_us)
        if len(waiting._heap) >= among:
            waiting._heap.pop()

    patch.setattr(Waiting, "add", add)


def passed_by(patch: pytest.MonkeyPatch) -> None:
    """Let a serial durable continue behind an event that waits."""
    patch.setattr(Waiting, "held_up", lambda _, below, parked: below)


def lost_to_time(patch: pytest.MonkeyPatch) -> None:
    """Take an event for acknowledged if its acknowledgement is late."""

    def timed_out(state: ChannelState, *_: object, **__: object) -> list[StoredFact]:
        now_us = state.wakes_us
        return [
            Acked(durable.name, ids.spans) for durable, ids in timeouts.held_too_long(state, now_us)
        ]

    patch.setattr(decide, "_timed_out", timed_out)


def endless_time(patch: pytest.MonkeyPatch) -> None:
    """Never take events back from slow clients."""
    patch.setattr(decide, "held_too_long", lambda *_: [])


def late_and_taken(patch: pytest.MonkeyPatch) -> None:
    """Let a late acknowledgement count for the next delivery."""
    original = apply._apply_rolled_back

    def rolled_back(state: ChannelState, name: str, spans: Spans, *, late: bool = False) -> None:
        original(state, name, spans)

    patch.setattr(apply, "_apply_rolled_back", rolled_back)


def buried_nowhere(patch: pytest.MonkeyPatch) -> None:
    """Take rejected events for acknowledged, and keep no copy."""

    def buried(_: ChannelState, durable: Durable, ids: IdSet, cause: Cause) -> list[StoredFact]:
        return [Acked(durable.name, ids.spans)]

    patch.setattr(holding, "buried", buried)


def forgotten_rejection(patch: pytest.MonkeyPatch) -> None:
    """Forget at a restart that one of several durables has rejected an event."""
    original = ChannelMachine.recorded

    def recorded(channel: ChannelMachine, fact: StoredFact) -> StoredFact | None:
        return None if isinstance(fact, Buried) else original(channel, fact)

    patch.setattr(ChannelMachine, "recorded", recorded)


REJECTED = {
    "buried nowhere": ("a rejected event counts as acknowledged", buried_nowhere),
    "forgotten rejection": ("a restart forgets rejected events", forgotten_rejection),
}
"""Each with its description in the table of mistakes; the scene ``breathing`` has to notice
them."""
