"""Mistakes about durables that go back and forward; ``mutants.py`` lists them with all others."""

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
    """The event that was named is not among those that come."""
    whole = seeking.sought

    def behind(state: ChannelState, fact: Sought) -> None:
        whole(state, fact)
        durable = state.durables[fact.durable]
        if not durable.selector and durable.head in state.stored:
            durable.head += 1

    patch.setattr(apply, "sought", behind)


def forgotten_seek(patch: pytest.MonkeyPatch) -> None:
    whole = ChannelMachine.recorded

    def recorded(channel: ChannelMachine, fact: StoredFact) -> StoredFact | None:
        return None if isinstance(fact, Sought) else whole(channel, fact)

    patch.setattr(ChannelMachine, "recorded", recorded)


def leaving_seek(patch: pytest.MonkeyPatch) -> None:
    """An event stays with the client that has it, which may settle it for the next one."""
    whole = recall.take_all_back

    def all_but_one(durable: Durable) -> list[Recall]:
        kept = [(seat, seat.in_flight.take(1)) for seat in durable.seats]
        recalls = whole(durable)
        for seat, span in kept:
            if span is not None:
                seat.in_flight.add(span)
        return recalls

    patch.setattr(seeking, "take_all_back", all_but_one)
