"""Recognizes a subscriber that resumes after a lost connection, by its link (SEM J5).

A link is identified by its name and the names of the containers, not by its connection (AMQP,
transport, 2.6.1): a client that attaches it again is the same subscriber.
"""

from __future__ import annotations

from typing import Protocol

from penstock_core.vocabulary.identities import ChannelId


class PlacedSubscriber(Protocol):
    """The consumer of a connected subscriber."""

    def stolen(self) -> None:
        """End its link, because its client has attached the link elsewhere."""
        ...


def place_of(user: str, container: str, link_name: str) -> str:
    """Return the key of a subscriber's place; empty if the peer has no container name. The user is
    part of it, because names are not secret."""
    return "\0".join(("amqp", user, container, link_name)) if container else ""


class SubscriberRegistry:
    """The connected subscribers by place."""

    def __init__(self) -> None:
        self._by_place: dict[tuple[int, str], PlacedSubscriber] = {}
        self._places: dict[PlacedSubscriber, tuple[int, str]] = {}

    def __len__(self) -> int:
        return len(self._by_place)

    def take(self, number: ChannelId, place: str, consumer: PlacedSubscriber) -> None:
        """Register a connected subscriber of a channel. A link of an earlier connection that still
        has the place, because its loss has not been detected yet, is stolen."""
        key = number, place
        former = self._by_place.get(key)
        if former is not None:
            self._places.pop(former, None)
            former.stolen()
        self._by_place[key] = consumer
        self._places[consumer] = key

    def remove(self, consumer: PlacedSubscriber) -> None:
        """Remove a subscriber that has left or lost its connection."""
        key = self._places.pop(consumer, None)
        if key is not None:
            del self._by_place[key]
