"""A rolled-back event waits before its redelivery (SEM D18)."""

from __future__ import annotations

from typing import Any

import pytest

from packages.core.tests.plays import durable_play, dying, outstanding, play_of
from penstock_core.ids.ids import IdSet
from penstock_core.messages.definitions import Edit
from penstock_core.messages.delivery import HoldEvents, SetDemand
from penstock_core.messages.durables import AddDurable, PurgeOutstanding
from penstock_core.messages.kinds import Command
from penstock_core.messages.retention import PurgeEvents
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, AckPrevious, Postponed, Release, RollBack
from penstock_core.messages.unions import PackedIds
from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument
from penstock_testing.play import Play, delivered, publish, redelivered, span

SECOND = 1_000
AT_ONCE = ("shared", "serial", "shared_queued")


def waiting(play: Play, name: str = "d") -> list[int]:
    waiting_ids = play.channel.state.durables[name].waiting
    return list(waiting_ids.ids) if waiting_ids else []


def due(play: Play) -> dict[int, list[int]]:
    """Return the deliveries that are caused only by the passing of time."""
    play.sweep()
    return delivered(play.offers())


def backoff_play(kind: str, backoff: Backoff, *, events: int = 1, **more: Any) -> Play:
    play = play_of(events=events)
    play.do(AddDurable("d", kind, backoff=backoff, **more))
    play.do(TakeSeat("d", 1, "s1", window=10))
    return play


# --- a delay that a client asks for -------------------------------------------------------


@pytest.mark.spec("D18")
@pytest.mark.parametrize("kind", ["shared", "shared_queued"])
def test_an_event_waits_while_the_others_go_on(kind: str) -> None:
    play = durable_play(kind, 1, events=3)

    assert delivered(play.do(RollBack(1, (span(0),), delay_ms=5 * SECOND))) == {1: [1]}
    assert delivered(play.do(Ack(1, (span(1),)))) == {1: [2]}
    play.do(Ack(1, (span(2),)))
    play.wait(4_999)
    assert due(play) == {}
    play.wait(1)
    effects = play.do(SetDemand(9, 0))  # anything at all
    assert (delivered(effects), redelivered(effects)) == ({1: [0]}, {0: 1})


@pytest.mark.spec("D18", "Q3")
def test_an_event_of_a_queue_waits_while_the_others_go_on() -> None:
    play = play_of(kind="queue", events=3)
    play.do(TakeSeat("", 1, "s1", window=1))

    assert delivered(play.do(RollBack(1, (span(0),), delay_ms=SECOND))) == {1: [1]}
    play.wait(SECOND)
    assert due(play) == {}, "there is no room for it yet"
    effects = play.do(Ack(1, (span(1),)))
    assert (delivered(effects), redelivered(effects)) == ({1: [0]}, {0: 1})


@pytest.mark.spec("D18", "Q1")
def test_a_reader_with_a_selector_gets_it_when_its_time_has_come() -> None:
    play = play_of(kind="queue", events=3)
    play.do(TakeSeat("", 1, "s1", window=2, selector="x", matched=(span(0), span(2))))
    play.do(RollBack(1, (span(0),), delay_ms=SECOND))

    assert due(play) == {}
    play.wait(SECOND)
    assert due(play) == {1: [0]}


@pytest.mark.spec("D18", "D10")
def test_on_a_serial_durable_those_behind_it_wait_too() -> None:
    play = durable_play("serial", 1, 1, events=3)

    assert delivered(play.do(RollBack(1, (span(0),), delay_ms=SECOND))) == {}
    assert delivered(play.do(publish(1))) == {}
    play.wait(SECOND)
    assert due(play) == {2: [0]}, "the turn has passed"
    assert delivered(play.do(Ack(2, (span(0),)))) == {1: [1]}


@pytest.mark.spec("D18", "D11")
def test_on_a_serial_durable_what_comes_before_it_goes_on() -> None:
    play = durable_play("serial", 3, events=5)
    play.do(RollBack(1, (span(1),), delay_ms=SECOND))

    assert delivered(play.do(RollBack(1, (span(0),)))) == {1: [0]}, "it is the earlier one"
    play.do(Ack(1, (span(0), span(2))))
    assert due(play) == {}
    play.wait(SECOND)
    assert due(play) == {1: [1, 3, 4]}


