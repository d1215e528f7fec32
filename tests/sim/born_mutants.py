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
    """Do not tell the pattern's subscriptions about a channel that is created later."""
    patch.setattr(ChannelWatches, "made", lambda *_: None)


def late_birth(patch: pytest.MonkeyPatch) -> None:
    """Read a channel that is created later from its end, as if it had existed at the start."""
    original = ChannelRing.new_member

    def new_member(ring: ChannelRing[Any], channel: Any) -> Member[Any]:
        new_from, ring.new_from = ring.new_from, 1 << 60
        try:
            return original(ring, channel)
        finally:
            ring.new_from = new_from

    patch.setattr(ChannelRing, "new_member", new_member)


def starved(patch: pytest.MonkeyPatch) -> None:
    """Put a channel that has more events at the front of the ring again."""

    def end_turn(ring: ChannelRing[Any], member: Member[Any]) -> None:
        if member.has_more and not member.is_ready:
            member.is_ready = True
            ring.ready.appendleft(member)
            ring.arrived.set()

    patch.setattr(ChannelRing, "_end_turn", end_turn)


def forgotten_pattern(patch: pytest.MonkeyPatch) -> None:
    """Forget the durables over patterns at a restart."""
    original = RealmState.apply_stored

    def apply_stored(
        state: RealmState,
        record: FactRecord,
        bodies: Iterator[memoryview],
        pages: Pages | None = None,
    ) -> None:
        if not isinstance(record.fact, PatternDurableCreated):
            original(state, record, bodies, pages=pages)

    patch.setattr(RealmState, "apply_stored", apply_stored)


def childless_birth(patch: pytest.MonkeyPatch) -> None:
    """Create a channel without the durable of its pattern."""
    patch.setattr(realm, "make_own", lambda *_: None)
