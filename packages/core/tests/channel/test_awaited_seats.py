"""Reserved seats of sessions that have lost their connection (SEM N6)."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from msgspec.structs import replace

from penstock_core.channel.channel import ChannelMachine
from penstock_core.messages.delivery import HoldEvents, SetDemand
from penstock_core.messages.durables import AddDurable, RemoveDurable
from penstock_core.messages.seats import AwaitSeats, Detach, GiveUpSeats, Left, Seated, TakeSeat
from penstock_core.messages.seeking import Seek
from penstock_core.messages.settlements import Ack
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import DurableInUse
from penstock_server.bootstrap import rules
from penstock_testing.play import Play, delivered, publish, span

WAIT_MS = 10_000


def cluster(kind: str, *, events: int = 0, persistent: bool = True, order_by: str = "") -> Play:
    """Return a channel of a cluster with durable ``d``."""
    everywhere = replace(rules(), is_cluster=True)
    definition = Definition(type="persistent", cluster_wide=True)
    play = Play(ChannelMachine("orders", definition, everywhere))
    play.do(AddDurable("d", kind, persistent=persistent, order_by=order_by))
    if events:
        play.do(publish(events))
    return play


def sit(play: Play, subscription: int, session: str, **more: object) -> dict[int, list[int]]:
    command = TakeSeat("d", subscription, session, place=f"{session}/1", **more)  # type: ignore[arg-type]
    return delivered(play.do(command))


def facts(play: Play) -> list[Seated | Left]:
    return [fact for fact in play.recorded if isinstance(fact, Seated | Left)]


@pytest.mark.spec("N6")
@pytest.mark.parametrize("by_snapshot", [False, True])
def test_an_exclusive_seat_waits_for_the_session_that_had_it(by_snapshot: bool) -> None:
    play = cluster("exclusive", events=3)
    assert sit(play, 1, "a") == {1: [0, 1, 2]}
    play.do(Ack(1, (span(0),)))
    (play.restart_from_snapshot if by_snapshot else play.restart)()

    with pytest.raises(DurableInUse, match="session a; its seat is reserved for"):
        sit(play, 1, "b")
    assert sit(play, 2, "a") == {2: [1, 2]}
    with pytest.raises(DurableInUse, match="session a; end that subscription first"):
        sit(play, 3, "b")
    assert len(facts(play)) == 1, "it has had this seat all the time"


@pytest.mark.spec("N6")
def test_a_session_is_not_kept_out_by_a_seat_that_it_gave_up_while_it_was_away() -> None:
    """The subscription was closed while no owner was there to record it."""
    play = cluster("exclusive", events=2)
    sit(play, 1, "a")
    play.restart()

    again = TakeSeat("d", 2, "a", place="a/2")
    assert delivered(play.do(again)) == {2: [0, 1]}
    with pytest.raises(DurableInUse, match="session a; end that subscription first"):
        sit(play, 3, "a")
    play.restart()

    with pytest.raises(DurableInUse, match="session a; its seat is reserved for"):
        sit(play, 1, "b")
    assert delivered(play.do(replace(again, subscription=3))) == {3: [0, 1]}
    assert facts(play)[1:] == [Left("d", "a/1"), Seated("d", "a/2", "a")]


@pytest.mark.spec("N6")
def test_a_serial_durable_waits_for_all_seats_of_a_session() -> None:
    play = cluster("serial", events=2)
    sit(play, 1, "a")
    play.do(TakeSeat("d", 2, "a", place="a/2"))
    play.restart()

    assert delivered(play.do(TakeSeat("d", 3, "a", place="a/3"))) == {}
    assert sit(play, 4, "a") == {}
    assert delivered(play.do(TakeSeat("d", 5, "a", place="a/2"))) != {}


@pytest.mark.spec("N6")
def test_a_session_that_does_not_come_back_loses_its_seat_after_its_time() -> None:
    play = cluster("exclusive", events=1)
    sit(play, 1, "a")
    play.restart()
    play.sweep()
    play.wait(WAIT_MS - 1)
    with pytest.raises(DurableInUse):
        sit(play, 1, "b")
    play.wait(1)

    assert sit(play, 1, "b") == {1: [0]}

    assert facts(play)[1:] == [
        Seated("d", "a/1", "a", waited_us=(WAIT_MS - 1) * 1_000),
        Left("d", "a/1"),
        Seated("d", "b/1", "b"),
    ]
    with pytest.raises(DurableInUse, match="held by session b"):
        sit(play, 2, "a")


@pytest.mark.spec("N6")
@pytest.mark.parametrize("by_snapshot", [False, True])
@pytest.mark.parametrize("kind", ["exclusive", "priority", "serial"])
def test_owners_that_follow_each_other_wait_no_longer_than_one(
    kind: str, by_snapshot: bool
) -> None:
    play = cluster(kind, events=1)
    sit(play, 1, "a")
    for owner in range(4):
        (play.restart_from_snapshot if by_snapshot else play.restart)()
        play.sweep()
        for _ in range(WAIT_MS // 500 // 4):
            with pytest.raises(DurableInUse) if kind == "exclusive" else nullcontext():
                got = sit(play, 2, "b")
                assert got == {}, f"under owner {owner}"
                play.do(Detach(2))
            play.wait(500)
            play.sweep()

    assert sit(play, 3, "b") == {3: [0]}


@pytest.mark.spec("N6")
def test_an_owner_that_ends_within_a_step_has_not_waited() -> None:
    play = cluster("exclusive")
    sit(play, 1, "a")
    for _ in range(30):
        play.restart()
        play.sweep()
        play.wait(499)
        play.sweep()

    with pytest.raises(DurableInUse):
        sit(play, 2, "b")
    assert len(facts(play)) == 1


@pytest.mark.spec("N6")
def test_a_session_that_was_back_has_all_of_the_time_again() -> None:
    play = cluster("exclusive", events=1)
    sit(play, 1, "a")
    for _ in range(3):
        play.restart()
        play.sweep()
        play.wait(WAIT_MS - 1)
        play.sweep()
        assert sit(play, 2, "a") == {2: [0]}

    assert facts(play)[-2:] == [
        Seated("d", "a/1", "a", waited_us=(WAIT_MS - 1) * 1_000),
        Seated("d", "a/1", "a"),
    ]


@pytest.mark.spec("N6")
def test_of_two_who_are_away_each_has_its_own_time() -> None:
    play = cluster("priority")
    sit(play, 1, "a")
    play.restart()
    play.sweep()
    play.wait(WAIT_MS // 2)
    play.sweep()
    sit(play, 2, "b")
    play.restart()
    play.do(publish(1))
    play.wait(WAIT_MS // 2)

    assert sit(play, 3, "c") == {}, "b is waited for, and a is not any more"
    assert [fact.place for fact in facts(play) if isinstance(fact, Left)] == ["a/1"]
    play.wait(WAIT_MS // 2)
    assert delivered(play.do(SetDemand(3, 0))) == {3: [0]}


@pytest.mark.spec("N6", "D14")
def test_a_seat_that_was_left_in_order_waits_for_nobody() -> None:
    play = cluster("exclusive", events=1)
    sit(play, 1, "a")
    play.do(Detach(1))
    play.restart()

    assert not play.channel.state.awaits_seats
    assert sit(play, 1, "b") == {1: [0]}


@pytest.mark.spec("N6", "D14")
def test_an_administrator_may_unbind_a_seat_that_waits() -> None:
    play = cluster("exclusive", events=1)
    sit(play, 1, "a")
    play.restart()
    play.do(GiveUpSeats("d"))

    assert sit(play, 1, "b") == {1: [0]}


@pytest.mark.spec("N6")
def test_of_priority_clients_the_first_stays_the_first_whoever_comes_back_before() -> None:
    play = cluster("priority")
    for number, session in enumerate("abc", 1):
        sit(play, number, session)
    play.do(publish(2))
    play.restart()

    assert sit(play, 1, "c") == {}
    assert sit(play, 2, "b") == {}
    assert sit(play, 3, "a") == {3: [0, 1]}
    assert delivered(play.do(Detach(3))) == {2: [0, 1]}, "b came before c, the first time"


@pytest.mark.spec("N6")
def test_a_priority_client_need_not_wait_for_those_behind_it() -> None:
    play = cluster("priority", events=1)
    sit(play, 1, "a")
    sit(play, 2, "b")
    play.restart()

    assert sit(play, 1, "a") == {1: [0]}


@pytest.mark.spec("N6")
@pytest.mark.parametrize("order_by", ["", "k"])
def test_a_serial_durable_serves_nobody_until_all_its_clients_are_back(order_by: str) -> None:
    play = cluster("serial", events=2, order_by=order_by)
    sit(play, 1, "a", window=1)
    sit(play, 2, "b", window=1)
    play.restart()

    assert sit(play, 1, "b", window=1) == {}
    assert sit(play, 2, "c", window=1) == {}
    back = sit(play, 3, "a", window=1)
    assert [ids for ids in back.values()] == [[0]]


@pytest.mark.spec("N6")
def test_a_serial_durable_goes_on_without_those_who_do_not_come_back() -> None:
    play = cluster("serial", events=2)
    sit(play, 1, "a", window=1)
    sit(play, 2, "b", window=1)
    play.restart()
    assert sit(play, 1, "b", window=1) == {}
    play.wait(WAIT_MS)

    assert delivered(play.do(SetDemand(1, 0))) == {1: [0]}


@pytest.mark.spec("N6")
def test_whoever_holds_a_durable_as_a_whole_holds_it_over_a_takeover() -> None:
    play = cluster("shared", events=2)
    sit(play, 1, "a", sole=True)
    play.restart()

    with pytest.raises(DurableInUse, match="held as a whole by session a; its seat is reserved"):
        sit(play, 1, "b")
    sit(play, 2, "a", sole=True)
    play.do(HoldEvents(2, span(0, 1)))
    assert play.channel.state.durables["d"].in_flight_count == 2


@pytest.mark.spec("N6")
def test_where_a_seat_cannot_be_told_apart_or_all_are_served_nothing_is_written() -> None:
    for play in (cluster("shared"), cluster("exclusive", persistent=False)):
        sit(play, 1, "a")
        assert facts(play) == []
    play = cluster("exclusive")
    play.do(TakeSeat("d", 1, "a"))
    play.restart()
    assert sit(play, 1, "b") == {}
    assert [fact.place for fact in facts(play)] == ["b/1"]


@pytest.mark.spec("N6")
def test_seats_of_a_realm_without_a_cluster_wait_for_nobody() -> None:
    play = cluster("exclusive", events=1)
    sit(play, 1, "a")
    play.definition = Definition(type="persistent")
    play.channel.state.rules = rules()
    play.restart()

    assert sit(play, 1, "b") == {1: [0]}
    assert len(facts(play)) == 1, "a realm on one machine writes what it always wrote"


@pytest.mark.spec("N6")
def test_seats_wait_as_well_when_it_is_the_realm_that_ends_the_connections() -> None:
    play = cluster("exclusive", events=1)
    sit(play, 1, "a")
    play.do(Detach(1, comes_back=True))
    with pytest.raises(DurableInUse, match="its seat is reserved for"):
        sit(play, 2, "b")
    play.sweep()
    play.wait(3 * WAIT_MS)
    play.sweep()
    assert len(facts(play)) == 1, "nobody can come back, and no time counts"
    play.do(AwaitSeats())
    play.sweep()
    play.wait(WAIT_MS - 1)

    assert sit(play, 2, "a") == {2: [0]}
    assert not [fact for fact in facts(play) if isinstance(fact, Left)]


@pytest.mark.spec("N6")
def test_a_connection_whose_loss_nobody_has_noticed_leaves_its_seat_to_the_next() -> None:
    play = cluster("serial", events=2)
    sit(play, 1, "a", window=1)
    assert sit(play, 2, "a", window=1) == {}
    play.do(Detach(1))
    assert len(facts(play)) == 1, "the seat is not left"
    play.restart()

    assert sit(play, 1, "b", window=1) == {}
    back = sit(play, 2, "a", window=1)
    assert list(back.values()) == [[0]]


@pytest.mark.spec("N6")
def test_a_deleted_durable_keeps_no_seats() -> None:
    play = cluster("exclusive")
    sit(play, 1, "a")
    play.do(RemoveDurable("d"))
    play.do(AddDurable("d", "exclusive"))
    play.restart()

    assert sit(play, 1, "b") == {}


@pytest.mark.spec("N6", "D20")
@pytest.mark.parametrize("by_snapshot", [False, True])
def test_a_durable_is_where_it_was_moved_to_for_the_next_owner(by_snapshot: bool) -> None:
    play = cluster("exclusive", events=3)
    sit(play, 1, "a")
    play.do(Seek("d", 1))
    (play.restart_from_snapshot if by_snapshot else play.restart)()

    assert sit(play, 2, "a") == {2: [1, 2]}


@pytest.mark.spec("N6", "D20")
def test_a_durable_that_is_held_as_a_whole_is_not_moved_while_its_seat_waits() -> None:
    play = cluster("shared", events=3)
    sit(play, 1, "a", sole=True)
    play.restart()

    with pytest.raises(DurableInUse, match=r"session a, which keeps the position of.*is reserved"):
        play.do(Seek("d", 0))
    play.do(GiveUpSeats("d"))
    play.do(Seek("d", 3))
