"""Subscribers of the JMS engine that reconnect in time lose no event."""

from __future__ import annotations

import pytest

from packages.core.tests.engines.jms_channels import conserved, jms, live, removed_by_cause
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack
from penstock_core.messages.subscribers import AddSubscriber, Disconnect, GrantCredit
from penstock_testing.play import Play, delivered, publish, span

TIMEOUT_MS = 60_000


def absent(*, events: int = 3) -> Play:
    """Return a channel whose subscriber got the events 0 and 1 and lost its connection; then
    ``events`` more are published."""
    play = jms()
    play.do(AddSubscriber(1, "s", 0, credit=100))
    play.do(publish(2))
    play.do(Disconnect(1))
    if events:
        play.do(publish(events))
    return play


def back(play: Play, start_id: int = 0) -> dict[int, list[int]]:
    return delivered(play.do(AddSubscriber(2, "s", start_id, credit=100, resumes=1)))


@pytest.mark.spec("J5")
def test_what_it_missed_comes_when_it_is_back_once() -> None:
    play = absent()
    assert live(play) == [2, 3, 4]

    assert back(play) == {2: [2, 3, 4]}

    assert live(play) == []
    assert delivered(play.do(publish())) == {2: [5]}
    assert play.channel.state.absent == 0
    assert conserved(play)


@pytest.mark.spec("J5")
def test_the_window_ends() -> None:
    play = absent()
    play.wait(TIMEOUT_MS - 1)
    play.sweep()
    assert live(play) == [2, 3, 4]
    play.wait(1)
    play.sweep()
    play.sweep()

    assert live(play) == []
    assert removed_by_cause(play) == {"dropped": 5}
    assert (play.channel.state.absent, play.channel.state.subscribers) == (0, {})
    assert back(play) == {}
    assert delivered(play.do(publish())) == {2: [5]}


@pytest.mark.spec("J5")
def test_a_subscriber_that_closes_keeps_nothing() -> None:
    play = jms()
    play.do(AddSubscriber(1, "s", 0, credit=0))
    play.do(publish(2))

    play.do(Detach(1))
    play.do(publish())

    assert live(play) == []
    assert back(play) == {}


@pytest.mark.spec("J5")
def test_an_event_with_a_ttl_waits_that_long_instead() -> None:
    play = absent(events=0)
    play.do(publish(3, ttls=((1_000, (span(0),)), (120_000, (span(2),)))))

    play.wait(1_000)
    play.sweep()
    play.sweep()
    assert live(play) == [3, 4]
    play.wait(TIMEOUT_MS - 1_000)
    play.sweep()
    play.sweep()
    assert live(play) == [4]
    play.do(publish())
    assert live(play) == [4]
    assert back(play) == {2: [4]}


@pytest.mark.spec("J5")
def test_a_long_ttl_ends_too() -> None:
    play = absent(events=0)
    play.do(publish(1, ttls=((120_000, (span(0),)),)))

    play.wait(120_000)
    play.sweep()
    play.sweep()

    assert (live(play), play.channel.state.subscribers) == ([], {})


@pytest.mark.spec("J5")
def test_what_was_sent_and_has_not_arrived_is_sent_again() -> None:
    play = jms()
    play.do(AddSubscriber(1, "s", 0, credit=100, confirms=True))
    play.do(publish(5))
    assert live(play) == [0, 1, 2, 3, 4]
    play.do(GrantCredit(1, 0, next_id=2))
    assert live(play) == [2, 3, 4]

    play.do(Disconnect(1))

    assert delivered(play.do(AddSubscriber(2, "s", 3, credit=100, confirms=True, resumes=1))) == {
        2: [3, 4]
    }
    play.do(GrantCredit(2, 0, next_id=5))
    assert live(play) == []
    assert conserved(play)


