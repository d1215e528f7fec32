"""Checks of plain-text passwords (PLAIN, HTTP Basic, the console's form), outside the event loop.

Correct passwords are remembered, because each check derives a key and so uses a processor for a
while.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from penstock_core.api.access import Verifier
from penstock_core.vocabulary.errors import ConnectionLost, SignInLocked
from penstock_core.vocabulary.ports import Offload
from penstock_core.wire.scram import is_right
from penstock_server.runtime.access.askers import Asker, asker

V = TypeVar("V")

CONCURRENT_MAX = 2
"""Largest number of passwords that are checked at the same time, because each check keeps a
CPU core busy. Further checks wait."""
WAITING_MAX = 64
"""Largest number of passwords from one host (for IPv6: from a network of 64 bits) that wait or are
being checked. Many users may share a host, such as the gateway of a site."""
USER_WAITING_MAX = 4
"""Largest number of passwords of one user from one host that wait or are being checked, so that
guesses at one user's password do not stop other users of the host."""
REMEMBERED = 1_000
"""Largest number of correct passwords that are remembered. They are in memory only, as keyed
digests."""


class RightPasswords(Generic[V]):
    """Remembers the passwords that were right last, by keyed digests, with a value for each."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._key = secrets.token_bytes(32)
        self._values: OrderedDict[bytes, V] = OrderedDict()

    def digest_of(self, content: bytes) -> bytes:
        """Return the digest of ``content``: a password with the data that it belongs to, such as
        the name of its user."""
        return hmac.digest(self._key, content, "sha256")

    def get(self, digest: bytes) -> V | None:
        """Return the value of a password; None if it is not remembered."""
        if digest in self._values:
            self._values.move_to_end(digest)
        return self._values.get(digest)

    def add(self, digest: bytes, value: V) -> None:
        """Remember a password. Beyond the limit, the one that was used least recently is
        forgotten."""
        self._values[digest] = value
        self._values.move_to_end(digest)
        if len(self._values) > self._count_max:
            self._values.popitem(last=False)

    def clear(self) -> None:
        """Forget all passwords."""
        self._values.clear()


class SignInTurns:
    """Gives each check of a password a turn."""

    def __init__(self, concurrent_max: int) -> None:
        self.free = concurrent_max
        """Number of checks that may start now."""
        self.queues: dict[str, dict[asyncio.Future[None], None]] = {}
        """Waiting checks in order of arrival, by host. Hosts take turns, so that a host with many
        checks does not delay the others."""
        self.waiting: Counter[str] = Counter()
        """Number of passwords that wait or are being checked, by host."""
        self._of_user: Counter[tuple[str, str]] = Counter()
        """Number of passwords that wait or are being checked, by host and user."""

    @contextlib.asynccontextmanager
    async def turn(self, host: str, user: str) -> AsyncIterator[None]:
        """Wait for a turn to check a password of ``user`` from ``host``, and hold it for the
        ``async with`` block.

        Raises ``SignInLocked`` if too many checks wait from ``host``, or of this user from
        ``host``, and ``ConnectionLost`` if the client disconnects before its turn.
        """
        pair = host, user
        if self.waiting[host] >= WAITING_MAX:
            raise _too_many(WAITING_MAX, "from this address")
        if self._of_user[pair] >= USER_WAITING_MAX:
            raise _too_many(USER_WAITING_MAX, "of this user from this address")
        # Counted from here on, because waiting checks use memory and delay others of the host.
        self.waiting[host] += 1
        self._of_user[pair] += 1
        try:
            async with self._turn(asker.get(), host):
                yield
        finally:
            _count_down(self.waiting, host)
            _count_down(self._of_user, pair)

    @contextlib.asynccontextmanager
    async def _turn(self, requester: Asker, host: str) -> AsyncIterator[None]:
        """Wait for a turn, and hold it for the ``async with`` block. Raises ``ConnectionLost`` as
        soon as the client disconnects."""
        if self.free:
            self.free -= 1
        else:
            await self._wait(requester, host)
        try:
            requester.check()  # the client may have disconnected when the turn was granted
            yield
        finally:
            self._pass_turn()

    async def _wait(self, requester: Asker, host: str) -> None:
        """Wait until the check gets its turn, or the client disconnects."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queues.setdefault(host, {})[turn] = None
        remove_listener = requester.on_gone(partial(self._drop, turn, host))
        try:
            await turn
        except BaseException:
            self._dequeue(turn, host)
            if _was_granted(turn):
                self._pass_turn()  # the turn was granted just before the cancellation
            raise
        finally:
            remove_listener()
            del turn  # its exception refers to this frame, which would be a reference cycle

    def _drop(self, turn: asyncio.Future[None], host: str) -> None:
        """Cancel a waiting check, because its client has disconnected."""
        if self._dequeue(turn, host):
            turn.set_exception(ConnectionLost("the requesting client disconnected"))

    def _dequeue(self, turn: asyncio.Future[None], host: str) -> bool:
        """Remove a waiting check from the queue of its host; False if it was not in the queue."""
        queue = self.queues.get(host, {})
        was_queued = turn in queue
        queue.pop(turn, None)
        if not queue:
            self.queues.pop(host, None)
        return was_queued

    def _pass_turn(self) -> None:
        """Pass a finished turn to the first check of the host that has waited longest."""
        while self.queues:
            host = next(iter(self.queues))
            queue = self.queues.pop(host)
            turn = next(iter(queue))
            del queue[turn]
            if queue:
                self.queues[host] = queue  # round robin: now the last of the hosts
            # A cancelled check leaves the queue only when its task runs; it must not take the turn.
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1


class Passwords(SignInTurns):
    """Checks plain-text passwords, a few at a time and fairly between hosts."""

    def __init__(self, offload: Offload) -> None:
        super().__init__(CONCURRENT_MAX)
        self.offload = offload
        """Runs a check outside the loop."""
        self._right: RightPasswords[bool] = RightPasswords(REMEMBERED)

    async def is_right(
        self,
        password: str,
        verifier: Verifier,
        host: str = "",
        recheck: Callable[[], None] = lambda: None,
        *,
        user: str = "",
    ) -> bool:
        """Return whether ``password`` matches ``verifier``, which belongs to ``user``.

        ``recheck`` is called when a waiting check gets its turn, and raises an error if the user
        was locked out during the wait. Raises ``SignInLocked`` if too many checks wait from
        ``host``, or of this user from ``host``, and ``ConnectionLost`` if the client disconnects
        before its turn.
        """
        # The digest includes the verifier, so a changed password invalidates remembered ones.
        verifier_bytes = verifier.stored_key + verifier.salt
        digest = self._right.digest_of(verifier_bytes + password.encode())
        if self._right.get(digest):
            return True
        async with self.turn(host, user):
            recheck()
            matches = await self.offload(lambda: is_right(password, verifier))
        if matches:
            self._right.add(digest, value=True)
        return matches


def _was_granted(turn: asyncio.Future[None]) -> bool:
    return turn.done() and not turn.cancelled() and turn.exception() is None


def _too_many(limit: int, origin: str) -> SignInLocked:
    """Return the error for too many checks at the same time."""
    return SignInLocked(
        f"{limit} sign-ins {origin} are waiting or being checked, which is the limit; try again "
        "in 1 s",
        1.0,
    )


def _count_down(counts: Counter[Any], key: Hashable) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
