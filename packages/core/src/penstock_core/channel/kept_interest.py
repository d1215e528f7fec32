"""Interest of JMS subscribers over a failover: their connections count as lost, and they may
reconnect.

On the JMS engine an event stays while a subscriber waits for it. In a cluster the subscribers are
recorded in facts, so that the next owner keeps new events until they reconnect, for as long as
after any lost connection (SEM J5). Events that only passed through the memory of the former owner
are lost (SEM J4).
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
    """Return the fact that records new or changed interest of a subscriber; none if the command
    changes no recorded interest."""
    if not (state.rules.is_cluster and state.engine.needs_interest):
        return Decided()
    match command:
        case AddKnownSubscriber(place=place, stop_id=None, selector=selector) if place:
            recorded = state.places.get(place)
            if recorded is None or recorded.selector != selector:
                interested = Interested(place, command.session, state.next_id, selector=selector)
                return Decided((interested,))
        case SetDemand(subscription, 0) if subscription in state.subscribers:
            recorded = state.places.get(state.subscribers[subscription].place)
            if recorded is not None and not recorded.pulls:
                return Decided((replace(recorded, pulls=True),))
        case _:
            pass
    return Decided()


def decide_ended(state: ChannelState, subscription: int) -> Decided:
    """Return the fact that a subscriber has left."""
    subscriber = state.subscribers.get(subscription)
    if subscriber is None or subscriber.place not in state.places:
        return Decided()
    return Decided((InterestEnded(subscriber.place),))


def interest_over(state: ChannelState) -> tuple[InterestEnded, ...]:
    """Return the facts that end the interest of subscribers that did not reconnect in time."""
    if not state.places_over:
        return ()
    current = {subscriber.place for subscriber in state.subscribers.values()}
    return tuple(InterestEnded(place) for place in state.places if place not in current)


def recovered(state: ChannelState) -> None:
    """Add the recorded subscribers as disconnected subscribers, after all facts were applied.

    The interest of a subscriber with a selector begins now, because no node knows which of the
    stored events it matches. A realm without a cluster forgets its subscribers.
    """
    if not (state.rules.is_cluster and state.engine.needs_interest):
        state.places.clear()
    for place_number, interested in enumerate(state.places.values(), 1):
        subscriber = Subscriber(
            # The number is negative, so that it differs from those of open subscriptions.
            -place_number,
            interested.session,
            interested.first_id,
            stop_id=None,
            credit=0,
            confirms=True,
            selector=interested.selector,
        )
        subscriber.place, subscriber.pulls = interested.place, interested.pulls
        subscriber.taken_over_at = state.next_id
        subscriber.lost_us = UNKNOWN_US
        state.add_subscriber(subscriber)
        state.absent += 1


UNKNOWN_US = -1
"""Marks an unknown time of disconnection; the next sweep replaces it by the time of the sweep."""


def former_of(state: ChannelState, command: AddSubscriber) -> int | None:
    """Return the subscription whose place ``command`` takes over, or None."""
    if command.resumes is not None or not isinstance(command, AddKnownSubscriber):
        return command.resumes
    for subscription, subscriber in state.subscribers.items():
        if command.place and subscriber.place == command.place and subscriber.lost_us is not None:
            return subscription
    return None


def first_id(former: Subscriber, command: AddSubscriber) -> int:
    """Return the id at which a subscriber continues.

    After a failover only the client can know which stored events it has received. A client that
    does not know continues with the events published since the failover.
    """
    continues = isinstance(command, AddKnownSubscriber) and command.goes_on
    if former.taken_over_at is not None and not continues:
        return former.taken_over_at
    return max(former.cursor, command.start_id)
