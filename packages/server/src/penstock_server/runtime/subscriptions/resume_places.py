"""The places of plain subscriptions that have lost their connection and may resume (SEM J5)."""

from __future__ import annotations

from collections.abc import Container, Mapping

from penstock_core.channel.channel import ChannelMachine
from penstock_core.messages.seats import AwaitSeats
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.writer.group import Group

Place = tuple[ChannelId, str]
"""A channel, and a name that the client has chosen."""


class ResumePlaces:
    """The newest subscription of each place."""

    def __init__(self) -> None:
        self._taken: dict[Place, int] = {}
        self._places: dict[int, Place] = {}
        """The inverse of ``_taken``: places by subscription."""

    def take(self, channel_id: ChannelId, place: str, subscription: int) -> int | None:
        """Assign a place to ``subscription``; return the subscription that had it before, if
        any."""
        former = self._taken.get((channel_id, place))
        if former is not None:
            del self._places[former]
        self._taken[channel_id, place] = subscription
        self._places[subscription] = channel_id, place
        return former

    def __contains__(self, subscription: int) -> bool:
        return subscription in self._places

    def forget(self, channels: Mapping[int, ChannelMachine], are_open: Container[int]) -> None:
        """Drop the places of subscriptions that are not open and that their channels no longer
        keep."""
        expired = []
        for place, subscription in self._taken.items():
            channel = channels.get(place[0])
            is_kept = channel is not None and subscription in channel.state.subscribers
            if not is_kept and subscription not in are_open:
                expired.append(place)
        for place in expired:
            del self._places[self._taken.pop(place)]


def await_seats(group: Group) -> None:
    """Start the timeout of waiting seats, whose sessions may come back until it ends (SEM N6)."""
    for channel_id, channel in group.state.channels.items():
        if channel.state.awaits_seats:
            group.do(channel_id, AwaitSeats())
