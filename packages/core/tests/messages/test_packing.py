"""The stored form of facts about scattered ids."""

from __future__ import annotations

import msgspec
import pytest

from packages.core.tests.plays import play_of
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.definitions import Edited
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.packing import RANGES_MAX, packed, unpacked
from penstock_core.messages.retention import Removed
from penstock_core.messages.seats import TakeSeat
from penstock_core.messages.settlements import Ack, Acked, Buried, RollBack, RolledBack
from penstock_core.messages.snapshots import Restored
from penstock_core.messages.unions import PackedIds, StoredFact
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Definition
from penstock_testing.play import publish

FEW = IdSet.from_ids(range(0, 20, 2))
PART = 50_000
MANY = IdSet.from_ids(range(0, 1_000, 2))


@pytest.mark.spec("D4")
@pytest.mark.parametrize(
    "fact",
    [
        Acked("d", MANY.spans),
        RolledBack("d", MANY.spans),
        Buried("d", MANY.spans),
        Removed(MANY.spans, Cause.CONSUMED),
    ],
)
def test_a_fact_about_scattered_ids_is_packed_and_comes_back(fact: StoredFact) -> None:
    stored = packed(fact)

    assert isinstance(stored, PackedIds)
    assert unpacked(stored) == fact


@pytest.mark.spec("D4")
@pytest.mark.parametrize(
    "fact",
    [
        Acked("d", tuple(Span(i, i + 1) for i in range(0, 2 * RANGES_MAX, 2))),
        Removed((Span(0, 1_000_000),), Cause.PURGED),
        Removed(MANY.spans, Cause.EXPIRED, FEW.spans),
        Edited(Definition()),
    ],
)
def test_other_facts_are_stored_as_they_are(fact: StoredFact) -> None:
    assert packed(fact) is fact


@pytest.mark.spec("D4", "D16")
@pytest.mark.slow
# Every second one of 400,000 makes more ranges than an id set remembers as ranges (2**17).
@pytest.mark.parametrize("count", [50_000, 400_000])
def test_events_acknowledged_here_and_there_cost_a_bit_each(count: int) -> None:
    play = play_of(retain_consumed=True)
    play.do(AddDurable("d", "shared"))
    play.do(TakeSeat("d", 1, "s1", count))
    for _ in range(0, count, PART):
        play.do(publish(PART))
    back = IdSet.from_ids(range(1, count, 10))
    for first in range(0, count, PART):
        play.do(RollBack(1, back.within(Span(first, first + PART)).spans))
        play.do(Ack(1, tuple(Span(i, i + 1) for i in range(first, first + PART, 2))))
    facts = msgspec.msgpack.encode(play.recorded)
    snapshot = play.channel.snapshot()
    durable = msgspec.msgpack.encode(snapshot.durables)

    assert len(durable) < 2 * count // 8 + 5_000, "a bit an event, and one for the counts"
    assert len(facts) < 6 * count // 8
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=Restored)
    unacknowledged = IdSet.from_ids(range(1, count, 2))
    for how in (play.restart, play.restart_from_snapshot):
        how()
        durable_ = play.channel.state.durables["d"]
        assert IdSet(durable_.outstanding_spans(play.channel.state.stored)) == unacknowledged
        assert durable_.redeliveries(unacknowledged.spans) == ((1, back.spans),)
    assert again == snapshot
