"""Mistakes in seeks of durables; ``mutants.py`` lists them with all others."""

from __future__ import annotations

import pytest

from penstock_core.channel import apply, recall, seeking
from penstock_core.channel.channel import ChannelMachine
from penstock_core.channel.state import ChannelState
from penstock_core.durable.durable import Durable
from penstock_core.messages.seeking import Sought
from penstock_core.messages.unions import StoredFact
from penstock_core.vocabulary.effects import Recall


def skipping_seek(patch: pytest.MonkeyPatch) -> None:
    """Skip the event that the seek names."""
    original = seeking.sought

    def skip_first(state: ChannelState, fact: Sought) -> None:
        original(state, fact)
        durable = state.durables[fact.durable]
        if not durable.selector and durable.head in state.stored:
            durable.head += 1

    patch.setattr(apply, "sought", skip_first)


def forgotten_seek(patch: pytest.MonkeyPatch) -> None:
    original = ChannelMachine.recorded

    def recorded(channel: ChannelMachine, fact: StoredFact) -> StoredFact | None:
        return None if isinstance(fact, Sought) else original(channel, fact)

    patch.setattr(ChannelMachine, "recorded", recorded)


def leaving_seek(patch: pytest.MonkeyPatch) -> None:
    """Leave one event with its client, which may settle it for the next one."""
    original = recall.take_all_back

    def all_but_one(durable: Durable) -> list[Recall]:
        kept = [(seat, seat.in_flight.take(1)) for seat in durable.seats]
        recalls = original(durable)
        for seat, span in kept:
            if span is not None:
                seat.in_flight.add(span)
        return recalls

    patch.setattr(seeking, "take_all_back", all_but_one)
