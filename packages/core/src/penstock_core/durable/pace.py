"""Pace: the faster a client acknowledges, the larger its default window becomes (SEM D9).

A client may hold as many events as it processes in a short time, whatever the cost of an event and
the latency of its connection; the window of a TCP connection adapts in the same way. If an event is
much work for a client, the client keeps its first window, so other clients get their share. A fast
client does not wait for the realm between two windows.
"""

from __future__ import annotations

from typing import Final

GROWN_MAX: Final = 5_000
"""Largest window that a fast client reaches by growth, in events."""
SHORT_US: Final = 200_000
"""A client that settles a window of events within this time gets a window twice as large."""
LONG_US: Final = 4 * SHORT_US
"""A client that needs longer than this to settle a window of events gets half of the window. The
distance from ``SHORT_US`` prevents windows that change back and forth."""


class Pace:
    """The speed at which one client settles events."""

    __slots__ = ("_before", "_since_us", "_smallest")

    def __init__(self, smallest: int, now_us: int) -> None:
        self._smallest = smallest
        self._since_us = now_us
        """Start of the current measurement."""
        self._before = 0
        """Number of events that were settled before the current measurement."""

    def window(self, window: int, settled: int, now_us: int) -> int:
        """Return the new window for the current ``window``. ``settled`` is the number of events
        since the attach that the client does not hold any more."""
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
        """Return the first window again, after the client has rolled events back."""
        self._since_us, self._before = now_us, settled
        return self._smallest