@pytest.mark.spec("D18", "D11")
def test_strict_order_holds_over_a_wait() -> None:
    play = play_of(events=4)
    play.do(AddDurable("d", "serial", strict_order=True))
    play.do(TakeSeat("d", 1, "s1", window=2))
    play.do(RollBack(1, (span(0),), delay_ms=SECOND))

    assert due(play) == {}
    play.wait(SECOND)
    play.do(Detach(1))
    assert delivered(play.do(TakeSeat("d", 2, "s2", window=3))) == {2: [0, 1, 2]}


@pytest.mark.spec("D18", "D11")
def test_a_lane_waits_and_the_others_go_on() -> None:
    play = play_of(events=6)
    play.lane_of = lambda event_id: event_id % 2
    play.do(AddDurable("d", "serial", order_by="k"))
    play.do(TakeSeat("d", 1, "s1", window=1))

    assert delivered(play.do(RollBack(1, (span(0),), delay_ms=SECOND))) == {1: [1]}
    assert delivered(play.do(Ack(1, (span(1),)))) == {1: [3]}
    assert delivered(play.do(Ack(1, (span(3),)))) == {1: [5]}
    assert delivered(play.do(Ack(1, (span(5),)))) == {}
    play.wait(SECOND)
    assert due(play) == {1: [0]}
    assert delivered(play.do(Ack(1, (span(0),)))) == {1: [2]}


@pytest.mark.spec("D18", "D11")
@pytest.mark.parametrize("gone", [PurgeEvents((span(0),)), PurgeOutstanding("d", (span(0),))])
def test_a_lane_goes_on_when_what_it_waited_for_is_gone(gone: Command) -> None:
    play = play_of(events=4)
    play.lane_of = lambda event_id: event_id % 2
    play.do(AddDurable("d", "serial", order_by="k"))
    play.do(TakeSeat("d", 1, "s1", window=1))
    play.do(RollBack(1, (span(0),), delay_ms=SECOND))
    play.do(Ack(1, (span(1),)))
    play.do(Ack(1, (span(3),)))

    assert delivered(play.do(gone)) == {1: [2]}


@pytest.mark.spec("D18", "D11")
@pytest.mark.parametrize("how", ["restart", "restart_from_snapshot"])
def test_a_lane_waits_after_a_restart_too(how: str) -> None:
    play = play_of(events=4)
    play.lane_of = lambda event_id: event_id % 2
    play.do(AddDurable("d", "serial", order_by="k"))
    play.do(TakeSeat("d", 1, "s1", window=1))
    play.do(RollBack(1, (span(0),), delay_ms=SECOND))
    getattr(play, how)()

    assert delivered(play.do(TakeSeat("d", 2, "s2", window=4))) == {2: [1, 3]}
    play.wait(SECOND)
    assert due(play) == {2: [0, 2]}


@pytest.mark.spec("D18")
@pytest.mark.parametrize("kind", ["exclusive", "priority"])
def test_on_an_exclusive_durable_the_next_client_waits_for_it(kind: str) -> None:
    play = durable_play(kind, None, events=2)
    play.do(RollBack(1, (span(0),), delay_ms=SECOND))

    assert delivered(play.do(publish(1))) == {1: [2]}, "this client goes on, as ever"
    play.do(Detach(1))
    assert delivered(play.do(TakeSeat("d", 2, "s2"))) == {}
    play.wait(SECOND)
    effects = play.do(publish(1))
    assert delivered(effects) == {2: [0, 1, 2, 3]}
    assert redelivered(effects) == {}, "it is not counted"


@pytest.mark.spec("D18")
def test_on_an_exclusive_durable_its_time_alone_brings_nothing_to_the_same_client() -> None:
    play = durable_play("exclusive", None, events=2)
    play.do(RollBack(1, (span(0),), delay_ms=SECOND))
    play.wait(SECOND)

    assert due(play) == {}
    play.do(Detach(1))
    assert delivered(play.do(TakeSeat("d", 2, "s2"))) == {2: [0, 1]}


@pytest.mark.spec("D18")
def test_given_back_untried_it_waits_and_is_not_counted() -> None:
    play = durable_play("shared", 1, events=2)

    assert delivered(play.do(Release(1, (span(0),), delay_ms=SECOND))) == {1: [1]}
    play.do(Ack(1, (span(1),)))
    play.wait(SECOND)
    effects = play.do(publish(1))
    assert (delivered(effects), redelivered(effects)) == ({1: [0]}, {})


