"""Transient events, and all events of a transient channel, are never stored."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import durable_play, outstanding, play_of
from penstock_core.ids.ids import Span
from penstock_core.messages.delivery import StallSession
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.publishing import Publish
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, RollBack
from penstock_core.messages.subscribers import AddSubscriber, GrantCredit
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Storage
from penstock_server.bootstrap import rules
from penstock_testing.play import Play, delivered, events, publish, span

MIDDLE = (Span(1, 2),)
"""The second of three events that are published together; it is transient."""


def passing(count: int = 1) -> Publish:
    """Return a publish of transient events only."""
    return publish(count, transient=(Span(0, count),))


@pytest.mark.spec("E8")
@pytest.mark.parametrize("type_", ["persistent", "mixed", "reliable", "off_heap", "paged"])
def test_a_transient_event_reaches_who_is_connected_and_is_stored_nowhere(type_: str) -> None:
    play = play_of(type=type_)
    play.do(AddSubscriber(1, "there", 0, credit=9))

    assert delivered(play.do(publish(3, transient=MIDDLE))) == {1: [0, 1, 2]}
    assert delivered(play.do(AddSubscriber(2, "late", 0, credit=9))) == {2: [0, 2]}
    assert list(play.channel.state.stored) == [0, 2]
    assert play.channel.state.counters.relayed == 1


@pytest.mark.spec("E8")
def test_a_subscriber_without_credit_misses_it_for_ever() -> None:
    play = play_of()
    play.do(AddSubscriber(1, "busy", 0, credit=1))
    assert delivered(play.do(publish(3, transient=MIDDLE))) == {1: [0]}

    assert delivered(play.do(GrantCredit(1, 9))) == {1: [2]}


@pytest.mark.spec("E8")
def test_a_session_whose_connection_is_full_misses_it() -> None:
    play = play_of()
    play.do(AddSubscriber(1, "slow", 0, credit=9))
    play.channel.attend(StallSession("slow", stalled=True), play.now_us)
    play.do(passing())
    play.channel.attend(StallSession("slow", stalled=False), play.now_us)

    assert not delivered(play.offers())


@pytest.mark.spec("E8")
def test_durables_get_it_by_their_type_and_while_a_client_is_there() -> None:
    for name, kind in rules().kinds.items():
        play = durable_play(name, None)
        wanted = [0, 1, 2] if kind.takes_transient else [0, 2]

        assert delivered(play.do(publish(3, transient=MIDDLE))) == {1: wanted}
    assert not rules().kinds["shared"].takes_transient


@pytest.mark.spec("E8")
def test_an_exclusive_durable_without_a_client_misses_it() -> None:
    play = durable_play("exclusive", None)
    assert delivered(play.do(publish(3, transient=MIDDLE))) == {1: [0, 1, 2]}
    play.do(Detach(1))
    play.do(passing())

    assert delivered(play.do(TakeSeat("d", 2, "later"))) == {2: [0, 2]}


@pytest.mark.spec("E8")
def test_a_shared_durable_never_gets_it() -> None:
    play = durable_play("shared", 9)

    assert delivered(play.do(publish(3, transient=MIDDLE))) == {1: [0, 2]}
    assert outstanding(play) == [0, 2]


@pytest.mark.spec("E8")
def test_a_filtered_durable_is_not_owed_it_either() -> None:
    play = play_of()
    play.do(AddDurable("d", "shared", selector="n > 1"))
    play.do(publish(3, transient=MIDDLE, matched={"n > 1": (Span(0, 3),)}))

    assert outstanding(play) == [0, 2]


@pytest.mark.spec("E8")
def test_an_exclusive_client_that_lags_is_not_given_it_ahead_of_its_turn() -> None:
    """Acknowledging the transient event would settle earlier events that the client has not
    received."""
    play = durable_play("exclusive", None, pull=True, events=5)
    state = play.channel.state
    state.seats[1][1].demand = 2
    effects = play.do(passing())

    assert delivered(effects) == {1: [0, 1]}
    play.do(Ack(1, (span(1),)))
    assert outstanding(play) == [2, 3, 4]


@pytest.mark.spec("E8", "D9")
def test_transient_events_acknowledged_by_an_exclusive_client_free_its_window() -> None:
    play = durable_play("exclusive", None)
    window = play.channel.state.seats[1][1].window
    play.do(passing(window))
    assert not delivered(play.do(passing()))
    play.do(Ack(1, (span(window - 1),)))

    assert delivered(play.do(passing())) == {1: [window + 1]}


@pytest.mark.spec("E8", "Q1")
def test_queues_ignore_the_flag() -> None:
    play = play_of(kind="queue")
    play.do(publish(3, transient=MIDDLE))

    assert list(play.channel.state.stored) == [0, 1, 2]
    assert play.channel.state.counters.relayed == 0


@pytest.mark.spec("E8")
def test_nothing_is_recorded_but_that_its_id_is_taken() -> None:
    play = play_of()
    play.do(passing())
    play.restart()
    play.do(publish(1))

    assert isinstance(play.answer, Span)
    assert play.answer.first > 0
    assert list(play.channel.state.stored) == list(range(*play.answer))


@pytest.mark.spec("E8", "T8")
@pytest.mark.parametrize("how", ["restart", "restart_from_snapshot", "close"])
def test_the_rest_of_its_batch_is_kept_over_a_restart(how: str) -> None:
    play = play_of()
    play.do(publish(3, transient=MIDDLE))
    getattr(play, how)()
    state = play.channel.state

    assert list(state.stored) == [0, 2]
    assert state.counters.published == len(state.stored) + state.counters.departed_count


@pytest.mark.spec("E8", "T4")
def test_it_takes_no_place_on_a_full_channel() -> None:
    play = play_of(capacity=1, storage=Storage(honour_capacity=True), events=1)
    play.do(passing(5))

    assert list(play.channel.state.stored) == [0]


@pytest.mark.spec("E8", "T3")
def test_it_evicts_nothing() -> None:
    play = play_of(capacity=2, events=2)
    play.do(publish(3, transient=MIDDLE))

    assert list(play.channel.state.stored) == [2, 4]


@pytest.mark.spec("E8", "T8")
def test_a_snapshot_in_the_middle_of_its_turn_accounts_for_it() -> None:
    play = play_of()
    for fact in play.channel.decide(passing(), play.now_us).facts:
        play.channel.apply(fact)
    counters = play.channel.snapshot().counters

    assert counters.published == counters.departed_count == counters.relayed == 1


@pytest.mark.spec("E8", "T1")
def test_it_waits_while_expired_events_move_away() -> None:
    play = play_of(ttl=100, dead_event_store="dead")
    play.do(AddSubscriber(1, "s", 20_000, credit=9))
    play.do(publish(20_001))
    play.wait(100)
    assert not delivered(play.do(passing()))
    play.sweep()

    assert delivered(play.offers()) == {1: [20_001]}


def relay(kind: str | None = None, *windows: int) -> Play:
    return durable_play(kind, *windows, type="transient") if kind else play_of(type="transient")


@pytest.mark.spec("C1e")
def test_a_transient_channel_gives_what_comes_to_who_is_there() -> None:
    play = relay()
    play.do(AddSubscriber(1, "a", 0, credit=9))
    play.do(AddSubscriber(2, "b", 0, credit=1))

    assert delivered(play.do(publish(3))) == {1: [0, 1, 2], 2: [0]}
    assert not play.channel.state.stored
    assert [(fact.cause, events(fact.spans)) for fact in play.removed] == [
        (Cause.RELAYED, [0, 1, 2])
    ]


@pytest.mark.spec("C1e")
def test_with_nobody_there_the_event_is_dropped() -> None:
    play = relay()
    play.do(publish(3))

    assert not delivered(play.do(AddSubscriber(1, "late", 0, credit=9)))
    assert play.channel.state.counters.relayed == 3
    assert play.channel.state.counters.published == 3


@pytest.mark.spec("C1e")
def test_durables_of_a_transient_channel_share_what_passes_among_the_clients_there() -> None:
    play = relay("shared", 2, 2)
    got = delivered(play.do(publish(6)))

    assert sorted(got[1] + got[2]) == [0, 1, 2, 3]
    assert outstanding(play) == []
    play.do(Ack(1, (span(got[1][0]),)))
    assert delivered(play.do(publish(1))) == {1: [6]}


@pytest.mark.spec("C1e")
def test_rolling_back_what_was_relayed_frees_the_window_and_nothing_comes_again() -> None:
    play = relay("shared", 1)
    play.do(publish(1))

    assert not delivered(play.do(RollBack(1, (span(0),))))
    assert delivered(play.do(publish(1))) == {1: [1]}


@pytest.mark.spec("C1e", "Q1")
def test_a_transient_queue_relays_to_one_reader_each() -> None:
    play = play_of(type="transient", kind="queue")
    play.do(publish(2))
    play.do(TakeSeat("", 1, "a", window=10))
    play.do(TakeSeat("", 2, "b", window=10, selector="n > 1"))
    got = delivered(play.do(publish(4, matched={"n > 1": (Span(0, 2),)})))

    assert sorted(got[1] + got[2]) == [2, 3, 4, 5]
    assert set(got[2]) <= {2, 3}
    assert play.channel.state.counters.relayed == 6
    assert not play.channel.state.seats[2][1].wanted, "what has passed is not remembered"


@pytest.mark.spec("C1e")
@pytest.mark.parametrize("how", ["restart", "restart_from_snapshot", "close"])
def test_ids_of_a_transient_channel_start_again(how: str) -> None:
    play = relay()
    play.do(publish(3))
    getattr(play, how)()
    play.do(publish(1))

    assert play.answer == span(0)
