"""The places of plain subscriptions that have lost their connection and may resume (SEM J5)."""

from __future__ import annotations

from collections.abc import Container, Mapping

from penstock_core.channel.channel import ChannelMachine
from penstock_core.messages.seats import AwaitSeats
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.writer.group import Group

Place = tuple[ChannelId, str]
"""A channel, and a name that the client gives."""


class ResumePlaces:
    """The newest subscription of each place."""

    def __init__(self) -> None:
        self._taken: dict[Place, int] = {}
        self._places: dict[int, Place] = {}
        """The place of each of these subscriptions."""

    def take(self, channel_id: ChannelId, place: str, subscription: int) -> int | None:
        """The subscription whose place on channel ``channel_id`` ``subscription`` takes."""
        former = self._taken.get((channel_id, place))
        if former is not None:
            del self._places[former]
        self._taken[channel_id, place] = subscription
        self._places[subscription] = channel_id, place
        return former

    def __contains__(self, subscription: int) -> bool:
        return subscription in self._places

    def forget(self, channels: Mapping[int, ChannelMachine], are_open: Container[int]) -> None:
        """Drop those that nobody waits for any more on their channels, and that are not open."""
        over = []
        for key, subscription in self._taken.items():
            channel = channels.get(key[0])
            is_there = channel is not None and subscription in channel.state.subscribers
            if not is_there and subscription not in are_open:
                over.append(key)
        for key in over:
            del self._places[self._taken.pop(key)]


def await_seats(group: Group) -> None:
    """Let the seats that wait for their sessions do so from now on (SEM N6)."""
    for channel_id, channel in group.state.channels.items():
        if channel.state.awaits_seats:
            group.do(channel_id, AwaitSeats())
