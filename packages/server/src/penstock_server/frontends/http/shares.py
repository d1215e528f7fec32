"""Limits each user's share of a scarce resource, such as live views and requests in progress.

The limit applies to a user, so it cannot be avoided by connecting from many addresses.
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
        """``most`` is the limit of one user; ``what`` describes the resource and ``setting`` is the
        setting of the limit, both for error texts."""
        self._most = most
        self._what = what
        self._setting = setting
        self._in_use: Counter[str] = Counter()

    @contextmanager
    def one(self, principal: Principal) -> Iterator[None]:
        """Count one share of a user while the ``with`` block runs. Raises ``LimitReached`` if the
        user has reached the limit.

        Without authentication, requests have no users and are not counted.
        """
        if principal.trusted:
            yield
            return
        user = whose(principal)
        if self._in_use[user] >= self._most:
            raise LimitReached(
                f"{user} already has {self._most} {self._what}, which is the limit "
                f"({self._setting}); close one, or wait until one ends"
            )
        self._in_use[user] += 1
        try:
            yield
        finally:
            self._in_use[user] -= 1
            if not self._in_use[user]:
                del self._in_use[user]

    def __len__(self) -> int:
        """Return the number of users with a share in use."""
        return len(self._in_use)


def whose(principal: Principal) -> str:
    """Return the key under which a share is counted: the network of anonymous clients, the user
    name of others."""
    if principal.user == ANONYMOUS:
        return f"{ANONYMOUS}@{network_of(principal.host)}"
    return principal.user