@pytest.mark.spec("J5")
@pytest.mark.parametrize("acknowledged", ["before", "with the loss"])
def test_what_has_arrived_out_of_order_is_not_sent_again(acknowledged: str) -> None:
    """The event is still stored, because other clients need it."""
    play = jms()
    play.do(AddDurable("d", "shared"))
    play.do(AddSubscriber(1, "s", 0, credit=100, confirms=True))
    play.do(publish(5))
    arrived = (span(1), span(3))
    if acknowledged == "before":
        play.do(GrantCredit(1, 0, arrived=arrived))
        play.do(Disconnect(1))
    else:
        play.do(Disconnect(1, arrived))
    play.do(GrantCredit(1, 0, arrived=arrived))  # on its way when the connection was lost
    play.do(publish(1))

    assert back(play) == {2: [0, 2, 4, 5]}
    assert delivered(play.do(publish(1))) == {2: [6]}
    assert conserved(play)


@pytest.mark.spec("J5")
def test_what_has_arrived_out_of_order_is_kept_for_nobody() -> None:
    play = jms()
    play.do(AddSubscriber(1, "s", 0, credit=100, confirms=True))
    play.do(publish(4))

    play.do(Disconnect(1, (span(1), span(3))))
    play.sweep()

    assert live(play) == [0, 2]
    assert conserved(play)


@pytest.mark.spec("J5")
def test_it_may_be_back_before_its_loss_is_noticed() -> None:
    play = jms()
    play.do(AddSubscriber(1, "s", 0, credit=2, confirms=True))
    play.do(publish(4))

    assert back(play, 1) == {2: [1, 2, 3]}

    play.do(Disconnect(1))
    play.do(Detach(1))
    assert delivered(play.do(publish())) == {2: [4]}
    assert play.channel.state.absent == 0


@pytest.mark.spec("J5", "J6")
def test_others_are_not_held_up_and_hold_nothing_up() -> None:
    play = absent(events=0)
    play.do(AddDurable("d", "shared"))
    play.do(TakeSeat("d", 7, "w", window=100))
    play.do(publish(3))
    play.do(Ack(7, (span(2, 4),)))
    assert live(play) == [2, 3, 4]

    assert back(play) == {2: [2, 3, 4]}
    play.sweep()

    assert live(play) == []
    assert removed_by_cause(play) == {"dropped": 2, "consumed": 3}


@pytest.mark.spec("J5")
@pytest.mark.parametrize("selector", ["", "x"])
def test_what_it_was_absent_too_long_for_does_not_come_though_another_still_wants_it(
    selector: str,
) -> None:
    play = jms()
    play.do(AddDurable("d", "shared"))
    play.do(AddSubscriber(1, "s", 0, credit=100, selector=selector, confirms=True))
    play.do(Disconnect(1))
    all_of = {"x": (span(0, 1),)}
    play.do(publish(2, ttls=((90_000, (span(1),)),), matched=all_of))
    play.wait(TIMEOUT_MS)
    play.do(publish(2, matched=all_of))
    assert live(play) == [0, 1, 2, 3]
    again = AddSubscriber(2, "s", 0, credit=100, selector=selector, confirms=True, resumes=1)

    assert delivered(play.do(again)) == {2: [1]}

    assert delivered(play.do(publish(2, matched=all_of))) == {2: [4, 5]}
    play.do(Disconnect(2))
    once_more = AddSubscriber(3, "s", 0, credit=100, selector=selector, confirms=True, resumes=2)
    assert delivered(play.do(once_more)) == {3: [1, 4, 5]}


@pytest.mark.spec("J5")
def test_credit_that_comes_late_is_for_nobody() -> None:
    play = absent()

    assert play.do(GrantCredit(1, 100)) == []

    assert back(play) == {2: [2, 3, 4]}


@pytest.mark.spec("J5", "J1")
def test_the_default_engine_knows_no_absence() -> None:
    play = jms()
    play.channel.state.engine = play.rules.engines["default"]
    play.do(AddSubscriber(1, "s", 0, credit=10, confirms=True))
    play.do(publish(2))

    assert not play.channel.state.subscribers[1].confirms
