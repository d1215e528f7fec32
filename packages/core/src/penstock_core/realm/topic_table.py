"""The channels that MQTT messages are published to by topic, with a notification of changes
(SEM M12)."""

from __future__ import annotations

from collections.abc import Callable


def _ignore_change() -> None:
    """Ignore a change; the default of ``on_changed``."""


class TopicTable:
    """The channels with topics. It is updated when channels are created, edited or deleted."""

    def __init__(self) -> None:
        self.version = 0
        """Increases with each change; a reader notices changes by comparing two numbers."""
        self.since: dict[int, int] = {}
        """The first event id published after a channel got its topics, by the channel's id."""
        self.on_changed: Callable[[], None] = _ignore_change
        """Called after each change."""

    def note(self, channel_id: int, since: int, *, has_topics: bool) -> None:
        """Record a channel that was created or edited."""
        if has_topics:
            self.since[channel_id] = since
            self._notify()
        else:
            self.forget(channel_id)

    def forget(self, channel_id: int) -> None:
        """Remove a channel that has no topics any more or was deleted."""
        if self.since.pop(channel_id, None) is not None:
            self._notify()

    def _notify(self) -> None:
        self.version += 1
        self.on_changed()
