"""How long to wait after the disk has refused, before work is tried again."""

from __future__ import annotations


class RetryPauses:
    """Pauses that double while every try fails, up to a bound.

    A try costs as much as the work itself, for what is to be written is made anew: on a disk that
    fails for long the tries become rare, and one that failed once is soon tried again.
    """

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = max(first_s, most_s)
        self._next_s = first_s

    def failed(self) -> float:
        """A try has failed: seconds until the next one."""
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._most_s)
        return pause_s

    def succeeded(self) -> None:
        self._next_s = self._first_s
