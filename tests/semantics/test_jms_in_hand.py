"""What clients of the JMS engine have in hand: waits, timeouts, leases and rejections (SEM D18,
D19, T11, H1) hold as elsewhere, and an event leaves as soon as nobody waits for it."""

from __future__ import annotations

from typing import Any

import pytest

from packages.core.tests.plays import outstanding, play_of, removals
from penstock_core.messages.delivery import ConfirmRecall, SetDemand
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.seats import Detach, TakeLease, TakeSeat
from penstock_core.messages.settlements import Ack, Buried, BuryEvents, ExtendTime, RollBack
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.effects import Recall
from penstock_core.vocabulary.errors import IllegalState
from penstock_testing.play import Play, delivered, publish, span

SECOND = 1_000
GRAIN = SECOND // 100
AT_ONCE = ("shared", "serial", "shared_queued")


def jms(kind: str, *windows: int, dead: str = "dead", **more: Any) -> Play:
    play = play_of(engine="jms", dead_event_store=dead)
    play.do(AddDurable("d", kind, **more))
    for seat, window in enumerate(windows, start=1):
        windowed = window if kind in AT_ONCE else None
        play.do(TakeSeat("d", seat, f"s{seat}", window=windowed))
    return play


def live(play: Play) -> list[int]:
    return list(play.channel.state.stored)


def pass_by(play: Play, ms: int) -> dict[int, list[int]]:
    """Let time pass, and return the events that clients receive because of that. The clients
    confirm recalls."""
    play.wait(ms)
    play.sweep()
    recalls = [effect for effect in play.channel.recalls() if isinstance(effect, Recall)]
    effects = play.offers()
    for recall in recalls:
        effects += play.do(ConfirmRecall(recall.subscription))
    return delivered(effects)


@pytest.mark.spec("D19", "J2")
@pytest.mark.parametrize("kind", AT_ONCE)
def test_what_is_not_acknowledged_in_time_goes_to_another_client_and_leaves_with_it(
    kind: str,
) -> None:
    play = jms(kind, 1, 1, ack_timeout=SECOND)
    assert delivered(play.do(publish())) == {1: [0]}

    assert pass_by(play, SECOND - 1) == {}
    assert pass_by(play, 1 + GRAIN) == {2: [0]}
    with pytest.raises(IllegalState, match="not acknowledged within 1 s"):
        play.do(Ack(1, (span(0),)))
    assert live(play) == [0]
    play.do(Ack(2, (span(0),)))
    assert live(play) == []
    assert removals(play) == [(Cause.CONSUMED, [0], [])]


