"""The state that survives a restart, and its stored form."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import durable_play, outstanding, play_of
from penstock_core.channel.recovery import PIECES_AT_ONCE, at_once
from penstock_core.ids.ids import Span
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.publishing import Appended, IdsReserved, Publish
from penstock_core.messages.retention import PurgeEvents, Removed
from penstock_core.messages.seats import TakeSeat
from penstock_core.messages.settlements import Ack, Acked, RollBack
from penstock_core.messages.snapshots import Restored
from penstock_core.vocabulary.stored_ids import id_set
from penstock_testing.play import Play, delivered, publish, span

VOLATILE = (Span(1, 2), Span(3, 4))
HOW = ("restart", "restart_from_snapshot")


def mixed() -> Play:
    play = play_of(type="mixed")
    play.do(publish(4, volatile=VOLATILE))
    return play


KEPT = [
    pytest.param("persistent", [7, 8, 9, 10], "go on", marks=pytest.mark.spec("C1a")),
    pytest.param("mixed", [7, 9], "go on", marks=pytest.mark.spec("C1b")),
    pytest.param("reliable", [], "go on", marks=pytest.mark.spec("C1c")),
    pytest.param("simple", [], "start again", marks=pytest.mark.spec("C1d")),
    pytest.param("transient", [], "start again", marks=pytest.mark.spec("C1e")),
    pytest.param("off_heap", [], "go on", marks=pytest.mark.spec("C1f")),
    pytest.param("paged", [7, 8, 9, 10], "go on", marks=pytest.mark.spec("C1g")),
]
"""The events that a restart finds, of four events from id 7 on, and the state of their ids, by
type."""


@pytest.mark.parametrize("how", ["restart", "restart_from_snapshot", "close"])
@pytest.mark.parametrize("kind", ["channel", "queue"])
@pytest.mark.parametrize(("type_", "kept", "ids"), KEPT)
def test_what_a_restart_finds_is_up_to_the_type(
    type_: str, kept: list[int], ids: str, kind: str, how: str
) -> None:
    play = play_of(type=type_, kind=kind, start_event_id=7)
    play.do(publish(4, volatile=VOLATILE))
    getattr(play, how)()

    assert list(play.channel.state.stored) == kept
    if kind == "queue":
        assert outstanding(play, "") == kept
    play.do(publish(1))
    assert isinstance(play.answer, Span)
    assert (play.answer.first == 7) == (ids == "start again")
    assert (play.answer.first > 10) == (ids == "go on")
    counters = play.channel.state.counters
    assert counters.published == len(play.channel.state.stored) + counters.departed_count


@pytest.mark.spec("C1a")
@pytest.mark.parametrize("how", HOW)
def test_persistent_keeps_everything(how: str) -> None:
    play = play_of(type="persistent")
    play.do(publish(4, volatile=VOLATILE))
    getattr(play, how)()

    assert list(play.channel.state.stored) == [0, 1, 2, 3]


@pytest.mark.spec("C1b")
@pytest.mark.parametrize("how", HOW)
def test_mixed_keeps_what_says_so_in_one_sequence(how: str) -> None:
    play = mixed()
    assert list(play.channel.state.stored) == [0, 1, 2, 3]
    getattr(play, how)()

    assert list(play.channel.state.stored) == [0, 2]


@pytest.mark.spec("C1c")
@pytest.mark.parametrize("how", HOW)
def test_reliable_keeps_none_and_stores_one_fact_for_many_publishes(how: str) -> None:
    play = play_of(type="reliable", events=3)
    play.do(publish(3))
    assert [type(fact) for fact in play.recorded] == [IdsReserved]
    getattr(play, how)()

    assert not play.channel.state.stored
    assert play.channel.state.next_id >= 6


def test_a_removal_of_what_lived_in_memory_is_not_stored() -> None:
    play = mixed()
    play.do(PurgeEvents((span(1),)))
    assert not any(isinstance(fact, Removed) for fact in play.recorded)
    play.do(PurgeEvents((span(2, 3),)))

    assert any(isinstance(fact, Removed) for fact in play.recorded)


def test_what_a_durable_is_due_of_a_mixed_channel() -> None:
    play = durable_play("shared", 10, type="mixed")
    play.do(publish(4, volatile=VOLATILE))
    play.do(RollBack(1, (span(0, 1),)))
    play.restart_from_snapshot()

    assert outstanding(play) == [0, 2]
    assert play.channel.state.durables["d"].redelivered_count == 1


def test_acks_of_a_durable_that_does_not_last_are_not_stored() -> None:
    play = play_of()
    play.do(AddDurable("d", "shared", persistent=False))
    play.do(TakeSeat("d", 1, "s"))
    play.do(publish(1))
    play.do(Ack(1, (span(0),)))

    assert not any(isinstance(fact, Acked) for fact in play.recorded)


@pytest.mark.spec("T8")
@pytest.mark.parametrize("how", HOW)
def test_every_event_is_live_or_accounted_for(how: str) -> None:
    play = durable_play("shared", 10, type="mixed", capacity=6, ttl=100)
    play.do(publish(4, volatile=VOLATILE))
    play.do(Ack(1, (span(0, 1),)))
    play.do(PurgeEvents((span(2),)))
    play.do(publish(8))
    play.wait(50)
    play.do(publish(2))
    play.wait(50)
    play.sweep()
    for _ in range(2):
        state = play.channel.state
        assert state.counters.published == len(state.stored) + state.counters.departed_count
        getattr(play, how)()

    assert len(play.channel.state.stored) == 2


def test_a_snapshot_and_later_facts_are_as_good_as_all_facts() -> None:
    play = durable_play("shared", 10, events=6)
    play.do(Ack(1, (span(0), span(3))))
    play.snapshot()
    play.do(RollBack(1, (span(1),)))
    play.do(publish(2))
    play.restart()

    assert isinstance(play.recorded[0], Restored)
    assert delivered(play.do(TakeSeat("d", 9, "s", window=20))) == {9: [1, 2, 4, 5, 6, 7]}


@pytest.mark.spec("S1")
def test_events_of_an_unreadable_block_are_counted_as_quarantined() -> None:
    play = play_of(events=2)
    play.do(publish(3))
    play.do(publish(1))
    play.recorded = [fact for fact in play.recorded if not _is(fact, Span(2, 5))]
    play.restart()

    assert list(play.channel.state.stored) == [0, 1, 5]
    assert play.channel.state.counters.quarantined == 3
    assert play.channel.state.counters.published == 6


def _is(fact: object, where: Span) -> bool:
    return isinstance(fact, Appended) and fact.span == where


def test_publishing_goes_on_after_each_kind_of_end() -> None:
    play = mixed()
    seen = []
    for how in ("restart", "restart_from_snapshot", "close", "restart"):
        getattr(play, how)()
        play.do(Publish(publish(1, volatile=(Span(0, 1),)).digest))
        assert isinstance(play.answer, Span)
        seen.append(play.answer.first)

    assert seen == sorted(set(seen))
    assert seen[0] >= 4


@pytest.mark.spec("T2", "S1")
def test_a_frozen_channel_is_what_it_was_however_late_it_is_written_out() -> None:
    play = play_of(type="mixed")
    play.do(publish(50_000, ttls=((1_000, tuple(span(i) for i in range(0, 50_000, 500))),)))
    frozen, before = play.channel.frozen(), play.channel.snapshot()
    play.do(publish(3, ttls=((1_000, (span(1),)),)))
    play.do(PurgeEvents((span(0), span(7))))

    assert not isinstance(frozen, Restored), "it is long"
    assert at_once(frozen) == before
    assert play.channel.snapshot() != before


@pytest.mark.slow
@pytest.mark.spec("T2")
def test_a_channel_whose_events_end_at_many_times_is_written_out_piece_by_piece() -> None:
    play = play_of(event_ttl=True)
    scattered = [tuple(span(i) for i in range(first, 80_000, 200)) for first in range(200)]
    play.do(publish(80_000, ttls=tuple((10_000 * (n + 1), ids) for n, ids in enumerate(scattered))))
    frozen = play.channel.frozen()
    assert play.channel.state.stored.pieces == 1, "only what ends when is long"
    assert not isinstance(frozen, Restored)
    pieces = 1 + sum(1 for _ in frozen)

    assert pieces >= len(scattered) * 78 // PIECES_AT_ONCE // 2 > 1
    written = play.channel.snapshot().own_expiry
    assert [id_set(ids).spans for _, ids in written] == scattered


@pytest.mark.spec("T2")
def test_a_short_channel_is_written_out_at_once() -> None:
    play = play_of(event_ttl=True)
    play.do(publish(8, ttls=((1_000, (span(1),)),)))

    assert play.channel.frozen() == play.channel.snapshot()
