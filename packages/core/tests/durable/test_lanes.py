"""Lanes: events with the same value of a property are delivered in order, others at the same
time."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import dying, outstanding, play_of, removals
from penstock_core.durable.lanes import LANE_SEARCH_EVENTS_MAX, LANE_SEARCHES_MAX
from penstock_core.messages.delivery import ConfirmRecall, SetDemand, Skip
from penstock_core.messages.durables import AddDurable, PurgeOutstanding
from penstock_core.messages.retention import PurgeEvents
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, AckPrevious, RollBack
from penstock_core.vocabulary.effects import Effect, FindLanes, Recall
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument
from penstock_testing.play import Play, delivered, events, publish, redelivered, span


def lanes_play(values: str, *windows: int, pull: bool = False, play: Play | None = None) -> Play:
    """Return a channel with a durable ``d`` with a lane for each letter of ``values``, a seat for
    each window, and an event for each letter; a dash stands for no value."""
    play = play or play_of()
    play.lane_of = dict(enumerate(None if v == "-" else v for v in values)).__getitem__
    play.do(AddDurable("d", "serial", order_by="sku"))
    for seat, window in enumerate(windows, start=1):
        play.do(TakeSeat("d", seat, f"s{seat}", window=window, pull=pull))
    return play


def served(values: str, *windows: int) -> tuple[Play, dict[int, list[int]]]:
    play = lanes_play(values, *windows)
    return play, delivered(play.do(publish(len(values))))


def served_now(effects: list[Effect]) -> set[int]:
    """Return the ids that are delivered now, to any client."""
    return {event_id for ids in delivered(effects).values() for event_id in ids}


def recalled(effects: list[Effect]) -> dict[int, list[int]]:
    return {e.subscription: events(e.spans) for e in effects if isinstance(e, Recall)}


# --- who gets what -----------------------------------------------------------------------


@pytest.mark.spec("D11", "D8")
def test_lanes_go_to_different_clients_at_the_same_time() -> None:
    _, first = served("abab", 10, 10)

    assert first == {1: [0, 2], 2: [1, 3]}


def test_where_nobody_can_look_which_lanes_events_are_in_nothing_goes_out_blindly() -> None:
    play = lanes_play("", 10)
    play.lane_of = dict(enumerate("ab")).__getitem__
    for fact in play.channel.decide(publish(2), play.now_us).facts:
        play.channel.apply(fact)
    effects = list(play.channel.offer())  # and no lanes are assigned

    assert [type(effect) for effect in effects] == [FindLanes]
    assert served_now(play.do(TakeSeat("d", 2, "s2", window=10))) == {0, 1}


@pytest.mark.spec("D11")
def test_a_lane_has_one_owner_while_some_of_it_is_in_flight() -> None:
    play, first = served("aaa", 1, 10)

    assert first == {1: [0]}
    assert delivered(play.do(Ack(1, (span(0),)))) == {2: [1, 2]}, "its turn, and the lane is free"


@pytest.mark.spec("D11", "D9")
def test_a_full_window_does_not_give_its_lane_away() -> None:
    play, first = served("aaba", 2, 2)

    assert first == {1: [0, 1], 2: [2]}
    assert delivered(play.do(Ack(1, (span(0),)))) == {1: [3]}


@pytest.mark.spec("D11")
def test_a_blocked_lane_blocks_itself_alone() -> None:
    play, first = served("a" + "ab" * 5, 1, 1)
    order = [first[2][0]]
    while got := delivered(play.do(Ack(2, (span(order[-1]),)))).get(2):
        order += got

    assert first[1] == [0]
    assert order == [2, 4, 6, 8, 10], "all of b, while the first of a is not settled"


@pytest.mark.spec("D11")
def test_what_lies_far_behind_a_blocked_lane_is_found() -> None:
    count = LANE_SEARCH_EVENTS_MAX * (LANE_SEARCHES_MAX + 2)
    play = play_of()
    play.lane_of = lambda event_id: "b" if event_id == count - 1 else "a"
    play.do(AddDurable("d", "serial", order_by="sku"))
    play.do(publish(count))
    play.do(TakeSeat("d", 1, "s1", window=1))

    assert delivered(play.do(TakeSeat("d", 2, "s2", window=1))) == {2: [count - 1]}


@pytest.mark.spec("D11")
def test_nobody_is_asked_about_events_nobody_has_room_for() -> None:
    play = lanes_play("a" * 9, 1)
    play.do(publish(3))
    play.lane_of = dict[int, str]().__getitem__  # would raise

    assert delivered(play.do(publish(6))) == {}


@pytest.mark.spec("D11")
def test_events_without_the_property_are_a_lane_of_their_own() -> None:
    _, first = served("-a--", 9, 9)

    assert first == {1: [0, 2, 3], 2: [1]}


@pytest.mark.spec("D11", "D5")
def test_fetches_keep_to_lanes_too() -> None:
    play = lanes_play("aab", 10, 10, pull=True)
    play.do(publish(3))

    assert delivered(play.do(SetDemand(1, 1))) == {1: [0]}
    assert delivered(play.do(SetDemand(2, 2))) == {2: [2]}
    assert delivered(play.do(Ack(1, (span(0),)))) == {2: [1]}


# --- rollback ----------------------------------------------------------------------------


@pytest.mark.spec("D11")
def test_a_rolled_back_event_comes_before_every_later_one_of_its_lane() -> None:
    play, first = served("abaab", 10)
    effects = play.do(RollBack(1, (span(0),)))
    again = play.do(ConfirmRecall(1))

    assert first == {1: [0, 1, 2, 3, 4]}
    assert recalled(effects) == {1: [2, 3]}, "b stays in hands"
    assert delivered(again) == {1: [0, 2, 3]}
    assert redelivered(again) == {0: 1}, "what was recalled was not delivered"


@pytest.mark.spec("D11")
def test_nothing_is_recalled_of_other_clients() -> None:
    play, _ = served("abab", 10, 10)
    effects = play.do(RollBack(1, (span(0),)))

    assert recalled(effects) == {1: [2]}
    assert delivered(effects) == {2: [0, 2]}, "the lane is free, and 1 does not know yet"


@pytest.mark.spec("D11", "D15")
def test_what_was_recalled_cannot_be_acknowledged() -> None:
    play, _ = served("aab", 10)
    play.do(RollBack(1, (span(0),)))

    with pytest.raises(IllegalState, match="event 1 of durable d was recalled"):
        play.do(Ack(1, (span(1),)))
    play.do(Ack(1, (span(2),)))
    assert outstanding(play) == [0, 1]


@pytest.mark.spec("D11")
def test_rolling_back_the_last_of_a_lane_recalls_nothing() -> None:
    play, _ = served("abab", 10)
    effects = play.do(RollBack(1, (span(2, 3),)))

    assert recalled(effects) == {}
    assert delivered(effects) == {1: [2, 3]}


@pytest.mark.spec("D11", "D13")
def test_what_a_lost_client_held_frees_its_lanes() -> None:
    play, _ = served("aba", 10, 10)
    effects = play.do(Detach(1))

    assert delivered(effects) == {2: [0, 2]}
    assert redelivered(effects) == {0: 1, 2: 1}


@pytest.mark.spec("D11")
def test_what_was_not_sent_waits_in_its_place() -> None:
    play = lanes_play("aa", 1)
    play.do(publish(2))

    assert delivered([*play.do(Skip(1, (span(0),)))]) == {1: [0]}


@pytest.mark.spec("D11", "T10")
def test_a_dead_event_frees_its_lane() -> None:
    play = dying()
    play.lane_of = "aab".__getitem__
    play.do(AddDurable("d", "serial", order_by="sku", max_deliveries=1))
    play.do(TakeSeat("d", 1, "s1", window=1))
    play.do(TakeSeat("d", 2, "s2", window=1))
    play.do(publish(3))
    effects = play.do(RollBack(1, (span(0),)))

    assert recalled(effects) == {}
    assert delivered(effects) == {1: [1]}
    assert [dead for _, _, dead in removals(play)] == [[0]]


# --- what leaves -------------------------------------------------------------------------


@pytest.mark.spec("D11", "T9")
@pytest.mark.parametrize("gone", [(span(0),), (span(0), span(2)), (span(0), span(2, 3))])
def test_what_leaves_the_channel_frees_its_lane(gone: tuple[object, ...]) -> None:
    play, _ = served("abaaa", 1, 1)
    effects = play.do(PurgeEvents(gone))  # type: ignore[arg-type]  # spans
    later_ids = [i for i in (2, 3, 4) if i in outstanding(play)]

    assert delivered(effects) == {1: later_ids[:1]}


@pytest.mark.spec("D11")
def test_a_purge_of_what_waits_behind_a_blocked_lane_leaves_nothing_behind() -> None:
    play = play_of()
    play.lane_of = lambda event_id: event_id % 2
    play.do(AddDurable("d", "serial", order_by="sku"))
    for seat in (1, 2, 3):
        play.do(TakeSeat("d", seat, f"s{seat}", window=1))
    play.do(publish(6_000))
    play.do(PurgeOutstanding("d", (span(2, 5_990),)))
    lanes = play.channel.state.durables["d"].lanes

    assert lanes is not None
    assert lanes.waiting == 9, "no memory is kept for what has left"
    assert delivered(play.do(Ack(1, (span(0),)))) == {3: [5_992]}
    assert delivered(play.do(Ack(2, (span(1),)))) == {1: [5_991]}


@pytest.mark.spec("D11", "T1")
def test_an_event_that_expires_in_hands_frees_its_lane() -> None:
    play = lanes_play("aaa", 1, 1, play=play_of(ttl=50))
    play.do(publish(1))
    play.wait(30)
    play.do(publish(2))
    play.wait(30)

    assert delivered(play.do(Ack(2, ()))) == {2: [1]}


@pytest.mark.spec("D11")
def test_ack_of_all_previous_covers_what_the_client_holds_of_any_lane() -> None:
    play, _ = served("abcb", 2, 2)
    play.do(AckPrevious(1, 2))

    assert outstanding(play) == [1, 3]


# --- as created --------------------------------------------------------------------------


@pytest.mark.spec("D11", "D4")
@pytest.mark.parametrize("how", ["cut", "snapshot"])
def test_lanes_are_there_after_a_restart(how: str) -> None:
    play, _ = served("abab", 10)
    play.do(RollBack(1, (span(0),)))
    play.do(ConfirmRecall(1))
    play.do(Ack(1, (span(1),)))
    play.restart() if how == "cut" else play.restart_from_snapshot()
    first = play.do(TakeSeat("d", 1, "s1", window=10))
    effects = play.do(RollBack(1, (span(0),)))

    assert delivered(first) == {1: [0, 2, 3]}
    assert redelivered(first) == {0: 1}
    assert recalled(effects) == {1: [2]}
    assert play.channel.state.durables["d"].attributes.order_by == "sku"


@pytest.mark.spec("D11")
@pytest.mark.parametrize("kind", ["shared", "exclusive", "priority", "shared_queued"])
def test_only_serial_durables_have_lanes(kind: str) -> None:
    with pytest.raises(
        InvalidArgument, match=f"type {kind} cannot have order_by.*use a serial durable"
    ):
        play_of().do(AddDurable("d", kind, order_by="sku"))


@pytest.mark.spec("D11")
def test_strict_order_and_lanes_exclude_each_other() -> None:
    with pytest.raises(InvalidArgument, match="give only one of them"):
        play_of().do(AddDurable("d", "serial", order_by="sku", strict_order=True))


@pytest.mark.spec("D11")
def test_lanes_are_by_a_property() -> None:
    with pytest.raises(InvalidArgument, match="name of an event property"):
        play_of().do(AddDurable("d", "serial", order_by="$tag"))