@pytest.mark.spec("D19")
def test_a_client_that_asks_for_more_time_has_it() -> None:
    play = jms("shared", 1, 1, ack_timeout=SECOND)
    play.do(publish())
    play.wait(SECOND // 2)
    play.do(ExtendTime(1, (span(0),), 2 * SECOND))

    assert pass_by(play, SECOND) == {}
    assert pass_by(play, SECOND + 2 * GRAIN) == {2: [0]}


@pytest.mark.spec("D18", "J2")
@pytest.mark.parametrize("kind", AT_ONCE)
@pytest.mark.parametrize("how", ["cut", "snapshot"])
def test_what_waits_is_kept_and_comes_at_its_time_also_after_a_restart(kind: str, how: str) -> None:
    play = jms(kind, 1)
    play.do(publish())
    play.do(RollBack(1, (span(0),), delay_ms=5 * SECOND))
    assert (live(play), outstanding(play)) == ([0], [0])

    play.wait(SECOND)
    if how == "cut":
        play.restart()
    else:
        play.restart_from_snapshot()
    play.do(TakeSeat("d", 1, "s1", window=1))

    assert play.offers() == []
    assert pass_by(play, 4 * SECOND - 1) == {}
    assert pass_by(play, 2) == {1: [0]}


@pytest.mark.spec("D18", "J7")
@pytest.mark.parametrize("kind", ["exclusive", "priority"])
def test_what_a_fed_client_gives_back_with_a_delay_is_written_and_waits(kind: str) -> None:
    """It was in memory only, for its client acknowledges by itself (SEM J4)."""
    play = play_of(engine="jms")
    play.do(AddDurable("d", kind))
    play.do(TakeSeat("d", 1, "s1", auto_ack=True))
    play.do(publish())
    assert list(play.channel.state.passing) == [0]

    play.do(RollBack(1, (span(0),), delay_ms=5 * SECOND))
    play.sweep()
    assert list(play.channel.state.passing) == []
    play.restart()
    effects = play.do(TakeSeat("d", 2, "s1", auto_ack=True))

    assert delivered(effects) == {}
    assert pass_by(play, 5 * SECOND) == {2: [0]}


@pytest.mark.spec("T11", "J2")
def test_what_is_rejected_is_dead_although_the_engine_buries_nothing_else() -> None:
    play = jms("shared", 2)
    play.do(publish(2))
    play.do(BuryEvents(1, (span(0),)))
    play.do(Ack(1, (span(1),)))

    assert removals(play) == [(Cause.REJECTED, [0], [0]), (Cause.CONSUMED, [1], [])]
    assert live(play) == []


@pytest.mark.spec("T11")
def test_what_is_rejected_by_one_durable_stays_for_the_other() -> None:
    play = jms("shared", 1)
    play.do(AddDurable("other", "exclusive"))
    play.do(publish())
    play.do(BuryEvents(1, (span(0),)))

    assert (outstanding(play), outstanding(play, "other")) == ([], [0])
    assert live(play) == [0]
    assert [(one.durable, one.cause) for one in play.recorded if isinstance(one, Buried)] == [
        ("d", Cause.REJECTED)
    ]


@pytest.mark.spec("T11")
def test_without_a_dead_event_store_a_rejection_is_refused_and_the_event_stays_in_hand() -> None:
    play = jms("shared", 1, dead="")
    play.do(publish())

    with pytest.raises(IllegalState, match="no dead event store"):
        play.do(BuryEvents(1, (span(0),)))
    play.do(Ack(1, (span(0),)))
    assert live(play) == []


@pytest.mark.spec("H1", "D19")
@pytest.mark.parametrize("kind", [*AT_ONCE, "exclusive", "priority"])
def test_a_lease_takes_what_is_there_and_gives_it_back_in_time(kind: str) -> None:
    """To this engine it is a client that acknowledges itself: what it is owed is kept."""
    play = jms(kind)
    play.do(publish(3))
    play.do(TakeLease("d", 1, "lease", window=None, pull=True, ack_timeout_ms=SECOND))

    assert delivered(play.do(SetDemand(1, 2))) == {1: [0, 1]}
    play.do(SetDemand(1, 0, at_once=True))
    assert play.do(publish()) == [], "nothing that comes later"
    play.wait(SECOND + GRAIN)
    play.sweep()

    with pytest.raises(IllegalState, match="not acknowledged within 1 s"):
        play.do(Ack(1, (span(0, 1),)))
    assert live(play) == outstanding(play) == [0, 1, 2, 3]
    play.do(Detach(1))
    play.do(TakeLease("d", 2, "lease", window=None, pull=True, ack_timeout_ms=SECOND))
    assert delivered(play.do(SetDemand(2, 9))) == {2: [0, 1, 2, 3]}


@pytest.mark.spec("H1", "J7")
def test_a_lease_beside_a_fed_client_has_what_is_owed_kept() -> None:
    play = play_of(engine="jms")
    play.do(AddDurable("d", "priority"))
    play.do(TakeSeat("d", 1, "s1", auto_ack=True))
    play.do(publish())
    assert list(play.channel.state.passing) == [0]

    play.do(TakeLease("d", 2, "lease", window=None, pull=True, ack_timeout_ms=SECOND))
    play.sweep()
    play.restart()

    assert live(play) == outstanding(play) == [0]
