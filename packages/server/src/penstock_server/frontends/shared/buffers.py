"""Limits the memory of incomplete requests, in total and per user: HTTP bodies, native frames, AMQP
messages and MQTT packets.

Small requests are not counted, because the number of connections limits them. So sign-ins and
queries work even while large requests use all counted bytes. A user gets at most half of the bytes
that are free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock_core.access.rights import ANONYMOUS, Principal
from penstock_core.vocabulary.errors import Unavailable
from penstock_core.vocabulary.shares import share_left

SMALL_BYTES: Final = 16 << 10
"""Bytes of each body that are not counted."""


class HeldBytes:
    """The counted bytes of one request or one connection."""

    __slots__ = ("_buffers", "_user", "counted")

    def __init__(self, buffers: Buffers, user: str) -> None:
        self._buffers = buffers
        self._user = user
        """The user, or the host of an anonymous client, whose bytes are counted."""
        self.counted = 0
        """Number of counted bytes, without the first bytes of each request, which do not count."""

    def grow(self, size: int) -> None:
        """Count a request that has grown to ``size`` bytes. Raises ``Unavailable`` if the limits
        do not allow this size."""
        self.counted += self._buffers.take(self._user, size, self.counted)

    def fits(self, size: int) -> bool:
        """Count a request that has grown to ``size`` bytes, and return whether the limits allow
        this size. A size of 0 frees all bytes."""
        if not size:
            self.close()
        try:
            self.grow(size)
        except Unavailable:
            return False
        return True

    def close(self) -> None:
        """Free all counted bytes."""
        self._buffers.give_back(self._user, self.counted)
        self.counted = 0


class Buffers:
    """Counts the bytes of incomplete requests of all clients of a realm."""

    def __init__(self, bytes_max: int, small_bytes: int = SMALL_BYTES) -> None:
        """``small_bytes`` of each request are not counted."""
        self._bytes_max = bytes_max
        self._small_bytes = small_bytes
        self.held: Counter[str] = Counter()
        """Counted bytes by user."""

    def open(self, principal: Principal) -> HeldBytes:
        """Begin to count the bytes of a user's request. Anonymous clients are counted by host."""
        is_anonymous = principal.user == ANONYMOUS
        return HeldBytes(self, principal.name if is_anonymous else principal.user)

    @contextmanager
    def body(self, principal: Principal) -> Iterator[Callable[[int], None]]:
        """Count one body while the ``with`` block runs. Yield a function to call with the size that
        the body has reached, which raises ``Unavailable`` if the size is too large."""
        counted_bytes = self.open(principal)
        try:
            yield counted_bytes.grow
        finally:
            counted_bytes.close()

    def take(self, user: str, size: int, counted: int) -> int:
        """Count the bytes by which a user's request of ``size`` bytes exceeds its ``counted``
        bytes. Return their number. Raises ``Unavailable`` if the limits do not allow them."""
        more = max(0, size - self._small_bytes) - counted
        if more <= 0:
            return 0
        self._check(user, more)
        self.held[user] += more
        return more

    def give_back(self, user: str, size: int) -> None:
        if size:
            self.held[user] -= size
            # The entry is removed, because the counter would otherwise grow with each user and host
            # that was ever connected.
            if not self.held[user]:
                del self.held[user]

    def _check(self, user: str, more: int) -> None:
        """Raise ``Unavailable`` if ``more`` bytes exceed the total limit or the user's share."""
        used = self.held.total()
        if used + more > self._bytes_max:
            raise Unavailable("too many large requests at once; try again in a moment")
        if more > share_left(self._bytes_max, used, self.held[user]):
            raise Unavailable(
                f"too many large requests of {user} at once; wait for the answers to some of them"
            )
