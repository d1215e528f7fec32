"""Seeks: a durable continues at an earlier or later event without being deleted (SEM D20)."""

from __future__ import annotations

from typing import Any

import pytest

from packages.core.tests.plays import dying, outstanding, play_of
from penstock_core.channel.seeking import gone_since, preview
from penstock_core.messages.delivery import ConfirmRecall, SetDemand
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.retention import PurgeEvents
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.seeking import Seek
from penstock_core.messages.settlements import Ack, AckPrevious, RollBack
from penstock_core.messages.subscribers import AddSubscriber
from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.effects import Recall
from penstock_core.vocabulary.errors import (
    DurableInUse,
    IllegalState,
    InvalidArgument,
    NameDoesNotExist,
)
from penstock_core.vocabulary.seeks import SEEKS_KEPT
from penstock_testing.play import Play, delivered, publish, redelivered, span

pytestmark = pytest.mark.spec("D20")

KINDS = ("shared", "serial", "exclusive", "priority", "shared_queued")
WINDOWED = ("shared", "serial", "shared_queued")


def seek_play(kind: str, events: int = 6, window: int | None = 3, **more: Any) -> Play:
    """Return a channel that retains consumed events, with a durable ``d`` and one client."""
    play = play_of(events=events, retain_consumed=True)
    play.do(AddDurable("d", kind, **more))
    play.do(TakeSeat("d", 1, "s1", window=window if kind in WINDOWED else None))
    return play


