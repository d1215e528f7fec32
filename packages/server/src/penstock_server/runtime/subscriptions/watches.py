"""Watches over the channels of patterns: those that exist, and those that are created later (SEM
D21). A lease over a pattern, a live view and a client of the native protocol read their channels by
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.patterns import ChannelsWatched, WatchChannels
from penstock_core.vocabulary.choice import Choice, short_choice_of
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_core.vocabulary.names import durable_name
from penstock_server.runtime.store.state import RealmState

Allows = Callable[[str], bool]
"""Whether the watching client may read a channel of this name."""
Tell = Callable[[tuple[ChannelOpened, ...]], None]


class ChannelWatch:
    """One client's watch over a pattern: the channels that it may read now, and their turns."""

    __slots__ = ("allows", "choice", "durable", "hidden", "next_channel", "shown", "tell")

    def __init__(
        self, choice: Choice, durable: str, allows: Allows, *, next_channel: int, tell: Tell
    ) -> None:
        self.choice = choice
        self.next_channel = next_channel
        """Channels of this number or a higher one are created after the watch began."""
        self.durable = durable
        self.allows = allows
        self.tell = tell
        self.shown: set[int] = set()
        """Channels of the pattern that the client may read."""
        self.hidden: set[int] = set()
        """Channels of the pattern that it may not read, or that lack the durable."""

    def in_turn(self, channels: Iterable[int], after: int = 0) -> list[int]:
        """``channels`` in the order of their turns: that of the number ``after`` comes last."""
        return sorted(channels, key=lambda number: (number <= after, number))


class ChannelWatches:
    """The watches of all clients. A channel that is made costs a look at each; one that is used
    costs nothing."""

    def __init__(self, state: RealmState) -> None:
        self._state = state
        self._watches: dict[ChannelWatch, None] = {}

    def __len__(self) -> int:
        return len(self._watches)

    def begin(
        self, asked: WatchChannels, allows: Allows, tell: Tell
    ) -> tuple[ChannelWatch, ChannelsWatched]:
        """Watch a pattern; gives its channels, and ``tell`` is called with later ones.

        Raises ``InvalidName``, ``InvalidArgument``, and ``NameDoesNotExist`` for a durable that
        no channel of the pattern has, and that is over no pattern.
        """
        durable = durable_name(asked.durable) if asked.durable else ""
        next_channel = self._state.directory.next_channel_id
        watch = ChannelWatch(
            short_choice_of(asked.pattern), durable, allows, next_channel=next_channel, tell=tell
        )
        self._sort(watch, self._state.channels)
        patterns = self._state.directory.patterns
        if durable and not watch.shown and durable not in {each.name for each in patterns}:
            raise NameDoesNotExist(
                f"no channel of {watch.choice.text} that you may read has a durable {durable}; "
                "create it there first"
            )
        self._watches[watch] = None
        return watch, ChannelsWatched(next_channel, self.opened(watch.shown))

    def end(self, watch: ChannelWatch) -> None:
        """Tell it no more."""
        self._watches.pop(watch, None)

    # --- what happens --------------------------------------------------------------------

    def made(self, made: Sequence[tuple[int, str]]) -> None:
        """Durables of these channels and names were made, and channels, which have an empty name
        here; and this is stored. A durable may stand in the place of one that was deleted."""
        for watch in list(self._watches):
            mine = {number for number, name in made if name in ("", watch.durable)}
            watch.shown -= mine
            self._tell(watch, self._sort(watch, mine))

    def deleted(self, channel: int) -> None:
        """Forget a channel: its number does not come again."""
        for watch in self._watches:
            watch.shown.discard(channel)
            watch.hidden.discard(channel)

    def rights_changed(self) -> None:
        """Somebody may read more channels now, or fewer."""
        for watch in list(self._watches):
            gained = self._sort(watch, tuple(watch.hidden))
            lost = {each for each in watch.shown if not self._may_read(watch, each)}
            watch.shown -= lost
            watch.hidden |= lost & self._state.channels.keys()
            self._tell(watch, gained)

    # --- one watch -----------------------------------------------------------------------

    def _sort(self, watch: ChannelWatch, channels: Iterable[int]) -> list[int]:
        """Sort channels into those that the client may know of and others; gives the first ones,
        in the order of their creation."""
        found = []
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
                found.append(number)
            else:
                watch.hidden.add(number)
        return found

    def _may_read(self, watch: ChannelWatch, number: int) -> bool:
        channel = self._state.channels.get(number)
        if channel is None:
            return False
        has_it = not watch.durable or watch.durable in channel.state.durables
        return has_it and watch.allows(channel.state.name)

    def _tell(self, watch: ChannelWatch, found: Iterable[int]) -> None:
        opened = self.opened(found)
        if opened:
            watch.tell(opened)

    def opened(self, channels: Iterable[int]) -> tuple[ChannelOpened, ...]:
        """Descriptions of channels, in the order of their creation."""
        return tuple(self._state.opened(number) for number in sorted(channels))
