"""Passwords given in the open: PLAIN, HTTP Basic, the console. Checked off the loop, and once."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import OrderedDict

from penstock.core.ports import Offload
from penstock.wire.scram import Verifier, is_right

AT_ONCE = 2
"""Passwords being checked at the same time; others wait. Each takes a core for a while."""
REMEMBERED = 1_000
"""Passwords that need not be computed again; as keyed digests, in memory only."""


class Passwords:
    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def is_right(self, password: str, known: Verifier) -> bool:
        """Whether this is the password of the record."""
        # A changed password has another record, so what was remembered of the old one is void.
        seen = hmac.digest(self._key, known.stored_key + known.salt + password.encode(), "sha256")
        if seen in self._right:
            self._right.move_to_end(seen)
            return True
        async with self._turns:
            found = await self._offload(lambda: is_right(password, known))
        if found:
            self._right[seen] = None
            if len(self._right) > REMEMBERED:
                self._right.popitem(last=False)
        return found
