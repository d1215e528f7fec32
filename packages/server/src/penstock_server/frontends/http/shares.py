"""Limits how much of a scarce resource each user has: live views, requests in progress.

Nobody gets all of it, from however many addresses they connect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from penstock_core.access.lockout import network_of
from penstock_core.access.rights import ANONYMOUS, Principal
from penstock_core.vocabulary.errors import LimitReached


class Shares:
    """The shares of all users in one resource."""

    def __init__(self, most: int, what: str, setting: str) -> None:
        """``most`` is the limit for one user; ``setting`` names the setting that says so."""
        self._most = most
        self._what = what
        self._setting = setting
        self._taken: Counter[str] = Counter()

    @contextmanager
    def one(self, principal: Principal) -> Iterator[None]:
        """Hold one share. Raises ``LimitReached`` if the user already has the most.

        Where authentication is off there are no users, and nothing is counted.
        """
        if principal.trusted:
            yield
            return
        user = whose(principal)
        if self._taken[user] >= self._most:
            raise LimitReached(
                f"{user} has {self._most} {self._what}, and more are not allowed "
                f"({self._setting}); close one, or wait until one is over"
            )
        self._taken[user] += 1
        try:
            yield
        finally:
            self._taken[user] -= 1
            if not self._taken[user]:
                del self._taken[user]

    def __len__(self) -> int:
        """How many users hold a share."""
        return len(self._taken)


def whose(principal: Principal) -> str:
    """Whom a share counts for: anonymous clients by the network they come from, others by user."""
    if principal.user == ANONYMOUS:
        return f"{ANONYMOUS}@{network_of(principal.host)}"
    return principal.user
