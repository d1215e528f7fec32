"""Pace: the window of a client that asked for none grows by what it acknowledges (SEM D9).

What a client may hold is what it works off in a short time, whatever an event costs it and however
long the way to it is, as a connection's window is in TCP. A client to which one event is much work
keeps the window it began with, so its colleagues get their share; one to which it is little does
not wait for the realm between two windows.
"""

from __future__ import annotations

from typing import Final

GROWN_MAX: Final = 5_000
"""The largest window that is not asked for, in events."""
SHORT_US: Final = 200_000
"""A client that settles a window in no more than this gets one twice as large."""
LONG_US: Final = 4 * SHORT_US
"""A client that takes longer than this for a window gets half of it."""


class Pace:
    """How fast one client settles what it is given."""

    __slots__ = ("_before", "_since_us", "_smallest")

    def __init__(self, smallest: int, now_us: int) -> None:
        self._smallest = smallest
        self._since_us = now_us
        self._before = 0

    def window(self, window: int, settled: int, now_us: int) -> int:
        """The window from now on; ``settled`` are all events that the client has had and has no
        more, since it attached."""
        took_us = now_us - self._since_us
        if settled - self._before >= window:
            if took_us <= SHORT_US:
                window = max(window, min(2 * window, GROWN_MAX))
        elif took_us <= LONG_US:
            return window
        if took_us > LONG_US:
            window = max(self._smallest, window // 2)
        self._since_us, self._before = now_us, settled
        return window

    def again(self, settled: int, now_us: int) -> int:
        """The window after the client has given something back: the one it began with."""
        self._since_us, self._before = now_us, settled
        return self._smallest
