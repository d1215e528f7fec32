"""Passwords given in the open: PLAIN, HTTP Basic, the console. Checked off the loop, and once."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable

from penstock.api.access import Verifier
from penstock.core.vocabulary.errors import ConnectionLost, SignInLocked
from penstock.core.vocabulary.ports import Offload
from penstock.runtime.access.askers import Asker, asker
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
        self._free = AT_ONCE
        self._queue: dict[asyncio.Future[None], None] = {}
        """Callers that wait for a turn, the first one first."""
        self._waiting: Counter[str] = Counter()
        """Passwords that wait or are being checked, by host."""

    async def is_right(
        self,
        password: str,
        known: Verifier,
        host: str = "",
        look_again: Callable[[], None] = lambda: None,
    ) -> bool:
        """Whether this is the password of the verifier.

        ``look_again`` is called when a waiting check gets its turn, and raises if it is too late by
        then. Raises ``SignInLocked`` if too many checks from ``host`` wait, and ``ConnectionLost``
        if the client has disconnected before its turn.
        """
        # A changed password has another record, so what was remembered of the old one is void.
        seen = hmac.digest(self._key, known.stored_key + known.salt + password.encode(), "sha256")
        if seen in self._right:
            self._right.move_to_end(seen)
            return True
        if self._waiting[host] >= WAITING_MAX:
            raise SignInLocked(
                "too many sign-ins from this address are waiting; try again in 1 s", 1.0
            )
        self._waiting[host] += 1
        try:
            async with self._turn(asker.get()):
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

    @contextlib.asynccontextmanager
    async def _turn(self, wanted_by: Asker) -> AsyncIterator[None]:
        """Wait for a turn, and have it. Raises ``ConnectionLost`` as soon as nobody waits."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(wanted_by)
        try:
            wanted_by.check()
            yield
        finally:
            self._give_on()

    async def _wait(self, wanted_by: Asker) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue[turn] = None
        stay = wanted_by.on_gone(lambda: self._drop(turn))
        try:
            await turn
        except BaseException:
            self._queue.pop(turn, None)
            if _was_given(turn):
                self._give_on()  # the turn came together with the cancellation
            raise
        finally:
            stay()

    def _drop(self, turn: asyncio.Future[None]) -> None:
        if turn in self._queue:
            del self._queue[turn]
            turn.set_exception(ConnectionLost("who has asked has hung up"))

    def _give_on(self) -> None:
        """A turn is over: the next one's begins."""
        while self._queue:
            turn = next(iter(self._queue))
            del self._queue[turn]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def _was_given(turn: asyncio.Future[None]) -> bool:
    return turn.done() and not turn.cancelled() and turn.exception() is None
