"""Rules that hold for durables of every type."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from packages.core.tests.plays import durable_play, outstanding, play_of
from penstock_core.channel.channel import ChannelMachine
from penstock_core.ids.ids import Span
from penstock_core.messages.delivery import EndChoosing, SetDemand, StallSession, Withhold
from penstock_core.messages.durables import AddDurable, RemoveDurable
from penstock_core.messages.retention import PurgeEvents
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, AckPrevious, RollBack
from penstock_core.messages.subscribers import AddSubscriber, GrantCredit
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import (
    IllegalState,
    InvalidArgument,
    NameAlreadyBound,
    NameDoesNotExist,
)
from penstock_server.bootstrap import rules
from penstock_testing.play import Play, delivered, finished, publish, redelivered, span

KINDS = ("exclusive", "shared")
RESTARTS = ("restart", "restart_from_snapshot", "close")


@pytest.mark.spec("D1")
def test_durables_of_a_channel_do_not_touch_each_other() -> None:
    play = play_of()
    for name in ("one", "One"):
        play.do(AddDurable(name, "shared"))
    play.do(publish(2))
    play.do(TakeSeat("one", 1, "s"))
    play.do(Ack(1, (span(0),)))

    assert outstanding(play, "one") == [1]
    assert outstanding(play, "One") == [0, 1]


@pytest.mark.spec("D2")
def test_names_clash_and_miss_with_their_own_errors() -> None:
    play = durable_play("shared")
    with pytest.raises(NameAlreadyBound):
        play.do(AddDurable("d", "exclusive"))
    with pytest.raises(NameDoesNotExist, match="orders has no durable e"):
        play.do(RemoveDurable("e"))
    with pytest.raises(InvalidArgument, match="exclusive, priority, serial, shared, shared_queued"):
        play.do(AddDurable("e", "grouped"))


@pytest.mark.spec("D2")
def test_a_durable_lives_without_clients_and_events_until_it_is_deleted() -> None:
    play = durable_play("shared", 10, events=2)
    play.do(Ack(1, (span(0, 1),)))
    play.do(Detach(1))
    play.restart()
    assert "d" in play.channel.state.durables
    play.do(RemoveDurable("d"))
    play.restart()

    assert "d" not in play.channel.state.durables


@pytest.mark.spec("D2")
def test_a_seat_goes_with_its_durable() -> None:
    play = durable_play("shared", 10, events=2)
    play.do(RemoveDurable("d"))

    with pytest.raises(IllegalState, match="its durable was deleted"):
        play.do(Ack(1, (span(0),)))


@pytest.mark.spec("D3")
@pytest.mark.parametrize("selector", ["", "even"])
@pytest.mark.parametrize(("start", "first"), [(0, 0), (2, 2), (4, 4), (6, 6)])
def test_a_durable_begins_where_it_was_told(start: int, first: int, selector: str) -> None:
    play = play_of(events=4)
    everything = (span(start, 3),) if selector and start < 4 else ()
    play.do(AddDurable("d", "shared", start, selector=selector, matched=everything))
    play.do(publish(4, matched={"even": (Span(0, 4),)}))

    assert outstanding(play) == list(range(first, 8))
    play.restart()
    play.do(publish(1, matched={"even": (Span(0, 1),)}))
    assert outstanding(play) == list(range(first, 9))


@pytest.mark.spec("D3")
@pytest.mark.parametrize(
    ("type_", "lasts"),
    [
        ("persistent", True),
        ("mixed", True),
        ("paged", True),
        ("reliable", True),
        ("off_heap", True),
        ("simple", False),
        ("transient", False),
    ],
)
def test_a_durable_is_persistent_where_ids_go_on_unless_told(type_: str, lasts: bool) -> None:
    play = play_of(type=type_)
    play.do(AddDurable("usual", "shared"))
    play.do(AddDurable("other", "shared", persistent=not lasts))
    play.restart()

    assert set(play.channel.state.durables) == {"usual" if lasts else "other"}


@pytest.mark.spec("D3")
@pytest.mark.parametrize("type_", ["reliable", "off_heap"])
@pytest.mark.parametrize("kind", ["exclusive", "priority", "serial", "shared", "shared_queued"])
@pytest.mark.parametrize("how", RESTARTS)
def test_a_durable_whose_events_end_with_the_realm_goes_on_behind_them(
    type_: str, kind: str, how: str
) -> None:
    play = durable_play(kind, None, events=8, type=type_)
    play.do(Ack(1, (span(0),)))
    getattr(play, how)()

    first = play.channel.state.next_id
    assert first >= 8
    assert play.channel.state.durables["d"].position(first) == first
    assert outstanding(play) == []
    play.do(TakeSeat("d", 9, "s", window=None))
    assert delivered(play.do(publish(2)))[9][0] == first


@pytest.mark.spec("D4", "E9")
@pytest.mark.parametrize("how", RESTARTS)
def test_position_acks_and_counts_survive_a_restart(how: str) -> None:
    play = durable_play("shared", 5, events=8)
    play.do(RollBack(1, (span(1), span(3))))
    play.do(RollBack(1, (span(3),)))
    play.do(Ack(1, (span(0), span(2), span(4))))
    getattr(play, how)()

    effects = play.do(TakeSeat("d", 9, "s", window=10))
    assert delivered(effects) == {9: [1, 3, 5, 6, 7]}
    assert redelivered(effects) == {1: 1, 3: 2}


@pytest.mark.spec("D5", "D9")
def test_a_fetch_gets_what_it_demands_whatever_the_window() -> None:
    play = durable_play("shared", 1, events=10, pull=True)
    assert not delivered(play.do(publish(1)))
    effects = play.do(SetDemand(1, 4))

    assert delivered(effects) == {1: [0, 1, 2, 3]}
    assert finished(effects) == [1]


@pytest.mark.spec("D5")
def test_a_demand_is_met_once_though_it_takes_several_deliveries() -> None:
    play = durable_play("shared", 1, events=20, pull=True)
    play.do(TakeSeat("d", 2, "s2", window=1, pull=True))
    play.channel.attend(StallSession("s1", stalled=True), play.now_us)
    play.do(SetDemand(1, 10))
    play.do(SetDemand(2, 0))
    play.channel.state.seats[2][1].demand = 2
    play.channel.attend(StallSession("s1", stalled=False), play.now_us)
    effects = play.offers()

    assert len(delivered(effects)[1]) == 10
    assert sorted(finished(effects)) == [1, 2]
    assert effects[-2:] == [e for e in effects if e in effects[-2:]]


@pytest.mark.spec("D5")
def test_a_demand_waits_for_events_and_can_be_taken_back() -> None:
    play = durable_play("shared", 1, events=1, pull=True)
    effects = play.do(SetDemand(1, 3))
    assert delivered(effects) == {1: [0]}
    assert finished(effects) == []

    assert finished(play.do(SetDemand(1, 0))) == [1]
    assert not delivered(play.do(publish(3)))


def test_a_seat_events_are_pushed_to_demands_nothing() -> None:
    play = durable_play("shared", 5, events=2)
    play.do(SetDemand(1, 0))

    assert delivered(play.do(publish(1))) == {1: [2]}


@pytest.mark.spec("D6")
@pytest.mark.parametrize("other", KINDS)
def test_an_event_leaves_when_the_last_durable_has_acknowledged_it(other: str) -> None:
    play = durable_play("shared", 5)
    play.do(AddDurable("e", other))
    play.do(publish(3))
    play.do(Ack(1, (span(0, 1),)))
    assert list(play.channel.state.stored) == [0, 1, 2]

    play.do(TakeSeat("e", 2, "s"))
    play.do(Ack(2, (span(0),)))
    assert list(play.channel.state.stored) == [1, 2]
    assert play.channel.state.counters.consumed == 1


@pytest.mark.spec("D6")
def test_an_event_stays_while_a_connected_subscriber_has_not_got_it() -> None:
    play = durable_play("shared", 5)
    play.do(AddSubscriber(7, "slow", 0, credit=1))
    play.do(publish(3))
    play.do(Ack(1, (span(0, 2),)))
    assert list(play.channel.state.stored) == [1, 2]

    play.do(Detach(7))
    assert list(play.channel.state.stored) == []


@pytest.mark.spec("D6")
def test_what_no_durable_was_ever_due_stays() -> None:
    play = play_of(events=2)
    play.do(AddDurable("d", "shared", 2))
    play.do(AddDurable("f", "shared", 0, selector="even", matched=()))
    play.do(publish(2, matched={"even": ()}))
    play.do(TakeSeat("d", 1, "s"))
    play.do(Ack(1, (span(2),)))

    assert list(play.channel.state.stored) == [0, 1, 3]


@pytest.mark.spec("D6")
def test_a_channel_that_retains_what_is_consumed_lets_it_be_replayed() -> None:
    play = durable_play("shared", 5, retain_consumed=True, events=2)
    play.do(Ack(1, (span(0, 1),)))

    assert delivered(play.do(AddSubscriber(7, "late", 0, credit=9))) == {7: [0, 1]}


@pytest.mark.spec("D6")
@pytest.mark.parametrize("restarted", [False, True])
def test_what_a_deleted_durable_had_acknowledged_goes_once_all_there_are_do_not_want_it(
    restarted: bool,
) -> None:
    play = durable_play("shared", 5, events=3)
    play.do(AddDurable("e", "shared"))
    play.do(Ack(1, (span(1),)))
    for name in "de":
        play.do(RemoveDurable(name))
    play.do(AddDurable("later", "shared", 3))
    if restarted:
        play.restart()
        play.sweep()

    assert list(play.channel.state.stored) == [0, 2]


@pytest.mark.spec("D6")
def test_deleting_the_durable_that_lagged_lets_events_go() -> None:
    play = durable_play("shared", 5)
    play.do(AddDurable("lagging", "exclusive"))
    play.do(publish(2))
    play.do(Ack(1, (span(0),)))
    play.do(RemoveDurable("lagging"))

    assert list(play.channel.state.stored) == [1]


@pytest.mark.spec("D7", "T3")
@pytest.mark.parametrize("kind", KINDS)
def test_capacity_takes_events_from_durables_too(kind: str) -> None:
    play = durable_play(kind, capacity=2, events=5)

    assert outstanding(play) == [3, 4]


@pytest.mark.spec("D7", "T1")
@pytest.mark.parametrize("kind", KINDS)
def test_time_takes_events_out_of_a_clients_hands(kind: str) -> None:
    play = durable_play(kind, None, ttl=100, events=2)
    play.wait(100)
    play.do(publish(1))

    assert outstanding(play) == [2]
    play.do(Ack(1, (span(0, 1),)))


@pytest.mark.spec("T9")
@pytest.mark.parametrize("kind", KINDS)
def test_an_event_purged_in_a_clients_hands_is_acknowledged_without_error(kind: str) -> None:
    play = durable_play(kind, None, events=3)
    play.do(PurgeEvents((span(1),)))
    assert play.answer == 1
    assert outstanding(play) == [0, 2]

    play.do(Ack(1, (span(1),)))
    play.do(RollBack(1, (span(1),)))
    assert 1 not in outstanding(play)


@pytest.mark.spec("D15")
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_ack_has_no_effect(kind: str) -> None:
    play = durable_play(kind, None, events=3)
    play.do(Ack(1, (span(0),)))
    record_count = len(play.recorded)
    play.do(Ack(1, (span(0), span(0))))

    assert len(play.recorded) == record_count
    assert outstanding(play) == [1, 2]


@pytest.mark.spec("D15")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", [Ack, RollBack])
def test_what_was_never_delivered_cannot_be_settled(
    kind: str, command: type[Ack] | type[RollBack]
) -> None:
    play = durable_play(kind, None, pull=True, events=3)
    play.do(SetDemand(1, 1))

    with pytest.raises(IllegalState, match="event 1 of durable d was not delivered"):
        play.do(command(1, (span(0, 2),)))
    assert outstanding(play) == [0, 1, 2]


@pytest.mark.spec("D16")
@pytest.mark.parametrize("kind", KINDS)
def test_counts_are_exact_and_asking_changes_nothing(kind: str) -> None:
    play = durable_play(kind, None, pull=True, events=5)
    play.do(SetDemand(1, 2))
    state = play.channel.state
    durable = state.durables["d"]

    assert durable.outstanding_count(state.stored) == 5
    assert durable.in_flight_count == 2
    browse = AddSubscriber(
        9, "b", 0, stop_id=5, credit=10, only=durable.outstanding_spans(state.stored)
    )
    effects = play.do(browse)
    assert delivered(effects) == {9: [0, 1, 2, 3, 4]}
    assert finished(effects) == [9]
    assert durable.outstanding_count(state.stored) == 5
    assert durable.in_flight_count == 2


@pytest.mark.spec("D15")
def test_previous_covers_what_this_subscription_holds() -> None:
    play = durable_play("shared", 2, 2, events=4)
    play.do(AckPrevious(1, 3))

    assert outstanding(play) == [1, 3] or outstanding(play) == [2, 3]


@pytest.mark.slow
@pytest.mark.spec("D4", "E9")
def test_an_event_given_back_again_and_again_makes_no_other_one_dearer() -> None:
    play = durable_play("shared", 2, events=2)
    for _ in range(3_000):
        play.do(RollBack(1, (span(0),)))
    durable = play.channel.state.durables["d"]

    assert durable.redeliveries((span(0, 1),)) == ((3_000, (span(0),)),)
    assert len(durable.levels) == 1, "what an acknowledgement looks through"
    play.restart_from_snapshot()
    assert play.channel.state.durables["d"].redeliveries((span(0, 1),)) == ((3_000, (span(0),)),)


@pytest.mark.spec("D9")
@pytest.mark.parametrize("kind", ["exclusive", "priority", "serial", "shared", "shared_queued"])
def test_what_a_client_has_no_room_for_is_granted_again_uncounted(kind: str) -> None:
    play = durable_play(kind, None)
    assert delivered(play.do(publish(5))) == {1: [0, 1, 2, 3, 4]}
    assert not delivered(play.do(Withhold(1, (span(2, 4),), is_full=True)))
    assert not delivered(play.do(publish(1)))
    assert not delivered(play.do(Ack(1, (span(0, 1),))))
    assert outstanding(play) == [2, 3, 4, 5]
    assert not delivered(play.do(GrantCredit(1, 0)))

    effects = play.do(GrantCredit(1, 0, has_room=True))

    assert delivered(effects) == {1: [2, 3, 4, 5]}
    assert not redelivered(effects)
    assert play.channel.state.durables["d"].delivered == 6
    assert not delivered(play.do(GrantCredit(7, 0, has_room=True)))  # nobody
    assert not delivered(play.do(Withhold(7, (span(2),), is_full=True)))


@pytest.mark.spec("D9", "F5")
@pytest.mark.parametrize("kind", ["exclusive", "priority"])
def test_what_a_clients_selector_takes_long_for_is_granted_again_uncounted(kind: str) -> None:
    play = durable_play(kind, None)
    assert delivered(play.do(publish(5))) == {1: [0, 1, 2, 3, 4]}
    assert not delivered(play.do(Withhold(1, (span(2, 4),), is_full=False, is_choosing=True)))
    assert not delivered(play.do(publish(1, transient=(span(0),))))
    assert not delivered(play.do(GrantCredit(1, 0, has_room=True)))

    effects = play.do(EndChoosing(1))

    assert delivered(effects) == {1: [2, 3, 4, 5]}, "also what is not stored"
    assert not redelivered(effects)


@pytest.mark.spec("D9", "F5")
def test_a_demand_is_as_large_as_before_and_ends_once_its_events_are_chosen() -> None:
    play = durable_play("exclusive", None)
    play.do(Detach(1))
    play.do(publish(3))
    play.do(TakeSeat("d", 2, "s2", window=None, pull=True))
    assert delivered(play.do(SetDemand(2, 2))) == {2: [0, 1]}
    play.do(SetDemand(2, 2))
    play.do(Withhold(2, (span(2),), is_full=False, is_choosing=True))
    assert not finished(play.do(SetDemand(2, 0))), "what is there goes out first"

    effects = play.do(EndChoosing(2))

    assert delivered(effects) == {2: [2]}
    assert finished(effects)


@pytest.mark.spec("D8", "D9")
def test_what_one_client_has_no_room_for_goes_to_another_that_has() -> None:
    play = durable_play("shared", 10)
    assert delivered(play.do(publish(4))) == {1: [0, 1, 2, 3]}
    play.do(TakeSeat("d", 2, "s2", window=10))

    effects = play.do(Withhold(1, (span(1, 3),), is_full=True))

    assert delivered(effects) == {2: [1, 2, 3]}
    assert not redelivered(effects)


@pytest.mark.spec("D13")
def test_what_was_withheld_is_not_counted_when_its_client_goes() -> None:
    play = durable_play("shared", 10)
    play.do(publish(3))
    play.do(Withhold(1, (span(1, 2),), is_full=True))
    play.do(Detach(1))

    effects = play.do(TakeSeat("d", 2, "s2", window=10))

    assert delivered(effects) == {2: [0, 1, 2]}
    assert redelivered(effects) == {0: 1}


def in_a_cluster() -> Play:
    everywhere = replace(rules(), is_cluster=True)
    definition = Definition(type="persistent", cluster_wide=True)
    return Play(ChannelMachine("orders", definition, everywhere))


@pytest.mark.spec("D3", "C5")
def test_a_durable_that_ends_with_its_node_is_not_cluster_wide() -> None:
    play = in_a_cluster()
    play.do(AddDurable("stays", "shared"))
    play.do(AddDurable("brief", "shared", persistent=False))

    durables = play.channel.state.durables
    assert durables["stays"].attributes.cluster_wide
    assert not durables["brief"].attributes.cluster_wide
    with pytest.raises(InvalidArgument, match="cannot be cluster-wide: with persistent=False"):
        play.do(AddDurable("both", "shared", persistent=False, cluster_wide=True))


@pytest.mark.spec("D1")
def test_a_type_that_other_products_name_otherwise_is_refused_with_a_hint() -> None:
    with pytest.raises(InvalidArgument, match=r"'named' is not a durable type.*is exclusive here"):
        play_of().do(AddDurable("d", "named"))
