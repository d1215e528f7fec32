"""Limits how many bytes of request bodies are held in memory at once, in all and by user.

Small bodies are not counted, since there are no more of them than connections: signing in and
queries go on while large bodies fill the rest. No user gets more than half of what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock.core.access.rights import ANONYMOUS, Principal
from penstock.core.vocabulary.errors import Unavailable

SMALL_BYTES: Final = 16 << 10
"""Bytes of each body that are not counted."""


class Buffers:
    """The bodies that are being read, over all requests of a realm."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: Counter[str] = Counter()

    @contextmanager
    def body(self, principal: Principal) -> Iterator[Callable[[int], None]]:
        """Count one body. Gives a function that takes the size it has reached, and raises
        ``Unavailable`` if that is too much."""
        of = principal.name if principal.user == ANONYMOUS else principal.user
        counted = 0

        def grow(size: int) -> None:
            nonlocal counted
            more = max(0, size - SMALL_BYTES) - counted
            if more > 0:
                self._check(of, more)
                self._held[of] += more
                counted += more

        try:
            yield grow
        finally:
            self._held[of] -= counted
            if not self._held[of]:
                del self._held[of]

    def _check(self, of: str, more: int) -> None:
        left = self._bytes_max - self._held.total() - more
        if left < 0:
            raise Unavailable("too many large requests at once; try again in a moment")
        if self._held[of] + more > left:
            raise Unavailable(
                f"too many large requests of {of} at once; wait for the answers to some of them"
            )