def confirmed(play: Play, effects: list[Any]) -> dict[int, list[int]]:
    """Return the deliveries after the clients have confirmed their recalls."""
    for effect in effects:
        if isinstance(effect, Recall):
            effects = [*effects, *play.do(ConfirmRecall(effect.subscription))]
    return delivered(effects)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_acknowledged_and_is_stored_comes_again(kind: str) -> None:
    play = seek_play(kind, events=3)
    play.do(Ack(1, (span(0, 2),)))
    assert outstanding(play) == []

    assert delivered(play.do(Seek("d", 0))) == {1: [0, 1, 2]}
    play.do(Ack(1, (span(0, 2),)))
    assert outstanding(play) == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_in_a_clients_hands_is_taken_back_and_comes_again(kind: str) -> None:
    play = seek_play(kind, events=3)

    effects = play.do(Seek("d", 1, is_exact=True))

    assert effects == [Recall(1, (span(0, 2),))], "nothing comes before the client knows"
    with pytest.raises(IllegalState, match="event 0 of durable d was taken back because the dur"):
        play.do(Ack(1, (span(0, 1),)))
    with pytest.raises(IllegalState, match="event 2 of durable d was taken back"):
        play.do(AckPrevious(1, 2))
    assert delivered(play.do(ConfirmRecall(1))) == {1: [1, 2]}
    assert outstanding(play) == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_late_rollback_changes_nothing(kind: str) -> None:
    play = seek_play(kind, events=3)
    effects = play.do(Seek("d", 0))

    play.do(RollBack(1, (span(0, 2),)))

    again = play.do(ConfirmRecall(1))
    assert effects == [Recall(1, (span(0, 2),))]
    assert delivered(again) == {1: [0, 1, 2]}
    assert redelivered(again) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_forward_what_lies_between_is_skipped_and_leaves_if_nobody_else_wants_it(kind: str) -> None:
    play = play_of(events=4)
    play.do(AddDurable("d", kind))
    play.do(AddDurable("other", "shared"))
    play.do(Seek("d", 3))
    assert outstanding(play) == [3]
    assert outstanding(play, "other") == [0, 1, 2, 3]

    play.do(TakeSeat("other", 9, "s9", window=2))
    play.do(Ack(9, (span(0, 1),)))

    assert list(play.channel.state.stored) == [2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cumulative_acknowledgement_covers_nothing_that_was_not_delivered_again(
    kind: str,
) -> None:
    play = seek_play(kind, events=6, window=6)
    play.do(Ack(1, (span(0, 5),)))
    play.do(Detach(1))
    play.do(TakeSeat("d", 2, "s2", pull=True))
    play.do(Seek("d", 0))
    play.do(SetDemand(2, 2))

    play.do(AckPrevious(2, 5))

    assert outstanding(play) == [2, 3, 4, 5]


def test_to_the_latest_nothing_is_outstanding_and_what_is_new_comes() -> None:
    play = seek_play("shared")

    assert confirmed(play, play.do(Seek("d", 6))) == {}
    assert outstanding(play) == []
    assert delivered(play.do(publish(1))) == {1: [6]}


def test_a_preview_tells_how_many_and_changes_nothing() -> None:
    play = seek_play("shared", events=6, window=2)
    play.do(Ack(1, (span(0, 1),)))

    back = preview(play.channel.state, Seek("d", 1))
    forward = preview(play.channel.state, Seek("d", 4))

    assert (back.again, back.skipped, back.taken_back, back.outstanding) == (1, 0, 2, 5)
    assert (forward.again, forward.skipped, forward.outstanding) == (0, 2, 2)
    assert outstanding(play) == [2, 3, 4, 5]
    play.do(Ack(1, (span(2, 3),)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("restart", [Play.restart, Play.restart_from_snapshot])
@pytest.mark.parametrize("to", [0, 2, 5, 6])
def test_it_survives_a_restart(kind: str, restart: Any, to: int) -> None:
    play = seek_play(kind)
    play.do(Ack(1, (span(0, 2),)))
    play.do(Seek("d", to))

    restart(play)

    assert outstanding(play) == list(range(to, 6))
    play.do(TakeSeat("d", 1, "s1"))
    assert outstanding(play) == list(range(to, 6))


@pytest.mark.parametrize("restart", [None, Play.restart, Play.restart_from_snapshot])
def test_asked_for_again_under_its_key_it_is_not_done_again(restart: Any) -> None:
    """The answer to the first request was lost, and meanwhile a client has consumed events."""
    play = seek_play("shared")
    play.do(Ack(1, (span(0, 2),)))
    play.do(Seek("d", 0, key="k"))
    if restart is not None:
        restart(play)
        play.do(TakeSeat("d", 1, "s1", window=3))
    else:
        play.do(ConfirmRecall(1))
    play.do(Ack(1, (span(0),)))

    assert [effect for effect in play.do(Seek("d", 6, key="k")) if isinstance(effect, Recall)] == []

    assert outstanding(play) == [1, 2, 3, 4, 5]
    last = play.channel.state.durables["d"].last_seek
    assert (last.start_id, last.again, last.skipped, last.taken_back) == (0, 3, 0, 3)
    play.do(Seek("d", 0, key="another"))
    assert outstanding(play) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("restart", [None, Play.restart, Play.restart_from_snapshot])
def test_an_older_one_that_arrives_late_is_not_done_again(restart: Any) -> None:
    """The request of an abandoned connection arrives after that of the new connection."""
    play = seek_play("shared")
    play.do(Seek("d", 2, key="k"))
    for number in range(SEEKS_KEPT - 2):
        play.do(Seek("d", 0, key=f"meanwhile {number}"))
    play.do(Seek("d", 5, key="the last"))
    play.do(Seek("d", 4))
    if restart is not None:
        restart(play)

    play.do(Seek("d", 2, key="k"))

    assert outstanding(play) == [4, 5]
    last = play.channel.state.durables["d"].last_seek
    assert (last.start_id, last.key) == (4, "")
    done = last.find("k")
    assert done is not None
    assert (done.start_id, done.again, done.skipped) == (2, 0, 2)


def test_so_many_are_remembered_and_no_more() -> None:
    play = seek_play("shared")
    for number in range(3 * SEEKS_KEPT):
        play.do(Seek("d", 0, key=f"seek {number}"))

    last = play.channel.state.durables["d"].last_seek

    seeks = [n for n in range(3 * SEEKS_KEPT) if last.find(f"seek {n}") is not None]
    assert seeks == list(range(2 * SEEKS_KEPT, 3 * SEEKS_KEPT))
    assert last.find("") is None
    assert all(not seek.earlier for seek in last.earlier)


def test_counts_begin_anew() -> None:
    """Redelivery counts are dropped, because users seek after they have removed the cause of the
    failures."""
    play = dying(events=2, retain_consumed=True)
    play.do(AddDurable("d", "shared", max_deliveries=2))
    play.do(TakeSeat("d", 1, "s1", window=2))
    assert redelivered(play.do(RollBack(1, (span(0, 1),)))) == {0: 1, 1: 1}

    effects = play.do(Seek("d", 0))
    effects += play.do(ConfirmRecall(1))

    assert redelivered(effects) == {}
    assert redelivered(play.do(RollBack(1, (span(0, 1),)))) == {0: 1, 1: 1}, "not dead yet"


def test_nothing_waits_any_more() -> None:
    play = seek_play("shared", events=1, backoff=Backoff(first=60_000))
    assert delivered(play.do(RollBack(1, (span(0),)))) == {}

    assert delivered(play.do(Seek("d", 0))) == {1: [0]}
    play.restart()
    assert delivered(play.do(TakeSeat("d", 1, "s1", window=3))) == {1: [0]}


def test_what_was_rolled_back_on_an_exclusive_durable_comes_at_once() -> None:
    play = seek_play("exclusive", events=2)
    play.do(RollBack(1, (span(0),)))

    assert confirmed(play, play.do(Seek("d", 0))) == {1: [0, 1]}
    play.do(Ack(1, (span(1),)))
    assert outstanding(play) == []


def test_with_a_selector_only_what_matches_comes_again() -> None:
    play = play_of(retain_consumed=True)
    play.do(AddDurable("d", "shared", selector="odd = 1"))
    play.do(TakeSeat("d", 1, "s1", window=10))
    for number in range(6):
        matched = {"odd = 1": (span(0),)} if number % 2 else {}
        play.do(publish(1, matched=matched))
    play.do(Ack(1, (span(1), span(3), span(5))))

    play.do(Seek("d", 2, (span(3), span(5))))

    assert outstanding(play) == [3, 5]
    play.restart_from_snapshot()
    assert outstanding(play) == [3, 5]


def test_what_a_selector_matched_when_it_was_published_stays_outstanding() -> None:
    """A selector may depend on the time, so it could match other events now."""
    play = play_of()
    play.do(AddDurable("d", "shared", selector="NOW() < 5"))
    play.do(publish(3, matched={"NOW() < 5": (span(0, 2),)}))

    play.do(Seek("d", 1))

    assert outstanding(play) == [1, 2]


@pytest.mark.parametrize("more", [{"order_by": "k"}, {"strict_order": True}])
def test_lanes_and_order_begin_anew(more: dict[str, Any]) -> None:
    play = seek_play("serial", window=6, **more)
    play.lane_of = lambda event_id: event_id % 2
    play.do(Detach(1))
    got = delivered(play.do(TakeSeat("d", 2, "s2", window=6)))
    assert sorted(got[2]) == [0, 1, 2, 3, 4, 5]
    play.do(Ack(2, (span(0, 3),)))

    again = confirmed(play, play.do(Seek("d", 1)))

    assert sorted(again[2]) == [1, 2, 3, 4, 5]
    assert [i for i in again[2] if i % 2] == [1, 3, 5]
    play.do(Ack(2, (span(1, 5),)))
    assert outstanding(play) == []


def test_who_pulls_keeps_its_demand() -> None:
    play = play_of(events=2, retain_consumed=True)
    play.do(AddDurable("d", "shared"))
    play.do(TakeSeat("d", 1, "s1", pull=True))
    play.do(SetDemand(1, 2))
    play.do(Ack(1, (span(0, 1),)))
    play.do(SetDemand(1, 5))

    assert delivered(play.do(Seek("d", 0))) == {1: [0, 1]}


def test_an_id_that_is_gone_is_refused_with_the_cause() -> None:
    play = play_of(events=6)
    play.do(AddDurable("d", "shared"))
    play.do(TakeSeat("d", 1, "s1", window=1))
    play.do(Ack(1, (span(0),)))
    play.do(PurgeEvents((span(3),)))

    with pytest.raises(
        IllegalState, match=r"event 0 of orders is not stored \(consumed\); the next event"
    ):
        play.do(Seek("d", 0, is_exact=True))
    with pytest.raises(
        IllegalState, match=r"is not stored \(purged\).*is 4: seek to that, or to \"earl"
    ):
        play.do(Seek("d", 3, is_exact=True))
    with pytest.raises(
        InvalidArgument, match="event 7 of orders does not exist yet: the next id is 6"
    ):
        play.do(Seek("d", 7, is_exact=True))
    play.do(PurgeEvents((span(4, 5),)))
    with pytest.raises(IllegalState, match='no event is stored after it: seek to "latest"'):
        play.do(Seek("d", 5, is_exact=True))
    play.do(Seek("d", 6, is_exact=True))
    assert gone_since(play.channel.state, 0) == {"consumed": 3, "purged": 3}


def test_ids_that_never_had_an_event_are_refused_and_not_counted() -> None:
    play = play_of(start_event_id=5)
    play.do(publish(2, transient=(span(0),)))
    play.do(AddDurable("d", "shared"))

    with pytest.raises(
        IllegalState, match="no event was stored under its id, or a restart has lost"
    ):
        play.do(Seek("d", 5, is_exact=True))
    with pytest.raises(InvalidArgument, match="ids begin at 5"):
        play.do(Seek("d", 4, is_exact=True))
    assert gone_since(play.channel.state, 0) == {}


def test_a_durable_held_as_a_whole_does_not_seek() -> None:
    """Its client acknowledges up to an id, and keeps the position itself."""
    play = play_of(events=2)
    play.do(AddDurable("d", "shared"))
    play.do(TakeSeat("d", 1, "s1", sole=True))

    with pytest.raises(DurableInUse, match=r"held as a whole by session s1.*end that subscription"):
        play.do(Seek("d", 0))
    play.do(Detach(1))
    play.do(Seek("d", 2))
    assert outstanding(play) == []


def test_queues_and_unknown_durables_do_not_seek() -> None:
    with pytest.raises(IllegalState, match="is a queue, whose consumed events are removed"):
        play_of(kind="queue").do(Seek("", 0))
    with pytest.raises(NameDoesNotExist):
        play_of().do(Seek("d", 0))


def test_it_costs_spans_and_not_events() -> None:
    play = seek_play("shared", events=1_000_000)
    play.do(Ack(1, (span(0, 2),)))
    before = len(play.recorded)

    play.do(Seek("d", 1))

    assert len(play.recorded) == before + 1
    assert play.channel.state.durables["d"].outstanding.pieces <= 1


def test_transient_events_of_the_turn_come_in_order() -> None:
    play = seek_play("exclusive", events=2)
    play.do(Ack(1, (span(1),)))
    play.step(publish(1, transient=(span(0),)))
    play.step(Seek("d", 0))

    assert delivered([*play.channel.recalls(), *play.offers()]) == {1: [0, 1, 2]}
    play.do(Ack(1, (span(2),)))
    assert outstanding(play) == []


@pytest.mark.spec("D20", "J7")
def test_what_only_passes_and_comes_to_a_durable_by_a_seek_survives_a_restart() -> None:
    play = play_of(engine="jms")
    play.do(AddSubscriber(9, "plain", 0, credit=12, confirms=True))
    play.do(publish(6))
    play.do(AddDurable("d", "shared", 6, selector="even"))
    assert play.channel.state.passing

    play.do(Seek("d", 4, (span(4, 4),)))
    before = outstanding(play)
    play.restart()

    assert outstanding(play) == before == [4]
