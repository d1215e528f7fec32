"""The places of plain subscriptions that have lost their connection and may resume (SEM J5)."""

from __future__ import annotations

from collections.abc import Container, Mapping

from penstock_core.channel.channel import ChannelMachine
from penstock_core.messages.seats import AwaitSeats
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.writer.group import Group

Place = tuple[ChannelId, str]
"""Identifies a subscription over several connections: its channel, and a name that the client has
chosen."""


class ResumePlaces:
    """The newest subscription of each place."""

    def __init__(self) -> None:
        self._subscriptions: dict[Place, int] = {}
        """The newest subscription by its place."""
        self._places: dict[int, Place] = {}
        """The inverse mapping: places by subscription."""

    def take(self, channel_id: ChannelId, place: str, subscription: int) -> int | None:
        """Assign a place to ``subscription``; return the subscription that had it before, if
        any."""
        former = self._subscriptions.get((channel_id, place))
        if former is not None:
            del self._places[former]
        self._subscriptions[channel_id, place] = subscription
        self._places[subscription] = channel_id, place
        return former

    def __contains__(self, subscription: int) -> bool:
        return subscription in self._places

    def forget(self, channels: Mapping[int, ChannelMachine], are_open: Container[int]) -> None:
        """Drop the places of subscriptions that are not open and that their channels no longer
        have."""
        expired = []
        for place, subscription in self._subscriptions.items():
            channel = channels.get(place[0])
            is_kept = channel is not None and subscription in channel.state.subscribers
            if not is_kept and subscription not in are_open:
                expired.append(place)
        for place in expired:
            del self._places[self._subscriptions.pop(place)]


def await_seats(group: Group) -> None:
    """Start the timeout of seats without a connection. Until it ends, their sessions may come back
    (SEM N6)."""
    for channel_id, channel in group.state.channels.items():
        if channel.state.awaits_seats:
            group.do(channel_id, AwaitSeats())
