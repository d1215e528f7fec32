"""How a subscriber is recognised when it comes back after a lost connection: by its link (SEM J5).

A link is identified by the names of the containers and its own, not by its connection (AMQP,
transport, 2.6.1): whoever attaches it again is the same subscriber.
"""

from __future__ import annotations

from typing import Protocol

from penstock_core.vocabulary.identities import ChannelId


class PlacedSubscriber(Protocol):
    """The consumer of a subscriber that is connected."""

    def stolen(self) -> None:
        """End its link, because its client has attached the link elsewhere."""
        ...


def place_of(user: str, container: str, link_name: str) -> str:
    """The key of a subscriber's place; empty if the peer has no container name. The user is part of
    it, since names are not secret."""
    return "\0".join(("amqp", user, container, link_name)) if container else ""


class SubscriberRegistry:
    """The subscribers that are connected, by place."""

    def __init__(self) -> None:
        self._taken: dict[tuple[int, str], PlacedSubscriber] = {}
        self._of: dict[PlacedSubscriber, tuple[int, str]] = {}

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, number: ChannelId, place: str, consumer: PlacedSubscriber) -> None:
        """Note that a subscriber of a channel is connected. If its place is taken by a connection
        whose loss nobody has noticed yet, that one's link is stolen."""
        key = number, place
        former = self._taken.get(key)
        if former is not None:
            self._of.pop(former, None)
            former.stolen()
        self._taken[key] = consumer
        self._of[consumer] = key

    def left(self, consumer: PlacedSubscriber) -> None:
        """Note that a subscriber has left, or lost its connection."""
        key = self._of.pop(consumer, None)
        if key is not None:
            del self._taken[key]
