"""The interest of a JMS engine's subscriber survives the failure of its node."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock_core.channel.channel import ChannelMachine
from penstock_core.messages.delivery import SetDemand
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack
from penstock_core.messages.subscribers import (
    AddKnownSubscriber,
    AddSubscriber,
    Disconnect,
    GrantCredit,
    Interested,
    InterestEnded,
)
from penstock_core.messages.unions import StoredFact
from penstock_core.vocabulary.definitions import Definition
from penstock_server.bootstrap import rules
from penstock_testing.play import Play, delivered, publish, span

TIMEOUT_MS = 60_000


def cluster(*, type_: str = "persistent") -> Play:
    """Return a channel of a cluster with the JMS engine."""
    everywhere = replace(rules(), is_cluster=True)
    definition = Definition(type=type_, engine="jms", cluster_wide=True)
    return Play(ChannelMachine("orders", definition, everywhere))


def listen(
    play: Play, subscription: int, start_id: int = 0, *, goes_on: bool = False, selector: str = ""
) -> dict[int, list[int]]:
    command = AddKnownSubscriber(
        subscription,
        "s",
        start_id,
        credit=100,
        confirms=True,
        selector=selector,
        place="s/1",
        goes_on=goes_on,
    )
    return delivered(play.do(command))


def facts(play: Play) -> list[StoredFact]:
    return [fact for fact in play.recorded if isinstance(fact, Interested | InterestEnded)]


def take_over(play: Play, *, by_snapshot: bool = False) -> None:
    (play.restart_from_snapshot if by_snapshot else play.restart)()


@pytest.mark.spec("J5", "N7")
@pytest.mark.parametrize("by_snapshot", [False, True])
def test_what_is_published_until_a_subscriber_is_back_comes_to_it_once(by_snapshot: bool) -> None:
    play = cluster()
    listen(play, 1)
    assert delivered(play.do(publish(2))) == {1: [0, 1]}
    play.do(GrantCredit(1, 0, next_id=2))
    take_over(play, by_snapshot=by_snapshot)
    first = play.channel.state.next_id
    play.do(publish(3))

    assert listen(play, 1, 2, goes_on=True) == {1: [first, first + 1, first + 2]}
    play.do(GrantCredit(1, 0, next_id=first + 3))
    assert len(play.channel.state.stored) == 0
    assert len(facts(play)) == 1, "it has waited all the time"


@pytest.mark.spec("J5", "N7")
def test_the_window_runs_from_the_takeover() -> None:
    play = cluster()
    listen(play, 1)
    play.wait(5 * TIMEOUT_MS)
    take_over(play)
    play.do(publish(3))
    play.wait(TIMEOUT_MS - 1)
    play.sweep()
    assert len(play.channel.state.stored) == 3
    play.wait(1)
    play.sweep()
    play.sweep()

    assert len(play.channel.state.stored) == 0
    assert facts(play)[1:] == [InterestEnded("s/1")]
    take_over(play)
    assert not play.channel.state.subscribers


@pytest.mark.spec("J2", "N7")
def test_nobody_waits_for_a_subscriber_that_has_left() -> None:
    play = cluster()
    listen(play, 1)
    play.do(Detach(1))
    take_over(play)
    play.do(publish())

    assert len(play.channel.state.stored) == 0
    assert facts(play)[1:] == [InterestEnded("s/1")]


@pytest.mark.spec("J5", "N7")
def test_a_lost_connection_and_then_a_lost_owner_are_one_absence() -> None:
    play = cluster()
    listen(play, 1)
    play.do(Disconnect(1))
    take_over(play)
    first = play.channel.state.next_id
    play.do(publish())

    assert listen(play, 1, 0, goes_on=True) == {1: [first]}


@pytest.mark.spec("J5", "N7")
@pytest.mark.parametrize(("goes_on", "comes"), [(True, [1, 2]), (False, [2])])
def test_what_was_stored_comes_to_who_knows_where_to_go_on_and_never_twice(
    goes_on: bool, comes: list[int]
) -> None:
    play = cluster()
    play.do(AddDurable("d", "shared"))
    listen(play, 1)
    play.do(publish(2))
    play.do(GrantCredit(1, 0, next_id=1))
    take_over(play)
    play.do(publish())

    assert listen(play, 1, 1 if goes_on else 0, goes_on=goes_on) == {1: comes}
    play.do(GrantCredit(1, 0, next_id=3))
    play.do(TakeSeat("d", 2, "t"))
    play.do(Ack(2, (span(0, 2),)))
    assert len(play.channel.state.stored) == 0


@pytest.mark.spec("J4", "N7")
def test_what_was_only_passing_is_gone() -> None:
    play = cluster()
    play.do(AddKnownSubscriber(1, "s", 0, credit=0, confirms=True, place="s/1"))
    play.do(publish(2))
    take_over(play)

    assert listen(play, 1, 0, goes_on=True) == {}


@pytest.mark.spec("J5", "N7")
def test_what_a_synchronous_consumer_waits_for_is_stored_for_the_next_owner_too() -> None:
    play = cluster()
    play.do(AddKnownSubscriber(1, "s", 0, credit=0, confirms=True, place="s/1"))
    play.do(SetDemand(1, 0))
    play.do(SetDemand(1, 0))
    play.do(publish(2))
    assert [fact.pulls for fact in facts(play) if isinstance(fact, Interested)] == [False, True]
    take_over(play)
    play.do(publish())
    take_over(play)

    assert listen(play, 1, 0, goes_on=True) == {1: [0, 1, 2]}


@pytest.mark.spec("J2", "N7")
def test_a_subscriber_with_a_selector_waits_for_what_it_matches() -> None:
    play = cluster()
    listen(play, 1, selector="even")
    take_over(play)
    assert play.channel.state.chosen_by == {"even"}
    first = play.channel.state.next_id
    play.do(publish(4, matched={"even": (span(0), span(2))}))

    assert listen(play, 1, 0, goes_on=True, selector="even") == {1: [first, first + 2]}


@pytest.mark.spec("J5", "N7")
def test_who_comes_back_with_another_selector_is_another_subscriber() -> None:
    play = cluster()
    listen(play, 1, selector="even")
    take_over(play)
    play.do(publish(2, matched={"even": (span(0),)}))

    assert listen(play, 1, 0, goes_on=True) == {}
    assert [subscriber.subscription for subscriber in play.channel.state.subscribers.values()] == [
        1
    ]
    assert [fact.selector for fact in facts(play) if isinstance(fact, Interested)] == ["even", ""]


@pytest.mark.spec("N7")
def test_nothing_is_written_where_nobody_can_come_back() -> None:
    play = cluster()
    play.do(AddSubscriber(1, "s", 0, credit=9))
    play.do(AddKnownSubscriber(2, "s", 0, credit=9))
    play.do(AddKnownSubscriber(3, "s", 0, stop_id=9, place="s/3"))
    assert facts(play) == []
    default = Definition(type="persistent", cluster_wide=True)
    second_play = Play(ChannelMachine("orders", default, play.rules))
    listen(second_play, 1)
    assert facts(second_play) == []
    alone = Play(ChannelMachine("orders", Definition(engine="jms"), rules()))
    listen(alone, 1)
    assert facts(alone) == []


@pytest.mark.spec("N7")
def test_a_realm_without_a_cluster_forgets_its_subscribers_with_a_restart() -> None:
    play = cluster()
    listen(play, 1)
    play.definition = Definition(type="persistent", engine="jms")
    play.channel.state.rules = rules()
    take_over(play)

    assert not play.channel.state.subscribers
    assert play.channel.failover_facts() == ()
