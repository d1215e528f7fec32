"""Mistakes about patterns; ``mutants.py`` lists them with all others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client.reading.channel_ring import ChannelRing, Member
from penstock_core.messages.pattern_durables import PatternDurableCreated
from penstock_core.vocabulary.ports import Pages
from penstock_server.runtime import realm
from penstock_server.runtime.store.records import FactRecord
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.subscriptions.watches import ChannelWatches


def missed_birth(patch: pytest.MonkeyPatch) -> None:
    """Nobody hears of a channel that is made later."""
    patch.setattr(ChannelWatches, "made", lambda *_: None)


def late_birth(patch: pytest.MonkeyPatch) -> None:
    """A channel that is made later is read from its end, as if it had been there."""
    whole = ChannelRing.new_member

    def made(ring: ChannelRing[Any], channel: Any) -> Member[Any]:
        born, ring.new_from = ring.new_from, 1 << 60
        try:
            return whole(ring, channel)
        finally:
            ring.new_from = born

    patch.setattr(ChannelRing, "new_member", made)


def starved(patch: pytest.MonkeyPatch) -> None:
    """A channel that has more goes first again."""

    def again(ring: ChannelRing[Any], member: Member[Any]) -> None:
        if member.has_more and not member.is_ready:
            member.is_ready = True
            ring.ready.appendleft(member)
            ring.arrived.set()

    patch.setattr(ChannelRing, "_end_turn", again)


def forgotten_pattern(patch: pytest.MonkeyPatch) -> None:
    """A restart forgets the durables over patterns."""
    whole = RealmState.apply_stored

    def forget(
        state: RealmState,
        record: FactRecord,
        bodies: Iterator[memoryview],
        pages: Pages | None = None,
    ) -> None:
        if not isinstance(record.fact, PatternDurableCreated):
            whole(state, record, bodies, pages=pages)

    patch.setattr(RealmState, "apply_stored", forget)


def childless_birth(patch: pytest.MonkeyPatch) -> None:
    """A channel is made without the durable of its pattern."""
    patch.setattr(realm, "make_own", lambda *_: None)
