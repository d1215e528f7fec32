"""Passwords given in the open: PLAIN, HTTP Basic, the console. Checked off the loop, and once."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from functools import partial
from typing import Any

from penstock_core.api.access import Verifier
from penstock_core.vocabulary.errors import ConnectionLost, SignInLocked
from penstock_core.vocabulary.ports import Offload
from penstock_core.wire.scram import is_right
from penstock_server.runtime.access.askers import Asker, asker

AT_ONCE = 2
"""Passwords being checked at the same time; others wait. Each takes a core for a while."""
WAITING_MAX = 64
"""Passwords from one host (of IPv6: one network of 64 bits) that wait or are being checked. Many
users may share a host, such as the gateway of a site."""
USER_WAITING_MAX = 4
"""Passwords of one user from one host: who guesses that of one user leaves room for the others
of the host."""
REMEMBERED = 1_000
"""Passwords that need not be computed again; as keyed digests, in memory only."""


class Passwords:
    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._free = AT_ONCE
        self._queues: dict[str, dict[asyncio.Future[None], None]] = {}
        """Callers that wait for a turn, the first one first, by host: hosts take turns, so that
        nobody waits for all of another host's."""
        self._waiting: Counter[str] = Counter()
        """Passwords that wait or are being checked, by host."""
        self._of_user: Counter[tuple[str, str]] = Counter()
        """Passwords of each user, by host and user."""

    async def is_right(
        self,
        password: str,
        known: Verifier,
        host: str = "",
        look_again: Callable[[], None] = lambda: None,
        *,
        user: str = "",
    ) -> bool:
        """Whether this is the password of the verifier, which is that of ``user``.

        ``look_again`` is called when a waiting check gets its turn, and raises if it is too late by
        then. Raises ``SignInLocked`` if too many checks from ``host`` wait, or of the user from
        there, and ``ConnectionLost`` if the client has disconnected before its turn.
        """
        # A changed password has another record, so what was remembered of the old one is void.
        seen = hmac.digest(self._key, known.stored_key + known.salt + password.encode(), "sha256")
        if seen in self._right:
            self._right.move_to_end(seen)
            return True
        pair = host, user
        if self._waiting[host] >= WAITING_MAX:
            raise _too_many(WAITING_MAX, "from this address")
        if self._of_user[pair] >= USER_WAITING_MAX:
            raise _too_many(USER_WAITING_MAX, "of this user from this address")
        self._waiting[host] += 1
        self._of_user[pair] += 1
        try:
            async with self._turn(asker.get(), host):
                look_again()
                found = await self._offload(lambda: is_right(password, known))
        finally:
            _count_down(self._waiting, host)
            _count_down(self._of_user, pair)
        if found:
            self._right[seen] = None
            if len(self._right) > REMEMBERED:
                self._right.popitem(last=False)
        return found

    @contextlib.asynccontextmanager
    async def _turn(self, wanted_by: Asker, host: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it. Raises ``ConnectionLost`` as soon as nobody waits."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(wanted_by, host)
        try:
            wanted_by.check()
            yield
        finally:
            self._give_on()

    async def _wait(self, wanted_by: Asker, host: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(host, {})[turn] = None
        stay = wanted_by.on_gone(partial(self._drop, turn, host))
        try:
            await turn
        except BaseException:
            self._leave(turn, host)
            if _was_given(turn):
                self._give_on()  # the turn came together with the cancellation
            raise
        finally:
            stay()
            del turn  # an error in it refers to this frame: a cycle

    def _drop(self, turn: asyncio.Future[None], host: str) -> None:
        if self._leave(turn, host):
            turn.set_exception(ConnectionLost("who has asked has hung up"))

    def _leave(self, turn: asyncio.Future[None], host: str) -> bool:
        """Take a caller out of the queue of its host; False: it has had its turn."""
        queue = self._queues.get(host, {})
        was_there = turn in queue
        queue.pop(turn, None)
        if not queue:
            self._queues.pop(host, None)
        return was_there

    def _give_on(self) -> None:
        """A turn is over: one of the host that has waited longest for one begins."""
        while self._queues:
            host = next(iter(self._queues))
            queue = self._queues.pop(host)
            turn = next(iter(queue))
            del queue[turn]
            if queue:
                self._queues[host] = queue  # behind the other hosts
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def _was_given(turn: asyncio.Future[None]) -> bool:
    return turn.done() and not turn.cancelled() and turn.exception() is None


def _too_many(most: int, whose: str) -> SignInLocked:
    return SignInLocked(
        f"{most} sign-ins {whose} are waiting, which is the limit; try again in 1 s", 1.0
    )


def _count_down(counts: Counter[Any], key: Hashable) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
