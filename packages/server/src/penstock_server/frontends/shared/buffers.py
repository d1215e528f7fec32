"""Limits how many bytes of incomplete requests are held in memory at once, in all and by user:
bodies over HTTP, frames of native clients, messages of AMQP clients, packets of MQTT clients.

Small ones are not counted, since there are no more of them than connections: signing in and
queries go on while large ones fill the rest. No user gets more than half of what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock_core.access.rights import ANONYMOUS, Principal
from penstock_core.vocabulary.errors import Unavailable

SMALL_BYTES: Final = 16 << 10
"""Bytes of each body that are not counted."""


class HeldBytes:
    """The bytes that one request, or one connection, holds."""

    __slots__ = ("_buffers", "_of", "counted")

    def __init__(self, buffers: Buffers, of: str) -> None:
        self._buffers = buffers
        self._of = of
        self.counted = 0
        """Bytes above the small size that is not counted."""

    def grow(self, size: int) -> None:
        """Take the size that it has reached. Raises ``Unavailable`` if that is too much."""
        self.counted += self._buffers.take(self._of, size, self.counted)

    def fits(self, size: int) -> bool:
        """Take a size, where 0 gives all back; returns whether there is room for it."""
        if not size:
            self.close()
        try:
            self.grow(size)
        except Unavailable:
            return False
        return True

    def close(self) -> None:
        """Give all of it back."""
        self._buffers.give_back(self._of, self.counted)
        self.counted = 0


class Buffers:
    """The requests that are being read, of all clients of a realm."""

    def __init__(self, bytes_max: int, small_bytes: int = SMALL_BYTES) -> None:
        """``small_bytes`` of each are not counted."""
        self._bytes_max = bytes_max
        self._small_bytes = small_bytes
        self._held: Counter[str] = Counter()

    def open(self, principal: Principal) -> HeldBytes:
        """Begin to count what one request of a user holds."""
        is_stranger = principal.user == ANONYMOUS
        return HeldBytes(self, principal.name if is_stranger else principal.user)

    @contextmanager
    def body(self, principal: Principal) -> Iterator[Callable[[int], None]]:
        """Count one body. Gives a function that takes the size it has reached, and raises
        ``Unavailable`` if that is too much."""
        held = self.open(principal)
        try:
            yield held.grow
        finally:
            held.close()

    def take(self, of: str, size: int, counted: int) -> int:
        """Count what ``size`` bytes of a user are more than the ``counted`` ones; returns that."""
        more = max(0, size - self._small_bytes) - counted
        if more <= 0:
            return 0
        self._check(of, more)
        self._held[of] += more
        return more

    def give_back(self, of: str, size: int) -> None:
        if size:
            self._held[of] -= size
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
