"""The places of plain subscriptions that have lost their connection and may resume (SEM J5)."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.channel.awaited_seats import AwaitSeats
from penstock.core.vocabulary.identities import ChannelId
from penstock.runtime.writer.group import Group


class ResumePlaces:
    """The newest subscription of each place; a place is a channel and a name the client gives."""

    def __init__(self) -> None:
        self._taken: dict[tuple[ChannelId, str], int] = {}

    def take(self, channel_id: ChannelId, place: str, subscription: int) -> int | None:
        """The subscription whose place on channel ``channel_id`` ``subscription`` takes."""
        former = self._taken.get((channel_id, place))
        self._taken[channel_id, place] = subscription
        return former

    def __contains__(self, subscription: int) -> bool:
        return subscription in self._taken.values()

    def forget(self, is_over: Callable[[ChannelId, int], bool]) -> None:
        """Drop those for which ``is_over(channel, subscription)``."""
        over = [key for key, subscription in self._taken.items() if is_over(key[0], subscription)]
        for key in over:
            del self._taken[key]


def await_seats(group: Group) -> None:
    """Let the seats that wait for their sessions do so from now on (SEM N6)."""
    for channel_id, channel in group.state.channels.items():
        if channel.state.awaits_seats:
            group.do(channel_id, AwaitSeats())