@pytest.mark.spec("D18")
@pytest.mark.parametrize("command", [RollBack, Release])
def test_a_delay_out_of_bounds_changes_nothing(command: type[RollBack] | type[Release]) -> None:
    play = durable_play("shared", 1, events=2)

    with pytest.raises(InvalidArgument, match="delay of a rollback is -5 ms"):
        play.do(command(1, (span(0),), delay_ms=-5))
    assert delivered(play.do(Ack(1, (span(0),)))) == {1: [1]}, "the client has it still"


@pytest.mark.spec("D18", "D15")
def test_it_is_in_nobodys_hands_and_cannot_be_settled() -> None:
    play = durable_play("shared", 5, events=2)
    play.do(RollBack(1, (span(0),), delay_ms=SECOND))

    with pytest.raises(IllegalState, match="has been taken back"):
        play.do(Ack(1, (span(0),)))
    assert delivered(play.do(TakeSeat("d", 2, "s2", window=5))) == {}, (
        "it waits for whoever comes, too"
    )


@pytest.mark.spec("D18", "D13")
def test_a_client_that_leaves_changes_no_time() -> None:
    play = durable_play("shared", 5, events=2)
    play.do(RollBack(1, (span(0),), delay_ms=SECOND))
    play.do(Detach(1))

    assert delivered(play.do(TakeSeat("d", 2, "s2", window=5))) == {2: [1]}
    play.wait(SECOND)
    assert due(play) == {2: [0]}


@pytest.mark.spec("D18")
def test_who_holds_a_durable_as_a_whole_takes_what_waits_as_well() -> None:
    """The client acknowledges all events up to an id, so it would settle delayed events without
    having seen them."""
    play = durable_play("shared", 5, events=3)
    play.do(RollBack(1, (span(0),), delay_ms=SECOND))
    play.do(Detach(1))
    play.do(TakeSeat("d", 2, "s2", sole=True))
    play.do(HoldEvents(2, span(0, 2)))

    assert list(play.channel.state.seats[2][1].in_flight) == [0, 1, 2]
    play.wait(SECOND)
    assert due(play) == {}
    play.do(AckPrevious(2, 1))
    assert (outstanding(play), waiting(play)) == ([2], [])


@pytest.mark.spec("D18")
def test_what_it_took_waits_again_if_it_leaves_before_the_time() -> None:
    play = durable_play("shared", 5, events=2)
    play.do(RollBack(1, (span(0),), delay_ms=SECOND))
    play.do(Detach(1))
    play.do(TakeSeat("d", 2, "s2", sole=True))
    play.do(HoldEvents(2, span(0, 1)))
    play.do(Detach(2))

    assert delivered(play.do(TakeSeat("d", 3, "s3", window=5))) == {3: [1]}
    play.wait(SECOND)
    assert due(play) == {3: [0]}


# --- what is kept of it -------------------------------------------------------------------


@pytest.mark.spec("D18", "D4")
@pytest.mark.parametrize("how", ["restart", "restart_from_snapshot", "close"])
@pytest.mark.parametrize("kind", ["shared", "serial", "exclusive"])
def test_a_restart_does_not_shorten_the_wait(kind: str, how: str) -> None:
    play = durable_play(kind, None, events=2)
    play.do(RollBack(1, (span(0),), delay_ms=SECOND))
    getattr(play, how)()
    expected = {"shared": {2: [1]}, "serial": {}, "exclusive": {}}[kind]

    play.wait(SECOND - 1)
    assert delivered(play.do(TakeSeat("d", 2, "s2"))) == expected
    play.wait(1)
    assert due(play)[2][0] == 0


@pytest.mark.spec("D18")
def test_a_wait_that_ended_while_the_realm_was_stopped_is_over() -> None:
    play = durable_play("serial", 3, events=2)
    play.do(RollBack(1, (span(0, 1),), delay_ms=SECOND))
    play.wait(SECOND)
    play.restart()

    assert delivered(play.do(TakeSeat("d", 2, "s2", window=3))) == {2: [0, 1]}


HOUR = 3_600 * SECOND


def set_back(play: Play, how: str, ms: int) -> None:
    """Restart with a clock that is behind the previous one."""
    last_us = play.now_us
    getattr(play, how)()
    play.wait(-ms)
    play.channel.clock_set_back(last_us, play.now_us)


