"""Passwords given in the open: PLAIN, HTTP Basic, the console. Checked off the loop, and once."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable

from penstock.api.access import Verifier
from penstock.core.errors import SignInLocked
from penstock.core.ports import Offload
from penstock.wire.scram import is_right

AT_ONCE = 2
"""Passwords being checked at the same time; others wait. Each takes a core for a while."""
WAITING_MAX = 16
"""Passwords from one host (of IPv6: one network of 64 bits) that may wait for their turn: nobody
fills the queue that others stand in."""
REMEMBERED = 1_000
"""Passwords that need not be computed again; as keyed digests, in memory only."""


class Passwords:
    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting: Counter[str] = Counter()
        """Passwords that wait or are being checked, by where they come from."""

    async def is_right(
        self,
        password: str,
        known: Verifier,
        host: str = "",
        look_again: Callable[[], None] = lambda: None,
    ) -> bool:
        """Whether this is the password of the record. Whoever has waited for a turn is looked at
        again before it: ``look_again`` raises when it is too late. Raises ``SignInLocked`` where
        too many wait that come from ``host``."""
        # A changed password has another record, so what was remembered of the old one is void.
        seen = hmac.digest(self._key, known.stored_key + known.salt + password.encode(), "sha256")
        if seen in self._right:
            self._right.move_to_end(seen)
            return True
        if self._waiting[host] >= WAITING_MAX:
            raise SignInLocked("too many sign-ins from there wait already; try again in 1 s", 1.0)
        self._waiting[host] += 1
        try:
            async with self._turns:
                look_again()
                found = await self._offload(lambda: is_right(password, known))
        finally:
            self._waiting[host] -= 1
            if not self._waiting[host]:
                del self._waiting[host]
        if found:
            self._right[seen] = None
            if len(self._right) > REMEMBERED:
                self._right.popitem(last=False)
        return found
