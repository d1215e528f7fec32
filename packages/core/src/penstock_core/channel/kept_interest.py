"""Subscribers of the JMS engine over the end of an owner: they count as lost, and may come back.

On the JMS engine an event stays while somebody waits for it. In a cluster it is a fact who does, so
that the next owner keeps what is published until the subscriber is back, for as long as after any
lost connection (SEM J5). What was only passing through the memory of the former owner is gone (SEM
J4).
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock_core.channel.decided import Decided
from penstock_core.channel.state import ChannelState
from penstock_core.durable.subscriber import Subscriber
from penstock_core.messages.delivery import SetDemand
from penstock_core.messages.kinds import Command
from penstock_core.messages.subscribers import (
    AddKnownSubscriber,
    AddSubscriber,
    Interested,
    InterestEnded,
)


def decide_interest(state: ChannelState, command: Command) -> Decided:
    """The fact that somebody waits for events, in another way than the facts so far say."""
    if not (state.rules.is_cluster and state.engine.needs_interest):
        return Decided()
    match command:
        case AddKnownSubscriber(place=place, stop_id=None, selector=selector) if place:
            known = state.places.get(place)
            if known is None or known.selector != selector:
                interested = Interested(place, command.session, state.next_id, selector=selector)
                return Decided((interested,))
        case SetDemand(subscription, 0) if subscription in state.subscribers:
            known = state.places.get(state.subscribers[subscription].place)
            if known is not None and not known.pulls:
                return Decided((replace(known, pulls=True),))
        case _:
            pass
    return Decided()


def decide_ended(state: ChannelState, subscription: int) -> Decided:
    """The fact that a subscriber has left."""
    subscriber = state.subscribers.get(subscription)
    if subscriber is None or subscriber.place not in state.places:
        return Decided()
    return Decided((InterestEnded(subscriber.place),))


def interest_over(state: ChannelState) -> tuple[InterestEnded, ...]:
    """The facts that nobody waits any more for those who did not come back in time."""
    if not state.places_over:
        return ()
    there = {subscriber.place for subscriber in state.subscribers.values()}
    return tuple(InterestEnded(place) for place in state.places if place not in there)


def recovered(state: ChannelState) -> None:
    """Everybody who waited has lost the connection. What a subscriber with a selector waits for
    begins here: nobody knows what it matches of the events that are stored. A realm without a
    cluster forgets its subscribers."""
    if not (state.rules.is_cluster and state.engine.needs_interest):
        state.places.clear()
    for number, kept in enumerate(state.places.values(), 1):
        subscriber = Subscriber(
            -number,
            kept.session,
            kept.first_id,
            stop_id=None,
            credit=0,
            confirms=True,
            selector=kept.selector,
        )
        subscriber.place, subscriber.pulls = kept.place, kept.pulls
        subscriber.taken_over_at = state.next_id
        subscriber.lost_us = UNKNOWN_US
        state.add_subscriber(subscriber)
        state.absent += 1


UNKNOWN_US = -1
"""When somebody was lost, until a sweep looks at the clock."""


def former_of(state: ChannelState, command: AddSubscriber) -> int | None:
    """The number of the subscriber whose place ``command`` takes, if one waits for that."""
    if command.resumes is not None or not isinstance(command, AddKnownSubscriber):
        return command.resumes
    for number, subscriber in state.subscribers.items():
        if command.place and subscriber.place == command.place and subscriber.lost_us is not None:
            return number
    return None


def first_id(former: Subscriber, command: AddSubscriber) -> int:
    """Where a subscriber goes on. A former owner may have known what it had of the stored events,
    if its client does not: then it gets what was published since."""
    goes_on = isinstance(command, AddKnownSubscriber) and command.goes_on
    if former.taken_over_at is not None and not goes_on:
        return former.taken_over_at
    return max(former.cursor, command.start_id)
