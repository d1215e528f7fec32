"""Watches over the channels of patterns: existing ones, and those created later (SEM D21).

Leases over patterns, live views and clients of the native protocol find their channels with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.patterns import ChannelsWatched, WatchChannels
from penstock_core.vocabulary.choice import Choice, short_choice_of
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_core.vocabulary.names import durable_name
from penstock_server.runtime.store.state import RealmState

Allows = Callable[[str], bool]
"""Returns whether the watching client may read a channel of this name."""
Tell = Callable[[tuple[ChannelOpened, ...]], None]
"""Notifies the watching client of channels that it may read from now on."""


class ChannelWatch:
    """One client's watch over a pattern: the channels that it may read now, and their turns."""

    __slots__ = ("allows", "choice", "durable", "hidden", "next_channel", "shown", "tell")

    def __init__(
        self, choice: Choice, durable: str, allows: Allows, *, next_channel: int, tell: Tell
    ) -> None:
        self.choice = choice
        self.next_channel = next_channel
        """Channels with this id or a higher one are created after the watch began."""
        self.durable = durable
        self.allows = allows
        self.tell = tell
        self.shown: set[int] = set()
        """Channels of the pattern that the client may read."""
        self.hidden: set[int] = set()
        """Channels of the pattern that the client may not read, or that lack the durable."""

    def in_turn(self, channels: Iterable[int], after: int = 0) -> list[int]:
        """Return ``channels`` in round-robin order: the channel ``after`` is the last."""
        return sorted(channels, key=lambda number: (number <= after, number))


class ChannelWatches:
    """The watches of all clients. Creating a channel costs a check for each watch; using channels
    costs nothing."""

    def __init__(self, state: RealmState) -> None:
        self._state = state
        self._watches: dict[ChannelWatch, None] = {}

    def __len__(self) -> int:
        return len(self._watches)

    def begin(
        self, request: WatchChannels, allows: Allows, tell: Tell
    ) -> tuple[ChannelWatch, ChannelsWatched]:
        """Watch the channels of a pattern. Return the watch and the present channels; ``tell`` is
        called with channels that are created later.

        Raises ``InvalidName``, ``InvalidArgument``, and ``NameDoesNotExist`` if no channel of the
        pattern has the requested durable, and no durable of a pattern has its name.
        """
        durable = durable_name(request.durable) if request.durable else ""
        next_channel = self._state.directory.next_channel_id
        watch = ChannelWatch(
            short_choice_of(request.pattern), durable, allows, next_channel=next_channel, tell=tell
        )
        self._sort(watch, self._state.channels)
        pattern_durables = {durable.name for durable in self._state.directory.patterns}
        if durable and not watch.shown and durable not in pattern_durables:
            raise NameDoesNotExist(
                f"no channel of {watch.choice.text} that you may read has a durable {durable}; "
                "create it there first"
            )
        self._watches[watch] = None
        return watch, ChannelsWatched(next_channel, self.opened(watch.shown))

    def end(self, watch: ChannelWatch) -> None:
        """End a watch; its client gets no further notifications."""
        self._watches.pop(watch, None)

    # --- changes of channels and rights --------------------------------------------------

    def made(self, made: Sequence[tuple[int, str]]) -> None:
        """Notify the watches of new channels and durables, once they are stored. ``made`` has pairs
        of channel id and durable name; the name is empty for a new channel. Watches of a durable
        are notified again of its channel, because the durable may replace a deleted one."""
        for watch in list(self._watches):
            matching = {number for number, name in made if name in ("", watch.durable)}
            watch.shown -= matching
            self._tell(watch, self._sort(watch, matching))

    def deleted(self, channel: int) -> None:
        """Forget a deleted channel, whose id is not used again."""
        for watch in self._watches:
            watch.shown.discard(channel)
            watch.hidden.discard(channel)

    def rights_changed(self) -> None:
        """Check again which channels the watching clients may read."""
        for watch in list(self._watches):  # a copy, because a call of `tell` may end watches
            gained = self._sort(watch, tuple(watch.hidden))
            hidden_channels = {
                number for number in watch.shown if not self._may_read(watch, number)
            }
            watch.shown -= hidden_channels
            watch.hidden |= hidden_channels & self._state.channels.keys()
            self._tell(watch, gained)

    # --- one watch -----------------------------------------------------------------------

    def _sort(self, watch: ChannelWatch, channels: Iterable[int]) -> list[int]:
        """Sort channels into shown and hidden ones; return the shown ones in the order of their
        creation."""
        shown = []
        for number in sorted(channels):
            channel = self._state.channels.get(number)
            watch.hidden.discard(number)
            if channel is None or channel.state.definition.kind != "channel":
                continue
            if not self._state.directory.is_shown(number):
                continue
            if not watch.choice.takes(channel.state.name):
                continue
            if self._may_read(watch, number):
                watch.shown.add(number)
                shown.append(number)
            else:
                watch.hidden.add(number)
        return shown

    def _may_read(self, watch: ChannelWatch, number: int) -> bool:
        channel = self._state.channels.get(number)
        if channel is None:
            return False
        has_durable = not watch.durable or watch.durable in channel.state.durables
        return has_durable and watch.allows(channel.state.name)

    def _tell(self, watch: ChannelWatch, channels: Iterable[int]) -> None:
        opened = self.opened(channels)
        if opened:
            watch.tell(opened)

    def opened(self, channels: Iterable[int]) -> tuple[ChannelOpened, ...]:
        """Return descriptions of channels, in the order of their creation."""
        return tuple(self._state.opened(number) for number in sorted(channels))
