"""Clients that have to acknowledge within a time (SEM D19)."""

from __future__ import annotations

from typing import Any

import pytest

from packages.core.tests.plays import dying, outstanding, play_of
from penstock_core.messages.delivery import ConfirmRecall, SetDemand, Withhold
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.retention import PurgeEvents
from penstock_core.messages.seats import Detach, TakeLease, TakeSeat
from penstock_core.messages.settlements import Ack, ExtendTime, RollBack
from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.effects import Recall
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument
from penstock_testing.play import Play, delivered, events, publish, redelivered, span

SECOND = 1_000
GRAIN = SECOND // 100
AT_ONCE = ("shared", "serial", "shared_queued")


def timed_play(kind: str, *windows: int, stored: int = 1, **more: Any) -> Play:
    play = play_of(events=stored)
    play.do(AddDurable("d", kind, ack_timeout=SECOND, **more))
    for seat, window in enumerate(windows, start=1):
        play.do(TakeSeat("d", seat, f"s{seat}", window=window))
    return play


def pass_by(play: Play, ms: int) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Let time pass; return the deliveries that it causes, and their redelivery counts."""
    play.wait(ms)
    play.sweep()
    recalls = [effect for effect in play.channel.recalls() if isinstance(effect, Recall)]
    effects = play.offers()
    for recall in recalls:  # as clients do that are alive
        effects += play.do(ConfirmRecall(recall.subscription))
    return delivered(effects), redelivered(effects)


@pytest.mark.spec("D19")
@pytest.mark.parametrize("kind", AT_ONCE)
def test_what_is_not_acknowledged_in_time_goes_to_another_client_counted(kind: str) -> None:
    play = timed_play(kind, 1, 1)

    assert pass_by(play, SECOND - 1) == ({}, {})
    assert pass_by(play, 1 + GRAIN) == ({2: [0]}, {0: 1})
    with pytest.raises(IllegalState, match=r"it was not acknowledged within 1 s"):
        play.do(Ack(1, (span(0),)))
    play.do(Ack(2, (span(0),)))
    assert outstanding(play) == []


@pytest.mark.spec("D19")
def test_until_a_client_knows_it_is_refused_and_gets_nothing() -> None:
    """Otherwise the late acknowledgement of the client would count for the next delivery of the
    event."""
    play = timed_play("shared", 1)
    play.wait(SECOND + GRAIN)
    play.sweep()
    assert play.channel.recalls() == [Recall(1, (span(0),))]
    assert play.offers() == []

    with pytest.raises(IllegalState, match="was recalled because it was not acknowledged within 1"):
        play.do(Ack(1, (span(0),)))
    assert delivered(play.do(ConfirmRecall(1))) == {1: [0]}
    play.do(Ack(1, (span(0),)))
    assert outstanding(play) == []


@pytest.mark.spec("D19")
def test_what_is_acknowledged_in_time_stays_acknowledged() -> None:
    play = timed_play("shared", 2, stored=2)
    play.do(Ack(1, (span(0),)))

    assert pass_by(play, SECOND + GRAIN) == ({1: [1]}, {1: 1})
    assert pass_by(play, SECOND + GRAIN) == ({1: [1]}, {1: 2})
    assert play.channel.state.counters.redelivered == 2


@pytest.mark.spec("D19")
def test_each_delivery_has_the_whole_time() -> None:
    play = timed_play("shared", 5, stored=1)
    play.wait(SECOND // 2)
    play.do(publish(1))
    play.do(RollBack(1, (span(0),)))

    assert pass_by(play, SECOND // 2 + GRAIN) == ({}, {}), "it came again half a second ago"
    assert pass_by(play, SECOND // 2 + GRAIN) == ({1: [0, 1]}, {0: 2, 1: 1})


@pytest.mark.spec("D19")
def test_what_was_granted_and_not_sent_is_in_nobodys_hands() -> None:
    play = timed_play("shared", 5)
    play.channel.attend(Withhold(1, (span(0),), is_full=True), play.now_us)

    assert pass_by(play, SECOND + GRAIN) == ({}, {})
    assert play.channel.state.counters.redelivered == 0


@pytest.mark.spec("D19")
def test_more_time_may_be_asked_for() -> None:
    play = timed_play("shared", 5, stored=2)
    play.wait(SECOND // 2)
    play.do(ExtendTime(1, (span(0),), 3 * SECOND))

    assert play.answer == 1
    assert pass_by(play, SECOND // 2 + GRAIN) == ({1: [1]}, {1: 1})
    play.do(Ack(1, (span(1),)))
    assert pass_by(play, 2 * SECOND) == ({}, {})
    assert pass_by(play, SECOND) == ({1: [0]}, {0: 1})


@pytest.mark.spec("D19")
def test_nobody_gets_less_time_than_he_had() -> None:
    play = timed_play("shared", 5)
    play.do(ExtendTime(1, (span(0),), 5))

    assert pass_by(play, SECOND - 1) == ({}, {})
    assert pass_by(play, 1 + GRAIN) == ({1: [0]}, {0: 1})


@pytest.mark.spec("D19", "D15")
def test_time_is_given_for_what_is_in_hand_only() -> None:
    play = timed_play("shared", 1, 1, stored=2)

    with pytest.raises(IllegalState, match="was not delivered to this subscription"):
        play.do(ExtendTime(1, (span(1),), SECOND))
    with pytest.raises(InvalidArgument, match="the time to extend by is 0 ms; allowed are 1 to"):
        play.do(ExtendTime(1, (span(0),), 0))
    play.do(PurgeEvents((span(0),)))
    play.do(ExtendTime(1, (span(0),), SECOND))
    assert play.answer == 0, "it is gone, which is no error"
    assert pass_by(play, SECOND + GRAIN) == ({1: [1]}, {1: 1})


@pytest.mark.spec("D19")
def test_without_a_timeout_there_is_none_to_extend() -> None:
    play = play_of(events=1)
    play.do(AddDurable("d", "shared"))
    play.do(TakeSeat("d", 1, "s1", window=1))

    with pytest.raises(IllegalState, match="has no ack_timeout to extend"):
        play.do(ExtendTime(1, (span(0),), SECOND))
    assert pass_by(play, 1_000 * SECOND) == ({}, {})
    assert play.channel.state.durables["d"].deadlines is None


@pytest.mark.spec("D19", "D18")
def test_a_failure_by_silence_waits_as_the_backoff_says() -> None:
    play = timed_play("shared", 5, backoff=Backoff(2 * SECOND))

    assert pass_by(play, SECOND + GRAIN) == ({}, {})
    assert pass_by(play, 2 * SECOND - 1) == ({}, {})
    assert pass_by(play, 1) == ({1: [0]}, {0: 1})


@pytest.mark.spec("D19", "T10")
def test_silence_once_too_often_is_death() -> None:
    play = dying(events=2)
    play.do(AddDurable("d", "shared", max_deliveries=2, ack_timeout=SECOND))
    play.do(TakeSeat("d", 1, "s1", window=1))
    assert pass_by(play, SECOND + GRAIN) == ({1: [0]}, {0: 1})

    assert pass_by(play, SECOND + GRAIN) == ({1: [1]}, {})
    assert [(one.cause, events(one.dead)) for one in play.removed] == [(Cause.UNDELIVERABLE, [0])]


@pytest.mark.spec("D19", "T1")
def test_what_expires_at_the_same_time_dies_once() -> None:
    play = dying(ttl=SECOND, events=1)
    play.do(AddDurable("d", "shared", max_deliveries=1, ack_timeout=SECOND))
    play.do(TakeSeat("d", 1, "s1", window=1))

    assert pass_by(play, SECOND + GRAIN) == ({}, {})
    assert [(one.cause, events(one.dead)) for one in play.removed] == [(Cause.EXPIRED, [0])]
    assert play.channel.state.counters.dead == 1


@pytest.mark.spec("D19", "D11")
def test_with_strict_order_what_comes_behind_it_is_recalled() -> None:
    play = timed_play("serial", 3, stored=3, strict_order=True)
    play.wait(SECOND // 2)
    play.do(ExtendTime(1, (span(1, 2),), 9 * SECOND))
    play.wait(SECOND // 2 + GRAIN)
    effects = play.do(ExtendTime(1, (span(5),), SECOND))

    assert [events(effect.spans) for effect in effects if isinstance(effect, Recall)] == [[0, 1, 2]]
    again = play.do(ConfirmRecall(1))
    assert (delivered(again), redelivered(again)) == ({1: [0, 1, 2]}, {0: 1})


@pytest.mark.spec("D19", "D11")
def test_a_lane_goes_to_another_client_when_its_owner_is_silent() -> None:
    play = play_of(events=4)
    play.lane_of = lambda event_id: event_id % 2
    play.do(AddDurable("d", "serial", order_by="k", ack_timeout=SECOND))
    play.do(TakeSeat("d", 1, "s1", window=1))
    play.do(TakeSeat("d", 2, "s2", window=1))
    play.wait(SECOND // 2)
    play.do(Ack(2, (span(1),)))

    assert pass_by(play, SECOND // 2 + GRAIN) == ({1: [0]}, {0: 1})
    play.do(Ack(1, (span(0),)))
    assert outstanding(play) == [2, 3]


@pytest.mark.spec("D19", "D13")
def test_a_client_that_leaves_in_time_is_counted_once() -> None:
    play = timed_play("shared", 1, 1)
    play.do(Detach(1))

    assert play.channel.state.counters.redelivered == 1
    assert pass_by(play, SECOND - 1) == ({}, {})
    assert pass_by(play, 1 + GRAIN) == ({2: [0]}, {0: 2})


@pytest.mark.spec("D19", "Q2")
def test_a_queues_reader_has_a_timeout_of_its_own() -> None:
    play = play_of(kind="queue", events=2)
    play.do(TakeSeat("", 1, "s1", window=1, ack_timeout_ms=SECOND))
    play.do(TakeSeat("", 2, "s2", window=1))

    assert pass_by(play, 10 * SECOND) == ({1: [0]}, {0: 1}), "the other takes as long as it likes"
    with pytest.raises(IllegalState, match="no ack_timeout to extend"):
        play.do(ExtendTime(2, (span(1),), SECOND))


@pytest.mark.spec("D19")
def test_who_holds_a_durable_as_a_whole_may_take_its_time() -> None:
    play = timed_play("shared")
    play.do(TakeSeat("d", 1, "s1", sole=True))

    assert play.channel.state.seats[1][1].ack_timeout_ms == 0


@pytest.mark.spec("D19", "D4")
@pytest.mark.parametrize("how", ["restart", "restart_from_snapshot"])
def test_a_restart_keeps_the_timeout_and_the_counts(how: str) -> None:
    play = timed_play("shared", 1)
    pass_by(play, SECOND + GRAIN)
    getattr(play, how)()
    effects = play.do(TakeSeat("d", 2, "s2", window=1))

    assert (delivered(effects), redelivered(effects)) == ({2: [0]}, {0: 1})
    assert pass_by(play, SECOND + GRAIN) == ({2: [0]}, {0: 2})


@pytest.mark.spec("D19")
@pytest.mark.parametrize(
    ("kind", "timeout_ms", "said"),
    [
        ("shared", 99, "ack_timeout is 99 ms; allowed are 100 to"),
        ("shared", -5, "ack_timeout is -5 ms"),
        ("shared", 1 << 40, "ack_timeout is 1099511627776 ms"),
        ("exclusive", SECOND, "type exclusive takes no ack_timeout, because it redelivers"),
        ("priority", SECOND, "type priority takes no ack_timeout"),
    ],
)
def test_a_timeout_that_cannot_be_is_refused(kind: str, timeout_ms: int, said: str) -> None:
    play = play_of()

    with pytest.raises(InvalidArgument, match=said):
        play.do(AddDurable("d", kind, ack_timeout=timeout_ms))
    assert not play.channel.state.durables


@pytest.mark.spec("D19")
def test_a_client_of_a_durable_brings_none_of_its_own() -> None:
    play = timed_play("shared")

    with pytest.raises(InvalidArgument, match="does not take an ack_timeout for each client; only"):
        play.do(TakeSeat("d", 1, "s1", window=1, ack_timeout_ms=SECOND))


# --- leases -------------------------------------------------------------------------------


def leased_play(kind: str, *, stored: int = 2, **more: Any) -> Play:
    """Return a channel with a durable without a timeout, and a seat that may hold events for a
    second."""
    play = play_of(events=stored)
    play.do(AddDurable("d", kind, **more))
    play.do(TakeLease("d", 1, "lease", pull=True, ack_timeout_ms=SECOND))
    return play


@pytest.mark.spec("H1")
@pytest.mark.parametrize("kind", [*AT_ONCE, "exclusive", "priority"])
def test_a_lease_gives_back_at_its_end_whatever_the_type(kind: str) -> None:
    play = leased_play(kind)
    assert delivered(play.do(SetDemand(1, 2))) == {1: [0, 1]}

    pass_by(play, SECOND + GRAIN)
    with pytest.raises(IllegalState, match="taken back"):
        play.do(Ack(1, (span(0, 1),)))
    play.do(Detach(1))
    play.do(TakeLease("d", 2, "lease", pull=True, ack_timeout_ms=SECOND))
    effects = play.do(SetDemand(2, 2))
    assert delivered(effects) == {2: [0, 1]}
    counted = {0: 1, 1: 1} if kind in AT_ONCE else {}
    assert redelivered(effects) == counted
    play.do(Ack(2, (span(0, 1),)))
    assert outstanding(play) == []


@pytest.mark.spec("H1", "H2")
@pytest.mark.parametrize("kind", ["exclusive", "priority"])
def test_a_later_acknowledgement_does_not_cover_what_a_lease_gave_back(kind: str) -> None:
    play = leased_play(kind)
    play.do(SetDemand(1, 2))
    play.do(ExtendTime(1, (span(1),), 10 * SECOND))
    pass_by(play, SECOND + GRAIN)

    play.do(Ack(1, (span(1),)))
    assert outstanding(play) == [0]


@pytest.mark.spec("H1", "D4")
def test_a_restart_knows_what_a_lease_of_an_exclusive_durable_gave_back() -> None:
    play = leased_play("exclusive")
    play.do(SetDemand(1, 2))
    pass_by(play, SECOND + GRAIN)
    play.do(Detach(1))
    play.restart()

    play.do(TakeLease("d", 2, "lease", pull=True, ack_timeout_ms=SECOND))
    assert delivered(play.do(SetDemand(2, 2))) == {2: [0, 1]}


@pytest.mark.spec("H1")
def test_a_lease_is_no_longer_than_the_durable_has_it_for_all() -> None:
    play = leased_play("shared", ack_timeout=SECOND // 2)
    assert play.channel.state.seats[1][1].ack_timeout_ms == SECOND // 2
    for wrong in (0, 1):
        with pytest.raises(InvalidArgument, match="allowed are 100 to"):
            play.do(TakeLease("d", 2, "lease", pull=True, ack_timeout_ms=wrong))
