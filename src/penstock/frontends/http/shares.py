"""What each user has of what there is only so much of: live views, requests at once.

Nobody gets all of it, whatever number of addresses they come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.core.access.lockout import network_of
from penstock.core.access.rights import ANONYMOUS, Principal
from penstock.core.vocabulary.errors import LimitReached


class Shares:
    """The shares of all users in one limited thing."""

    def __init__(self, most: int, what: str, setting: str) -> None:
        """``most`` of it for one user; ``setting`` is where that is said."""
        self._most = most
        self._what = what
        self._setting = setting
        self._taken: Counter[str] = Counter()

    @contextmanager
    def one(self, principal: Principal) -> Iterator[None]:
        """Hold one. Raises ``LimitReached`` where its user has as many as one may have.

        Where authentication is off there are no users, and nobody is counted.
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
        """How many users hold something."""
        return len(self._taken)


def whose(principal: Principal) -> str:
    """Whom something counts for: those who do not say who they are, by where they come from."""
    if principal.user == ANONYMOUS:
        return f"{ANONYMOUS}@{network_of(principal.host)}"
    return principal.user
