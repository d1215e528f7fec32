"""Subscribers with selectors are served together, and one by one when an event may be for them."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from penstock_core.channel.channel import ChannelMachine
from penstock_core.ids.ids import Span
from penstock_core.messages.delivery import SetDemand, SingleOut, StallSession
from penstock_core.messages.publishing import Publish
from penstock_core.messages.seats import Detach
from penstock_core.messages.subscribers import AddSubscriber, Disconnect, GrantCredit
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.effects import Deliver, Effect, FindInterested, ReportEnd
from penstock_server.bootstrap import rules

pytestmark = pytest.mark.spec("E6")


class Following:
    """A channel, and the followers that may get the next events."""

    def __init__(self, count: int, *, engine: str = "default", credit: int = 100) -> None:
        self.channel = ChannelMachine("c", Definition(type="persistent", engine=engine), rules())
        self.state = self.channel.state
        for subscription in range(1, count + 1):
            self.add(subscription, credit=credit)
        assert self.offered() == []

    def add(self, subscription: int, *, credit: int = 100, start: int = 0) -> None:
        self.channel.attend(
            AddSubscriber(
                subscription, f"s{subscription}", start, credit=credit, is_selective=True
            ),
            0,
        )

    def publish(self, count: int = 1) -> None:
        command = Publish(Digest(count, 10, 10))
        for fact in self.channel.decide(command, 0).facts:
            self.channel.apply(fact)
        self.channel.attend(command, 0)

    def offered(self, interested: Collection[int] = ()) -> list[Effect]:
        """Return all effects that the channel offers."""
        effects: list[Effect] = []
        while self.channel.has_offers:
            for effect in self.channel.offer():
                effects.append(effect)
                if isinstance(effect, FindInterested):
                    self.channel.attend(SingleOut(tuple(interested)), 0)
        return effects

    @property
    def members(self) -> list[int]:
        return list(self.state.followers.members)


def test_nobody_is_offered_what_is_for_nobody() -> None:
    play = Following(1_000)

    play.publish()

    assert play.offered() == [FindInterested((Span(0, 1),))]
    assert len(play.members) == 1_000
    assert {subscriber.cursor for subscriber in play.state.subscribers.values()} == {1}


def test_whoever_an_event_may_be_for_gets_it_and_joins_the_others_again() -> None:
    play = Following(3)

    play.publish(2)
    effects = play.offered([2])

    assert effects == [FindInterested((Span(0, 2),)), Deliver(2, (Span(0, 2),))]
    assert sorted(play.members) == [1, 2, 3]
    play.publish()
    assert play.offered([1]) == [FindInterested((Span(2, 3),)), Deliver(1, (Span(2, 3),))]


def test_one_that_has_not_caught_up_is_served_by_itself() -> None:
    play = Following(1)
    play.publish(5)
    play.offered()

    play.add(2, credit=3)

    assert play.offered() == [Deliver(2, (Span(0, 3),))]
    assert play.members == [1]
    play.publish()
    assert play.offered([1]) == [FindInterested((Span(5, 6),)), Deliver(1, (Span(5, 6),))]
    play.channel.attend(GrantCredit(2, 10), 0)
    assert play.offered() == [Deliver(2, (Span(3, 6),))]
    assert sorted(play.members) == [1, 2]


def test_credit_is_spent_on_what_may_be_for_it_only() -> None:
    play = Following(2, credit=1)

    play.publish(3)
    assert play.offered() == [FindInterested((Span(0, 3),))]
    play.publish(3)
    effects = play.offered([1])

    assert effects == [FindInterested((Span(3, 6),)), Deliver(1, (Span(3, 4),))]
    assert play.members == [2]
    assert play.state.subscribers[1].cursor == 4


def test_a_stalled_session_gets_what_came_meanwhile_once_it_drains() -> None:
    play = Following(2)

    play.channel.attend(StallSession("s1", stalled=True), 0)
    play.publish()
    assert play.offered() == [FindInterested((Span(0, 1),))]
    play.channel.attend(StallSession("s1", stalled=False), 0)

    assert play.offered() == [Deliver(1, (Span(0, 1),))]
    assert sorted(play.members) == [1, 2]


@pytest.mark.parametrize("gone", [Detach(1), Disconnect(1)])
def test_one_that_leaves_is_no_follower(gone: Detach | Disconnect) -> None:
    play = Following(2)

    play.channel.attend(gone, 0)
    play.publish()

    assert play.offered() == [FindInterested((Span(0, 1),))]
    assert play.members == [2]


def test_one_that_asks_for_the_end_is_told_by_itself() -> None:
    play = Following(2)

    play.channel.attend(SetDemand(1, 0), 0)

    assert play.offered() == [ReportEnd(1)]
    assert sorted(play.members) == [1, 2]


def test_where_events_stay_for_whoever_waits_nobody_follows() -> None:
    play = Following(2, engine="jms")

    assert play.members == []


def test_what_is_left_behind_leaves_when_the_followers_have_passed() -> None:
    play = Following(2)
    play.publish(4)
    play.state.acked.add(Span(0, 4))
    play.state.removal_candidates.remove(Span(0, 4))

    play.offered()

    assert play.state.removal_candidates.spans == (Span(0, 4),)


def test_many_events_are_looked_at_in_parts() -> None:
    play = Following(2)
    play.publish(40_000)

    effects = play.offered()

    assert [effect for effect in effects if not isinstance(effect, FindInterested)] == []
    assert len(effects) == 3
    assert play.state.followers.cursor == 40_000
