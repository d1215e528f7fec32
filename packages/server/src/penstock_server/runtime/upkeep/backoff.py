"""Pauses before work is retried after a failure of the disk."""

from __future__ import annotations


class RetryPauses:
    """Pauses that double with each failed attempt, up to a limit.

    An attempt costs as much as the work itself, because the bytes to be written are built again. So
    an attempt follows soon after a single failure, and attempts become rare on a disk that keeps
    failing.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = max(first_s, longest_s)
        self._next_s = first_s

    def failed(self) -> float:
        """Record a failed attempt; return the seconds until the next one."""
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._longest_s)
        return pause_s

    def record_success(self) -> None:
        """Record a successful attempt: the next pause is the first one again."""
        self._next_s = self._first_s