@pytest.mark.spec("D18")
@pytest.mark.parametrize("how", ["restart", "restart_from_snapshot"])
@pytest.mark.parametrize("kind", ["shared", "serial", "exclusive"])
def test_after_a_clock_that_was_ahead_an_event_waits_as_long_as_it_still_had_to(
    kind: str, how: str
) -> None:
    play = durable_play(kind, None, events=2)
    play.do(RollBack(1, (span(0),), delay_ms=SECOND))
    play.do(RollBack(1, (span(1),), delay_ms=HOUR))
    play.wait(400)
    set_back(play, how, HOUR)
    play.do(TakeSeat("d", 2, "s2"))

    play.wait(599)
    assert due(play) == {}
    play.wait(1)
    assert due(play) == {2: [0]}
    play.wait(HOUR - SECOND - 1)
    assert due(play) == {}
    play.wait(1)
    assert due(play) == {2: [1]}


@pytest.mark.spec("D18")
def test_a_wait_that_was_over_by_a_clock_that_was_ahead_is_over() -> None:
    play = durable_play("shared", 1, events=1)
    play.do(RollBack(1, (span(0),), delay_ms=SECOND))
    play.do(Detach(1))
    play.wait(SECOND)
    set_back(play, "restart", play.now_us // 1_000 - SECOND)  # a machine that begins in 1970

    assert delivered(play.do(TakeSeat("d", 2, "s2"))) == {2: [0]}


@pytest.mark.spec("D18")
def test_a_jump_of_the_clock_ends_the_wait_at_once() -> None:
    play = durable_play("shared", 3, events=1)
    play.do(RollBack(1, (span(0),), delay_ms=3_600 * SECOND))
    play.wait(86_400 * SECOND)

    assert due(play) == {1: [0]}


@pytest.mark.spec("D18", "D4")
def test_on_channels_whose_ids_begin_again_nothing_waits_after_a_restart() -> None:
    play = durable_play("shared", 3, events=1, type="simple")
    play.do(RollBack(1, (span(0),), delay_ms=3_600 * SECOND))
    play.restart()

    assert not play.channel.state.wakes_us


def test_a_wait_of_scattered_events_is_one_packed_fact() -> None:
    play = durable_play("shared", 1_000, events=1_000)
    odd = tuple(span(i) for i in range(1, 1_000, 2))
    play.do(RollBack(1, odd, delay_ms=SECOND))
    last = play.recorded[-1]

    assert isinstance(last, PackedIds)
    assert isinstance(last.fact, Postponed)
    play.restart()
    assert waiting(play) == list(range(1, 1_000, 2))


@pytest.mark.spec("D18", "D7")
def test_time_to_live_wins_over_a_wait() -> None:
    play = durable_play("shared", 3, events=2, ttl=500)
    play.do(RollBack(1, (span(0, 1),), delay_ms=SECOND))
    play.wait(SECOND)

    assert due(play) == {}
    assert (outstanding(play), waiting(play)) == ([], [])


@pytest.mark.spec("D18", "D16")
def test_what_waits_is_outstanding_and_not_in_flight() -> None:
    play = durable_play("shared", 3, events=2)
    play.do(RollBack(1, (span(0),), delay_ms=SECOND))
    durable = play.channel.state.durables["d"]

    assert outstanding(play) == [0, 1]
    assert durable.in_flight_count == 1
    assert waiting(play) == [0]


# --- backoff ------------------------------------------------------------------------------


@pytest.mark.spec("D18")
@pytest.mark.parametrize("kind", AT_ONCE)
def test_with_a_backoff_each_failure_waits_longer(kind: str) -> None:
    play = backoff_play(kind, Backoff(100, factor=2.0, most=500))
    for count, wait_ms in enumerate((100, 200, 400, 500, 500), start=1):
        assert delivered(play.do(RollBack(1, (span(0),)))) == {}
        play.wait(wait_ms - 1)
        assert due(play) == {}
        play.wait(1)
        play.sweep()
        effects = play.offers()
        assert (delivered(effects), redelivered(effects)) == ({1: [0]}, {0: count})


@pytest.mark.spec("D18", "Q5")
def test_a_queue_has_a_backoff_and_it_can_be_edited() -> None:
    play = play_of(kind="queue", backoff=Backoff(100), events=1)
    play.do(TakeSeat("", 1, "s1", window=1))
    play.do(RollBack(1, (span(0),)))
    play.wait(100)
    assert due(play) == {1: [0]}
    play.do(Edit(Definition(type="persistent", kind="queue")))
    play.restart()
    play.do(TakeSeat("", 2, "s2", window=1))

    assert delivered(play.do(RollBack(2, (span(0),)))) == {2: [0]}


@pytest.mark.spec("D18")
@pytest.mark.parametrize(("delay_ms", "waits_ms"), [(0, 0), (7, 7), (900, 900)])
def test_the_clients_word_counts_more_than_the_backoff(delay_ms: int, waits_ms: int) -> None:
    play = backoff_play("shared", Backoff(100))
    effects = play.do(RollBack(1, (span(0),), delay_ms=delay_ms))

    if waits_ms:
        assert delivered(effects) == {}
        play.wait(waits_ms)
        assert due(play) == {1: [0]}
    else:
        assert delivered(effects) == {1: [0]}


@pytest.mark.spec("D18", "D13")
def test_what_a_lost_client_held_does_not_wait() -> None:
    play = backoff_play("shared", Backoff(100))
    play.do(Detach(1))

    effects = play.do(TakeSeat("d", 2, "s2", window=10))
    assert (delivered(effects), redelivered(effects)) == ({2: [0]}, {0: 1})


@pytest.mark.spec("D18")
def test_events_given_back_together_wait_by_their_own_counts() -> None:
    play = backoff_play("shared", Backoff(100), events=3)
    play.do(RollBack(1, (span(1),), delay_ms=0))
    play.do(RollBack(1, (span(0, 2),)))

    play.wait(100)
    assert due(play) == {1: [0, 2]}
    play.wait(100)
    assert due(play) == {1: [1]}


@pytest.mark.spec("D18")
def test_jitter_spreads_events_that_failed_together_over_a_few_times() -> None:
    play = backoff_play("shared", Backoff(1_000, jitter=0.5), events=10)
    play.do(RollBack(1, (span(0, 9),)))
    waiting_ids = play.channel.state.durables["d"].waiting
    assert waiting_ids is not None
    times = [until_us - play.now_us for until_us, _ in waiting_ids.by_time()]

    assert len(times) == 10
    assert all(500_000 < wait_us <= 1_000_000 for wait_us in times)


def test_many_events_with_jitter_are_a_few_facts() -> None:
    play = play_of(events=5_000)
    play.do(AddDurable("d", "shared", backoff=Backoff(1_000, jitter=0.5)))
    play.do(TakeSeat("d", 1, "s1", window=5_000))
    play.do(RollBack(1, (span(0, 4_999),)))
    facts = [fact for fact in play.recorded if isinstance(fact, Postponed)]

    assert len(facts) == 16
    assert IdSet(part for fact in facts for part in fact.spans) == IdSet((span(0, 4_999),))


@pytest.mark.spec("D18", "T10")
def test_an_event_that_failed_too_often_is_dead_at_once() -> None:
    play = dying(events=1)
    play.do(AddDurable("d", "shared", max_deliveries=2, backoff=Backoff(100)))
    play.do(TakeSeat("d", 1, "s1", window=10))
    play.do(RollBack(1, (span(0),)))
    play.wait(100)
    assert due(play) == {1: [0]}
    play.do(RollBack(1, (span(0),)))

    assert (outstanding(play), waiting(play)) == ([], [])
    assert play.channel.state.counters.dead == 1


@pytest.mark.spec("D18", "D4")
@pytest.mark.parametrize("how", ["restart", "restart_from_snapshot"])
def test_a_restart_forgets_neither_the_backoff_nor_the_count(how: str) -> None:
    play = backoff_play("shared", Backoff(100, jitter=0.5, seed=9))
    play.do(RollBack(1, (span(0),)))
    play.wait(100)
    play.sweep()
    getattr(play, how)()
    play.do(TakeSeat("d", 2, "s2", window=10))
    play.do(RollBack(2, (span(0),)))

    play.wait(100)
    assert due(play) == {}, "the second wait is twice as long, less its jitter"
    play.wait(100)
    assert due(play) == {2: [0]}


@pytest.mark.spec("D18")
@pytest.mark.parametrize("kind", ["exclusive", "priority"])
def test_types_that_do_not_count_take_no_backoff(kind: str) -> None:
    play = play_of()

    with pytest.raises(InvalidArgument, match=f"type {kind} does not count redeliveries: backoff"):
        play.do(AddDurable("d", kind, backoff=Backoff(100)))
    with pytest.raises(InvalidArgument, match=r"backoff\.first is 0"):
        play.do(AddDurable("d", "shared", backoff=Backoff(0)))
    assert not play.channel.state.durables


def test_nothing_waits_at_durables_that_are_idle() -> None:
    play = durable_play("shared", 3, events=5)
    play.do(Ack(1, (span(0, 2),)))
    play.do(RollBack(1, (span(3),)))

    assert play.channel.state.durables["d"].waiting is None
    assert not play.channel.state.wakes_us
